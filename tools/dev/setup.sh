# setup.sh -- sourced by ./demo and ./check: finds what the build needs, installs it where that is allowed,
# else says exactly what to install.


have() { command -v "$1" > /dev/null 2>&1; }

have_module() { have pkg-config && pkg-config --exists "$1"; }

# A compiler without its C library's headers is no compiler.
have_compiler() {
    have "${CC:-cc}" || return 1
    printf '#include <stdio.h>\nint main(void) { return 0; }\n' | "${CC:-cc}" -x c -fsyntax-only - > /dev/null 2>&1
}

missing_packages() {
    have make || echo make
    have_compiler || echo gcc libc6-dev
    have cmake || echo cmake
    have pkg-config || echo pkg-config
    have_module 'jansson >= 2.13' || echo libjansson-dev
    have_module libfyaml || echo libfyaml-dev
    have_module libpcre2-8 || echo libpcre2-dev
    have_module libutf8proc || echo libutf8proc-dev
    have_module libpng || echo libpng-dev
    have_module cmocka || echo libcmocka-dev
}

# Pictures and videos of these types, and the server, are left out of a build that lacks them.
missing_media_packages() {
    have_module libjpeg || echo libjpeg62-turbo-dev
    have_module libwebpmux && have_module libwebpdemux || echo libwebp-dev
    have_module libmicrohttpd || echo libmicrohttpd-dev
    have_module libavformat && have_module libavcodec && have_module libswscale ||
        echo libavformat-dev libavcodec-dev libswscale-dev
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

install_packages() {
    have apt-get || return 1
    [ "$(id -u)" = 0 ] || { have sudo && sudo -n true 2> /dev/null; } || return 1
    echo "installing: $*"
    export DEBIAN_FRONTEND=noninteractive
    as_root apt-get update -qq && as_root apt-get install -y -qq --no-install-recommends "$@" > /dev/null
}

setup() {
    packages=$({ missing_packages; missing_media_packages; } | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    # shellcheck disable=SC2086 # one word per package
    install_packages $packages || true
    media=$(missing_media_packages | tr '\n' ' ')
    [ -z "$media" ] || echo "without $media: this build goes without JPEG, WebP, MP4 or the server" >&2
    packages=$(missing_packages | tr '\n' ' ')
    [ -n "$packages" ] || return 0
    echo "omniq needs these Debian packages, which could not be installed from here:" >&2
    echo "    apt-get install $packages" >&2
    echo "On other systems: a C17 compiler, make, cmake 3.25 or later, pkg-config, and the development files of" >&2
    echo "jansson, libfyaml, pcre2, utf8proc, libpng and cmocka." >&2
    return 1
}
