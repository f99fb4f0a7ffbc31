#!/bin/sh
# Schedules payment notices over HTTP with curl, and delivers them when they are due.
#
# Start a Redis and `keyfall serve`, then `sh examples/http/schedule_and_pull.sh`. It ends on Ctrl-C
# or SIGTERM. The daemon is at KEYFALL_API, or else at http://127.0.0.1:9276; one that asks for a
# token finds it in KEYFALL_TOKEN.
set -eu

api=${KEYFALL_API:-http://127.0.0.1:9276}
kind=${1:-app1}:trans:notice

command -v curl >/dev/null || {
    echo 'curl is missing: install it, as with `apt-get install curl`' >&2
    exit 1
}

# call METHOD PATH [BODY]: prints the answer; fails, and says why, if it is a problem.
# The token goes by a file descriptor: all users of the machine can see what stands in a command.
call() {
    if [ -n "${KEYFALL_TOKEN:-}" ]; then
        echo "header = \"authorization: Bearer $KEYFALL_TOKEN\""
    fi | curl --config - --silent --show-error --fail-with-body --max-time 90 \
        --request "$1" "$api$2" ${3:+--data "$3"}
}

# field NAME: the value of that name in the JSON that it reads. Whoever has jq takes that.
field() {
    sed -n "s/.*\"$1\":\"\{0,1\}\([^\",}]*\).*/\1/p"
}

# settle VERB LEASE [, MORE]: finishes, extends or fails a lease; prints the answer.
settle() {
    call POST "/v1/leases/$1" "{\"leases\": [\"$2\"]${3:-}}"
}

mended=no

# deliver JOB: runs it. A job may come twice, so whatever this does must bear that.
deliver() {
    key=$(echo "$1" | field key)
    lease=$(echo "$1" | field lease)
    attempt=$(echo "$1" | field attempt)
    order=${key##*:}
    echo "order $order, attempt $attempt"
    case $order,$attempt,$mended in
    42,1,*) answer=$(settle fail "$lease" ', "error": "the shop answered 503", "after": "1s"') ;;
    44,*,no) answer=$(settle fail "$lease" ', "error": "the shop answered 404", "bury": true') ;;
    43,*)
        # For what takes longer than the lease: ask for more while there is some left.
        answer=$(settle extend "$lease" ', "by": "2m"')
        case $answer in *'"extended"'*) answer=$(settle finish "$lease") ;; esac
        ;;
    *) answer=$(settle finish "$lease") ;;
    esac
    result=$(echo "$answer" | field result)
    echo "order $order: $result"
    if [ "$result" = buried ]; then
        # This is what an operator does, who has mended the shop.
        mended=yes
        letter=$(echo "$answer" | field letter)
        call POST "/v1/dead/$key/requeue" "{\"letter\": $letter}" >/dev/null
    fi
}

for order in 41 42 43 44; do
    call PUT "/v1/jobs/$kind:$order" "{\"payload\": {\"order\": $order}, \"after\": \"500ms\"}" \
        >/dev/null
    echo "order $order is scheduled"
done

# A signal is heeded between two pulls. They are short, because a curl that is killed might have
# read an answer, and the jobs in it would wait for the end of their lease.
stopping=
trap 'stopping=yes' INT TERM
while [ -z "$stopping" ]; do
    if answer=$(call POST /v1/pull "{\"kinds\": [\"$kind\"], \"max\": 1, \"wait\": \"2s\"}"); then
        case $answer in *'"lease"'*) deliver "$answer" ;; esac
    else
        echo "$answer" >&2
        sleep 1
    fi
done
echo stopped
