#!/bin/sh
# Pushes orders over the classic interface with curl, and closes them when they are due.
#
# Start a Redis and `keyfall serve --classic-listen 127.0.0.1:9277 --classic-prefix app1:queue`,
# then `sh examples/classic/push_and_pop.sh`. The interface is at KEYFALL_CLASSIC, or else at
# http://127.0.0.1:9277.
set -eu

url=${KEYFALL_CLASSIC:-http://127.0.0.1:9277}

# call NAME BODY: prints the answer; fails, and says why, unless its code is 0.
call() {
    answer=$(curl --silent --show-error --max-time 200 "$url/$1" --data "$2")
    case $answer in
    *'"code":0,'*) echo "$answer" ;;
    *) echo "$1: $answer" >&2 && return 1 ;;
    esac
}

for order in 41 42; do
    call push "{\"topic\": \"order.close\", \"id\": \"close:$order\", \"delay\": 1, \"ttr\": 30,
        \"body\": \"$order\"}" >/dev/null
done
for _ in 1 2; do
    job=$(call pop '{"topic": "order.close"}')
    order=$(echo "$job" | sed -n 's/.*"body":"\([^"]*\)".*/\1/p')
    call finish "{\"id\": \"close:$order\"}" >/dev/null
    echo "order $order: closed"
done
