#!/bin/sh
# faults.sh -- models that are cut, swapped or incomplete, hostile prompts, full disks, interrupts, two processes at once.
. "$(dirname "$0")/lib.sh"
quick="-W 64 -H 64 --steps 2 -q"
dit=transformer/diffusion_pytorch_model

fresh() { rm -rf m; cp -r "$model" m; }

fresh; rm m/$dit-00002-of-00002.safetensors
expect 1 "diffusion_pytorch_model-00002-of-00002.safetensors" generate -m m -p x $quick
fresh; rm m/vae/config.json
expect 1 'vae' generate -m m -p x $quick
fresh; rm -r m/vae
expect 1 "m/vae: there is no such folder, which component 'vae' is in" generate -m m -p x $quick
fresh; rm m/model_index.json
expect 1 'model_index.json' generate -m m -p x $quick
fresh; rm m/tokenizer/tokenizer.json
expect 1 'tokenizer.json' generate -m m -p x $quick
fresh; rm m/scheduler/scheduler_config.json
expect 1 'scheduler' generate -m m -p x $quick
fresh; head -c 100000 "$model/vae/diffusion_pytorch_model.safetensors" > m/vae/diffusion_pytorch_model.safetensors
expect 1 'vae/diffusion_pytorch_model.safetensors' generate -m m -p x $quick
fresh; head -c 4 "$model/vae/diffusion_pytorch_model.safetensors" > m/vae/diffusion_pytorch_model.safetensors
expect 1 'vae/diffusion_pytorch_model.safetensors' generate -m m -p x $quick
fresh; : > m/text_encoder/model.safetensors
expect 1 'text_encoder/model.safetensors' generate -m m -p x $quick
fresh; cp m/vae/diffusion_pytorch_model.safetensors m/text_encoder/model.safetensors
expect 1 "tensor 'embed_tokens.weight' is missing in 'model.safetensors'" generate -m m -p x $quick
fresh; cp m/$dit-00001-of-00002.safetensors m/$dit-00002-of-00002.safetensors
expect 1 'safetensors' generate -m m -p x $quick
fresh; sed 's/"dim": 192/"dim": 256/' "$model/transformer/config.json" > m/transformer/config.json
grep -q 256 m/transformer/config.json && expect 1 "do not fit 3 heads over 'dim' 256" generate -m m -p x $quick
fresh; echo '{' > m/transformer/config.json
expect 1 'transformer/config.json: not valid JSON at line' generate -m m -p x $quick
fresh; sed 's/ZImagePipeline/StableDiffusion3Pipeline/' "$model/model_index.json" > m/model_index.json
expect 1 "pipeline class 'StableDiffusion3Pipeline' is not supported; this build runs FluxPipeline" generate -m m -p x $quick
fresh; echo '{"steps": 0}' > m/omniq.json
expect 2 'steps must be from 1 to 1000, not 0' generate -m m -p x
fresh; echo '{"stepz": 1}' > m/omniq.json
expect 2 "m/omniq.json: generate has no option 'stepz'; the nearest is 'steps'" generate -m m -p x
fresh; echo '{"output": "elsewhere.png"}' > m/omniq.json
expect 2 "m/omniq.json: 'output' is for the caller to decide; a model may set width" generate -m m -p x
[ ! -e elsewhere.png ] && pass || fail 'a model decided where its picture goes'
fresh; sed 's/"scheduler"/"sheduler"/' "$model/model_index.json" > m/model_index.json
expect 1 'model_index.json names no scheduler (a pair of library and class)' generate -m m -p x $quick
expect 1 'nowhere' generate -m nowhere -p x
expect 1 'org/no-such-model' generate -m org/no-such-model -p x
expect 1 '' generate -m a.png -p x

