#!/bin/sh
# Plants the faults that cargo-mutants chooses, and says which suite finds each.
set -eu
cd "$(dirname "$0")/.."
tools=target/mutants-tools
if [ ! -x "$tools/bin/cargo-mutants" ]; then
    cargo install cargo-mutants --version 27.1.0 --locked --root "$tools"
fi
if [ ! -x "$tools/python/bin/python" ]; then
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet tree-sitter==0.26.1 tree-sitter-rust==0.24.2
fi
PATH="$PWD/$tools/bin:$PATH" exec "$tools/python/bin/python" tests/mutants/chosen.py "$@"
