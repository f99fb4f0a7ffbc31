#!/bin/sh
# Makes sure that there is Spin, which checks the model: does nothing if it is there, installs it
# on Debian and Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

if command -v spin >/dev/null && command -v cc >/dev/null; then
    exit 0
fi

command -v apt-get >/dev/null || fail \
    'Spin or a C compiler is missing. Install both:' \
    '  Arch             sudo pacman -S gcc, and spin from the AUR' \
    '  macOS            brew install spin' \
    '  elsewhere        https://spinroot.com'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'Spin is missing, and there is no sudo. As root, run:' \
        '  apt-get install spin gcc libc6-dev'
fi

echo 'Installing spin.'
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends spin gcc libc6-dev