# what the checkpoint says about itself and the wish must agree
fresh; sed 's/^{/{"quantization_config":{"quant_method":"int8"},/' "$model/transformer/config.json" > m/transformer/config.json
run generate -m m -p x $quick --quantization fp8
[ $status = 2 ] && grep -q int8 err && grep -q fp8 err && pass || fail "int8 checkpoint, fp8 wished: status $status" "$(cat err)"

# inspect says about a file what generate would, and its exit code too: 3 where generate would refuse
judged() { # SENTENCE -- of plan, generate and inspect alike, about the folder q
    for verb in plan 'generate -p x'; do
        run $verb -m "$model" --transformer q
        [ $status != 0 ] && grep -qF -- "omniq: $1" err && pass || fail "$verb: $1: status $status" "$(tail -2 err)"
    done
    run inspect q
    [ $status = 3 ] && grep -qF -- "error: $1" out && pass || fail "inspect: $1: status $status" "$(tail -2 out)"
    run inspect q --verify-against "$model"
    [ $status != 0 ] && pass || fail "inspect --verify-against: $1: status 0" "$(tail -2 out)"
}
expect 0 '' quantize "$model/transformer" --quantization int8 -o whole
expect 0 '' inspect whole
says 'judged       as generate would take it'
expect 0 '' inspect whole --verify-against "$model"
spoilt() { rm -rf q; cp -r whole q; sed "$1" whole/config.json > q/config.json; }
spoilt 's/"compressed-tensors"/"gptq"/'
judged "q/config.json: method 'gptq': option 'checkpoint_format' is 'int-quantized', it must be one of gptq,gptq_v2,gptq_p"
spoilt 's/"compressed-tensors"/"gptq"/; s/"int-quantized"/"gptq"/'
judged "method 'gptq': the checkpoint's metadata has no 'bits'"
spoilt 's/"ignore": \[/"ignore": ["layers.0.attention.to_q",/'
judged "transformer: 'layers.0.attention.to_q' is ignored by 'layers.0.attention.to_q' but 'layers.0.attention.to_v' is not"
run inspect "$model/transformer/diffusion_pytorch_model-00001-of-00002.safetensors"
[ $status = 3 ] && grep -q 'attention.to_v.weight. is missing' out && pass || fail 'inspect: half a transformer' "$(tail -2 out)"
rm -rf whole q

# a file of one size under the configuration of another: both shapes, in weights and not in bytes
another_size() {
    expect 0 '' quantize "$model/transformer" --quantization '{"transformer":{"method":"gguf","type":"Q8_0"}}' -o q8.gguf
    fresh; sed 's/"dim": 192/"dim": 256/; s/heads": 3/heads": 4/' "$model/transformer/config.json" > m/transformer/config.json
    expect 1 "to_q.weight' (Q8_0) holds 36864 weights of shape [192, 192], its layer needs [256, 256]" plan -m m --transformer q8.gguf
    expect 1 "tensor 'x_pad_token' has shape [1, 192], the network needs [256]" plan -m m
}
another_size

# a tokenizer without the template's tokens would spell them letter by letter
fresh; sed 's/<|im_end|>/<|im_stop|>/g' "$model/tokenizer/tokenizer.json" > m/tokenizer/tokenizer.json
expect 1 "the tokenizer has no token '<|im_end|>', which the template around prompts needs" generate -m m -p x $quick

# a prompt is nobody's download
printf '<!-- neon sign -->\nversion https://git-lfs\n' > mark.txt
expect 0 '' generate -m "$model" --prompt-file mark.txt $quick -q -o mark.png

# what is asked for without effect, what is no text, what is no weight file
printf 'a red ring\0and more\n' > zero.txt
expect 2 'zero.txt: is no text, byte 10 is zero' generate -m "$model" --prompt-file zero.txt $quick
expect 0 "trace-keys: 'stepz.*' matches no stage of this run" generate -m "$model" -p x -W 64 -H 64 --steps 1 \
    --trace t.safetensors --trace-keys 'stepz.*,sigmas' -o t.png
