#!/bin/sh
# install.sh -- what 'make install' leaves is enough: the command runs, a program of a few lines builds against the shared
# and the static library by pkg-config alone; 'make uninstall' takes it all away. Usage: install.sh OMNIQ CC, the command as
# it lies in its build folder.
. "$(dirname "$0")/../command/lib.sh"
build=$(dirname "$omniq") cc=$2
step() { # NAME COMMAND...
    name=$1
    shift
    if "$@" > out 2>&1; then pass; else fail "$name" "$(tail -3 out)"; fi
}

cp "$build/install_manifest.txt" kept 2> /dev/null # the one of a real installation stays
step 'install' cmake --install "$build" --prefix "$work/to"
mkdir manifest
mv "$build/install_manifest.txt" manifest/
if [ -f kept ]; then cp kept "$build/install_manifest.txt"; fi
pc=$(find to -name omniq.pc)
libdir=$(dirname "$(dirname "$pc")")
export PKG_CONFIG_PATH="$work/$(dirname "$pc")" LD_LIBRARY_PATH="$work/$libdir"
cat > program.c << 'END'
#include <omniq/omniq.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    oq_env *env = NULL;
    oq_options *o = NULL;
    oq_report *r = NULL;
    const int ok = argc == 2 && oq_env_new(NULL, &env) == OQ_OK && oq_options_new(env, "plan", &o) == OQ_OK &&
                   oq_options_set(o, "model", argv[1]) == OQ_OK &&
                   oq_options_set(o, "quantization", "fp8") == OQ_OK && oq_run(o, &r) == OQ_OK;
    puts(ok ? oq_report_text(r) : oq_env_error(env));
    oq_report_free(r), oq_options_free(o), oq_env_free(env);
    return !ok;
}
END
flags() { pkg-config --define-variable=prefix="$work/to" "$@" omniq; } # wherever below it this build puts libraries
# shellcheck disable=SC2046 # flags are words
step 'build with libomniq.so' "$cc" program.c -o shared $(flags --cflags --libs)
step 'run with libomniq.so' ./shared "$model"
rm -f "$libdir"/libomniq.so*
# shellcheck disable=SC2046
step 'build with libomniq.a' "$cc" program.c -o static $(flags --static --cflags --libs)
step 'run with libomniq.a' ./static "$model"
step 'the installed command' to/bin/omniq plan -m "$model"
step 'the manual page' grep -q 'OMNIQ' to/share/man/man1/omniq.1
for file in bash-completion/completions/omniq zsh/site-functions/_omniq fish/vendor_completions.d/omniq.fish; do
    step "completion: $file" grep -q attention-quantization "to/share/$file"
done
touch to/include/somebody.h
step 'uninstall' make -C "$root" uninstall BUILD="$work/manifest" PREFIX="$work/to"
check 'uninstall leaves what is not its own' [ "$(find to ! -type d)" = to/include/somebody.h ]
check 'no folder of its own is left' [ ! -e to/include/omniq ]
finish
