#!/bin/sh
# Builds `keyfall` of an earlier revision, and plays a rolling deployment with it and the present one.
# FROM names the revision. It is the last tag by default; as long as there is no tag, the revision
# before the last change of what is stored. SECONDS_OF_PHASE and SEED go to tests/upgrade/run.py.
set -eu
cd "$(dirname "$0")/.."

from=${FROM:-}
if [ -z "$from" ] && ! from=$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null); then
    from=$(git log -1 --format=%H -- lua src/store src/record.rs)^
    echo 'There is no tag: the old version is the one before the last change of lua, src/store or src/record.rs.'
fi
commit=$(git rev-parse --verify --quiet "$from^{commit}") || {
    echo "FROM=$from is no revision of this repository; fetch its history, or name another one." >&2
    exit 1
}
git log -1 --format='The old version is %h of %cs: %s' "$commit"

folder=$PWD/target/upgrade
old=$folder/keyfall-$commit
if [ ! -x "$old" ]; then
    git worktree prune
    [ -e "$folder/sources/.git" ] || git worktree add --quiet --detach "$folder/sources" "$commit"
    git -C "$folder/sources" checkout --quiet --detach "$commit"
    (cd "$folder/sources" && CARGO_TARGET_DIR="$folder/build" cargo build --locked -p keyfall-cli)
    cp "$folder/build/debug/keyfall" "$old"
fi
cargo build --workspace --all-features

python3 tests/upgrade/run.py --old "$old" --new target/debug/keyfall \
    ${SECONDS_OF_PHASE:+--seconds "$SECONDS_OF_PHASE"} ${SEED:+--seed "$SEED"}
