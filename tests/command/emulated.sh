#!/bin/sh
# emulated.sh OMNIQ EMULATED -- a small picture by a command for another processor, under its emulator, beside the picture of
# plain C here: rounding apart, the same one. `make arm` builds the other; .ci/run calls this.
. "$(dirname "$0")/lib.sh"
case $2 in /*) emulated=$2 ;; *) emulated=$OLDPWD/$2 ;; esac
draw() { # COMMAND OUT ARGUMENTS...
    command=$1 out=$2
    shift 2
    "$command" generate -m "$model" -p 'a large red ring' -W 64 -H 64 --steps 1 -s 1 -q -o "$out" "$@"
}
close() { # NAME LEAST
    check "$1: made by EMULATED" test -s "$1-there.png"
    expect 0 '' compare "$1-here.png" "$1-there.png"
    check "$1: $(grep -o 'PSNR [0-9.]*' out) dB, at least $2" awk -v least="$2" '/PSNR/ { sub(/.*PSNR /, ""); exit !($1 >= least) }' out
    echo "$1: $(grep -o 'PSNR [0-9.]* dB' out)"
}
for method in none int8; do
    draw "$omniq" $method-here.png --quantization $method --cpu ref
    draw "$emulated" $method-there.png --quantization $method --cpu bf16
    close $method 34
done
finish
