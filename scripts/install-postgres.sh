#!/bin/sh
# Makes sure that there is a PostgreSQL to start: does nothing if there is one, installs one on Debian
# and Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

[ -n "${KEYFALL_POSTGRES_BIN:-}" ] && exit 0
for initdb in /usr/lib/postgresql/*/bin/initdb; do
    [ -x "$initdb" ] && exit 0
done

command -v apt-get >/dev/null || fail \
    'PostgreSQL is missing, 13 or later. Install it, and set KEYFALL_POSTGRES_BIN to the folder of' \
    'its programs initdb, postgres and psql:' \
    '  Fedora, RHEL     sudo dnf install postgresql-server    /usr/bin' \
    '  Alpine           sudo apk add postgresql               /usr/libexec/postgresql' \
    '  Arch             sudo pacman -S postgresql             /usr/bin' \
    '  macOS            brew install postgresql               $(brew --prefix)/bin'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'PostgreSQL is missing, and there is no sudo. As root, run:' \
        '  apt-get install postgresql'
fi

echo 'Installing postgresql.'
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y postgresql
echo 'Note: where systemd runs, the package has also started a PostgreSQL on port 5432.'
echo 'Keyfall never uses it. To be rid of it: sudo systemctl disable --now postgresql'
