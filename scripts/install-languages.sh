#!/bin/sh
# Makes sure that the languages of the consumers in examples/consumers are there, with their
# libraries that are packages of Debian: installs missing ones on Debian and Ubuntu, and says how
# elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

missing=
# Packages, and the command that fails where they are missing.
needs() {
    packages=$1
    shift
    "$@" >/dev/null 2>&1 || missing="$missing $packages"
}
needs python3-venv python3 -c 'import ensurepip, venv'
needs nodejs command -v node
needs npm command -v npm
needs golang-go command -v go
needs golang-github-gomodule-redigo-dev \
    test -d /usr/share/gocode/src/github.com/gomodule/redigo
needs 'php-cli php-redis' php -r 'exit(extension_loaded("redis") ? 0 : 1);'
needs default-jdk-headless command -v javac
needs libgoogle-gson-java test -e /usr/share/java/gson.jar
[ -n "$missing" ] || exit 0

command -v apt-get >/dev/null ||
    fail 'The consumers run on Debian and Ubuntu only. Missing are these packages:' " $missing"

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'Missing, and there is no sudo. As root, run:' "  apt-get install$missing"
fi

echo "Installing$missing."
as_root apt-get update
# Each is the name of a package.
# shellcheck disable=SC2086
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing
