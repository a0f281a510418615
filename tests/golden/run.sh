#!/bin/sh
# run.sh OMNIQ -- did a decision change? Generated documents and plans against the committed files; UPDATE=1 renews them.
cd "$(dirname "$0")/../.." || exit 1
omniq=$1
here=tests/golden
new=$(mktemp -d)
trap 'rm -rf "$new"' EXIT
passed=0 failed=0

compare() { # COMMITTED NEW
    if [ -n "${UPDATE:-}" ]; then cp "$2" "$1"; fi
    if cmp -s "$1" "$2"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "not ok: $1 has changed (make golden-update renews it):"
        diff "$1" "$2" | head -20
    fi
}

tools/dev/gen_docs "$omniq" "$new" || failed=$((failed + 1))
for document in docs/commands.md docs/support.md README.md; do compare $document "$new/$document"; done

plan() { # NAME ARGUMENTS... -- the reference kernels, so that every machine prints the same
    name=$1
    shift
    "$omniq" plan -m models/toybox --cpu ref --threads 1 -q "$@" > "$new/$name" || failed=$((failed + 1))
    compare $here/$name "$new/$name"
}
plan plan_bf16.txt
plan plan_fp8.txt --quantization fp8
plan plan_mixed.txt --quantization '{"transformer":{"method":"int8","ignored_layers":["to_out"]},"text_encoder":{"method":"fp8","weight_strategy":"block"},"default":null}' -v

grep -v '^#' tools/dev/support_claims.txt | cut -d'|' -f2 > "$new/claims"
while read -r test; do
    if [ -f "$test" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "not ok: support_claims.txt names $test"; fi
done < "$new/claims"

# every file that a document names exists (patterns and placeholders aside)
sed -n 's/`/\n/gp' README.md CONTRIBUTING.md docs/*.md | grep -E '^(src|include|tools|tests|docs|cmake|models)/[A-Za-z0-9_./-]*$' |
    sort -u > "$new/named"
while read -r file; do
    if [ -e "$file" ]; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "not ok: a document names $file"; fi
done < "$new/named"

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
