#!/bin/sh
# lists.sh -- methods, models, devices and plan: what this build and this model are made of.
. "$(dirname "$0")/lib.sh"

expect 0 '' methods
says 'fp8'
says 'int8'
expect 0 '' methods -v
says 'weight_strategy'
expect 0 '' methods --json
says '"name": "fp8"'
expect 0 '' models
says 'ZImagePipeline'
expect 0 '' models --json
says '"class": "ZImagePipeline"'
says 'Qwen3Model'
expect 0 '' devices
says 'cpu: '
expect 0 '' devices --json
says '"backend": "cpu"'

expect 0 '' plan -m "$model"
says 'transformer: ZImageTransformer2DModel, unquantized'
says 'vae: AutoencoderKL, unquantized'
expect 0 '' plan -m "$model" --quantization fp8
says 'fp8_e4m3_tensor / fp8_e4m3 dynamic_token'
expect 0 '' plan -m "$model" --quantization '{"transformer":{"method":"int8"},"default":null}' --json
says '"method": "int8", "source": "online", "from": "flag"'
says '"parts": ["to_q", "to_k", "to_v"]'
expect 0 '' plan -m "$model" --quantization fp8 --ignored-layers 'to_out' --json
says "ignored by 'to_out'"
printf 'transformer:\n  method: fp8\n  weight_strategy: block\n' > config.yaml
expect 0 '' plan -m "$model" --quantization @config.yaml
says 'fp8_e4m3_block128'
expect 0 '' plan -m "$model" --quantization-config config.yaml
says 'fp8_e4m3_block128'
expect 0 '' plan -m "$model" --component text_encoder=int8 --json
says '"method": "int8"'

expect 2 "did you mean 'fp8'" plan -m "$model" --quantization fp9
expect 2 "weight_strategyy" plan -m "$model" --quantization '{"method":"fp8","weight_strategyy":"block"}'
expect 2 'no_such_layer' plan -m "$model" --quantization fp8 --ignored-layers no_such_layer
expect 0 '' plan -m "$model" --quantization '{"transformer":"fp8","text_encoder":"int8"}' --ignored-layers to_out --json # the text encoder has no such layer
says "ignored by 'to_out'"
expect 2 'quantized beforehand' plan -m "$model" --quantization quark
expect 2 'both given' plan -m "$model" --quantization fp8 --quantization-config '{"method":"int8"}'
expect 1 'missing.json' plan -m "$model" --quantization @missing.json
expect 2 'want auto, cpu, cuda or cuda:N' plan -m "$model" --device gpu
finish