[ "$(grep -c 'matches no stage' err)" = 1 ] && pass || fail 'trace-keys: sigmas is a stage' "$(cat err)"
expect 2 'describes the weights of its folder; name the folder' inspect "$model/vae/config.json"
fresh; sed 's/"up_block_types": \[/"up_block_types": 3, "_name_or_path": [/' "$model/vae/config.json" > m/vae/config.json
expect 1 "'up_block_types' is a whole number, a list of block types is needed" generate -m m -p x $quick

# prompts: any bytes, any length
expect 0 '' generate -m "$model" -p "$(printf 'a \377\376\300 star \355\240\200')" $quick -o bytes.png
i=0; words=''
while [ $i -lt 100 ]; do words="$words a large red ball beside a small blue star over there now"; i=$((i + 1)); done
long=$words$words$words$words$words$words$words$words
expect 0 '' generate -m "$model" -p "$long" $quick -o long.png
expect 0 '' generate -m "$model" -p "$(printf 'line one\nline two\ttab')" $quick -o lines.png

# writing fails as a whole
if [ -w /dev/full ]; then
    "$omniq" models > /dev/full 2> err
    [ $? = 1 ] && grep -q 'cannot be written' err && pass || fail 'a full disk on standard output' "$(cat err)"
    "$omniq" generate -m "$model" -p x $quick -o - > /dev/full 2> err
    [ $? = 1 ] && grep -q 'cannot be written' err && pass || fail 'a picture to a full disk' "$(cat err)"
fi

# a weight file that is cut under its reader: a sentence, no signal (1 GiB of holes, cut as soon as it is open)
printf '\200\0\0\0\0\0\0\0%-128s' '{"a":{"dtype":"BF16","shape":[32768,16384],"data_offsets":[0,1073741824]}}' > cut.safetensors
truncate -s 1073741960 cut.safetensors
"$omniq" inspect --threads 1 cut.safetensors > out 2> err &
pid=$!
while kill -0 $pid 2> /dev/null && ! grep -q cut.safetensors /proc/$pid/maps; do :; done
truncate -s 8192 cut.safetensors
wait $pid
status=$?
[ $status = 1 ] && grep -q 'cut.safetensors: had 1073741960 bytes when it was opened and has 8192 now' err && pass ||
    fail "a file cut under its reader: status $status, expected 1" "$(cat err)"
rm cut.safetensors

# a limit on the size of files is an error as well, and nothing of the file stays
mkdir limited
(ulimit -f 1 && "$omniq" generate -m "$model" -p x $quick --no-metadata -W 256 -H 256 -o limited/a.png > out 2> err)
[ $? = 1 ] && grep -q 'limited/a.png: cannot be written' err && pass || fail 'a limit on file sizes' "$(cat err)"
[ -z "$(ls -A limited)" ] && pass || fail 'a limit on file sizes leaves files' "$(ls -A limited)"
expect 2 "an output needs a file's name, not ''" generate -m "$model" -p x $quick -o ''

# who reads may have seen enough: no complaint
( sleep 0.3; "$omniq" models -v 2> err; echo $? > status ) | true
[ "$(cat status)" = 1 ] && [ ! -s err ] && pass || fail 'a reader that leaves' "$(cat status err)"

# an interrupt stops at the next layer with 130 and leaves nothing behind
"$omniq" generate -m "$model" -p x -W 512 -H 512 --steps 200 -o slow.png > out 2> err &
pid=$!
sleep 2
kill -TERM $pid
wait $pid
status=$?
[ $status = 130 ] && pass || fail "interrupt: status $status, expected 130" "$(tail -2 err)"
grep -q 'interrupted in phase' err && pass || fail 'interrupt says where' "$(tail -2 err)"
[ ! -e slow.png ] && [ -z "$(find . -name '*.part')" ] && pass || fail 'interrupt leaves files'

