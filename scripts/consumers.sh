#!/bin/sh
# Runs the consumers of examples/consumers on a private Redis, each until it has done with three
# jobs. Those whose language or library is not here are named, with what would install it.
set -eu

dir=$(CDPATH='' cd -- "$(dirname -- "$0")/../examples/consumers" && pwd)
work=$(mktemp -d)
started=
end() {
    for pid in $started; do kill "$pid" 2>/dev/null || :; done
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

keyfall=$(dirname "$dir")/../target/debug/keyfall
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
redis-server --port "$port" --save '' --notify-keyspace-events Ex >"$work/redis.log" &
started="$started $!"
export REDIS_URL="redis://127.0.0.1:$port"
export KEYFALL_REDIS_URL="$REDIS_URL"
until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.1; done

# By name: a command that fails where the library is missing, and what would install it.
try() {
    name=$1 needs=$2 install=$3
    shift 3
    if ! sh -c "$needs" >"$work/needs.log" 2>&1; then
        echo "$name: not run; $install"
        return 0
    fi
    cat >>"$work/keyfall.toml" <<TOML
[[route]]
pattern = "$name:list:job:*"
target = { list = { key = "$name-list", acknowledged = true } }
[[route]]
pattern = "$name:stream:job:*"
target = { stream = { key = "$name-stream", group = "closers" } }
TOML
    names="$names $name"
    eval "list_$name=\$1 stream_$name=\$2"
}

names=
try python "python3 -c 'import redis'" "pip install redis" \
    "python3 $dir/list.py" "python3 $dir/stream.py"
try node "cp $dir/*.mjs $work && cd $work && npm install --no-fund --no-audit redis" \
    "install node and npm" "node $work/list.mjs" "node $work/stream.mjs"
try go "cp -r $dir/go $work && cd $work/go && go mod init consumers && go get github.com/redis/go-redis/v9@v9.0.5 && go build -o $work/golist ./list && go build -o $work/gostream ./stream" \
    "apt-get install golang-go" "$work/golist" "$work/gostream"
try php "php -r 'exit(extension_loaded(\"redis\") ? 0 : 1);'" "apt-get install php-cli php-redis" \
    "php $dir/list.php" "php $dir/stream.php"
cat >"$work/pom.xml" <<POM
<project><modelVersion>4.0.0</modelVersion><groupId>x</groupId><artifactId>x</artifactId><version>1</version>
<dependencies>
<dependency><groupId>redis.clients</groupId><artifactId>jedis</artifactId><version>5.2.0</version></dependency>
<dependency><groupId>com.google.code.gson</groupId><artifactId>gson</artifactId><version>2.11.0</version></dependency>
</dependencies></project>
POM
try java "cd $work && mvn -q -B dependency:copy-dependencies -DoutputDirectory=$work/jars" \
    "apt-get install default-jdk-headless maven, which fetches Jedis and Gson" \
    "java -cp $work/jars/* $dir/ListConsumer.java" "java -cp $work/jars/* $dir/StreamConsumer.java"

"$keyfall" serve --config "$work/keyfall.toml" --http-listen 127.0.0.1:0 >"$work/keyfall.log" 2>&1 &
started="$started $!"
until grep -q '^listening on' "$work/keyfall.log"; do sleep 0.1; done

for name in $names; do
    for way in list stream; do
        for id in 1 2 3; do
            "$keyfall" schedule "$name:$way:job:$id" '{"order": 7}' >/dev/null
        done
        eval "run=\$${way}_$name"
        args="$name-$way"
        [ "$way" = list ] || args="$args closers me"
        # The words of a command; a class path is to keep its star.
        set -f
        # shellcheck disable=SC2086
        $run $args >"$work/$name-$way.log" 2>&1 &
        pid=$!
        set +f
        started="$started $pid"
        tries=0
        until "$keyfall" kinds --json | grep "$name:$way:job" | grep -q '"done": *3'; do
            tries=$((tries + 1))
            if [ "$tries" -gt 100 ]; then
                echo "$name, $way: not done" >&2
                cat "$work/$name-$way.log" "$work/keyfall.log" >&2
                exit 1
            fi
            sleep 0.3
        done
        kill "$pid"
        echo "$name, $way: three jobs are done"
    done
done
