#!/bin/bash
# The life of the package on a machine, whose systemd is process 1: each line of the output is a step that
# worked.
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive PATH=/usr/sbin:/usr/bin:/sbin:/bin

# What the commands say is shown only if one fails.
exec 3>&1 >/check.details 2>&1
step() { printf 'ok: %s\n' "$*" >&3; }
fail() {
    exec >&3 2>&1
    tail -n 20 /check.details
    printf 'FAILED: %s\n' "$*"
    systemctl --no-pager --full status keyfall || true
    journalctl --no-pager -u keyfall -n 40 || true
    exit 1
}
trap 'fail "line $LINENO"' ERR

# Waits until the command succeeds.
until_true() {
    for _ in $(seq 300); do
        if "$@" >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "it does not become true: $*"
}
# The command has to fail; `set -e` overlooks a `!`.
refuses() {
    if "$@" >/dev/null 2>&1; then fail "it succeeds: $*"; fi
}
shows() { [ "$(systemctl show keyfall -p "$1" --value)" = "$2" ]; }
pid() { systemctl show keyfall -p MainPID --value; }
runs_another() { systemctl is-active keyfall && [ "$(pid)" != 0 ] && [ "$(pid)" != "$1" ]; }

dpkg -i /old.deb
[ "$(stat -c '%U:%G %a' /etc/keyfall)" = 'root:keyfall 750' ]
[ "$(stat -c '%a' /etc/keyfall/keyfall.toml)" = 644 ]
id keyfall
refuses systemctl is-enabled keyfall
refuses systemctl is-active keyfall
keyfall config check /etc/keyfall/keyfall.toml
for page in keyfall keyfall-serve keyfall-token-make; do gzip -t /usr/share/man/man1/$page.1.gz; done
bash -c 'source /usr/share/bash-completion/completions/keyfall; complete -p keyfall'
step 'the package installs user, configuration, manual and completions, and starts nothing'

systemd-analyze verify --man=no keyfall.service
systemd-analyze security --no-pager --threshold=20 keyfall.service
step 'systemd finds no fault in the unit, and an exposure of at most 2.0'

# Restarts are to be seen before they get rare, and the watchdog bites soon.
mkdir -p /run/systemd/system/keyfall.service.d
printf '[Service]\nWatchdogSec=3s\nRestartSec=500ms\n' > /run/systemd/system/keyfall.service.d/soon.conf
systemctl daemon-reload
systemctl enable keyfall
systemctl start --no-block keyfall
starts() { [ "$(systemctl show keyfall -p NRestarts --value)" -ge 6 ]; }
until_true starts
shows ActiveState activating
step 'without a Redis the service starts again and again, and is never active'

systemd-run --quiet --unit=store redis-server --save '' --dir /tmp
until_true systemctl is-active keyfall
shows StatusText ready
until_true keyfall probe
step 'with a Redis it becomes active, and says that it is ready'

runuser -u keyfall -- keyfall token make --file /var/lib/keyfall/tokens.toml --scope read > /tmp/token
printf '\n[[route]]\npattern = "app1:trans:notice:*"\ntarget = "pull"\n' >> /etc/keyfall/keyfall.toml
sed -i 's|^# file = "/etc/keyfall/tokens.toml"|file = "/var/lib/keyfall/tokens.toml"|' /etc/keyfall/keyfall.toml
before=$(pid)
systemctl reload keyfall
routes() { journalctl -u keyfall | grep -q 'route app1:trans:notice'; }
until_true routes
[ "$(pid)" = "$before" ]
step 'a reload takes over the routes of a changed configuration, in the same process'

cp /etc/keyfall/keyfall.toml /tmp/good.toml
echo 'nonsense = 1' >> /etc/keyfall/keyfall.toml
refuses systemctl reload keyfall
shows StatusText ready
[ "$(pid)" = "$before" ]
cp /tmp/good.toml /etc/keyfall/keyfall.toml
step 'a reload of a configuration with a fault fails, and the daemon goes on'

systemctl restart keyfall
refuses keyfall count --api http://127.0.0.1:9276
KEYFALL_TOKEN=$(cat /tmp/token) keyfall count --api http://127.0.0.1:9276
step 'after a restart the daemon wants the token, whose file the user keyfall has made'

before=$(pid)
kill -STOP "$before"
until_true runs_another "$before"
journalctl -u keyfall | grep -q 'Watchdog timeout'
step 'a daemon that hangs is killed by the watchdog, and starts again'

systemctl stop store
not_ready() { systemctl show keyfall -p StatusText --value | grep -q 'not ready'; }
until_true not_ready
before=$(pid)
sleep 4 # Longer than the watchdog waits.
[ "$(pid)" = "$before" ]
systemd-run --quiet --unit=store redis-server --save '' --dir /tmp
until_true shows StatusText ready
step 'an outage of Redis leaves the process alone, and the status names it'

dpkg -i /new.deb
cmp /tmp/good.toml /etc/keyfall/keyfall.toml
until_true runs_another "$before"
[ "$(dpkg-query -W -f '${Version}' keyfall)" = "$(dpkg-deb -f /new.deb Version)" ]
step 'an upgrade keeps the edited configuration, and starts the service again'

systemctl disable --now keyfall
dpkg -i /new.deb
refuses systemctl is-active keyfall
step 'an upgrade of a service that is stopped and disabled starts nothing'

systemctl enable --now keyfall
before=$(pid)
dpkg -r keyfall
refuses kill -0 "$before"
[ ! -e /usr/bin/keyfall ]
cmp /tmp/good.toml /etc/keyfall/keyfall.toml
[ -e /var/lib/keyfall/tokens.toml ]
step 'a removal stops the service, and keeps configuration and tokens'

dpkg -i /new.deb
systemctl is-enabled keyfall
dpkg -P keyfall
[ ! -e /etc/keyfall ]
[ ! -e /var/lib/keyfall ]
refuses systemctl cat keyfall
systemctl --failed --no-legend
step 'a purge leaves nothing behind but the user'
