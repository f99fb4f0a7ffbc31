#!/bin/sh
# Has schemathesis (PyPI) send `keyfall serve` requests that its OpenAPI document allows, and
# others: no answer may be a fault of the server, or one that the document lacks.
# SEED=1 EXAMPLES=50 sh scripts/schemathesis.sh
set -eu
cd "$(dirname "$0")/.."

tools=target/schemathesis
if [ ! -x "$tools/bin/schemathesis" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'schemathesis==4.32.5'
fi
cargo build --quiet -p keyfall-cli

free_port() {
    python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
}
redis_port=$(free_port)
port=$(free_port)
data=$(mktemp -d)
redis-server redis.conf --port "$redis_port" --dir "$data" --daemonize no >"$data/redis.log" 2>&1 &
redis=$!
serve=
stop() {
    [ -z "$serve" ] || kill "$serve" 2>/dev/null || true
    kill "$redis" 2>/dev/null || true
    wait
    rm -rf "$data"
}
trap stop EXIT
trap 'exit 1' INT TERM
tries=0
until redis-cli -p "$redis_port" ping >/dev/null 2>&1; do
    tries=$((tries + 1))
    [ "$tries" -lt 100 ] || { cat "$data/redis.log"; exit 1; }
    sleep 0.1
done
# Another server may have taken the port.
kill -0 "$redis"
target/debug/keyfall serve --redis-url "redis://127.0.0.1:$redis_port" \
    --http-listen "127.0.0.1:$port" --http-access-log=false &
serve=$!

# The server may refuse valid data: the document says only in words that `after` and `at` exclude
# each other, for example. The warnings are about letters and kinds that do not exist.
SCHEMATHESIS_HOOKS=scripts.schemathesis_hooks PYTHONPATH=. "$tools/bin/schemathesis" \
    --config-file scripts/schemathesis.toml run \
    "http://127.0.0.1:$port/v1/openapi.json" --wait-for-schema 20 --request-timeout 60 \
    --exclude-checks positive_data_acceptance --warnings off --no-color \
    --max-examples "${EXAMPLES:-20}" ${SEED:+--seed "$SEED"}
