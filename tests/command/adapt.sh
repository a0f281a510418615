#!/bin/sh
# adapt.sh -- what a request adds to a model: an image to begin with, adapters of low rank; what is refused.
. "$(dirname "$0")/lib.sh"
quick="-W 64 -H 64 --steps 4 -q"
# shellcheck disable=SC2086
generate() { expect 0 '' generate -m "$model" -p "a small blue star" $quick -s 7 "$@"; }
# shellcheck disable=SC2086
refuse() { expect "$1" "$2" generate -m "$model" -p x $quick -o no.png $3 $4 $5 $6; }

# ---- an image
generate -o plain.png
generate -o from.png --image plain.png --strength 0.5
cmp -s plain.png from.png && fail 'an image changes the picture' || pass
generate -o again.png --image plain.png --strength 0.5
check 'the same image and seed give the same file' cmp from.png again.png
run generate -m "$model" -p "a star" --steps 4 -q -s 7 -o sized.png --image plain.png
says 'sized.png: 64x64'
refuse 2 "strength has no effect without a picture" --strength 0.5
refuse 2 'strength 0 leaves none of 4 steps to run' --image plain.png --strength 0
refuse 2 'strength must be from 0 to 1' --image plain.png --strength 1.5
refuse 2 '2 images are given, z-image' --image plain.png --image plain.png
refuse 1 'none.png' --image none.png
refuse 2 "'true-cfg-scale' is given, which z-image" --true-cfg-scale 2
check 'nothing is written by a refused request' test ! -e no.png

# ---- adapters: [rank 1] of layers.0.attention.to_out.0, all weights 0.25
dim=$(sed -n 's/.*"dim": *\([0-9]*\).*/\1/p' "$model/transformer/config.json")
adapter() { # FILE NAME K END_A END_B
    bytes=$((2 * $3))
    header=$(printf '{"%s%s":{"dtype":"BF16","shape":[1,%d],"data_offsets":[0,%d]},"%s%s":{"dtype":"BF16","shape":[%d,1],"data_offsets":[%d,%d]}}' \
        "$2" "$4" "$3" $bytes "$2" "$5" "$3" $bytes $((2 * bytes)))
    n=$(printf '%s' "$header" | wc -c)
    # shellcheck disable=SC2059
    { printf "\\$(printf %03o $((n % 256)))\\$(printf %03o $((n / 256)))\0\0\0\0\0\0"; printf '%s' "$header"
      i=0; while [ $i -lt $((2 * $3)) ]; do printf '\200\076'; i=$((i + 1)); done; } > "$1"
}
adapter one.safetensors transformer.layers.0.attention.to_out.0 "$dim" .lora_A.weight .lora_B.weight
adapter kohya.safetensors lora_unet_layers_0_attention_to_out_0 "$dim" .lora_down.weight .lora_up.weight
adapter dora.safetensors transformer.layers.0.attention.to_out.0 "$dim" .lora_A.weight .lora_magnitude_vector
adapter other.safetensors transformer.layers.0.nowhere "$dim" .lora_A.weight .lora_B.weight
adapter shape.safetensors transformer.layers.0.attention.to_out.0 8 .lora_A.weight .lora_B.weight
generate -o with.png --lora one.safetensors
cmp -s plain.png with.png && fail 'an adapter changes the picture' || pass
generate -o kohya.png --lora kohya.safetensors
generate -o none.png --lora one.safetensors:0
generate -o q.png --quantization mxfp4
generate -o qwith.png --quantization mxfp4 --lora one.safetensors:0.5 --lora kohya.safetensors:0.5
cmp -s q.png qwith.png && fail 'an adapter changes the picture of 4-bit weights' || pass
refuse 1 "none of its 2 tensors fits a layer of this model (the first is 'transformer.layers.0.nowhere.lora_A.weight')" --lora other.safetensors
refuse 1 'another kind (DoRA)' --lora dora.safetensors
refuse 1 'the layer takes' --lora shape.safetensors
refuse 2 "'x' is no scale" --lora one.safetensors:x
refuse 1 'missing.safetensors' --lora missing.safetensors
finish
