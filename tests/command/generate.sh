#!/bin/sh
# generate.sh -- pictures, their names, metadata, repeats, traces, standard output, what is refused before the work.
. "$(dirname "$0")/lib.sh"
prompt='a small blue star on a white background'
# small and short: what is tested is the command
quick="-W 64 -H 64 --steps 2 -q"

png() { # FILE -- begins like a PNG
    [ "$(head -c 4 "$1" | tail -c 3)" = PNG ]
}

# shellcheck disable=SC2086
generate() { expect 0 '' generate -m "$model" -p "$prompt" $quick "$@"; }

generate -s 7 -o a.png
says 'a.png: 64x64, seed 7'
check 'a.png is a PNG' png a.png
generate -s 7 -o again.png
check 'the same seed gives the same file' cmp a.png again.png
generate -s 7 -o one.png --threads 1
check 'one thread gives the same file' cmp a.png one.png
generate -s 8 -o b.png
cmp -s a.png b.png && fail 'another seed gives another picture' || pass
# without a command it is generate; JSON is one object
run -m "$model" -p "$prompt" $quick -s 7 -o c.png --json
[ $status = 0 ] && pass || fail "without a command: status $status"
says '{"outputs": [{"path": "c.png", "index": 0, "seed": 7, "width": 64, "height": 64}]'
says '"peak_rss_bytes"'
says '"quantized_layers": 0'
generate -s 7 --quantization fp8 -o q.png --json
says '"fp8_e4m3_tensor/fp8_e4m3 dynamic_token"'

# names of several pictures; image i repeats alone with seed + i
generate -s 7 -b 2 -o pair.png
check 'first of a batch' cmp pair_1.png a.png
check 'pair_2' png pair_2.png
generate -s 8 -o second.png
expect 0 '' compare second.png pair_2.png
says 'PSNR inf dB'
generate -s 7 -p 'a large red ring' -o two.dots.png
check 'a name with dots' png two.dots_2.png
mkdir folder
generate -s 9 -o folder
check 'a folder gets the default name' png folder/omniq-9.png
generate
check 'a random seed is in the name' sh -c 'ls omniq-*.png'
generate -s -1 -o random.png
says 'random.png: 64x64, seed '

# what it is like so far
generate -s 7 --sigmas 1,0.75,0.5,0.25 --previews 3 --preview soon.png -o looked.png
generate -s 7 --sigmas 1,0.75,0.5,0.25 -o not_looked.png
check 'looking on changes nothing' cmp looked.png not_looked.png
generate -s 7 --sigmas 1,0.75,0.5 -o ended.png
expect 0 '' compare soon.png ended.png
says 'PSNR inf dB'
generate -s 7 -b 2 --preview soon.png -o pair.png
check 'previews of a batch' png soon_2.png
expect 2 'previews have to go somewhere' generate -m "$model" -p x --previews 3
expect 2 "output 'soon.gif': this build writes pictures as .png" generate -m nowhere -p x --preview soon.gif
expect 2 "output 'soon': this build writes pictures as .png" generate -m "$model" -p x --preview soon
expect 2 "a preview needs a file's name, not ''" generate -m nowhere -p x --preview ''
expect 2 'has no effect with previews 0' generate -m "$model" -p x --preview soon.png --previews 0
expect 2 "preview 'soon.png' would stand where the result belongs" generate -m "$model" -p x --preview soon.png -o soon.png
expect 0 'warning: no preview is made' generate -m "$model" -p x -W 64 -H 64 --steps 1 --preview never.png -o one.png
expect 1 'cannot be written' generate -m "$model" -p x --preview nowhere/soon.png
# how it was made
expect 0 '' inspect a.png
says 'a.png: PNG picture, 64 x 64 pixels'
says 'Steps: 2, Sampler: FlowMatchEuler'
says "'omniq generate --from a.png' makes it again"
expect 0 '' inspect a.png --json
says '"seed": 7'
expect 0 '' inspect soon.png
says 'it remembers no run'
expect 1 "only pictures that omniq made remember their run: soon.png: has no text 'omniq'" generate --from soon.png
expect 2 'is about weights' inspect a.png --layer x
head -c 100 a.png > cut.png
expect 1 'cut.png' inspect cut.png
mkfifo pipe
expect 1 'pipe: is a special file, not a file' inspect pipe
# what it says reaches a terminal
generate -s 7 -p "$(printf 'a\033[2Jring')" -o stranger.png
expect 0 '' inspect stranger_2.png
says 'a?[2Jring'

# several prompts: each is what it is alone, in the order of the file
printf 'a red ring\n\na small blue star on a white background\n' > prompts.txt
# shellcheck disable=SC2086
expect 0 '' generate -m "$model" --prompt-file prompts.txt $quick -s 5 -b 2 -o many.png
says 'many_3.png: 64x64, seed 7, "a small blue star on a white background"'
expect 0 '' compare many_3.png a.png
says 'PSNR inf dB'
# shellcheck disable=SC2086
expect 0 '' generate -m "$model" --prompt-file prompts.txt $quick -s 5 -b 2 -o many.png --json
says '"index": 2, "prompt": "a small blue star on a white background", "seed": 7'
expect 0 '' generate --from many_4.png -m "$model" -q -o fourth.png
expect 0 '' compare many_4.png fourth.png
says 'PSNR inf dB'

