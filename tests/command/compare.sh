#!/bin/sh
# compare.sh -- pictures, folders, variants of a model, policies, per-layer errors, what is written.
. "$(dirname "$0")/lib.sh"
quick="-W 64 -H 64 --steps 2 -q"
expect 0 '' generate -m "$model" -p 'a small blue star' $quick -s 42 -o a.png
expect 0 '' generate -m "$model" -p 'a large red ring' $quick -s 43 -o b.png
expect 0 '' generate -m "$model" -p 'a large red ring' -W 128 -H 64 --steps 1 -q -s 43 -o wide.png

# two pictures
expect 0 '' compare a.png a.png --policy strict
says 'PSNR inf dB'
says 'policy strict: passed'
expect 0 '' compare a.png a.png --json
says '"psnr_db": "Infinity"'
says '"all_images_metrics"'
expect 3 '' compare a.png b.png --policy strict
says 'policy strict: missed'
says 'psnr_db is'
expect 3 '' compare a.png b.png --policy strict --json
says '"passed": false'
expect 0 '' compare a.png b.png
echo '{"psnr_db":{"min":1},"mae":{"max":255}}' > loose.json
expect 0 '' compare a.png b.png --policy loose.json
says 'passed'
echo '{"psnr":{"min":1}}' > wrong.json
expect 2 'psnr' compare a.png b.png --policy wrong.json
expect 2 'strictt' compare a.png b.png --policy strictt
expect 2 'wide.png is 128x64: sizes must be equal' compare a.png wide.png
expect 1 'missing.png' compare a.png missing.png
expect 2 'compare needs two pictures' compare a.png
expect 2 'compare needs two pictures or folders, not 3' compare a.png a.png a.png
expect 2 'compare needs two pictures or folders, or --model DIR' compare
expect 2 'not both' compare a.png b.png -m "$model"
echo text > text.png
expect 1 'text.png' compare a.png text.png

# folders
mkdir one two
cp a.png one/x.png; cp a.png two/x.png; cp b.png one/y.png; cp a.png two/y.png
expect 0 '' compare one two --save-output-dir sides --json
says '"num_images": 2'
says '"mid_image_index": 1'
says '"worst_image_index": 1'
# one bad picture does not hide among good ones
i=0; while [ $i -lt 30 ]; do cp a.png one/g$i.png; cp a.png two/g$i.png; i=$((i + 1)); done
run compare one/y.png two/y.png
psnr=$(sed -n 's/^PSNR \([0-9.]*\) dB.*/\1/p' out)
lower=$(awk "BEGIN { print $psnr + 1 }")
echo "{\"psnr_db\":{\"min\":$lower}}" > bound.json
expect 3 '' compare one two --policy bound.json
says "32 pictures, the least PSNR is $psnr dB: picture 32, y.png"
rm one/g* two/g*
check 'side by side' test -s sides/side_by_side_1.png
rm two/y.png
expect 2 "one: has 'y.png', two does not" compare one two
expect 2 'compare two of a kind' compare one a.png
mkdir none
expect 1 'none: holds no picture (PNG, JPEG, WebP)' compare none none

# two variants of a model in one run
expect 0 '' compare -m "$model" --candidate-quantization fp8 -p 'a small blue star' $quick --policy smoke \
    --output-json r.json --save-output-dir saved --measure-runs 2 --warmup-runs 1
says 'reference: '
says 'policy smoke: passed'
check 'pictures are kept' test -s saved/candidate/image_0.png
check 'the reference is what generate makes' "$omniq" compare a.png saved/reference/image_0.png --policy strict
check 'keys are sorted and indented' sh -c 'head -2 r.json | tail -1 | grep -q "^  \"candidate_generation\""'
for key in avg_generation_time_s per_run_peak_memory_mb variant_configs sampling_kwargs metric_guidance image0_metrics \
    mid_frame_metrics saved_outputs diffusion_load_format num_inference_steps recommended_thresholds; do
    grep -q "\"$key\"" r.json && pass || fail "r.json lacks $key"
done
expect 0 '' compare -m "$model" -p x $quick --output-json same.json
check 'non-finite numbers are literals in the file' grep -q '"psnr_db": Infinity' same.json
expect 0 '' compare -m "$model" -p x $quick --candidate-quantization-config-json \
    '{"method":"fp8","weight_strategy":"channel"}' --layers --json
says '"weight": "fp8_e4m3_channel"'
says '"snr_db": '
expect 0 '' compare -m "$model" -p x $quick --quantization fp8 --ignored-layers 'to_out' --layers
says 'lowest: '
grep -q to_out out && fail 'an ignored layer has no error row' || pass
expect 2 'layers: the candidate has no quantized layer' compare -m "$model" -p x $quick --layers
expect 2 'must be a JSON object' compare -m "$model" --candidate-quantization-config-json '"fp8"' -p x
expect 2 "did you mean 'fp8'" compare -m "$model" --candidate-quantization fp9 -p x
expect 2 'measure-runs must be from 1 to 1000, not 0' compare -m "$model" --measure-runs 0
expect 2 'warmup-runs must be from 0 to 1000, not -1' compare -m "$model" --warmup-runs -1
expect 2 'task must be one of t2i' compare -m "$model" --task t2v
expect 1 'nowhere/r.json' compare -m "$model" --output-json nowhere/r.json -p x
expect 2 'layers compares variants' compare a.png b.png --layers
# a comparison that fails
run compare one/nowhere.png two/nowhere.png --save-output-dir never
[ "$status" != 0 ] && [ ! -e never ] && pass || fail 'a comparison that failed leaves its folder'
mkdir kept && run compare one/nowhere.png two/nowhere.png --save-output-dir kept
[ "$status" != 0 ] && [ -d kept ] && pass || fail 'a folder of somebody else is taken away'
finish
