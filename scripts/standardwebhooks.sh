#!/bin/sh
# Has the library of the Standard Webhooks specification (PyPI standardwebhooks) check our
# signatures: it accepts them, and refuses altered and old calls.
set -eu
cd "$(dirname "$0")/.."

tools=target/standardwebhooks
if [ ! -e "$tools/ready" ]; then
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'standardwebhooks==1.*'
    touch "$tools/ready"
fi
KEYFALL_STANDARDWEBHOOKS="$PWD/$tools/bin/python" sh scripts/some-tests.sh \
    cargo test --workspace --all-features --test it -- \
    --ignored --exact callbacks::signing::the_library_of_the_specification_accepts_the_signatures
