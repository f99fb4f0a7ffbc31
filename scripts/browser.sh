#!/bin/sh
# Opens the web page of a real daemon in a real Chromium, by Selenium (PyPI), and has axe-core (npm)
# look for obstacles to people who cannot see it. The arguments go to pytest:
# sh scripts/browser.sh -m quick
# It needs target/debug/keyfall, or another binary that KEYFALL names.
# SCREENS=docs/web sh scripts/browser.sh -k screens
set -eu
cd "$(dirname "$0")/.."

tools=target/browser
if [ ! -e "$tools/ready" ]; then
    python3 -m venv "$tools/python"
    "$tools/python/bin/pip" install --quiet 'selenium==4.40.0' 'pytest==9.*'
    (cd "$tools" && npm pack --silent axe-core@4.14.1 >/dev/null &&
        tar -xzf axe-core-4.14.1.tgz --strip-components 1 package/axe.min.js)
    touch "$tools/ready"
fi
exec "$tools/python/bin/pytest" -p no:cacheprovider -q tests/browser "$@"
