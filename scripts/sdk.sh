#!/bin/sh
# Builds the clients in clients/python and clients/typescript as packages, installs them into empty
# folders as a user would, checks their types, and runs their tests against the daemon that
# `make test` has built. PYTHONS and NODES name other interpreters.
set -eu
cd "$(dirname "$0")/.."

export KEYFALL_REPOSITORY="$PWD" KEYFALL_BINARY="$PWD/target/debug/keyfall"
sdk=$PWD/target/sdk
pythons=${PYTHONS:-python3}
nodes=${NODES:-node}
mkdir -p "$sdk"

# A virtual environment with these packages; one that has them already is kept.
environment() {
    folder=$sdk/$1 python=$2
    shift 2
    [ "$(cat "$folder/ready" 2>/dev/null)" = "$*" ] && return
    "$python" -m venv --clear "$folder"
    "$folder/bin/pip" install --quiet --disable-pip-version-check "$@"
    echo "$*" >"$folder/ready"
}

check_python() {
    name=python-$("$1" -c 'import platform; print(platform.python_version())')
    environment "$name" "$1" 'httpx==0.28.1' 'mypy==1.19.1' 'pytest==8.4.2' 'pytest-xdist==3.8.0' \
        'standardwebhooks==1.*'
    "$sdk/$name/bin/pip" install --quiet --disable-pip-version-check --no-deps --force-reinstall \
        "$sdk"/wheel/keyfall-*.whl
    cp clients/python/pyproject.toml "$sdk/$name"
    # The installed package, and a program that uses it.
    (cd "$sdk/$name" && bin/mypy --config-file pyproject.toml -p keyfall &&
        bin/mypy --config-file pyproject.toml "$KEYFALL_REPOSITORY/clients/python/examples")
    "$sdk/$name/bin/python" -m pytest --quiet -n 4 -p no:cacheprovider clients/python/tests
}

# The packages have copies of the licences, because neither build takes files from outside its folder.
for license in LICENSE-MIT LICENSE-APACHE; do
    for client in clients/python clients/typescript; do
        cmp "$license" "$client/$license"
    done
done

# Fails if the list of the files of a package lacks one of the licences.
has_licenses() {
    files=$(cat)
    for license in LICENSE-MIT LICENSE-APACHE; do
        echo "$files" | grep -q "/$license" || { echo "$1 has no $license" >&2 && return 1; }
    done
}

build_python() {
    environment tools "$1" 'build==1.3.0' 'hatchling==1.27.0'
    rm -rf "$sdk/wheel"
    "$sdk/tools/bin/python" -m build --no-isolation --outdir "$sdk/wheel" clients/python >"$sdk/build.log" ||
        { cat "$sdk/build.log" >&2 && return 1; }
    tar tzf "$sdk"/wheel/keyfall-*.tar.gz | has_licenses "the source package of Python"
    "$1" -m zipfile --list "$sdk"/wheel/keyfall-*.whl | has_licenses "the wheel"
}

build_node() {
    # Compiled beside its dependencies, so that the sources stay as they are.
    mkdir -p "$sdk/typescript" "$sdk/app"
    rm -rf "$sdk/typescript/src" "$sdk/typescript/dist" "$sdk"/typescript/keyfall-*.tgz
    cp -R clients/typescript/src clients/typescript/package.json clients/typescript/tsconfig.json \
        clients/typescript/README.md clients/typescript/LICENSE-* "$sdk/typescript"
    (
        cd "$sdk/typescript"
        [ -d node_modules ] || npm install --silent --no-fund --no-audit --no-package-lock
        npx tsc -p .
        npm pack --silent >/dev/null
        tar tzf keyfall-*.tgz | has_licenses "the package of npm"
    )
    rm -rf "$sdk"/app/*.ts "$sdk/app/built" "$sdk/app/node_modules/keyfall"
    cp clients/typescript/tests/* clients/typescript/examples/* "$sdk/app"
    cp clients/typescript/tsconfig.json "$sdk/app/package.tsconfig.json"
    (
        cd "$sdk/app"
        [ -e package.json ] || echo '{ "private": true, "type": "module" }' >package.json
        npm install --silent --no-fund --no-audit --no-package-lock --no-save \
            "$sdk"/typescript/keyfall-*.tgz typescript@5.9.3 @types/node@20.19.43 standardwebhooks@1.1.1
        npx tsc -p .
    )
}

check_node() {
    (cd "$sdk/app" && "$1" --test --test-concurrency=4 --test-force-exit --test-reporter=spec built/*.test.js)
}

is_new() {
    "$1" -e 'process.exit(parseInt(process.versions.node) >= 20 ? 0 : 1)'
}

# Debian 12 has Node 18.
if [ -z "${NODES:-}" ] && ! is_new "$nodes"; then
    mkdir -p "$sdk/node"
    (cd "$sdk/node" && npm install --silent --no-fund --no-audit --no-package-lock node@20)
    nodes=$sdk/node/node_modules/node/bin/node
fi
for node in $nodes; do
    is_new "$node" || {
        echo "$node is $("$node" --version), and the client needs Node 20 or later: name another one in NODES" >&2
        exit 1
    }
done
build_node >"$sdk/build-node.log" 2>&1 &
node_build=$!
build_python "${pythons%% *}"
# Most tests wait nearly all of the time.
number=0 running=
start() {
    number=$((number + 1))
    "$@" >"$sdk/$number.log" 2>&1 &
    running="$running $!:$number"
    echo "$2" >"$sdk/$number.name"
}
for python in $pythons; do start check_python "$python"; done
wait "$node_build" || { cat "$sdk/build-node.log" >&2 && exit 1; }
for node in $nodes; do start check_node "$node"; done
failed=0
for one in $running; do
    wait "${one%%:*}" || failed=1
    echo "== $(cat "$sdk/${one#*:}.name")"
    cat "$sdk/${one#*:}.log"
done
exit $failed
