#!/bin/sh
# published.sh -- the published configurations of the FLUX families, at their real size and without a weight: `omniq plan` tells
# each layer's bytes in each format in a moment.
. "$(dirname "$0")/lib.sh"
configs=$root/tests/data/modules

# folder NAME CLASS EXTRA SCHEDULE COMPONENT:LIBRARY:CLASS:CONFIG...
folder() {
    name=$1 class=$2 extra=$3 schedule=$4
    shift 4
    mkdir -p "$name/scheduler"
    printf '{"_class_name":"FlowMatchEulerDiscreteScheduler",%s}' "$schedule" > "$name/scheduler/scheduler_config.json"
    {
        printf '{"_class_name":"%s",%s"scheduler":["diffusers","FlowMatchEulerDiscreteScheduler"]' "$class" "$extra"
        for entry in "$@"; do
            component=${entry%%:*} rest=${entry#*:}
            mkdir -p "$name/$component"
            cp "$configs/${rest##*:}" "$name/$component/config.json"
            printf ',"%s":["%s","%s"]' "$component" "${rest%%:*}" "$(echo "$rest" | cut -d: -f2)"
        done
        printf '}'
    } > "$name/model_index.json"
}
dynamic='"use_dynamic_shifting":true,"shift":3.0'
flux1() { # NAME SCHEDULE TRANSFORMER
    folder "$1" FluxPipeline '' "$2" text_encoder:transformers:CLIPTextModel:clip_l.json \
        text_encoder_2:transformers:T5EncoderModel:t5_xxl.json transformer:diffusers:FluxTransformer2DModel:"$3" \
        vae:diffusers:AutoencoderKL:flux_vae.json
}
flux1 dev "$dynamic" flux1_dev_transformer.json
flux1 schnell '"shift":1.0' flux1_schnell_transformer.json
folder klein Flux2KleinPipeline '"is_distilled":true,' "$dynamic" text_encoder:transformers:Qwen3ForCausalLM:qwen3_4b.json \
    transformer:diffusers:Flux2Transformer2DModel:flux2_klein_4b_transformer.json vae:diffusers:AutoencoderKLFlux2:flux2_vae.json

# bytes MODEL METHOD LEAST MOST -- plan's weights in GiB lie between, within ten seconds
bytes() {
    began=$(date +%s)
    expect 0 '' plan -m "$1" --load-format dummy -W 64 -H 64 --json ${2:+--quantization "$2"} # a machine too small is warned
    [ $(($(date +%s) - began)) -lt 10 ] && pass || fail "plan of $1 takes ten seconds"
    have=$(sed -n 's/.*"weights_bytes": *\([0-9]*\).*/\1/p' out | tail -1)
    if awk -v have="${have:-0}" -v least="$3" -v most="$4" 'BEGIN {g = have / 1073741824; exit !(g >= least && g <= most)}'; then
        pass
    else
        fail "plan of $1 ${2:-in BF16}" "weights_bytes ${have:-missing}, expected $3 to $4 GiB" "$(tail -2 err)"
    fi
}
# parameters: dev 11901 M (8.6 G quantizable) + T5 4762 M + CLIP 123 M + VAE 84 M; klein 3876 M + 4022 M + 84 M
bytes dev '' 31.3 31.6
bytes dev fp8 18.9 19.2
bytes dev mxfp4 13.0 13.4
bytes dev bitsandbytes 12.9 13.2
bytes schnell '' 31.3 31.6
bytes schnell fp8 18.9 19.2
bytes klein '' 14.8 15.0
bytes klein fp8 8.0 8.2
bytes klein mxfp4 4.8 5.0
bytes klein bitsandbytes 4.7 4.9
finish
