#!/bin/sh
# Installs apalis, BullMQ, Celery and rq for benches/compare, and measures.
set -eu
cd "$(dirname "$0")/.."

tools=$PWD/target/compare-tools
if [ ! -e "$tools/ready" ]; then
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet --disable-pip-version-check 'celery[redis]' rq
    npm install --silent --no-fund --no-audit --prefix "$tools/node" bullmq ioredis
    touch "$tools/ready"
fi
cp benches/compare/bullmq.mjs "$tools/node"
cargo build --release --manifest-path benches/compare/rust/Cargo.toml --target-dir "$tools/rust"
python3 benches/compare/measure.py
