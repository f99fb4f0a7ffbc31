#!/bin/sh
# Checks the model: every line of the file `checks`, two at a time, or those that are named; of a
# single one it also tells how the error came about. Exits with 1 if any has another outcome than it
# says, or if a cell of the table of states was never tried.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
MET=$work/met
STORY=
[ $# -ne 1 ] || STORY=yes
export MET STORY

sh "$here/one.sh" --head
if [ $# -gt 0 ]; then
    printf '%s\n' "$@"
else
    sed -n 's/^\([a-z][^ ]*\) .*/\1/p' "$here/checks"
fi | nice -n 19 xargs -P 2 -n 1 sh "$here/one.sh" || failed=1

# Every script has met the job in every state.
if [ $# -eq 0 ]; then
    for script in schedule if_absent if_present postpone fire cancel update requeue discard \
        claim reclaim renew done failed returned bury; do
        for state in absent dead pending waiting leased leased+next lapsed lapsed+next \
            cancelled cancelled+next; do
            grep -qxF "met: $script $state" "$MET" || {
                echo "never tried: $script of a job that is $state"
                failed=1
            }
        done
    done
fi
times >"$work/spent"
awk 'NR == 2 { split($1, user, /[ms]/); printf "%.0f s of CPU in all\n", user[1] * 60 + user[2] }' \
    "$work/spent"
exit "${failed:-0}"
