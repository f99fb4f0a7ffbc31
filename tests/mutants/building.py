"""The copy of the repository that has the faults, and its test binaries."""

import json
import os
import shutil
import subprocess
from pathlib import Path

from faults import ROOT, fail

WORK = ROOT / "target" / "mutants"

# How long tests wait for a condition.
PATIENCE = "crates/testing/src/patience.rs"


def copy_repository(tree, texts):
    """A copy of what Git tracks, with these texts, by path, in place of its own. Files that are the
    same keep their time, so that the next build begins where this one ended."""
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    texts = dict(texts)
    library = texts.get("src/lib.rs") or (ROOT / "src/lib.rs").read_text()
    texts["src/lib.rs"] = library + "\n#[allow(missing_docs)]\npub mod planted;\n"
    texts["src/planted.rs"] = (Path(__file__).parent / "planted.rs").read_text()
    # Most faults that a test finds make it wait in vain.
    patience = (ROOT / PATIENCE).read_text()
    for usual, shorter in (("from_secs(60)", "from_secs(30)"), ("from_secs(180)", "from_secs(45)")):
        if patience.count(usual) != 1:
            fail(f"{PATIENCE} says {usual} {patience.count(usual)} times: the copy cannot shorten it.")
        patience = patience.replace(usual, shorter)
    texts[PATIENCE] = patience
    wanted = {name for name in names if name and (ROOT / name).is_file()} | set(texts)
    for name in sorted(wanted):
        target = tree / name
        content = texts[name].encode() if name in texts else (ROOT / name).read_bytes()
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
        if name not in texts:
            shutil.copymode(ROOT / name, target)
    for path in [path for path in tree.rglob("*") if path.is_file()]:
        if str(path.relative_to(tree)) not in wanted:
            path.unlink()


NO_RUST = ("The copy with the faults in Rust does not compile: see above.",
           "A fault whose text is no expression needs a `switch`.")

ALL = ["--workspace", "--lib", "--test", "it", "--test", "database", "--test", "chaos"]


def build(tree, target, what=ALL):
    """Builds the tests; the path and the folder of each test binary, by suite."""
    print(f"Builds the tests in {tree}", flush=True)
    process = subprocess.Popen(
        ["cargo", "test", "--all-features", "--no-run", *what,
         "--message-format=json-render-diagnostics"],
        cwd=tree, env=os.environ | {"CARGO_TARGET_DIR": str(target)},
        stdout=subprocess.PIPE, text=True,
    )
    binaries = {}
    for line in process.stdout:
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message.get("executable"):
            if message["profile"]["test"]:
                folder = Path(message["manifest_path"]).parent
                binaries[message["target"]["name"]] = (message["executable"], folder)
    if process.wait() != 0:
        fail(*NO_RUST)
    return binaries


def compile_all(tree, target):
    """Checks that all faults compile, and builds nothing."""
    # With a wrapper, Cargo keeps the crates of the copy apart from those of the repository, and both
    # share the dependencies.
    wrapped = {"CARGO_TARGET_DIR": str(target), "RUSTC_WORKSPACE_WRAPPER": "/usr/bin/env"}
    checked = subprocess.run(["cargo", "check", "--workspace", "--all-features", "--lib"], cwd=tree,
                             env=os.environ | wrapped, check=False)
    if checked.returncode != 0:
        fail(*NO_RUST)


def build_examples(tree, target):
    """Builds the examples, which some tests run."""
    subprocess.run(["cargo", "build", "--workspace", "--all-features", "--examples"], cwd=tree,
                   env=os.environ | {"CARGO_TARGET_DIR": str(target)}, check=True)
