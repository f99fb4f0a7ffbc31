#!/bin/sh
# Makes sure that there are Prometheus and promtool, by which metrics, rules and dashboard are
# checked: installs them on Debian and Ubuntu, and says how elsewhere.
set -eu

fail() {
    printf '%s\n' "$@" >&2
    exit 1
}

if command -v prometheus >/dev/null && command -v promtool >/dev/null; then
    exit 0
fi

command -v apt-get >/dev/null || fail \
    'Prometheus is missing, and its promtool, 2.42 or later: install the package `prometheus`.'

if [ "$(id -u)" -eq 0 ]; then
    as_root() { "$@"; }
elif command -v sudo >/dev/null; then
    as_root() { sudo "$@"; }
else
    fail 'prometheus is missing, and there is no sudo. As root, run:' \
        '  apt-get install --no-install-recommends prometheus'
fi

echo 'Installing prometheus.'
# The package starts a service on port 9090, which nobody here needs.
if [ -d /run/systemd/system ]; then
    as_root systemctl mask prometheus.service
    echo 'Its service is masked. To have it: sudo systemctl unmask prometheus.service'
fi
as_root apt-get update
as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends prometheus
