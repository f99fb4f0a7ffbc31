#!/bin/sh
# Boots a Debian in a container, with systemd, and there installs, runs, upgrades, removes and purges the
# package, as check-deb-inside.sh says. Needs root.
#
#     sh packaging/check-deb.sh OLD.deb NEW.deb
set -eu
cd "$(dirname "$0")/.."
[ $# -eq 2 ] || { echo 'usage: sh packaging/check-deb.sh OLD.deb NEW.deb' >&2; exit 2; }

# The project has no address for mail.
lintian --allow-root --fail-on error,warning \
    --suppress-tags bogus-mail-host,bogus-mail-host-in-debian-changelog "$2"

root=$(mktemp -d "${TMPDIR:-/tmp}/keyfall-deb-XXXXXX")
trap 'rm -rf --one-file-system "$root"' EXIT
mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus,ca-certificates,redis-server \
    bookworm "$root"
cp "$1" "$root/old.deb"
cp "$2" "$root/new.deb"
cp packaging/check-deb-inside.sh "$root/check.sh"
cat > "$root/etc/systemd/system/check.service" <<'END'
[Unit]
After=multi-user.target
SuccessAction=exit
FailureAction=exit

[Service]
Type=oneshot
ExecStart=/bin/bash /check.sh
StandardOutput=file:/check.log
StandardError=inherit
TimeoutStartSec=300

[Install]
WantedBy=multi-user.target
END
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/check.service"
# The package starts a Redis, which the check starts itself, when it is time.
ln -sf /dev/null "$root/etc/systemd/system/redis-server.service"

code=0
systemd-nspawn --quiet --directory="$root" --boot --register=no --keep-unit --private-network \
    --console=read-only > "$root/boot.log" 2>&1 || code=$?
if [ ! -s "$root/check.log" ]; then
    tail -n 30 "$root/boot.log"
    exit 1
fi
cat "$root/check.log"
exit "$code"
