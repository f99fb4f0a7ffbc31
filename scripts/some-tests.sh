#!/bin/sh
# Runs a command of `cargo test` for tests that it names, and fails also if none of them ran: a test
# that was renamed would be left out in silence.
set -eu

log=$(mktemp)
trap 'rm -f "$log" "$log.status"' EXIT
{
    status=0
    "$@" || status=$?
    echo "$status" >"$log.status"
} | tee "$log"
status=$(cat "$log.status")
[ "$status" -eq 0 ] || exit "$status"
grep -q '^test result: ok\. [1-9][0-9]* passed' "$log" || {
    echo "No test has run: was it renamed? $*" >&2
    exit 1
}
