#!/bin/sh
# memory.sh -- the process takes what the plan prints: peak resident memory <= weights + scratch + the largest temporary
# while loading + 32 MiB, and weights that stay as they are in the file take at most 5 % more than the file.
. "$(dirname "$0")/lib.sh"

number() { # KEY FILE -- the first value of that key
    sed "s/.*\"$1\": \([0-9]*\).*/\1/" "$2"
}

peak() { # SPEC SIZE TILE
    set -- "$1" "$2" -m "$model" -p 'a small blue star' -W "$2" -H "$2" --steps 1 --quantization "$1" --vae-tile "${3:-0}" --json -q
    spec=$1 size=$2
    shift 2
    run plan "$@" && load=$(number load_bytes out)
    run generate "$@" -o picture.png
    limit=$(($(number weights_bytes out) + $(number scratch_bytes out) + load + 32 * 1024 * 1024))
    have=$(number peak_rss_bytes out)
    echo "$spec at $size: peak $have bytes, planned $limit with 32 MiB to spare"
    [ "$have" -le "$limit" ] && pass || fail "$spec at $size: peak memory" "$have bytes, the plan allows $limit"
}
for spec in none fp8 int8; do
    peak "$spec" 256
done
peak none 512
whole=$have
peak none 512 64
[ "$have" -lt "$whole" ] && pass || fail 'the autoencoder in bands takes less memory' "$have and $whole bytes"

# Linear layers of a BF16 run: two bytes a weight and little else.
run plan -m "$model" --json -q
tr '{' '\n' < out | sed -n 's/.*"n": \([0-9]*\), "k": \([0-9]*\), .*/\1 \2/p' > shapes
tr '{' '\n' < out | sed -n 's/.*"kernel": "linear_wbf16[^"]*", "fused": \[[^]]*\], "bytes": \([0-9]*\), .*/\1/p' > bytes
paste -d' ' shapes bytes | awk '$2 >= 128 { file += $1 * $2 * 2; rest += $3 } END { printf "%d layers, %.3f times the file\n", NR, rest / file; exit !(NR > 80 && rest <= 1.05 * file) }' > ratio
[ $? = 0 ] && pass || fail 'BF16 layers at rest' "$(cat ratio)"
cat ratio
finish
