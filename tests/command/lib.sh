# lib.sh -- sourced by the command tests: run omniq, check status and text, count. $1 of each script is the command.
case $1 in /*) omniq=$1 ;; *) omniq=$PWD/$1 ;; esac
[ -x "$omniq" ] || { echo "usage: sh $0 OMNIQ"; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
model=$root/models/toybox
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
passed=0 failed=0

pass() { passed=$((passed + 1)); }
fail() { # NAME DETAIL...
    failed=$((failed + 1))
    echo "not ok: $1"
    shift
    for line in "$@"; do echo "    $line"; done
}

# Runs omniq with the arguments; status in $status, streams in out and err.
run() {
    "$omniq" "$@" > out 2> err
    status=$?
}

# expect STATUS TEXT ARGUMENTS... -- the status, and a sentence on stderr that contains TEXT ("" for none).
expect() {
    want=$1 text=$2
    shift 2
    run "$@"
    if [ "$status" != "$want" ]; then
        fail "omniq $*" "status $status, expected $want" "stderr: $(tail -3 err)"
    elif [ -n "$text" ] && ! grep -qF -- "$text" err; then
        fail "omniq $*" "stderr lacks: $text" "stderr: $(tail -3 err)"
    else
        pass
    fi
}

# says TEXT -- the last run's stdout contains TEXT.
says() {
    if grep -qF -- "$1" out; then pass; else fail "stdout lacks: $1" "stdout: $(head -c 400 out)"; fi
}

check() { # NAME COMMAND... -- the command succeeds.
    name=$1
    shift
    if "$@" > check.log 2>&1; then pass; else fail "$name" "$(tail -3 check.log)"; fi
}

finish() {
    echo "$passed passed, $failed failed"
    [ "$failed" = 0 ]
}
