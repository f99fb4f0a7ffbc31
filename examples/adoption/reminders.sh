#!/bin/sh
# Reminds of orders, with redis-cli and nothing else.
#
#   reminders.sh remind 42 '{"uid":7}' 900    in 15 minutes
#   reminders.sh postpone 42 1800             in half an hour instead
#   reminders.sh replace 42 '{"uid":8}' 900   with another payload
#   reminders.sh cancel 42
#
# A route that adopts app1:trans:notice:* makes jobs of these keys. REDIS_URL says where Redis is,
# KIND which kind of job, if it is not app1:trans:notice.
set -eu

usage() {
    sed -n 's/^#   //p' "$0" >&2
    exit 2
}

# How many words each takes, itself included.
case ${1-}:$# in
remind:4 | replace:4 | postpone:3 | cancel:2) ;;
*) usage ;;
esac
url=${REDIS_URL:-redis://127.0.0.1:6379}
key=${KIND:-app1:trans:notice}:$2

# -e: an error of Redis is one of this script.
ask() { redis-cli -e -u "$url" "$@"; }

case $1 in
remind) answer=$(ask SET "$key" "$3" EX "$4") said="in $4 s" ;;
postpone) answer=$(ask EXPIRE "$key" "$3") said="in $3 s" ;;
# XX: only what is still there. What is due by now is not scheduled once more.
replace) answer=$(ask SET "$key" "$3" XX EX "$4") said="in $4 s" ;;
cancel) answer=$(ask DEL "$key") said=cancelled ;;
esac
case $answer in
OK | 1) echo "order $2: $said" ;;
*) echo "order $2: too late" ;;
esac
