#!/bin/sh
# attention.sh -- runtime attention quantization: what plan says, what generate and compare do, every refusal.
. "$(dirname "$0")/lib.sh"
prompt='a large red ball to the left of a small blue star on a cream background'
quick="-W 64 -H 64 --steps 3 -q -s 5"

# the plan says what applies
expect 0 '' plan -m "$model" --attention-quantization fp8 --attention-skip-steps 0-1 --attention-skip-layers 0,11
says 'attention: fp8 in 10 of 14 layers, plain in steps 0-1'
says 'layers.0.attention (skip_layers), layers.11.attention (skip_layers)'
says 'noise_refiner.0.attention (skip_layers)'
says 'context_refiner.0.attention (attends once, before the steps)'
expect 0 '' plan -m "$model" --diffusion-kv-cache-dtype mxfp8 --diffusion-kv-cache-skip-steps 7 --json
says '"precision": "mxfp8"'
says '"plain_steps": "7"'
says 'attention_online'
expect 0 '' plan -m "$model" --quantization '{"transformer":{"method":"int8","attention":{"dtype":"mxfp4","skip_layers":"0"}}}'
says 'attention: mxfp4 in'
says 'int8_channel'
expect 0 '' plan -m "$model" --attention-quantization none
if grep -q 'attention:' out; then fail "none is no attention quantization" "$(grep attention: out)"; else pass; fi

# pictures: plain steps are plain bit for bit, quantized ones are not
expect 0 '' generate -m "$model" -p "$prompt" $quick -o plain.png
expect 0 '' generate -m "$model" -p "$prompt" $quick --attention-quantization mxfp4 -o mxfp4.png
expect 0 '' generate -m "$model" -p "$prompt" $quick --attention-quantization mxfp4 --attention-skip-steps 0-2 -o kept.png
expect 0 '' compare plain.png kept.png
says 'PSNR inf dB'
expect 0 '' compare plain.png mxfp4.png
if grep -q 'PSNR inf' out; then fail "mxfp4 attention changes nothing" "$(cat out)"; else pass; fi
expect 0 '' generate --from mxfp4.png -m "$model" -q -o again.png
expect 0 '' compare mxfp4.png again.png
says 'PSNR inf dB'

# close, in the order of the precisions
echo '{"psnr_db":{"min":40}}' > near.json
echo '{"psnr_db":{"min":24}}' > far.json
for precision in fp8 mxfp8; do
    expect 0 '' compare -m "$model" -p "$prompt" -s 1 --candidate-attention-quantization $precision --policy near.json -q
done
expect 0 '' compare -m "$model" -p "$prompt" -s 1 --attention-quantization mxfp4 --policy far.json -q
expect 3 '' compare -m "$model" -p "$prompt" -s 1 --attention-quantization mxfp4 --policy near.json -q
expect 0 '' compare -m "$model" -p "$prompt" -s 1 --quantization fp8 --attention-quantization fp8 --policy far.json -q

# chosen blocks need a large picture; a layer of caption tokens alone stays out
expect 0 '' plan -m "$model" -W 1024 -H 1024 --attention-sparsity 0.7 --attention-sparse-steps 1- --attention-sparse-skip-layers 0 --attention-quantization fp8
says 'attention: fp8 in 13 of 14 layers; 0.7 of the key blocks left out in 11 of 14 layers, from step 1'
says 'dense: noise_refiner.0.attention (sparse_skip_layers), context_refiner.0.attention (attends once, before the steps)'
expect 2 'start_step selects step 8, this run has steps 0 to 7' plan -m "$model" -W 1024 -H 1024 --attention-sparsity 0.7 --attention-sparse-steps 8-

# each attention layer's error by itself
expect 0 '' compare -m "$model" -p "$prompt" -W 64 -H 64 --steps 2 -s 1 --candidate-attention-quantization fp8 --candidate-attention-skip-layers 1 --layers -q
says 'transformer.layers.0.attention'
says ' fp8 '
if grep -q 'layers.1.attention' out; then fail "a skipped layer has no error of its own" "$(cat out)"; else pass; fi
expect 2 'give --candidate-quantization or --candidate-attention-quantization' compare -m "$model" -p "$prompt" -W 64 -H 64 --steps 1 -s 1 --layers -q

# refusals
expect 2 'skip_steps selects step 9, this run has steps 0 to 7' plan -m "$model" --attention-quantization fp8 --attention-skip-steps 9
expect 2 'skip_layers selects layer 12, it has layers 0 to 11' plan -m "$model" --attention-quantization fp8 --attention-skip-layers 3-12
expect 2 "none of its 14 attention layers is reached" plan -m "$model" --attention-quantization fp8 --attention-skip-layers 0-11
expect 2 'skip_layers is without effect' plan -m "$model" --attention-skip-layers 0
expect 2 "attention: component 'text_encoder' takes no attention quantization" plan -m "$model" --quantization '{"text_encoder":{"attention":"fp8"}}'
expect 2 'attention-quantization' plan -m "$model" --attention-quantization int4
expect 2 'needs 32 blocks of 128 tokens, this request has 256 tokens' plan -m "$model" --attention-sparsity 0.5
expect 2 "'x-2' is not a range of steps" plan -m "$model" --attention-sparsity 0.5 --attention-sparse-steps x-2
expect 1 'has --attention-quantization' plan -m "$model" --kv-cache-dtype fp8
finish
