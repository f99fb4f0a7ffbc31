#!/bin/sh
# Builds the documentation as a site, into target/site: the pages of docs/ and the calls of the HTTP
# API, as `keyfall serve` describes them. A link, an anchor or an image that leads nowhere ends it.
set -eu
cd "$(dirname "$0")/.."

tools=target/site-tools
if ! cmp -s scripts/site/requirements.txt "$tools/ready"; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet --disable-pip-version-check -r scripts/site/requirements.txt
    cp scripts/site/requirements.txt "$tools/ready"
fi

work=$(mktemp -d)
started=
end() {
    # shellcheck disable=SC2086
    [ -z "$started" ] || kill $started 2>/dev/null || :
    wait
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM

redis-server redis.conf --port 0 --unixsocket "$work/redis" --dir "$work" --daemonize no \
    >"$work/redis.log" 2>&1 &
started=$!
target/debug/keyfall serve --redis-url "redis+unix://$work/redis" --http-listen 127.0.0.1:0 \
    >"$work/keyfall.log" 2>&1 &
started="$started $!"
tries=0
until url=$(sed -n 's/^listening on //p' "$work/keyfall.log") && [ -n "$url" ]; do
    tries=$((tries + 1))
    [ "$tries" -lt 300 ] || { cat "$work"/*.log >&2; exit 1; }
    sleep 0.1
done
curl --silent --fail "$url/v1/openapi.json" >target/openapi.json

python3 scripts/site/build.py
"$tools/bin/zensical" build --strict --clean --config-file target/site-pages.yml

# The site works in a closed network.
loads='<(script|img|iframe|source)[^>]* src(set)?="?https?:|<link[^>]* rel="?(stylesheet|icon|preconnect)[^>]* href="?https?:'
if grep -rnoE --include='*.html' "$loads" target/site; then
    echo 'These load something from another host.' >&2
    exit 1
fi
echo "$(find target/site -name '*.html' | wc -l) pages in target/site: python3 -m http.server --directory target/site"
