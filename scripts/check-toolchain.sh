#!/bin/sh
# Checks that Rust and a C compiler are there. Installs nothing: how to get them is a
# choice of its own.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

command -v cargo >/dev/null || fail \
    'cargo is missing. Install Rust from https://rustup.rs, then open a new shell.'

# Rust links with it, and the build scripts of some dependencies need it.
command -v cc >/dev/null || command -v gcc >/dev/null || command -v clang >/dev/null || fail \
    'A C compiler is missing, and Rust links with it. Install one:' \
    '  Debian, Ubuntu   sudo apt-get install gcc libc6-dev' \
    '  Fedora, RHEL     sudo dnf install gcc' \
    '  Alpine           sudo apk add gcc musl-dev' \
    '  Arch             sudo pacman -S gcc' \
    '  macOS            xcode-select --install'
