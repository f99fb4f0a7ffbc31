"""Prints the licences of all crates that are compiled into the command, as their authors ask for."""

import json
import subprocess
from collections import defaultdict
from pathlib import Path

host = subprocess.run(["rustc", "-vV"], check=True, capture_output=True, text=True).stdout
host = next(line.removeprefix("host: ") for line in host.splitlines() if line.startswith("host: "))
read = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={host}"]
metadata = json.loads(subprocess.run(read, check=True, capture_output=True, text=True).stdout)
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
members = set(metadata["workspace_members"])

command = next(id for id in members if packages[id]["name"] == "keyfall-cli")
linked, open_ = {command}, [command]
while open_:
    for dependency in nodes[open_.pop()]["deps"]:
        # Neither what only tests need nor what only runs during the build.
        normal = any(kind["kind"] is None for kind in dependency["dep_kinds"])
        if normal and dependency["pkg"] not in linked:
            linked.add(dependency["pkg"])
            open_.append(dependency["pkg"])

print("The command contains these libraries, with their licences; the texts follow.\n")
users = defaultdict(list)
for id in sorted(linked - members, key=lambda id: (packages[id]["name"], packages[id]["version"])):
    package = packages[id]
    name = f"{package['name']} {package['version']}"
    print(f"{name}: {package['license']}; {', '.join(package['authors']) or 'authors not named'}")
    for file in sorted(Path(package["manifest_path"]).parent.iterdir()):
        if file.is_file() and file.name.lower().startswith(("license", "licence", "copying", "notice")):
            users[file.read_text(errors="replace").strip()].append(f"{name} ({file.name})")

for text, names in users.items():
    print(f"\n{'=' * 80}\n{', '.join(names)}\n\n{text}")
