#!/bin/sh
# quality.sh -- what a method's arithmetic costs on the shipped model, transformer alone in fp32, over six prompts. The
# figures beside each method were measured with an independent implementation in torch (98 linear layers quantized as
# described, everything else plain); ours must land within 4 dB of their mean. Better is as suspicious as worse.
# And the error of single layers must not depend on which kernel runs. kcheck compares kernels on equal operands; here
# each level computes its own way to a layer's input, which moves an SNR over 96 rows by up to 0.25 dB: 0.5 is asked.
. "$(dirname "$0")/lib.sh"

while IFS='|' read -r seed prompt; do
    expect 0 '' generate -m "$model" -p "$prompt" -s "$seed" --dtype fp32 -q -o "plain_$seed.png"
done << 'END'
42|a large red ball to the left of a small blue star on a cream background
7|a small striped green triangle above a large yellow heart on a white background
1|a large dotted orange square to the right of a small teal ring on a navy background
2|a small pink diamond below a large gray cross on a mint background
3|a large purple heart to the left of a small yellow ball on a white background
4|a small black star above a large striped red square on a gray background
END

band() { # NAME SPEC EXPECTED-MEAN-PSNR
    : > psnr
    for seed in 42 7 1 2 3 4; do
        expect 0 '' generate --from plain_$seed.png --quantization "{\"transformer\":$2}" -q -o candidate.png
        expect 0 '' compare plain_$seed.png candidate.png --json
        sed 's/.*"all_images_metrics": {[^}]*"psnr_db": \([0-9.]*\).*/\1/' out >> psnr
    done
    mean=$(awk '{ sum += $1 } END { printf "%.2f", sum / NR }' psnr)
    echo "$1: mean PSNR $mean dB over $(wc -l < psnr) prompts, independent figure $3"
    awk -v a="$mean" -v b="$3" 'BEGIN { exit !(a > b - 4 && a < b + 4) }' && pass ||
        fail "$1: mean PSNR $mean dB, expected $3 within 4" "$(tr '\n' ' ' < psnr)"
}
band 'fp8 per tensor' '{"method":"fp8"}' 44.05
band 'fp8 per channel' '{"method":"fp8","weight_strategy":"channel"}' 40.05
band 'fp8 128x128' '{"method":"fp8","weight_strategy":"block"}' 40.86
band 'int8' '{"method":"int8"}' 50.88

# layer errors: NAME SNR a line
layers() { # SPEC LEVEL
    "$omniq" compare -m "$model" -p 'a large red ring' -W 128 -H 128 --steps 1 --dtype fp32 -q --layers \
        --candidate-quantization "{\"transformer\":$1}" --cpu "$2" --json | tr '{' '\n' |
        sed -n 's/.*"component": "\([a-z_]*\)", "name": "\([^"]*\)".*"snr_db": \([-0-9.]*\).*/\1.\2 \3/p'
}
for spec in '{"method":"fp8"}' '{"method":"fp8","weight_strategy":"block"}' '{"method":"int8"}'; do
    layers "$spec" auto > fast
    layers "$spec" ref > slow
    difference=$(paste -d' ' fast slow | awk '$1 != $3 { print "names differ: " $1 " " $3; exit }
        { d = $2 - $4; if (d < 0) d = -d; if (d > worst) { worst = d; at = $1 } n++ }
        END { printf "%.3f dB at %s of %d layers\n", worst, at, n }')
    echo "$spec: layer SNR of the fast kernels against the reference: at most $difference"
    echo "$difference" | awk '{ exit !($2 == "dB" && $1 <= 0.5 && $6 >= 50) }' && pass || fail "$spec: layer SNR" "$difference"
done
finish
