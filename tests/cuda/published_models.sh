#!/bin/sh
# published_models.sh DIR -- folders of published models at their real size and without a weight, for `--load-format dummy`:
# DIR/z-image, DIR/klein (FLUX.2), DIR/schnell (FLUX.1), each with a small tokenizer.
set -eu
root=$(cd "$(dirname "$0")/../.." && pwd) configs=$root/tests/data/modules
mkdir -p "$1" && cd "$1"

# folder NAME CLASS EXTRA SCHEDULE COMPONENT:LIBRARY:CLASS:CONFIG...
folder() {
    name=$1 class=$2 extra=$3 schedule=$4
    shift 4
    mkdir -p "$name/scheduler"
    printf '{"_class_name":"FlowMatchEulerDiscreteScheduler",%s}' "$schedule" >"$name/scheduler/scheduler_config.json"
    {
        printf '{"_class_name":"%s",%s"scheduler":["diffusers","FlowMatchEulerDiscreteScheduler"]' "$class" "$extra"
        for entry in "$@"; do
            component=${entry%%:*} rest=${entry#*:}
            mkdir -p "$name/$component"
            cp "$configs/${rest##*:}" "$name/$component/config.json"
            printf ',"%s":["%s","%s"]' "$component" "${rest%%:*}" "$(echo "$rest" | cut -d: -f2)"
        done
        printf '}'
    } >"$name/model_index.json"
}

tokenizer() { # NAME FROM [AS]
    mkdir -p "$1/${3:-tokenizer}"
    cp "$root/$2"/* "$1/${3:-tokenizer}/"
}

folder z-image ZImagePipeline '' '"shift":3.0' text_encoder:transformers:Qwen3ForCausalLM:qwen3_4b.json \
    transformer:diffusers:ZImageTransformer2DModel:z_image_transformer.json vae:diffusers:AutoencoderKL:flux_vae.json
tokenizer z-image models/toybox/tokenizer
folder klein Flux2KleinPipeline '"is_distilled":true,' '"use_dynamic_shifting":true,"shift":3.0' \
    text_encoder:transformers:Qwen3ForCausalLM:qwen3_4b.json \
    transformer:diffusers:Flux2Transformer2DModel:flux2_klein_4b_transformer.json \
    vae:diffusers:AutoencoderKLFlux2:flux2_vae.json
tokenizer klein tests/data/golden/flux2-klein/tokenizer
folder schnell FluxPipeline '' '"shift":1.0' text_encoder:transformers:CLIPTextModel:clip_l.json \
    text_encoder_2:transformers:T5EncoderModel:t5_xxl.json \
    transformer:diffusers:FluxTransformer2DModel:flux1_schnell_transformer.json vae:diffusers:AutoencoderKL:flux_vae.json
tokenizer schnell tests/data/golden/flux1/tokenizer
tokenizer schnell tests/data/golden/flux1/tokenizer_2 tokenizer_2
# the small tokenizer keeps ids of its own
sed -i 's/"vocab_size": 32128/"vocab_size": 65536/' schnell/text_encoder_2/config.json
