#!/bin/sh
# Runs the producers of examples/adoption in Python and Node; then the consumers of
# examples/consumers, of lists and of streams, in five languages, on a private Redis. The first one
# of each is killed before it acknowledges its job; the second gets that one again, and three others.
set -eu
cd "$(dirname "$0")/.."

languages='python node go php java'
examples=$PWD/examples/consumers
tools=$PWD/target/consumers
keyfall=$PWD/target/debug/keyfall
work=$(mktemp -d)
started=
end() {
    for pid in $started; do kill -9 "$pid" 2>/dev/null || :; done
    wait
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

# Waits until a command succeeds; the text names the condition in the error.
until_so() {
    what=$1 tries=0
    shift
    until "$@" >/dev/null 2>&1; do
        tries=$((tries + 1))
        if [ "$tries" -gt 300 ]; then
            echo "not within a minute: $what" >&2
            tail -n 20 "$work"/*.log >&2
            exit 1
        fi
        sleep 0.2
    done
}

# The dependencies of each that are no packages of Debian, and the compiled parts.
redis_py=8.1.0 node_redis=5.9.0
python=$tools/redis-py-$redis_py node=$tools/node-redis-$node_redis
if [ ! -e "$python/ready" ]; then
    python3 -m venv "$python"
    "$python/bin/pip" install --quiet "redis==$redis_py"
    touch "$python/ready"
fi
if [ ! -e "$node/ready" ]; then
    npm install --silent --no-fund --no-audit --prefix "$node" "redis@$node_redis"
    touch "$node/ready"
fi
cp "$examples"/*.mjs examples/adoption/*.mjs "$node"

# Producers: a test in Rust watches each of their jobs.
KEYFALL_PYTHON=$python/bin/python KEYFALL_NODE=$node \
    sh scripts/some-tests.sh \
    cargo test --workspace --all-features --test it -- --ignored adopting::languages

for way in list stream; do
    (cd "$examples/go" && GO111MODULE=off GOPATH=/usr/share/gocode GOCACHE="$tools/go-cache" \
        CGO_ENABLED=0 go build -o "$tools/go-$way" "./$way")
done
gson=/usr/share/java/gson.jar
javac -Xlint -Werror -d "$tools/java" -cp "$gson" -sourcepath scripts/jedis "$examples"/*.java

# Starts the consumer of a language and a way.
consume() {
    key=$1-$2
    case $key in
    python-*) set -- "$python/bin/python" "$examples/$2.py" ;;
    node-*) set -- node "$node/$2.mjs" ;;
    go-*) set -- "$tools/go-$2" ;;
    php-*) set -- php "$examples/$2.php" ;;
    java-list) set -- java -cp "$tools/java:$gson" ListConsumer ;;
    java-stream) set -- java -cp "$tools/java:$gson" StreamConsumer ;;
    esac
    case $key in
    *-list) exec "$@" "$key" ;;
    *-stream) exec "$@" "$key" closers me ;;
    esac
}
# Calls a command with each language and way.
each() {
    for language in $languages; do
        for way in list stream; do "$@" "$language" "$way"; done
    done
}

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
redis-server redis.conf --port "$port" --dir "$work" --daemonize no >"$work/redis.log" 2>&1 &
started="$started $!"
ask() { redis-cli -p "$port" "$@"; }
until_so 'Redis answers' ask ping
# Consumers have a user of their own, the default one, so that they can be hindered.
ask acl setuser keyfall on '>secret' '~*' '&*' +@all >/dev/null
export REDIS_URL="redis://127.0.0.1:$port" KEYFALL_REDIS_URL="redis://keyfall:secret@127.0.0.1:$port"

route() {
    target="list = { key = \"$1-list\", acknowledged = true }"
    [ "$2" = list ] || target="stream = { key = \"$1-stream\", group = \"closers\" }"
    printf '[[route]]\npattern = "%s:%s:job:*"\ntarget = { %s }\n' "$1" "$2" "$target"
    printf 'lease = "5s"\nretry = "1s 1s 1s 1s 1s"\n'
}
each route >"$work/keyfall.toml"
"$keyfall" serve --config "$work/keyfall.toml" --http-listen 127.0.0.1:0 >"$work/keyfall.log" 2>&1 &
started="$started $!"
until_so 'the daemon listens' grep -q '^listening on' "$work/keyfall.log"

schedule() {
    first=$1 last=$2
    for id in $(seq "$first" "$last"); do
        "$keyfall" schedule "$3:$4:job:$id" '{"order": 7}' >/dev/null
    done
}

# `run 1` starts the first one of each, `run 2` the second.
run() {
    consume "$2" "$3" >"$work/$2-$3-$1.log" 2>&1 &
    running="$running $!" started="$started $!"
}

# The first ones run a job, and nobody lets them acknowledge it; then they are killed.
ask acl setuser default -xack -rpush >/dev/null
running=
each run 1
each schedule 1 1
ran() { grep -q "^done $1:$2:job:1 " "$work/$1-$2-1.log"; }
each until_so 'a first consumer runs a job' ran
for pid in $running; do
    kill -9 "$pid" 2>/dev/null || : # Some have ended by themselves.
    wait "$pid" 2>/dev/null || :
done
ask acl setuser default +xack +rpush >/dev/null

each run 2
each schedule 2 4
ended() {
    "$keyfall" kinds "$1:$2:job" --json | grep -q '"done":4,' &&
        [ "$(grep -o "^done $1:$2:job:[1-4] " "$work/$1-$2-2.log" | sort -u | wc -l)" -eq 4 ]
}
told() {
    until_so "$1, $2: four jobs are done" ended "$1" "$2"
    echo "$1, $2: four jobs are done, and one of them was taken by a consumer that was killed"
}
each told
