#!/bin/sh
# Makes what people download, for the machine that it runs on, from the commit that is checked out: a tarball, a
# Debian package, the crates, an SBOM and their checksums, in target/packages. Two runs with one commit
# and one compiler make the same bytes.
#
# KEYFALL_BINARY: a binary to pack instead of building one, which takes long; then no crates are packed
# either. KEYFALL_VERSION: another version for the file names and the Debian package.
# KEYFALL_CRATES_UNCHECKED: packs the crates without compiling what they hold.
set -eu
cd "$(dirname "$0")/.."

# No file may depend on who builds it, where, when, and in which language.
LC_ALL=C.UTF-8
TZ=UTC
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export LC_ALL TZ SOURCE_DATE_EPOCH
umask 022

if [ -z "${KEYFALL_BINARY:-}" ] && [ -n "$(git status --porcelain)" ]; then
    echo 'There are changes that are not committed, and a package is made from a commit: commit them.' >&2
    exit 1
fi

version=${KEYFALL_VERSION:-$(sed -n 's/^version = "\(.*\)"$/\1/p' Cargo.toml | head -n 1)}
target=$(rustc -vV | sed -n 's/^host: //p')
name=keyfall-$version-$target
out=$PWD/target/packages
work=$out/work
rm -rf "$out"
mkdir -p "$work"

if [ -n "${KEYFALL_BINARY:-}" ]; then
    cp "$KEYFALL_BINARY" "$work/keyfall"
else
    # Panics name files of the source, by paths that begin in the same way on each machine.
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    flags="--remap-path-prefix=$PWD=/keyfall --remap-path-prefix=$cargo_home=/cargo"
    RUSTFLAGS="$flags" CFLAGS="-ffile-prefix-map=$cargo_home=/cargo" \
        cargo build --locked --profile dist -p keyfall-cli
    cp "${CARGO_TARGET_DIR:-target}/dist/keyfall" "$work/keyfall"
    published=$(sh scripts/published.sh)
    # shellcheck disable=SC2086 # one word for each option
    cargo package --locked ${KEYFALL_CRATES_UNCHECKED:+--no-verify} $published
    cp "${CARGO_TARGET_DIR:-target}"/package/*.crate "$out"
fi

# The files of the tarball, and the sources of the Debian package.
tree=$work/$name
mkdir -p "$tree/man" "$tree/completions"
mv "$work/keyfall" "$tree"
keyfall=$tree/keyfall
"$keyfall" config > "$tree/keyfall.toml"
"$keyfall" man --dir "$tree/man"
"$keyfall" completions bash > "$tree/completions/keyfall"
"$keyfall" completions zsh > "$tree/completions/_keyfall"
"$keyfall" completions fish > "$tree/completions/keyfall.fish"
python3 packaging/licenses.py > "$tree/THIRD-PARTY-LICENSES"
cp packaging/keyfall.service README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$tree"
chmod 755 "$keyfall"

tar --create --directory "$work" --sort=name --mtime="@$SOURCE_DATE_EPOCH" \
    --owner=0 --group=0 --numeric-owner --format=ustar "$name" | gzip -9n > "$out/$name.tar.gz"

# The list of what is in the binary. The tool writes it beside the manifest, so it gets a copy of the
# sources.
mkdir "$work/sources"
git archive HEAD | tar --extract --directory "$work/sources"
sbom=$PWD/target/sbom
[ -x "$sbom/bin/cargo-cyclonedx" ] || cargo install --quiet --locked --root "$sbom" cargo-cyclonedx@0.5.9
"$sbom/bin/cargo-cyclonedx" cyclonedx --quiet --format json --target "$target" --describe binaries \
    --manifest-path "$work/sources/crates/cli/Cargo.toml"
sed "s|file://$work/sources|file:///keyfall|g; s|$work/sources|/keyfall|g" \
    "$work/sources/crates/cli/keyfall_bin.cdx.json" > "$out/$name.cdx.json"

deb=$work/deb
cp -R "$tree" "$deb"
cp -R packaging/debian "$deb"
cp packaging/keyfall.service "$deb/debian"
sed 's/^$/./; s/^/ /' LICENSE-MIT >> "$deb/debian/copyright"
cat > "$deb/debian/changelog" <<END
keyfall ($version) unstable; urgency=medium

  * CHANGELOG.md lists the changes.

 -- The Keyfall contributors <keyfall@localhost.localdomain>  $(date -R -d "@$SOURCE_DATE_EPOCH")
END
(cd "$deb" && dpkg-buildpackage --build=binary --no-sign >"$work/deb.log" 2>&1) || {
    cat "$work/deb.log" >&2
    exit 1
}
mv "$work"/keyfall_*.deb "$out"

rm -rf "$work"
(cd "$out" && sha256sum -- * > SHA256SUMS)
ls -l "$out"
