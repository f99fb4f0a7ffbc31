#!/bin/sh
# Compares the public API of the library with that of the last tag before this commit: a release that
# breaks programs has to say so in its number.
set -eu
cd "$(dirname "$0")/.."

if ! tag=$(git describe --tags --abbrev=0 HEAD^ 2>/dev/null); then
    echo 'There is no tag before this commit, so there is no API that programs rely on: nothing was compared.'
    exit 0
fi

version=0.51.0
tools=$PWD/target/semver
if [ ! -x "$tools/bin/cargo-semver-checks" ]; then
    cargo install --quiet --locked --root "$tools" "cargo-semver-checks@$version"
fi
echo "Comparing with the tag $tag."
# All features but `internals`, which promises nothing.
"$tools/bin/cargo-semver-checks" semver-checks --package keyfall --baseline-rev "$tag" \
    --only-explicit-features --features worker,tls,embedded,callbacks,metrics,traces
