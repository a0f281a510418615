#!/bin/sh
# flags.sh -- the command line itself: help, versions, unknown names, bounds, missing values, forms of flags.
. "$(dirname "$0")/lib.sh"

run --help; [ $status = 0 ] && pass || fail "--help status $status"
says 'usage: omniq COMMAND'
says 'generate'
run --version; [ $status = 0 ] && pass || fail "--version status $status"
says 'omniq 0.1.0'
says 'cpu: '
run; [ $status = 2 ] && pass || fail "no arguments: status $status, expected 2"
for command in generate plan inspect compare tokenize bench methods models devices; do
    run $command --help
    [ $status = 0 ] && pass || fail "$command --help: status $status"
    says "usage: omniq $command"
    says '--json'
done
run help generate; [ $status = 0 ] && pass || fail "help generate: status $status"
says '--prompt TEXT'

# names
expect 2 "there is no command 'generat'; the nearest is 'generate'" generat
expect 2 "there is no command 'xyzzyxyzzy'; the commands are" xyzzyxyzzy
expect 2 "no model is named" serve
expect 2 "port must be from 0 to 65535, not 65536" serve -m x --port 65536
expect 2 "'prompt' is an option of generate,plan,compare,recipe,quantize,tokenize, not of serve" serve -m x --prompt x
expect 2 "generate has no option 'stepz'; the nearest is 'steps'" generate --stepz 3
expect 2 "generate has no option 'num-inference-step'; the nearest is 'num-inference-steps'" generate --num-inference-step 3
expect 2 "generate has no option 'Q'" generate -Q
expect 2 "'policy' is an option of compare, not of generate" generate --policy strict
expect 1 "option 'kv-cache-dtype' is about the cache of language models; diffusion has --attention-quantization" generate --kv-cache-dtype fp8
expect 1 "option 'step-execution' is not in this build yet" generate --step-execution 1
expect 2 "--max-memory '12XB': want a size such as 12GiB, 800M or 8589934592" generate -m "$model" --max-memory 12XB -p x
expect 2 "--max-memory limits a device's own memory: backend 'cpu' works in the host's" \
    generate -m "$model" --max-memory 1GiB -p x
expect 1 "option 'tensor-parallel-size' spreads work over several devices" compare --tensor-parallel-size 2

# quantization: what cannot be parsed, what plain weights cannot give, what is nearly a component's name
expect 2 "quantization_config: not valid JSON at line 1" plan -m "$model" --quantization '{"method":"fp8"'
expect 2 "needs the input_scale of a checkpoint" plan -m "$model" --quantization '{"method":"fp8","activation_scheme":"static"}'
expect 2 "write it under 'method' and leave out the keys of a checkpoint" plan -m "$model" \
    --quantization '{"method":"bitsandbytes","bnb_4bit_quant_type":"nf4"}'
expect 2 "did you mean 'transformer'?" plan -m "$model" --quantization '{"transfromer":"fp8"}'

# a warning is said once, a count has its word
long='a large red ball to the left of a small blue star on a cream background'
expect 0 'those after the first 4 are dropped' generate -m "$model" -p "$long" --max-sequence-length 4 -W 64 -H 64 --steps 1 -o cut.png
[ "$(grep -c 'are dropped' err)" = 1 ] && pass || fail 'a warning is said once' "$(cat err)"
grep -q '^text: 1 prompt in' err && grep -q '^denoise: 1 step in' err && pass || fail 'counts have words' "$(cat err)"
says ' 1 step '

# the plan's columns stand below each other, and a layer alone keeps its name
run plan -m "$model" --quantization fp8
says 'cap_embedder.1 '
columns=$(awk '/^vae/ { on = 1; next } /^[a-z]/ { on = 0 } on && match($0, / [0-9]+x[0-9]+ /) { print RSTART }' out | sort -u | wc -l)
[ "$columns" = 1 ] && pass || fail "the plan's shapes stand in $columns columns"

# values
expect 2 "option 'prompt' needs a value" generate --prompt
expect 2 "option 'p' needs a value" generate -p
expect 2 'steps must be from 1 to 1000, not 0' generate --steps 0
expect 2 'steps must be a whole number from 1 to 1000, not '"'8.5'" generate --steps 8.5
expect 2 "steps must be a whole number from 1 to 1000, not ''" generate --steps=
expect 2 'steps must be from 1 to 1000, not 1001' generate --num-inference-steps 1001
expect 2 "guidance-scale must be finite, not 'nan'" generate --guidance-scale nan
expect 2 "guidance-scale must be finite, not 'inf'" generate --cfg-scale inf
expect 2 'guidance-scale must be from 0 to 1000, not -1' generate --guidance-scale -1
expect 2 "seed must be a whole number -1 or more, not '99999999999999999999'" generate --seed 99999999999999999999
expect 2 'width must be from 1 to 65536, not 0' generate -W 0
expect 2 'width must be from 1 to 65536, not 100000' generate -W100000
expect 2 "height must be a whole number from 1 to 65536, not '0x10'" generate -H=0x10
expect 2 "dtype must be one of bf16,fp32, not 'fp16'" generate --dtype fp16
expect 2 "load-format must be one of default,dummy, not 'x'" plan --load-format x
expect 2 "json must be true or false, not 'maybe'" models --json=maybe
expect 2 'generate needs a model' generate -p x
expect 2 'generate needs a prompt' generate -m "$model"
expect 2 "generate takes no argument 'x'" generate -m "$model" -p y x
expect 2 'plan needs a model' plan
expect 2 "methods takes no argument 'x'" methods x

