#!/bin/sh
# Has BullMQ, Celery, rq and Sidekiq write delayed jobs, and imports them: the tests of
# tests/it/moving.rs with what the libraries write now. RECORD=1 keeps it as tests/moving/recorded.
set -eu
cd "$(dirname "$0")/.."

tools=$PWD/target/moving-tools
versions='celery 5.7.0, rq 3.0.0, bullmq 6.7.0, ioredis 6.0.0'
if [ "$(cat "$tools/ready" 2>/dev/null)" != "$versions" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check \
        'celery[redis]==5.7.0' 'rq==3.0.0'
    npm install --silent --no-fund --no-audit --prefix "$tools/node" bullmq@6.7.0 ioredis@6.0.0
    echo "$versions" >"$tools/ready"
fi
python=$tools/python/bin/python
cp tests/moving/bullmq.mjs "$tools/node"

work=$(mktemp -d)
redis=
end() {
    [ -z "$redis" ] || kill "$redis" 2>/dev/null || :
    wait
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

for system in bullmq celery rq sidekiq; do
    port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
    redis-server --port "$port" --dir "$work" --save '' >"$work/redis.log" 2>&1 &
    redis=$!
    tries=0
    until redis-cli -p "$port" ping >/dev/null 2>&1; do
        tries=$((tries + 1))
        [ "$tries" -lt 100 ] || { cat "$work/redis.log" >&2; exit 1; }
        sleep 0.1
    done
    case $system in
    bullmq) node "$tools/node/bullmq.mjs" "$port" ;;
    celery) "$python" tests/moving/celery_tasks.py "$port" ;;
    rq) "$python" tests/moving/rq_jobs.py "$port" ;;
    sidekiq) ruby tests/moving/sidekiq.rb "$port" ;;
    esac
    "$python" tests/moving/record.py "$port" >"$work/$system.json"
    kill "$redis"
    wait "$redis" || :
    redis=
done
[ -z "${RECORD:-}" ] || cp "$work"/*.json tests/moving/recorded
KEYFALL_MOVING=$work cargo test --workspace --all-features --test it -- moving::
