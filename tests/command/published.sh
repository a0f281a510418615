#!/bin/sh
# published.sh -- the published configurations of the families, at their real size and without a weight: `omniq plan` tells each
# layer's bytes in each format in a moment.
. "$(dirname "$0")/lib.sh"
configs=$root/tests/data/modules

# folder NAME CLASS EXTRA SCHEDULE COMPONENT:LIBRARY:CLASS:CONFIG... -- of the class $scheduler
scheduler=FlowMatchEulerDiscreteScheduler
folder() {
    name=$1 class=$2 extra=$3 schedule=$4
    shift 4
    mkdir -p "$name/scheduler"
    printf '{"_class_name":"%s",%s}' "$scheduler" "$schedule" > "$name/scheduler/scheduler_config.json"
    {
        printf '{"_class_name":"%s",%s"scheduler":["diffusers","%s"]' "$class" "$extra" "$scheduler"
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
klein() { # NAME ENCODER TRANSFORMER
    folder "$1" Flux2KleinPipeline '"is_distilled":true,' "$dynamic" text_encoder:transformers:Qwen3ForCausalLM:"$2" \
        transformer:diffusers:Flux2Transformer2DModel:"$3" vae:diffusers:AutoencoderKLFlux2:flux2_vae.json
}
klein klein qwen3_4b.json flux2_klein_4b_transformer.json
klein klein9b qwen3_8b.json flux2_klein_9b_transformer.json
folder dev2 Flux2Pipeline '' "$dynamic" text_encoder:transformers:Mistral3ForConditionalGeneration:mistral_small_24b.json \
    transformer:diffusers:Flux2Transformer2DModel:flux2_dev_transformer.json vae:diffusers:AutoencoderKLFlux2:flux2_vae.json
folder qwen QwenImagePipeline '' '"use_dynamic_shifting":true,"base_shift":0.5,"max_shift":0.9,"max_image_seq_len":8192,"shift_terminal":0.02' \
    text_encoder:transformers:Qwen2_5_VLForConditionalGeneration:qwen25_vl_7b.json \
    transformer:diffusers:QwenImageTransformer2DModel:qwen_image_transformer.json vae:diffusers:AutoencoderKLQwenImage:qwen_image_vae.json
scheduler=UniPCMultistepScheduler
unipc='"prediction_type":"flow_prediction","use_flow_sigmas":true,"flow_shift":5.0'
umt5=text_encoder:transformers:UMT5EncoderModel:umt5_xxl.json
a14b() { # NAME CLASS BOUNDARY TRANSFORMER
    folder "$1" "$2" "\"boundary_ratio\":$3," "$unipc" "$umt5" transformer:diffusers:WanTransformer3DModel:"$4" \
        transformer_2:diffusers:WanTransformer3DModel:"$4" vae:diffusers:AutoencoderKLWan:wan21_vae.json
}
a14b t2v WanPipeline 0.875 wan_t2v_14b.json
a14b i2v WanImageToVideoPipeline 0.9 wan_i2v_14b.json
folder ti2v WanPipeline '"boundary_ratio":null,"expand_timesteps":true,' "$unipc" "$umt5" \
    transformer:diffusers:WanTransformer3DModel:wan_ti2v_5b.json vae:diffusers:AutoencoderKLWan:wan22_vae.json

# bytes MODEL METHOD LEAST MOST -- plan's weights in GiB lie between, within ten seconds
bytes() {
    began=$(date +%s)
    expect 0 "" plan -m "$1" --load-format dummy --cpu ref -W 64 -H 64 --json ${2:+--quantization "$2"} # a machine too small is warned
    [ $(($(date +%s) - began)) -lt 10 ] && pass || fail "plan of $1 takes ten seconds"
    have=$(sed -n 's/.*"weights_bytes": *\([0-9]*\).*/\1/p' out | tail -1)
    if awk -v have="${have:-0}" -v least="$3" -v most="$4" 'BEGIN {g = have / 1073741824; exit !(g >= least && g <= most)}'; then
        pass
    else
        fail "plan of $1 ${2:-in BF16}" "weights_bytes ${have:-missing}, expected $3 to $4 GiB" "$(tail -2 err)"
    fi
}
# parameters: dev 11901 M (8.6 G quantizable) + T5 4762 M + CLIP 123 M + VAE 84 M; klein 3876 M + 4022 M + 84 M, or 9079 M + 7568 M
# + 84 M; FLUX.2-dev 32223 M + 22901 M + 84 M; Qwen-Image 20430 M (13.6 G) + 7071 M + 127 M; Wan two times 14288 M, or 5000 M, + UMT5 5681 M + 127 M or 705 M. The
# reference kernels keep autoencoders in float32; Wan's time embedder is float32 everywhere.
bytes dev '' 31.3 31.7
bytes dev fp8 18.9 19.2
bytes dev mxfp4 13.0 13.4
bytes dev bitsandbytes 12.9 13.2
bytes schnell '' 31.3 31.7
bytes schnell fp8 18.9 19.2
bytes klein '' 14.8 15.1
bytes klein fp8 8.0 8.3
bytes klein mxfp4 4.9 5.1
bytes klein bitsandbytes 4.8 5.0
bytes klein9b '' 31.2 31.4
bytes klein9b fp8 16.6 16.8
bytes klein9b mxfp4 9.7 9.95
bytes klein9b bitsandbytes 9.5 9.75
bytes dev2 '' 102.8 103.1
bytes dev2 fp8 52.9 53.2
bytes dev2 mxfp4 29.5 29.8
bytes dev2 bitsandbytes 28.7 29.0
bytes qwen '' 51.5 51.8
bytes qwen fp8 32.9 33.1
bytes qwen mxfp4 24.1 24.3
bytes qwen bitsandbytes 23.8 24.0
for model in t2v i2v; do
    bytes $model '' 64.2 64.5
    bytes $model fp8 33.8 34.0
    bytes $model mxfp4 19.5 19.7
    bytes $model bitsandbytes 19.1 19.3
done
bytes ti2v '' 22.4 22.6
bytes ti2v fp8 13.5 13.7
bytes ti2v mxfp4 9.4 9.6
bytes ti2v bitsandbytes 9.3 9.5
finish