# the same option in other words
run plan -m "$model" --num-inference-steps=4 --cfg_scale 1 -W128 -H 128 --json
[ $status = 0 ] && pass || fail "aliases: status $status" "$(cat err)"
run -- ; [ $status = 2 ] && pass || fail "-- alone: status $status"

# errors as JSON
run generate --steps 0 --json
[ "$(cat out)" = '{"error":{"status":"E_ARG","message":"steps must be from 1 to 1000, not 0"}}' ] && pass ||
    fail 'json error' "$(cat out)"
run generate -m '"\' -p x --json
grep -q '"status":"E_NOTFOUND","message":"' out && pass || fail 'json error of an odd name' "$(cat out)"

# quiet says nothing but the error
run plan -m "$model" -q
[ $status = 0 ] && [ ! -s err ] && pass || fail 'quiet' "$(cat err)"
# what a new user says
expect 1 "option 'size' is two options here: --width and --height" generate -m "$model" -p x --size 64x64
expect 1 "option 'sampler' is the model's own here" generate -m "$model" -p x --sampler euler
expect 1 "option 'method' is the word of --quantization METHOD" quantize "$model" --method fp8 -o q
expect 2 "recipe has no option 'method'; the nearest is 'methods'" recipe -m "$model" --method fp8
run bench --size 64x64 # names no option that the command lacks
[ "$status" = 2 ] && ! grep -q -- --width err && pass || fail 'bench --size' "status $status" "$(cat err)"
run tokenize -m "$model" --method fp8
[ "$status" = 2 ] && ! grep -q -- --quantization err && pass || fail 'tokenize --method' "status $status" "$(cat err)"
expect 2 "no option 'cfg'; the nearest is 'cfg-scale'" generate -m "$model" -p x --cfg 7
expect 2 "no option 'num_inference'; the nearest is 'num-inference-steps'" generate -m "$model" -p x --num_inference 7
expect 2 "'Q4_K' is no method but a type of method 'gguf': {\"method\":\"gguf\",\"type\":\"Q4_K\"}" generate -m "$model" -p x --quantization Q4_K
expect 2 "nothing is downloaded here; run 'hf download ORG/NAME', then the model is ORG/NAME" generate -m https://example.org/some/box -p x
expect 1 'nowhere: there is no such file or folder' bench -m nowhere
grep -q bench: err && fail 'bench looks for its model first' || pass
printf 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n' > pointer
printf '\n<!DOCTYPE html><html>' > page
for file in model_index.json vae/config.json tokenizer/tokenizer.json transformer/diffusion_pytorch_model.safetensors.index.json; do
    cp -r "$model" stranger
    cp pointer "stranger/$file"
    expect 1 "stranger/$file: is a Git LFS pointer, not the file itself" plan -m stranger
    cp page "stranger/$file"
    expect 1 "stranger/$file: is a web page (HTML), not the file itself" generate -m stranger -p x
    rm -r stranger
done
expect 1 'page: is a web page (HTML), not the file itself' generate -m "$model" -p x --image page
printf '\254\000\000\000\000\000\000\000{"x.lora_A.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[0,4]},"x.lora_B.weight":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}%33s12345678' '' > lora.safetensors
expect 2 "this is an adapter ('x.lora_A.weight'), which goes beside a model: --lora; the model needs a text encoder (Qwen3) here" \
    generate -m "$model" -p x --text-encoder lora.safetensors

# before long work it is said how long
expect 0 'recipe: no budget is given, so 4.5bpw, ' recipe -m "$model" -p a -p b -W 64 -H 64 --steps 1 --methods int4,bf16 --measure-by forwards
grep -Eq 'runs to search and [0-9]+ to judge take about [0-9]+ s, as the first took [0-9.]+ s' err && pass || fail 'recipe tells its time' "$(cat err)"
expect 0 'recipe: budget 12bpw, ' recipe -m "$model" -p a -W 64 -H 64 --steps 1 --methods int8,bf16 --measure-by forwards --budget 12bpw
run recipe -m "$model" -p a -W 64 -H 64 --steps 1 --methods int8,bf16 --measure-by forwards --budget 12bpw -q
[ -s err ] && fail 'recipe -q is quiet' "$(cat err)" || pass
finish
