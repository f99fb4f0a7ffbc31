#!/bin/sh
# Makes all packages twice, in two folders, from the commit that is checked out: their bytes are equal, and the Debian
# package lives as check-deb.sh says. Needs root, and the time of two release builds.
set -eu
cd "$(dirname "$0")/.."

folder=$(mktemp -d "${TMPDIR:-/tmp}/keyfall-dist-XXXXXX")
trap 'rm -rf "$folder"' EXIT
for clone in one another/and-longer; do
    git clone --quiet . "$folder/$clone"
    # The tool that makes the SBOM is compiled once.
    mkdir -p target/sbom "$folder/$clone/target"
    ln -s "$PWD/target/sbom" "$folder/$clone/target/sbom"
    (unset CARGO_TARGET_DIR; sh "$folder/$clone/packaging/dist.sh")
done
one=$folder/one/target/packages
diff "$one/SHA256SUMS" "$folder/another/and-longer/target/packages/SHA256SUMS"
(cd "$one" && sha256sum --check --quiet SHA256SUMS)
echo 'ok: two builds are equal'

# The package before, which the new one replaces.
mkdir "$folder/tree"
tar xzf "$one"/keyfall-*.tar.gz --directory "$folder/tree" --strip-components=1
KEYFALL_BINARY=$folder/tree/keyfall KEYFALL_VERSION=0.0.1 \
    sh "$folder/another/and-longer/packaging/dist.sh" > /dev/null
sh packaging/check-deb.sh "$folder"/another/and-longer/target/packages/keyfall_*.deb "$one"/keyfall_*.deb
