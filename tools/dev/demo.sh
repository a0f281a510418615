#!/bin/sh
# demo.sh OMNIQ OUT -- the main job on the shipped model. Exit status: 0 when both comparisons pass the strict policy.
set -eu
omniq=$1 out=$2
model=models/toybox
prompt='a large red ball to the left of a small blue star on a cream background'
seed=42
mkdir -p "$out"
report=$out/report.txt

say() { printf '\n== %s\n' "$*"; }

generate() { # NAME QUANTIZATION
    say "$1: the picture, seed $seed"
    "$omniq" generate -m $model -p "$prompt" -s $seed --quantization "$2" -o "$out/$1.png" ${3:+"$3"}
}

compare() { # NAME
    say "bf16 against $1"
    status=0
    "$omniq" compare "$out/bf16.png" "$out/$1.png" --policy strict --output-json "$out/$1.json" \
        --save-output-dir "$out/bf16-$1" > "$out/$1.txt" || status=$?
    cat "$out/$1.txt"
    { echo "bf16 against $1"; cat "$out/$1.txt"; echo; } >> "$report"
    # 3 is a missed policy: worth showing the rest of the demo before failing
    [ $status = 0 ] || [ $status = 3 ] || exit $status
    [ $status = 0 ] || missed="$missed $1"
}

missed=''
say "plan: what fp8 would do to each layer"
"$omniq" plan -m $model --quantization fp8 > "$out/plan.txt"
cat "$out/plan.txt"
{ "$omniq" --version; echo "prompt: $prompt"; echo "seed: $seed"; echo; } > "$report"

show=''
[ -t 1 ] && show=--show
generate bf16 none "$show"
generate fp8 fp8
generate int8 int8
compare fp8
compare int8

say "files"
echo "pictures: $out/bf16.png $out/fp8.png $out/int8.png"
echo "side by side, with the difference eightfold: $out/bf16-fp8/side_by_side_0.png $out/bf16-int8/side_by_side_0.png"
echo "report: $report (and $out/fp8.json, $out/int8.json, $out/plan.txt)"
[ -z "$missed" ] || { echo "missed the strict policy:$missed" >&2; exit 3; }