# standard output
generate -s 7 -o -
check 'the picture on standard output' cmp out a.png
expect 2 'both write to standard output' generate -m "$model" -p x -o - --json
expect 2 'takes one picture, this request makes 2' generate -m "$model" -p x -b 2 -o -
expect 2 'show and json both write to standard output' generate -m "$model" -p x --show --json
generate -s 7 -o shown.png --show
says 'shown.png'

# metadata and the way back
check 'parameters for other tools' grep -aq "Steps: 2, Sampler: FlowMatchEuler, CFG scale: 0, Seed: 7, Size: 64x64, Model: toybox" a.png
generate -s 7 -o bare.png --no-metadata
grep -aq Sampler bare.png && fail '--no-metadata leaves text' || pass
expect 1 "pair_2.png was made with model 'toybox', which is not here" generate --from pair_2.png -q -o repeat.png
ln -s "$model" toybox
expect 0 '' generate --from pair_2.png -q -o repeat.png
expect 0 '' compare repeat.png pair_2.png
says 'PSNR inf dB'
run generate --from pair_2.png -o repeat.png
grep -q 'not those that made' err && fail 'the same files are known again' "$(cat err)" || pass
rm toybox && cp -R "$model" toybox && chmod -R u+w toybox # another model of that name, its headers alike
printf XY | dd of=toybox/transformer/diffusion_pytorch_model-00001-of-00002.safetensors bs=1 seek=9000000 conv=notrunc 2> /dev/null
expect 0 "the model's files are not those that made the picture" generate --from pair_2.png -o repeat.png
rm -r toybox && ln -s "$model" toybox
expect 0 '' generate --from q.png -q -o repeat.png
check 'the quantized run repeats to the byte' cmp repeat.png q.png
expect 0 '' generate --from a.png -q -s 8 -o repeat.png
expect 0 '' compare repeat.png b.png
says 'PSNR inf dB'
expect 1 'bare.png' generate --from bare.png
generate -s 7 -n '@red' --guidance-scale 3 -o at.png
expect 0 '' generate --from at.png -q -o repeat.png
check 'a text that begins with @ is a text' cmp repeat.png at.png
expect 1 'missing.png' generate --from missing.png
generate -s 7 -b 2 --batch-noise shared -o shared.png
expect 0 '' generate --from shared_2.png -q -o reshared.png
check 'a shared batch repeats as a whole' cmp reshared_1.png shared_1.png

# pictures go to other people: names of files without this machine's folders, settings as text
echo '{"method":"fp8"}' > settings.json
for file in own.png own.jpg own.webp; do
    generate -s 7 -i "$work/a.png" --strength 0.5 --component "text_encoder=@$work/settings.json" \
        --quantization-config "$work/settings.json" -o "$work/$file"
    grep -aqF -e "$root" -e "$work" "$file" && fail "$file remembers where files lie" || pass
    expect 0 '' generate --from "$file" -q -o repeat.png
    rm -f repeat.png
done
expect 0 '' generate --from own.png -q -o repeat.png
check 'names without folders repeat' cmp repeat.png own.png
mkdir elsewhere
(cd elsewhere && "$omniq" generate --from ../own.png -m ../toybox -q > /dev/null 2> ../err)
check 'a picture to begin with that is not here' grep -qF "made with image 'a.png', which is not here: pictures remember names without their folders; give --image FILE" err
cp b.png elsewhere/a.png
(cd elsewhere && "$omniq" generate --from ../own.png -m ../toybox -o repeat.png > /dev/null 2> ../err)
check 'another picture of that name' grep -qF "image a.png is not the file that made the picture: the result may differ" err
LC_ALL=C sed 's/-[0-9a-f]\{16\}"/"                 /g' own.jpg > before.jpg # with hashes of headers alone
cmp -s own.jpg before.jpg && fail 'a picture of before' || pass
expect 0 '' generate --from before.jpg -o repeat.jpg
grep -q 'not those that made' err && fail 'hashes of headers alone are known again' "$(cat err)" || pass
expect 0 '' generate --from own.png --image "$work/a.png" -q -o repeat.png
check 'a file that is given again repeats' cmp repeat.png own.png
generate -s 7 --recipe "$work/settings.json" -o own.png
grep -aqF "$work" own.png && fail 'a recipe is remembered by its text' || pass
expect 0 '' generate --from own.png -q -o repeat.png
check 'a recipe from a file repeats' cmp repeat.png own.png
expect 0 '' generate --from own.png -q -o repeat.png --recipe careful8 # in place of the other
cache=$work/hub/models--some--box/snapshots/0123456789abcdef
mkdir -p "$(dirname "$cache")" && ln -s "$model" "$cache"
# shellcheck disable=SC2086
expect 0 '' generate -m "$cache" -p x $quick -s 7 -o cached.png
grep -aqF "Model: box" cached.png && grep -aqF '"model": "some/box"' cached.png && pass || fail 'a name in the cache'
HF_HUB_CACHE=$work/hub
export HF_HUB_CACHE
expect 0 '' generate --from cached.png -q -o repeat.png
check 'a cached model repeats by its name' cmp repeat.png cached.png
unset HF_HUB_CACHE

