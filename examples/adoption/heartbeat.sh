#!/bin/sh
# Beats for a host, with redis-cli and nothing else: whoever hears nothing of it for so long is
# told by a job, on a route that adopts app1:host:silent:*.
#
#   heartbeat.sh web-1 30    beats every 10 s; silence is 30 s without a beat
#
# REDIS_URL says where Redis is, KIND which kind of job, if it is not app1:host:silent.
set -eu

url=${REDIS_URL:-redis://127.0.0.1:6379}
host=$1 silence=$2
key=${KIND:-app1:host:silent}:$host
payload=$(printf '{"host":"%s"}' "$host")

ask() { redis-cli -e -u "$url" "$@"; }

# A beat is EXPIRE. Where it finds no key, this is the first beat, or that of a host which was
# silent for a while.
beat() {
    [ "$(ask EXPIRE "$key" "$silence")" = 1 ] || ask SET "$key" "$payload" EX "$silence" >/dev/null
}

# Who stops on purpose is not silent.
trap 'ask DEL "$key" >/dev/null; echo "$host is retired"; exit 0' INT TERM
beat
echo "$host beats"
while :; do
    sleep "$((silence / 3))" &
    wait $!
    # Redis may be away for a moment; the next beat is soon.
    beat || :
done
