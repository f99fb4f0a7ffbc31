#!/bin/sh
# Makes sure that there are Node and Sidekiq, for `make moving-check`: installs them on Debian and
# Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

missing=
command -v npm >/dev/null || missing="$missing nodejs npm"
ruby -e 'require "sidekiq"' 2>/dev/null || missing="$missing ruby-sidekiq"
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null || fail "Missing, and needed by tests:$missing. Install it."

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail "Missing, and there is no sudo. As root, run:" "  apt-get install$missing"
fi

echo "Installing$missing."
as_root apt-get update
# Each is the name of its package.
# shellcheck disable=SC2086
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