# of several prompts what was done stays
i=0
while [ $i -lt 40 ]; do echo "a red ring $i"; i=$((i + 1)); done > prompts.txt
"$omniq" generate -m "$model" --prompt-file prompts.txt -W 256 -H 256 --steps 8 -o row.png > out 2> err &
pid=$!
i=0
while [ ! -e row_1.png ] && [ $i -lt 600 ]; do sleep 0.1; i=$((i + 1)); done
kill -INT $pid
wait $pid
status=$?
[ $status = 130 ] && [ -e row_1.png ] && [ ! -e row_40.png ] && pass || fail "interrupt of a row: status $status" "$(tail -2 err)"
grep -q 'of 40 pictures are done and saved' err && pass || fail 'interrupt says what is done' "$(tail -2 err)"

# so does a terminal that closes
"$omniq" generate -m "$model" -p x -W 512 -H 512 --steps 200 -o slow.png > out 2> err &
pid=$!
sleep 1
kill -HUP $pid
wait $pid
status=$?
[ $status = 130 ] && [ ! -e slow.png ] && pass || fail "hangup: status $status, expected 130" "$(tail -2 err)"

# an output never takes its source along, nor replaces what is no file
fresh
q='--quantization {"transformer":{"method":"int8"}} --force'
for place in m/transformer ./m/transformer m/transformer/ m/../m/transformer "$PWD/m/transformer"; do
    expect 2 'is the source; an output needs a name of its own' quantize m/transformer $q -o "$place"
done
expect 2 'm: holds the source, m/transformer' quantize m/transformer $q -o m
expect 2 'm/transformer: lies in the source, m' quantize m $q -o m/transformer
expect 2 'm/new: lies in the source, m' quantize m $q -o m/new
expect 2 'm: holds the source, m/transformer' dequantize m/transformer -o m --force
cmp -s m/$dit-00001-of-00002.safetensors "$model/$dit-00001-of-00002.safetensors" && pass || fail 'the source is as it was'
mkfifo pipe.safetensors
expect 2 'pipe.safetensors: is a device or a pipe' quantize m/transformer $q -o pipe.safetensors
expect 1 'pipe.safetensors: is a special file' generate -m m -p x $quick --trace pipe.safetensors
[ -p pipe.safetensors ] && pass || fail 'the pipe is as it was'
for name in w.bin w.GGUF -; do
    expect 2 "$name: a weight file's name must end in .safetensors or .gguf" quantize m/transformer $q -o "$name"
done
(umask 077 && run quantize m/transformer $q -o private && [ $status = 0 ]) && [ "$(stat -c %a private)" = 700 ] && pass ||
    fail 'the rights of a folder follow the umask' "$(stat -c %a private)"

# two processes on one model
"$omniq" generate -m "$model" -p 'a red ring' $quick -s 1 -o p1.png > /dev/null 2>&1 &
pid=$!
run generate -m "$model" -p 'a red ring' $quick -s 1 -o p2.png
wait $pid
[ $? = 0 ] && [ $status = 0 ] && cmp -s p1.png p2.png && pass || fail 'two processes at once'
# several quantized files in one folder, beside the config.json of one of them: each file's own header counts
for method in fp8 int8; do
    expect 0 '' quantize "$model" --quantization "{\"text_encoder\":\"$method\"}" --layout $method -o "of-$method" -q
done
cp of-int8/text_encoder/model.safetensors of-fp8/text_encoder/other.safetensors
expect 0 "of-fp8/text_encoder/other.safetensors: its header's quantization_config is another than that of of-fp8/text_encoder/config.json, and counts" \
    plan -m "$model" --text-encoder of-fp8/text_encoder/other.safetensors --json
grep -qF '"method": "int8"' out && pass || fail "the header's method" "$(head -c 300 out)"
expect 0 '' plan -m "$model" --text-encoder of-fp8/text_encoder/model.safetensors
[ -s err ] && fail 'no warning where the two agree' "$(cat err)" || pass

finish
