#!/bin/sh
# tools.sh -- each tool of tools/dev that checks sources says nothing about a clean tree and fails on every offence that it is for,
# with a sentence that names it; count_tests counts what ctest logged.
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0
pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "not ok: $1"; sed 's/^/    /' "$work/log"; }

# A tree of one file in each room, clean.
fresh() {
    rm -rf "$work/tree"
    mkdir -p "$work/tree/tools/dev" "$work/tree/docs" "$work/tree/tests/golden" "$work/tree/include/omniq"
    cd "$work/tree" || exit 1
    cp "$root"/tools/dev/check_* "$root/tools/dev/lint" "$root/tools/dev/count_tests" tools/dev/
    for room in plan load pipelines engine config ckpt nn text format; do mkdir -p src/$room; done
    for room in base media quant modules/net tensor; do
        mkdir -p src/$room
        file=$(basename $room)_some
        put src/$room/$file.c 'int oq_%s(void);' "$file"
    done
    mkdir -p tools/cli tools/server
    put tools/cli/cli_main.c '#include "omniq/omniq.h"\n#include "server/server.h"'
    put tools/server/server.h '#include "omniq/omniq.h"'
    put include/omniq/omniq.h 'OQ_API int oq_one(void);\nOQ_API const char *oq_two(const void *of,\n                          int n);'
    put tests/test_some.c 'void test_it(void);'
    printf '| room | may include |\n|---|---|\n| base | |\n| media, quant | base |\n| modules | base, tensor |\n| modules/* | base, modules |\n| tensor | base |\n\n| library | room | headers |\n|---|---|---|\n| libpng | media | png.h, pngconf.h |\n' > docs/ARCHITECTURE.md
    : > docs/faults.md
    i=1
    while [ $i -le 50 ]; do echo "| $i | a fault | an error | \`tests/test_some.c\` \`test_it\` |"; i=$((i + 1)); done >> docs/faults.md
}

# put FILE TEXT... -- with its role in the first line; text as printf takes it.
put() {
    file=$1
    shift
    { printf '/* %s -- a role */\n' "$(basename "$file")"; printf "$@"; echo; } > "$file"
}

clean() { # TOOL ARGUMENTS...
    if "tools/dev/$@" > "$work/log" 2>&1; then pass; else fail "$*: a clean tree"; fi
}

offends() { # TEXT TOOL ARGUMENTS... -- status 1 and TEXT in what it says; then the tree is clean again
    text=$1
    shift
    if "tools/dev/$@" > "$work/log" 2>&1; then
        fail "$*: passes where it should say: $text"
    elif grep -qF -- "$text" "$work/log"; then pass; else fail "$*: does not say: $text"; fi
    fresh
}

fresh
clean check_style
for call in 'printf("x")' 'abort()' 'exit(1)' 'strcpy(a, b)' 'sprintf(a, "x")' 'fprintf(f, "x")' 'system("x")'; do
    put src/base/base_some.c 'void f(void) { %s; }' "$call"
    offends 'src/base/base_some.c:2:' check_style
done
put src/base/base_some.c '/* it may print(f) and exit() in a comment, snprintf() and oq_exit() anywhere */\nint n = snprintf(a, 1, b);'
clean check_style
for call in malloc calloc realloc; do
    put src/quant/quant_some.c 'void *p = %s(1);' $call
    offends 'memory comes from oq_env' check_style
done
put src/base/base_some.c 'int a; // TO''DO'
offends 'unfinished marks' check_style
put tools/cli/cli_main.c 'int a; /* FIX''ME */'
offends 'unfinished marks' check_style
put src/quant/quant_some.c '#include <immintrin.h>'
offends 'intrinsics stay in files' check_style
echo 'int a;' > src/base/base_some.c
offends "src/base/base_some.c: the first line must say '/* base_some.c -- its role'" check_style
put src/base/base_other.c 'int a;' && mv src/base/base_other.c src/base/base_copy.c
offends 'src/base/base_copy.c: the first line must say' check_style
put src/media/base_some.c 'int a;'
offends 'file names that stand twice in the tree: base_some.c' check_style
{ head -1 tests/test_some.c; yes 'int a;' | head -600; } > long && mv long tests/test_some.c
offends 'tests/test_some.c: 601 lines, at most 600' check_style

