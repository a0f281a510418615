#!/bin/sh
# bench.sh -- every section prints rows with the promised keys; nothing about speed is judged here.
. "$(dirname "$0")/lib.sh"
expect 2 "filter 'nope*' matches no kernel" bench --only kernels --filter 'nope*' --seconds 0.001
expect 0 '' bench --only kernels --filter '*ref*' --seconds 0.001 --json -q
says '"op": "linear"'
head -1 out | grep -q '^{.*"kernel".*"ms".*"gflops".*"min".*"max".*"n".*"peer".*}$' && pass || fail 'one object a line' "$(head -1 out)"
expect 0 '' bench -m "$model" --only whole --filter 'generate int8' --seconds 0.001 -q
says 'generate'
says 'int8'
grep -qE 'bf16|fp8' out && fail 'a filter of whole runs' "$(cat out)" || pass
expect 2 "filter 'nope' matches no kernel and no run" bench -m "$model" --only whole --filter nope -q
expect 0 '' bench -m "$model" --only layers --quantization int8 --seconds 0.001 --json -q
says '"op": "layer"'
says '"dtype": "int8_channel"'
expect 2 'bench of layers needs a model' bench --only layers
expect 2 'only must be one of kernels,layers,whole,blocks' bench --only x
expect 1 'tools/dev/peer is not here' bench -m "$model" --compare --only kernels --filter none
# --compare: a peer of three lines that takes a millisecond for everything
mkdir -p tools/dev
cat > tools/dev/peer << 'END'
#!/bin/sh
while read -r word rest; do case $word in turn) echo '{"ms": 1.0}' ;; *) echo '{"peer": "slate"}' ;; esac; done
END
chmod +x tools/dev/peer
expect 0 '' bench --compare --only kernels --filter group_norm --seconds 0.001 --json -q --threads 1
head -1 out | grep -q '^{.*"kernel": "group_norm".*"threads": 1.*"peer": "slate".*"peer_ms": 1.*"ratio".*"ratio_low".*"ratio_high".*"n": 15' &&
    pass || fail 'a row has both times, the ratio and its spread' "$(head -1 out)"
expect 0 '' bench --compare --only blocks --filter z-image --json -q
grep -q '"op": "step".*"peer_ms": 32\.0' out && pass || fail "a step beside the peer's: its layers times the peer's block" "$(cat out)"
expect 2 "filter 'nope' matches no kernel" bench --compare --only kernels --filter nope --seconds 0.001 -q
expect 2 'compares kernels, blocks, formats and whole, not layers' bench --compare --only layers -m "$model"
expect 2 'bench of formats compares them with their peers' bench --only formats
expect 0 '' bench --compare --only formats --filter 'mxfp4_gguf ggml' --seconds 0.001 --json -q --threads 1
grep -q '"dtype": "mxfp4_gguf".*"peer": "slate"' out && [ "$(wc -l < out)" = 1 ] && pass || fail 'a format beside one peer' "$(cat out)"
sed -i 's/case $word in/case $word in ggml) echo "{\\"absent\\": \\"no chalk\\"}" ;;/' tools/dev/peer
expect 0 "the peer has no 'ggml 512 2048 4096 mxfp4_gguf': no chalk" bench --compare --only formats --filter mxfp4_gguf --seconds 0.001 --threads 1
says 'own bf16'
printf '#!/bin/sh\nread -r order\necho "{\\"error\\": \\"out of chalk\\"}"\n' > tools/dev/peer
expect 1 "tools/dev/peer at 'threads 1': out of chalk" bench --compare --only kernels --threads 1 -q
printf '#!/bin/sh\nexit 3\n' > tools/dev/peer
expect 1 'tools/dev/peer' bench --compare --only kernels --threads 1 -q
rm -r tools
# a step of the whole transformer: so many times its block
# and each case is said as it ends: it takes seconds
expect 0 'bench: block z-image, 32 of them bf16' bench --only blocks --filter z-image --json
tr '{' '\n' < out | sed -n 's/.*"op": *"\([a-z]*\)".*"ms": *\([0-9.e+]*\).*/\1 \2/p' > rows
awk '$1 == "block" { block[++b] = $2 } $1 == "step" { step[++s] = $2 } END { for (i = 1; i <= 2; i++) d = d || step[i] / block[i] - 32 > 1e-6 || step[i] / block[i] - 32 < -1e-6; exit !(b == 2 && s == 2 && !d) }' rows &&
    pass || fail 'a step is its layers times their block' "$(cat rows)"
finish
