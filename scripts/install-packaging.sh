#!/bin/sh
# Makes sure that there are the programs that make and check packages: installs them on Debian and Ubuntu, and says
# how elsewhere.
#
#     sh scripts/install-packaging.sh PROGRAM:PACKAGE ...
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

missing=
for each in "$@"; do
    command -v "${each%:*}" >/dev/null || missing="$missing ${each#*:}"
done
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null || fail \
    "Programs of these packages of Debian are missing:$missing. Packages are made and checked on Debian and Ubuntu."

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'Programs are missing, and there is no sudo. As root, run:' \
        "  apt-get install --no-install-recommends$missing"
fi

echo "Installing$missing."
as_root apt-get update
# shellcheck disable=SC2086
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
