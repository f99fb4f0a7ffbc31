#!/bin/sh
# Makes one check, a line of the file `checks`, and says in a line what came of it, and then how it
# came about if that is not what it should be, or if STORY is set. Exits with 1 if the outcome is
# another. `--head` prints the head of the table.
set -eu

row='%-16s %-36s %9s %5s %6s%s\n'
if [ "$1" = --head ]; then
    printf "$row" check outcome states MB 'CPU s' ''
    exit
fi

# The most that one check may take, in MB.
MEMORY=1500

here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

name=$1
# Resharding has a model of its own, and so have looking at keys that are elsewhere and the sharing of
# limits.
endless='overdue_is_claimed lapsed_is_ended'
case $name in
moving*) model=moving ;;
looking*) model=looking ;;
sharing*)
    model=sharing
    endless=all_start
    ;;
*) model=keyfall ;;
esac
set -f
set -- $(grep "^$name " "$here/checks")
[ $# -gt 1 ] || { echo "there is no check $name" >&2; exit 1; }
outcome=$2
shift 2
what=
defines=
case $outcome in
breaks | starves | shows)
    what=$1
    shift
    ;;
esac
for bound in "$@"; do
    defines="$defines -D$bound"
done
case $outcome in
shows) defines="$defines -DSHOW=$what" ;;
lives | starves) defines="$defines -DLIVENESS" ;;
esac

build() { # compiler flags
    { spin $defines -a "$here/$model.pml" &&
        cc -w -DNOREDUCE -DMEMLIM=$MEMORY "$@" -o pan pan.c; } >spin.log 2>&1 ||
        { cat spin.log >&2; exit 1; }
}

search() { # flags of pan
    ./pan -m100000 -w22 "$@" >>out 2>&1 || true
}

# Whether all states were seen, so many times, and nothing was wrong in any.
is_clean() {
    [ "$(grep -c 'errors: 0' out)" -eq "$1" ] &&
        ! grep -q -e 'Search not completed' -e 'error:' -e 'too small' out
}

check() {
    case $outcome in
    holds)
        build -O1 -DSAFETY
        search
        is_clean 1
        ;;
    lives)
        build -O1 -DNFAIR=4
        set -- $endless
        for formula in "$@"; do
            search -a -f -N "$formula"
        done
        is_clean $#
        ;;
    breaks)
        build -DSAFETY
        search
        grep -q "assertion violated.*$what" out
        ;;
    starves)
        build -DNFAIR=4
        search -a -f -N "$what"
        grep -q 'acceptance cycle' out
        ;;
    shows)
        build -DSAFETY
        search
        grep -q 'assertion violated ([0-9]*!=[0-9]*)' out
        ;;
    *)
        echo "check $name: there is no outcome $outcome" >&2
        false
        ;;
    esac
}

# What happened on the way to the error, if there is one.
tell_story() {
    grep -h -e 'assertion violated' -e 'Search not completed' -e 'error:' out | cut -c 1-200 || true
    [ -f $model.pml.trail ] || return 0
    spin $defines -B -k $model.pml.trail -t "$here/$model.pml" |
        grep -E '^ *(lane [0-9]|worker [0-9]|a tick|Redis|somebody [0-9]|look [0-9]|ledger [0-9])' | sed 's/^  */  /'
}

verdict=
check || verdict='  NOT SO'
states=$(awk '/ states, stored/ { sum += $1 } END { print sum + 0 }' out)
memory=$(awk '/total actual memory/ && $1 > most { most = $1 } END { printf "%.0f", most }' out)
times >spent
seconds=$(awk 'NR == 2 { split($1, user, /[ms]/); printf "%.1f", user[1] * 60 + user[2] }' spent)
case $outcome in
holds | lives) grep '^met: ' out >>"${MET:-/dev/null}" || true ;;
esac
{
    printf "$row" "$name" "$outcome $what" "$states" "$memory" "$seconds" "$verdict"
    [ -z "$verdict${STORY-}" ] || tell_story
} >said
cat said
[ -z "$verdict" ]
