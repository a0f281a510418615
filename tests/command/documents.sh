#!/bin/sh
# documents.sh -- what README and docs print to type: README's commands run as they stand, on the model that comes with omniq;
# of the others, which need models of gigabytes, every flag is one that its command has.
. "$(dirname "$0")/lib.sh"
mkdir build
ln -s "$omniq" build/omniq
ln -s "$root/models" models

# The lines of a document that are commands, joined where they go on, without remarks, pipes and brackets of what may be left out.
commands_of() {
    sed -e ':a' -e '/\\$/N; s/\\\n//; ta' "$1" | sed -n 's|^ *\(build/\)\{0,1\}omniq |\1omniq |p' |
        grep -E '^(build/)?omniq (-m|[a-z]+ ([A-Z-]|models/)|serve|devices|quantize|inspect)'
}
runs_as_printed() { sh -c "$1" < /dev/null; }

commands_of "$root/README.md" > readme
check "README has its ten commands" [ "$(wc -l < readme)" = 10 ]
while IFS= read -r line; do
    case $line in *' serve '*) continue ;; esac # it runs until it is told to stop: test_server does that
    check "README: $line" runs_as_printed "$line"
done < readme

for document in "$root"/README.md "$root"/docs/*.md "$root"/src/cuda/README.md; do
    case $document in */commands.md) continue ;; esac # made from the help
    commands_of "$document"
done | sed 's/ [|#] .*//; s/[][]//g; s/|/-/g; s/\.\.\.$//' > all
check "documents have their commands" [ "$(wc -l < all)" -gt 45 ]
while IFS= read -r line; do
    set -f
    eval "set -- $line"
    set +f
    verb=$2
    case $verb in -*) verb=generate ;; esac
    "$omniq" "$verb" --help > help 2>&1 || fail "documents: $line" "no command $verb"
    for word; do
        case $word in --[a-z]* | -[a-zA-Z]) check "documents: $line: $word" grep -qE -e "(^|[ ,])$word([ ,;]|\$)" help ;; esac
    done
done < all

# Flags named in a sentence: of omniq, or of the tools that a document tells of.
cat "$root"/README.md "$root"/docs/[a-z]*.md | grep -oE '`--[a-z][a-z0-9-]*' | tr -d '`' | sort -u > named
grep -oE -e '--[a-z][a-z0-9-]*' "$root/docs/commands.md" | sort -u > flags
for flag in $(comm -23 named flags); do
    case $flag in
    --venv) ;; # tests/interop/run has it
    *) fail "documents name $flag" 'no command has it' ;;
    esac
done
finish
