#!/bin/sh
# Compares the times of cron expressions with those of cronsim (PyPI), in 22 time zones.
# COUNT=200000 SEED=1 sh scripts/cron-check.sh
set -eu
cd "$(dirname "$0")/.."

tools=target/cronsim
if [ ! -x "$tools/bin/python" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'cronsim==2.8' tzdata
fi
seed=${SEED:-$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}
echo "SEED=$seed"
"$tools/bin/python" scripts/cron-triples.py "${COUNT:-200000}" "$seed" >"$tools/triples"
KEYFALL_CRON_TRIPLES="$PWD/$tools/triples" \
    sh scripts/some-tests.sh \
    cargo test -p keyfall --all-features --lib recurrence::tests::cron_agrees_with_cronsim -- --ignored --nocapture