# prompts from a file, batches of words
printf 'a large red ring\n\na small blue star\r\n' > prompts.txt
expect 0 '' generate -m "$model" --prompt-file prompts.txt $quick -s 3 -o file.png
check 'two lines, two pictures' png file_2.png
: > empty.txt
expect 2 'empty.txt' generate -m "$model" --prompt-file empty.txt
expect 1 'nowhere.txt' generate -m "$model" --prompt-file nowhere.txt
expect 0 '' generate -m "$model" -p '' $quick -o noword.png

# guidance, schedule
generate -s 7 --guidance-scale 3 -n 'red' -o guided.png
expect 2 'a negative prompt has no effect with guidance scale 0: give --guidance-scale above 0' generate -m "$model" \
    -p x -n red -W 64 -H 64 --steps 1 -o n.png
generate -s 7 --sigmas 1,0.5 -o sigmas.png
expect 2 'does not fall' generate -m "$model" -p x --sigmas 0.5,1
expect 2 'not a number' generate -m "$model" -p x --sigmas 1,x

# trace
generate -s 7 --trace t.safetensors -o traced.png
check 'tracing does not change the picture' cmp traced.png a.png
generate -s 7 --vae-tile 16 -o bands.png
expect 0 '' compare bands.png a.png # the autoencoder in bands of 16 rows: the same picture
says 'PSNR inf dB'
expect 0 '' generate -m "$model" -p x $quick --trace t1.safetensors --trace-keys 'noise,image' -o t.png
check 'selected keys' grep -aq '"noise"' t1.safetensors
grep -aq model_out t1.safetensors && fail 'unselected keys' || pass
long=$(printf 'noise%0300d' 0)
expect 0 "trace-keys: '$long' matches no stage" generate -m "$model" -p x -W 64 -H 64 --steps 1 --trace t2.safetensors --trace-keys "$long,image" -o t.png
expect 2 'trace-keys selects what trace writes' generate -m "$model" -p x --trace-keys noise

# refused before the work: nothing is loaded, nothing is left behind
expect 1 'nowhere/x.png: cannot be written' generate -m "$model" -p x -o nowhere/x.png
expect 1 'nowhere/t.safetensors: cannot be written' generate -m "$model" -p x -o x.png --trace nowhere/t.safetensors
# an ending that nothing is written as: before a model is looked for
expect 2 "output 'x.xyz': this build writes pictures as .png" generate -m nowhere -p x -o x.xyz
expect 2 "and videos as .mp4" generate -m nowhere -p x -o x.tiff
expect 2 "trace 't.npz': tensors are written as .safetensors, the name says '.npz'" generate -m nowhere -p x --trace t.npz
expect 2 "trace 't': tensors are written as .safetensors, the name says nothing" generate -m nowhere -p x --trace t
# one that this model's kind is not written as: before its weights are read
for name in x .png x/ x.mp4 x.y4m; do
    expect 2 "output '$name': this build writes pictures as .png" generate -m "$model" -p x -o "$name"
    [ ! -e "$name" ] && pass || fail "'$name' is left behind"
done
expect 2 'must be multiples of 16' generate -m "$model" -p x -W 100
expect 2 'GiB' generate -m "$model" -p x -W 65536 -H 65536
echo precious > kept.png
expect 1 'nowhere' generate -m nowhere -p x -o kept.png
check 'an existing output survives a failure' grep -q precious kept.png
[ -z "$(find . -name '*.part')" ] && pass || fail 'half-written files' "$(find . -name '*.part')"

# more than the machine has (here: below 64 GiB): the plan tells, a run refuses before it loads
if [ "$(awk '/^MemTotal/ {print int($2 / 1048576)}' /proc/meminfo)" -lt 64 ]; then
    expect 0 'this machine has' plan -m "$model" -W 16384 -H 16384
    expect 1 'pixels need' generate -m "$model" -p x -W 16384 -H 16384 -o huge.png
    [ ! -e huge.png ] && pass || fail 'a refused run leaves a file'
fi

# defaults: the flag, omniq.json, the family; -v tells
run generate -m "$model" -p "$prompt" --steps 1 -W 64 -H 64 -v -o v.png
grep -q 'steps 1, from the flag' err && grep -q "guidance-scale 0, from the model's omniq.json" err && pass || fail '-v tells defaults'

# dummy weights need the config files alone
expect 0 '' generate -m "$model" -p x $quick --load-format dummy -o dummy.png
finish
