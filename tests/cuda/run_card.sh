#!/bin/sh
# run_card.sh -- everything about the CUDA backend that needs a card, in one go: build (unless BUILD has ccheck), check,
# sanitize, measure, peers. Writes to $OUT (default: out/card).
#   BUILD=build-cuda STEPS="check sanitize bench pipeline peers" tests/cuda/run_card.sh
# PEERS names a script that prints torch's figures for the same shapes (optional).
set -u
BUILD=${BUILD:-build-cuda} OUT=${OUT:-out/card} STEPS=${STEPS:-check sanitize bench pipeline}
mkdir -p "$OUT"
if [ ! -x "$BUILD/ccheck" ]; then
    cmake -S . -B "$BUILD" -DOMNIQ_CUDA=ON "-DOMNIQ_CUDA_ARCHITECTURES=${ARCHITECTURES:-90a-real}" >"$OUT/build.log" 2>&1 &&
        cmake --build "$BUILD" -j "$(nproc)" >>"$OUT/build.log" 2>&1 || { tail -30 "$OUT/build.log"; exit 1; }
fi
nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
status=0
for step in $STEPS; do
    echo "== $step"
    case $step in
    check) "$BUILD/ccheck" >"$OUT/check.txt" 2>&1 || status=1; grep -v '"failed":0' "$OUT/check.txt" | head -60 ;;
    parity) python3 tests/cuda/parity_card.py "$BUILD/omniq" models/toybox 25 | tee "$OUT/parity.txt" || status=1 ;;
    sanitize)
        # cuBLASLt's own kernels are left out of racecheck: it reports hazards in them, and takes minutes
        for tool in memcheck "racecheck --kernel-name-exclude kernel_substring=nvjet"; do
            for i in $(seq 0 7); do
                # shellcheck disable=SC2086
                timeout 300 compute-sanitizer --report-api-errors no --tool $tool "$BUILD/ccheck" --brief --part "$i/8" >"$OUT/${tool%% *}$i.txt" 2>&1 &
            done
            wait
            grep -h "SUMMARY" "$OUT/${tool%% *}"?.txt | sort | uniq -c
            grep -qh "SUMMARY: [1-9]" "$OUT/${tool%% *}"?.txt && status=1
        done ;;
    bench) OMNIQ_CUDA=tune "$BUILD/ccheck" --bench-ms 20 | tee "$OUT/bench.txt" ;;
    pipeline)
        for q in none fp8 int8; do
            flags=; [ $q = none ] || flags="--quantization $q"
            # shellcheck disable=SC2086
            "$BUILD/omniq" generate -m models/toybox -p "a large red ball to the left of a small blue star" --seed 1 \
                --device cuda $flags -o "$OUT/toybox-$q.png" 2>&1 | tail -4 || status=1
        done ;;
    peers) [ -z "${PEERS:-}" ] || python3 "$PEERS" ${PEER_FLAGS:-} >"$OUT/peers.txt" 2>&1; tail -40 "$OUT/peers.txt" ;;
    esac
done
exit $status
