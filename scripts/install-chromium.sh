#!/bin/sh
# Makes sure that there are a Chromium with its driver, and npm: installs them on Debian and Ubuntu,
# and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

if command -v chromium >/dev/null && command -v chromedriver >/dev/null && command -v npm >/dev/null; then
    exit 0
fi

command -v apt-get >/dev/null || fail \
    'Chromium, its driver or npm is missing. Install them:' \
    '  Fedora, RHEL     sudo dnf install chromium chromedriver npm' \
    '  Arch             sudo pacman -S chromium npm'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'Chromium is missing, and there is no sudo. As root, run:' \
        '  apt-get install chromium chromium-driver npm'
fi

missing=
command -v npm >/dev/null || missing=npm
echo 'Installing Chromium and its driver.'
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends \
    chromium chromium-driver fonts-noto-cjk $missing
