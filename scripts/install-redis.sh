#!/bin/sh
# Makes sure that there is a Redis or Valkey server to start: does nothing if there is
# one, installs one on Debian and Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

if [ -n "${KEYFALL_REDIS_BIN:-}" ] ||
    command -v redis-server >/dev/null ||
    command -v valkey-server >/dev/null; then
    exit 0
fi

command -v apt-get >/dev/null || fail \
    'A Redis or Valkey server is missing, 6.2 or later. Install one:' \
    '  Fedora, RHEL     sudo dnf install valkey' \
    '  Alpine           sudo apk add redis' \
    '  Arch             sudo pacman -S valkey' \
    '  macOS            brew install redis' \
    'or set KEYFALL_REDIS_BIN to the path of a redis-server or valkey-server.'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'redis-server is missing, and there is no sudo. As root, run:' \
        '  apt-get install redis-server'
fi

echo 'Installing redis-server.'
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y redis-server
echo 'Note: where systemd runs, the package has also started a Redis on port 6379.'
echo 'Keyfall never uses it. To be rid of it: sudo systemctl disable --now redis-server'
