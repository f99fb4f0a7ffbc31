#!/bin/sh
# Runs the tests that depend on the server on each server of scripts/servers.txt, one after the
# other, or on the named ones, and prints a table. Ends with 1 if any of them failed.
set -eu
cd "$(dirname "$0")/.."

# All of the store, whose tests call each script in every state of a job; expiry, refusals and
# failures; every operation through the public face; rights, limits, rules and series, which use
# scripts of their own; and lists and streams, which have commands of their own. Left out: the parts
# of Keyfall that depend on no server (instances, race, auditing, layers), amounts (bench, backlog,
# crowding), and programs (demo, examples, killed, mistakes; and http, some of whose modules have the
# names of others).
tests='store:: embedded::
    servers:: keyspace:: adopting:: doctor:: announced:: refused:: weather:: outages::
    firing:: workers:: pausing:: outcomes:: successors:: letters::
    scheduling:: bulk:: terms:: limits:: changing:: cancelling:: operating::
    rights:: limiting recurring:: series::
    lists:: streams:: forgotten:: functions:: resharding:: topology::durable:: topology::lagging::'

# One suite over all topologies. Sentinels and clusters differ less than servers do: on the oldest
# and on the newest of the common servers.
topologies='topology::suite::'

# Most of these tests wait for something nearly all of the time.
threads=12

in_tests() {
    cargo test --workspace --all-features --quiet --lib --test it "$@"
}

for name in "$@"; do
    grep -q "^$name " scripts/servers.txt || {
        echo "There is no server '$name' in scripts/servers.txt." >&2
        exit 1
    }
done
in_tests --no-run
# A filter that no test has would leave tests out in silence.
listed=$(in_tests -- --list)
for wanted in $tests $topologies; do
    case "$listed" in *"$wanted"*) continue ;; esac
    echo "No test has '$wanted' in its name: was it renamed?" >&2
    exit 1
done
table=target/servers/versions.txt
printf '%-11s %-14s %6s %7s %7s\n' server reports tests passed failed >"$table"
worst=0
while read -r name _; do
    case "$name" in '' | '#'*) continue ;; esac
    case " $* " in *" $name "* | '  ') ;; *) continue ;; esac
    # Cargo runs tests in the folder of their package.
    server=$PWD/target/servers/$name/${name%-*}-server
    log=target/servers/$name.log
    printf '%s\n' "$name"
    case "$#$name" in
        0valkey-9.1) wanted="$tests $topologies" ;;
        *) wanted=$tests ;;
    esac
    status=0
    # shellcheck disable=SC2086 # one word for each filter
    KEYFALL_REDIS_BIN=$server in_tests --no-fail-fast -- --test-threads "$threads" --skip http:: $wanted \
        >"$log" 2>&1 </dev/null || status=$?
    grep -q '^test result: .* [1-9][0-9]* passed' "$log" || status=1
    if [ "$status" -eq 0 ]; then
        grep '^test result:' "$log"
    else
        worst=1
        cat "$log"
    fi
    reports=$("$server" --version | sed 's/^\([A-Za-z]*\) server v=\([^ ]*\) .*/\1 \2/')
    awk -v name="$name" -v reports="$reports" -v status="$status" '
        /^test result:/ { passed += $4; failed += $6 }
        END {
            if (status && !failed) failed = "broken"
            printf "%-11s %-14s %6d %7d %7s\n", name, reports, passed + failed, passed, failed
        }' "$log" >>"$table"
done <scripts/servers.txt
echo
cat "$table"
exit "$worst"
