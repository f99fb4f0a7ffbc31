#!/bin/sh
# Makes sure that there are valgrind, which counts instructions, and a C compiler: installs them on
# Debian and Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

if command -v valgrind >/dev/null && command -v cc >/dev/null; then
    exit 0
fi

command -v apt-get >/dev/null || fail \
    'valgrind or a C compiler is missing. Install both:' \
    '  Fedora, RHEL     sudo dnf install valgrind gcc' \
    '  Arch             sudo pacman -S valgrind gcc'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'valgrind is missing, and there is no sudo. As root, run:' \
        '  apt-get install valgrind gcc libc6-dev'
fi

echo 'Installing valgrind.'
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends valgrind gcc libc6-dev
