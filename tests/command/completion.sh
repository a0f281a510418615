#!/bin/sh
# completion.sh -- what shells complete is what the command takes: each option of each command's help, its words, files and
# folders. zsh and fish are asked where they are installed.
. "$(dirname "$0")/lib.sh"
made=$(dirname "$omniq")/completion
[ -d "$made" ] || made=$(dirname "$omniq")/../completion # the emulated command has a folder of its own
commands=$("$omniq" --help | sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p')
mkdir folder && touch file.safetensors && cp "$made/omniq.bash" "$made/omniq.zsh" "$made/omniq.fish" .

# complete WORDS... -- what bash offers for the last of them, a word a line
complete() {
    bash -c '. ./omniq.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _omniq; printf "%s\n" "${COMPREPLY[@]}"' omniq "$@" 2> err | sort
}
offers() { # WANTED WORDS...
    want=$1
    shift
    if complete "$@" | grep -qxF -- "$want"; then pass; else fail "bash: $* offers $want" "$(complete "$@" | head -3)"; fi
}
offers_not() {
    want=$1
    shift
    if complete "$@" | grep -qxF -- "$want"; then fail "bash: $* does not offer $want"; else pass; fi
}

if command -v bash > /dev/null 2>&1; then
    for command in $commands; do
        "$omniq" "$command" --help | sed -nE 's/^ {2,6}((-[a-zA-Z], )?--[a-z0-9-]+).*/\1/p' | tr -d ' ' | tr , '\n' > help
        complete omniq "$command" - > offered
        missing=$(while read -r flag; do grep -qxF -- "$flag" offered || echo "$flag"; done < help)
        [ -s help ] && [ -z "$missing" ] && pass || fail "bash: $command's options" "$missing"
        offers "$command" omniq "$(echo "$command" | cut -c 1-4)"
    done
    offers --prompt omniq --pro
    offers --prompt omniq generate -m folder --pro
    offers --cfg-scale omniq generate --cfg
    offers_not --prompt omniq serve --pro
    offers --prompt omniq -m models --pro # a value that is called like a command
    offers --steps omniq -p serve --st
    offers --port omniq serve -m plan --po
    offers_not generate omniq -m folder gen
    offers dummy omniq plan --load-format d
    offers dummy omniq plan --load-format = d
    offers fp8 omniq generate --quantization f
    offers_not fp8: omniq generate --quantization f
    offers file.safetensors omniq generate --transformer fi
    offers folder omniq generate -m fo
    offers_not file.safetensors omniq generate -m f
    offers file.safetensors omniq inspect fi
fi
if command -v zsh > /dev/null 2>&1; then
    check 'zsh reads it' zsh -n omniq.zsh
    specs() { # WORDS... -- what zsh's own function is told for them, one an argument
        zsh -fc '_arguments() { print -rl -- "$@"; }; _describe() { print -rl -- $commands; }; _files() { :; }
            words=("$@"); CURRENT=$#; . ./omniq.zsh' omniq "$@"
    }
    for spec in '(--model -m)-m[model folder' '*--prompt[what to draw' '(--load-format)--load-format['; do
        specs omniq generate - | grep -qF -- "$spec" && pass || fail "zsh: $spec" "$(specs omniq generate - | head -3)"
    done
    specs omniq plan - | grep -q '^(--load-format).*:WORD:(default dummy)$' && pass || fail 'zsh: words of an option'
    specs omniq plan - | grep -q ':SPEC:_omniq_or_file fp8 int8 ' && pass || fail 'zsh: methods'
    specs omniq plan - | grep -q -- '--quantization-config\[.*:JSON|FILE:_omniq_or_file ' && pass || fail 'zsh: files of settings'
    specs omniq -m models - | grep -q -- '--prompt\[' && pass || fail 'zsh: a value called like a command'
    specs omniq serve - | grep -q -- --prompt && fail 'zsh: serve takes no prompt' || pass
    specs omniq ge | grep -q '^generate:' && pass || fail 'zsh: commands' "$(specs omniq ge | head -3)"
fi
if command -v fish > /dev/null 2>&1; then
    ask() { HOME=$work XDG_CONFIG_HOME=$work fish -N -c "source omniq.fish; complete -C '$1'" 2>&1 | cut -f 1; }
    check 'fish reads it' fish -n omniq.fish
    for pair in 'omniq gen:generate' 'omniq generate --cf:--cfg-scale' 'omniq --pro:--prompt' 'omniq serve --po:--port' \
        'omniq plan --load-format d:dummy' 'omniq generate --quantization fp:fp8' 'omniq generate -m fo:folder/' \
        'omniq -m models --pro:--prompt' 'omniq -p serve --st:--steps' 'omniq plan --he:--help' 'omniq -:-h'; do
        ask "${pair%%:*}" | grep -qxF -- "${pair##*:}" && pass || fail "fish: ${pair%%:*}" "$(ask "${pair%%:*}" | head -3)"
    done
    ask 'omniq -m folder gen' | grep -q '^generate$' && fail 'fish: a command is the first word' || pass
    ask 'omniq serve --pro' | grep -q -- --prompt && fail 'fish: serve takes no prompt' || pass
fi
for shell in bash zsh fish; do
    command -v $shell > /dev/null 2>&1 || echo "left out: $shell is not installed"
done
finish