rmdir src/nn
offends 'there is no src/nn' check_style

clean check_includes
put src/quant/quant_some.c '#include "media/image.h"'
offends 'src/quant/quant_some.c:2: quant may not include media/image.h' check_includes
put src/quant/quant_some.c '#include "base/env.h"\n#include "quant/method.h"\n#include "own.h"\n#include "omniq/omniq.h"\n#include <stdio.h>'
clean check_includes
put src/modules/net/net_some.c '#include "modules/other/other.h"'
offends 'modules/net may not include modules/other/other.h' check_includes
put src/modules/net/net_some.c '#include "modules/parts.h"'
clean check_includes
put src/modules/modules_some.c '#include "modules/net/net.h"'
offends 'modules may not include modules/net/net.h' check_includes
put src/base/base_some.c '#  include <png.h>'
offends 'only media includes <png.h>' check_includes
put src/media/media_some.c '#include <pngconf.h>'
clean check_includes
mkdir src/attic && put src/attic/attic_some.c 'int a;'
offends 'room attic is not in docs/ARCHITECTURE.md' check_includes
put tools/cli/cli_main.c '#include "base/env.h"'
offends 'not base/env.h' check_includes
put tools/cli/cli_main.c '#include "server/parts.h"'
offends 'not server/parts.h' check_includes
echo > docs/ARCHITECTURE.md
offends 'no table "room | may include"' check_includes

clean check_faults
echo '| a fault | an error | `tests/test_some.c` `test_gone` |' >> docs/faults.md
offends 'docs/faults.md names test_gone of tests/test_some.c, which is not there' check_faults
echo '| a fault | an error | `tests/test_gone.c` `test_it` |' >> docs/faults.md
offends 'names test_it of tests/test_gone.c' check_faults
sed -i '/^| 17 |/d' docs/faults.md
offends 'report 17 names no test' check_faults

if command -v cc > /dev/null 2>&1; then
    library() { # FUNCTION...
        for f in "$@"; do echo "int $f(void); int $f(void) { return 0; }"; done > lib.c
        cc -shared -fPIC -o lib.so lib.c
    }
    printf 'oq_one\noq_two\n' > tests/golden/exports.txt
    library oq_one oq_two
    clean check_exports lib.so
    library oq_one oq_two oq_secret
    offends 'oq_secret' check_exports lib.so
    printf 'oq_one\noq_two\n' > tests/golden/exports.txt
    library oq_one
    offends 'oq_two' check_exports lib.so
    library oq_one oq_two
    echo oq_one > tests/golden/exports.txt
    offends 'is not what the library exports' check_exports lib.so
fi

# lint fails when a step does, whatever the others say
put src/base/base_some.c 'void f(void) { abort(); }'
tools/dev/lint nowhere > "$work/log" 2>&1 && fail 'lint passes over an offence' || pass
grep -q 'lint: clean' "$work/log" && fail 'lint says clean' || pass
fresh

counts() { # WANTED STATUS LOG-TEXT
    printf "$3" > log
    said=$(tools/dev/count_tests log 2> "$work/log")
    status=$?
    [ "$said" = "$1" ] && [ $status = "$2" ] && pass || fail "count_tests: '$said' with $status, wanted '$1' with $2"
}
counts '3 passed, 0 failed' 0 '1/1 Testing: a\n[  PASSED  ] 3 test(s).\nTest Passed.\n'
counts '2 passed, 1 failed' 1 '1/1 Testing: a\n[  PASSED  ] 2 test(s).\n[  FAILED  ] 1 test(s), listed below:\nTest Failed.\n'
counts '5 passed, 2 failed' 1 '1/2 Testing: a\n5 passed, 1 failed\nTest Failed.\n2/2 Testing: b\nTest Failed.\n'
counts '4 passed, 1 failed' 1 '1/1 Testing: a\n[  PASSED  ] 4 test(s).\nTest Failed.\n' # all well, then a crash
counts '2 passed, 0 failed' 0 '1/2 Testing: a\nTest Passed.\n2/2 Testing: b\nTest Passed.\n'
counts '1 passed, 1 failed' 1 '1/2 Testing: a\nCommand: "a"\nTest Passed.\n2/2 Testing: b\nCommand: ""\nTest Passed.\n' # b is not there
counts '0 passed, 0 failed' 1 'nothing\n'

echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
