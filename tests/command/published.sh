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
folder zimage ZImagePipeline '' '"shift":3.0' text_encoder:transformers:Qwen3Model:qwen3_4b.json \
    transformer:diffusers:ZImageTransformer2DModel:z_image_transformer.json vae:diffusers:AutoencoderKL:flux_vae.json
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
folder edit QwenImageEditPlusPipeline '' '"use_dynamic_shifting":true,"base_shift":0.5,"max_shift":0.9,"max_image_seq_len":8192,"shift_terminal":0.02' \
    text_encoder:transformers:Qwen2_5_VLForConditionalGeneration:qwen25_vl_7b.json \
    transformer:diffusers:QwenImageTransformer2DModel:qwen_image_edit_2511_transformer.json vae:diffusers:AutoencoderKLQwenImage:qwen_image_vae.json
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

# sum KEY -- of all values of that key in out
sum() { tr ',{' '\n\n' < out | awk -F'[": ]+' -v key="$1" '$2 == key {n += $3} END {printf "%.0f", n}'; }

# plans MODEL PARAMETERS UNUSED BF16 FP8 NVFP4 MXFP4 NF4 -- parameters of all tensors of its files, and of those that are never run; GiB of
# weights in each format within 1 %; within ten seconds
plans() {
    model=$1 parameters=$2 unused=$3
    shift 3
    for method in '' fp8 nvfp4 mxfp4 bitsandbytes; do
        began=$(date +%s)
        expect 0 "" plan -m "$model" --load-format dummy --cpu ref -W 64 -H 64 --json ${method:+--quantization "$method"} # a machine too small is warned
        [ $(($(date +%s) - began)) -lt 10 ] && pass || fail "plan of $model ${method:-in BF16} takes ten seconds"
        have=$(sum weights_bytes)
        if awk -v have="$have" -v want="$1" 'BEGIN {g = have / 1073741824; exit !(g >= want * 0.99 && g <= want * 1.01)}'; then
            pass
        else
            fail "plan of $model ${method:-in BF16}" "weights_bytes $have, expected $1 GiB" "$(tail -2 err)"
        fi
        shift
    done
    # "params" of a component is all of it, of its member "unused" the part that is not loaded
    [ "$(sum params)" = $((parameters + unused)) ] && pass || fail "parameters of $model" "$(sum params), expected $parameters + $unused"
}
# Parameters: dev 11901 M (8.6 G quantizable) + T5 4762 M + CLIP 123 M + VAE 84 M; Z-Image 6155 M + 4022 M + 84 M; klein 3876 M + 4022 M + 84 M,
# or 9079 M + 7568 M + 84 M; FLUX.2-dev 32223 M + 22901 M + 84 M; Qwen-Image 20430 M (13.6 G) + 7071 M + 127 M, edit models
# 677 M of vision tower more; Wan two times 14288 M, or
# 5000 M, + UMT5 5681 M + 127 M or 705 M. The reference kernels keep autoencoders in float32; Wan's time embedder is float32 everywhere.
# Never run: the text encoder's last layer (Z-Image) or last quarter (FLUX.2) and its last norm; T2V's encoder of pictures.
plans dev     16870599139          0  31.58 19.18 13.75 13.36 13.17
plans schnell 16860369379          0  31.56 19.16 13.73 13.34 13.15
plans zimage  10261196515  100933376  19.08 10.19  6.30  6.02  5.88
plans klein    7982059043  908379904  13.33  7.36  4.75  4.57  4.48
plans klein9b 16731033123 1736521984  28.08 15.11  9.43  9.02  8.82
plans dev2    55208642083 5557560320  92.64 47.86 28.27 26.87 26.18
plans qwen    27627912755          0  51.71 32.97 24.78 24.19 23.90
plans edit    28304462899          0  52.97 33.60 25.16 24.52 24.22
plans t2v     34384786035   53596928  64.21 33.72 20.38 19.43 18.96
plans i2v     34385605235          0  64.41 33.92 20.59 19.63 19.16
plans ti2v    11385386716          0  22.54 13.66  9.77  9.50  9.36
run plan -m dev2 --load-format dummy -W 64 -H 64
says 'not used by this pipeline, not loaded: layers.30.input_layernorm.weight to norm.weight (40 linear layers, 5557.56 M parameters)'

# decode MODEL ARGUMENTS... -- MiB of scratch that decoding takes by the plan
decode() {
    run plan -m "$@" --load-format dummy --json -q
    tr ',{' '\n\n' < out | awk -F'[": ]+' '$2 == "decode" {printf "%.0f", $3 / 1048576}'
}
# more NAME MANY FEW -- pictures and videos in tiles and pieces take less than whole ones, by a share of MANY
more() { [ "${3:-0}" -gt 0 ] && [ "${2:-0}" -gt "$3" ] && pass || fail "decoding $1 takes less memory" "$2 and $3 MiB"; }
more 'Qwen-Image in tiles' $(($(decode qwen -W 1024 -H 1024) / 8)) "$(decode qwen -W 1024 -H 1024 --vae-tile 256)"
more 'a video in tiles' $(($(decode ti2v -W 1280 -H 704 --num-frames 121) / 6)) "$(decode ti2v -W 1280 -H 704 --num-frames 121 --vae-tile 256)"
more 'a video frame by frame' "$(decode t2v -W 832 -H 480 --num-frames 81 --vae-frames 4)" "$(decode t2v -W 832 -H 480 --num-frames 81)"
more 'a FLUX.1 picture of a quarter' $(($(decode dev -W 2048 -H 2048) / 3)) "$(decode dev -W 1024 -H 1024)"
# of it 16 MiB are a convolution's weights as Winograd takes them, where the processor has no fast products of bf16
for family in zimage dev klein dev2; do
    more "$family in bands" $(($(decode $family -W 1024 -H 1024) * 36 / 100)) "$(decode $family -W 1024 -H 1024 --vae-tile 64)"
    more "$family in bands, large" $(($(decode $family -W 2048 -H 2048) * 29 / 100)) "$(decode $family -W 2048 -H 2048 --vae-tile 64)"
done
finish
