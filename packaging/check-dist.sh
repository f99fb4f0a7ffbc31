#!/bin/sh
# Makes all packages twice, in two folders, from the commit that is checked out: their bytes are equal, and the Debian
# package lives as check-deb.sh says. Needs root, and 10 GB of disk and 8 GB of memory.
set -eu
cd "$(dirname "$0")/.."

folder=$(mktemp -d "${TMPDIR:-/tmp}/keyfall-dist-XXXXXX")
trap 'rm -rf "$folder"' EXIT
# The tool that makes the SBOM is compiled once.
sbom=$PWD/target/sbom
[ -x "$sbom/bin/cargo-cyclonedx" ] || cargo install --quiet --locked --root "$sbom" cargo-cyclonedx@0.5.9

# Both at once, because the linker needs one core for most of the time.
make_packages() {
    git clone --quiet . "$folder/$1"
    mkdir "$folder/$1/target"
    ln -s "$sbom" "$folder/$1/target/sbom"
    (unset CARGO_TARGET_DIR; sh "$folder/$1/packaging/dist.sh") > "$folder/$2.log" 2>&1 || {
        cat "$folder/$2.log" >&2
        return 1
    }
}
make_packages one one &
first=$!
# The crates are the same bytes in both, so those of one are compiled.
code=0
KEYFALL_CRATES_UNCHECKED=1 make_packages another/and-longer another || code=1
wait "$first" || code=1
[ "$code" -eq 0 ] || exit 1
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
