#!/bin/sh
# Prints `--package NAME` for each package of the workspace that is published: for `cargo package`.
set -eu

cargo metadata --format-version 1 --no-deps --locked | python3 -c '
import json, sys

for package in json.load(sys.stdin)["packages"]:
    if package["publish"] != []:
        print("--package", package["name"])
'
