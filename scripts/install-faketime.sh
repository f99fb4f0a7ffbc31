#!/bin/sh
# Makes sure that libfaketime is there, by which the fault suite sets clocks: installs it on
# Debian and Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

for library in /usr/lib/*/faketime/libfaketimeMT.so.1 /usr/lib/faketime/libfaketimeMT.so.1; do
    [ ! -f "$library" ] || exit 0
done

command -v apt-get >/dev/null || fail \
    'libfaketime is missing: install the package `faketime` or `libfaketime`.'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'libfaketime is missing, and there is no sudo. As root, run:' \
        '  apt-get install faketime'
fi

echo 'Installing faketime.'
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends faketime
