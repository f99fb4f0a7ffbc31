"""Plants small faults, one at a time, and finds out which suite notices each of them.

A fault is a file in `faults/`: its name says the mistake, and its fields are

    file      the path of the file that has the mistake
    from, to  the text that is replaced, which occurs once in the file, and its replacement
    promise   the promise of Keyfall that the mistake breaks
    history   the report of such a mistake in another system, if there is one: owner/name#number
    switch    of a fault in Rust: the text that has both the code and the mistake, see below
    near      filters of the tests to begin with; by default those of the area of the file
    sample    true for the faults that stand for the rest in `--sample`

Faults in Rust are all compiled into one copy of the repository, each behind a switch: an
expression becomes `(if PLANTED { TO } else { FROM })`, where PLANTED asks whether the process has
the fault. For a text that is no expression, `switch` says how both stand side by side, such as
`if !PLANTED { FROM }`. Faults in Lua are files in a folder that builds with the feature
`internals` read scripts from. So one build serves for all faults.

A test that fails with a fault is run again twice, with the fault and without it. The fault is
found if the test fails again with the fault and passes without it.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).parent / "faults"
WORK = ROOT / "target" / "mutants"
RESULTS = WORK / "results.json"

# The filters of the tests to begin with, by the beginning of the path that has the fault.
AREAS = [
    ("lua/adopt", "adopt"),
    ("lua/streams/", "streams forgotten"),
    ("lua/functions/", "functions"),
    ("lua/cluster/", "torn"),
    ("lua/", "store:: scheduling:: outcomes::"),
    ("src/worker/adopting", "adopting"),
    ("src/worker/finding", "pacer finding firing instances"),
    ("src/worker", "worker workers firing instances outages"),
    ("src/target", "target lists streams forgotten callbacks pull"),
    ("src/client", "client scheduling bulk limits operating"),
    ("src/store/connections", "connections outages weather sentineled clustered"),
    ("src/store/servers", "servers several sentineled"),
    ("src/store/kinds", "kinds shards resharding"),
    ("src/store", "store"),
    ("crates/daemon/src/classic", "classic"),
    ("crates/daemon/src/tokens", "tokens token revoking"),
    ("crates/daemon", "http classic tokens"),
    ("crates/cli", "commands"),
]

# Integration tests mostly wait.
THREADS = f"--test-threads={3 * os.cpu_count()}"

# A suite that has not ended by then hangs, which a fault may cause. Each takes a fifth of it.
LIMITS = {"unit": 400, "integration": 1800, "topology": 900, "fault suite": 900}


@dataclass
class Fault:
    name: str
    path: str
    before: str
    after: str
    promise: str
    history: str = ""
    switch: str = "(if PLANTED { TO } else { FROM })"
    near: str = ""
    sample: bool = False

    def is_lua(self):
        return self.path.endswith(".lua")

    def applied(self, text):
        """The text of the file with the fault."""
        return text.replace(self.before, self.after)

    def switched(self):
        """The Rust text that has both the code and the fault."""
        crate = "crate" if self.path.startswith("src/") else "keyfall"
        words = {
            "PLANTED": f'{crate}::planted::is("{self.name}")',
            "FROM": self.before.strip(),
            "TO": self.after.strip(),
        }
        return re.sub(r"\b(PLANTED|FROM|TO)\b", lambda match: words[match[0]], self.switch)

    def filters(self):
        if self.near:
            return self.near.split()
        return next((near.split() for start, near in AREAS if self.path.startswith(start)), [])

    def version(self):
        """Changes when the fault does, so that its result is asked for again."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]


def fail(*lines):
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(1)


def read_faults():
    """All faults. Ends the program if one does not apply to its file any more."""
    faults, wrong = [], []
    for file in sorted(FAULTS.glob("*.toml")):
        fields = tomllib.loads(file.read_text())
        fields["path"], fields["before"] = fields.pop("file"), fields.pop("from")
        fields["after"] = fields.pop("to")
        fault = Fault(file.stem, **fields)
        faults.append(fault)
        source = ROOT / fault.path
        count = source.read_text().count(fault.before) if source.exists() else 0
        if count != 1:
            wrong.append(f"{file.name}: the text of `from` occurs {count} times in {fault.path}")
        elif fault.before == fault.after:
            wrong.append(f"{file.name}: `to` is the text of `from`")
    if wrong:
        fail(*wrong, "Each fault has to name a text that occurs exactly once. Mend these files.")
    return faults


def with_switches(path, faults):
    """The text of a Rust file with all its faults behind switches."""
    text = (ROOT / path).read_text()
    there = [(text.index(fault.before), fault) for fault in faults if fault.path == path]
    parts, end = ["#![allow(unused_braces, unused_parens)]\n"], 0
    for start, fault in sorted(there, key=lambda pair: pair[0]):
        if start < end:
            fail(f"{fault.name}: its text overlaps that of another fault in {path}")
        parts += [text[end:start], fault.switched()]
        end = start + len(fault.before)
    return "".join(parts) + text[end:]


def copy_repository(faults):
    """A copy of what Git tracks, with all Rust faults behind switches. Files that are the same
    keep their time, so that the next build begins where this one ended."""
    tree = WORK / "tree"
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    paths = {fault.path for fault in faults if not fault.is_lua()}
    texts = {path: with_switches(path, faults) for path in paths}
    library = texts.get("src/lib.rs") or (ROOT / "src/lib.rs").read_text()
    texts["src/lib.rs"] = library + "\n#[allow(missing_docs)]\npub mod planted;\n"
    texts["src/planted.rs"] = (Path(__file__).parent / "planted.rs").read_text()
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
    return tree


def build(tree, target):
    """Builds the tests; the path and the folder of each test binary, by suite."""
    print(f"Builds the tests in {tree}")
    process = subprocess.Popen(
        ["cargo", "test", "--workspace", "--all-features", "--no-run", "--lib",
         "--test", "it", "--test", "chaos", "--message-format=json-render-diagnostics"],
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
        fail("The copy with the faults in Rust does not compile: see above.",
             "A fault whose text is no expression needs a `switch`.")
    return binaries


class Runner:
    """Runs suites with one fault, or with none."""

    def __init__(self, binaries):
        self.units = [binaries[name] for name in ("keyfall", "keyfall_daemon", "keyfall_cli")]
        self.integration = binaries["it"]
        self.chaos = binaries["chaos"]
        self.scripts = WORK / "lua"
        # Some unit tests read the text of the code, and the copy has another text.
        self.noise = []

    def environment(self, fault):
        env = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
        shutil.rmtree(self.scripts, ignore_errors=True)
        if fault is None:
            return env
        if not fault.is_lua():
            return env | {"KEYFALL_PLANTED": fault.name}
        script = self.scripts / fault.path.removeprefix("lua/")
        script.parent.mkdir(parents=True)
        script.write_text(fault.applied((ROOT / fault.path).read_text()))
        return env | {"KEYFALL_LUA": str(self.scripts)}

    def first_failure(self, fault, binary, arguments, limit):
        """The first test that fails, or a text that begins with `(`; None if all pass."""
        program, folder = binary
        process = subprocess.Popen(
            [program, *arguments], cwd=folder,
            env=self.environment(fault) | {"CARGO_MANIFEST_DIR": str(folder)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            text=True, start_new_session=True,
        )
        timer = subprocess.Popen(
            ["sh", "-c", f"sleep {limit}; kill -9 -{process.pid}"],
            start_new_session=True, stderr=subprocess.DEVNULL,
        )
        begun = time.monotonic()
        failed = None
        for line in process.stdout:
            match = re.match(r"test (\S+)(?: - should panic)? \.\.\. FAILED", line)
            if match:
                failed = match[1]
                break
        if failed:
            stop(process)
        code = process.wait()
        stop(timer)
        if failed:
            return failed
        if time.monotonic() - begun >= limit:
            return "(does not end)"
        return f"(ends with {code})" if code else None

    def fails(self, fault, binary, test):
        arguments = [test, "--exact"] if not test.startswith("(") else []
        return self.first_failure(fault, binary, arguments, 400) is not None

    def quick_suites(self, fault):
        """Name, binary and arguments of the runs that take seconds, the quickest first."""
        near = fault.filters()
        nearby = ("integration", self.integration, [THREADS, *near])
        if near:
            yield "unit", self.units[0], [THREADS, *near]
        if fault.near:
            # These are few, and quicker than all unit tests.
            yield nearby
        yield from (("unit", binary, [THREADS]) for binary in self.units)
        if near and not fault.near:
            yield nearby

    def slow_suites(self):
        """The same of the runs that take minutes, for faults that the quick ones did not find."""
        yield "integration", self.integration, [THREADS, "--skip", "topology::"]
        yield "topology", self.integration, [THREADS, "topology::"]
        yield "fault suite", self.chaos, []

    def learn_noise(self):
        """Notes the unit tests that fail without a fault."""
        for binary in self.units:
            while failed := self.first_failure(None, binary, self.skipping(), LIMITS["unit"]):
                if failed.startswith("("):
                    fail(f"The unit tests in {binary[0]} fail without a fault: {failed}")
                print(f"  {failed} fails without a fault, and is left out")
                self.noise.append(failed)

    def skipping(self, more=()):
        return [word for test in [*self.noise, *more] for word in ("--skip", test)]

    def find(self, fault, suites, before=0):
        """The suite and the test that notice a fault, and the seconds until then. `before` are the
        seconds that other suites have taken."""
        begun = time.monotonic() - before
        noise = []
        for suite, binary, arguments in suites:
            while True:
                skipped = self.skipping(noise) if suite != "fault suite" else []
                failed = self.first_failure(fault, binary, [*arguments, *skipped], LIMITS[suite])
                if failed is None:
                    break
                seconds = time.monotonic() - begun
                if suite == "fault suite" or failed.startswith("("):
                    return {"suite": suite, "test": failed, "seconds": round(seconds)}
                again = self.fails(fault, binary, failed)
                if again and not self.fails(None, binary, failed):
                    return {"suite": suite, "test": failed, "seconds": round(seconds)}
                noise.append(failed)
                print(f"  {failed} failed, and not only because of the fault")
        return {"suite": "", "test": "", "seconds": round(time.monotonic() - begun)}


def stop(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def table(faults, results):
    """The table for docs/reliability.md."""
    lines = ["| fault | promise | found by | after |", "|---|---|---|---|"]
    for fault in faults:
        result = results.get(fault.name)
        if result and result["version"] == fault.version():
            found = f"{result['suite']}: `{result['test']}`" if result["suite"] else "**nobody**"
            history = f" ({fault.history})" if fault.history else ""
            lines.append(
                f"| `{fault.name}`{history} | {fault.promise} | {found} | {result['seconds']} s |"
            )
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Plants faults, and says which suite finds each.")
    parser.add_argument("only", nargs="*", help="texts that the names of the faults contain")
    parser.add_argument("--sample", action="store_true", help="the few that stand for the rest")
    parser.add_argument("--again", action="store_true", help="also those with a result")
    parser.add_argument("--table", action="store_true", help="print the results, and run nothing")
    parser.add_argument("--check", action="store_true", help="check that each fault applies")
    options = parser.parse_args()

    faults = read_faults()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if options.check or options.table:
        print(table(faults, results) if options.table else f"All {len(faults)} faults apply.")
        return
    wanted = [
        fault for fault in faults
        if (not options.only or any(part in fault.name for part in options.only))
        and (fault.sample or not options.sample)
    ]
    if not wanted:
        fail(f"No fault has a name that contains {' or '.join(options.only)}.")
    WORK.mkdir(parents=True, exist_ok=True)
    if options.sample:
        # All in Lua, so that the tests of the repository serve as they were built.
        runner = Runner(build(ROOT, ROOT / "target"))
    else:
        tree, target = copy_repository(faults), WORK / "build"
        runner = Runner(build(tree, target))
        # Some tests run the examples.
        examples = ["cargo", "build", "--workspace", "--all-features", "--examples"]
        subprocess.run(examples, cwd=tree, env=os.environ | {"CARGO_TARGET_DIR": str(target)},
                       check=True)
        runner.learn_noise()
    # The quick suites find most faults. So the table is almost complete before a slow one runs.
    asks_anew = options.again or options.sample
    known = {} if asks_anew else {
        fault.name: results[fault.name] for fault in wanted
        if results.get(fault.name, {}).get("version") == fault.version()
    }

    def search(faults, suites_of):
        for number, fault in enumerate(faults, 1):
            print(f"{number} of {len(faults)}: {fault.name}", flush=True)
            before = known.get(fault.name, {}).get("seconds", 0)
            result = runner.find(fault, suites_of(fault), before) | {"version": fault.version()}
            print(f"  {result['suite'] or 'nobody'} {result['test']} {result['seconds']} s", flush=True)
            known[fault.name] = results[fault.name] = result
            RESULTS.write_text(json.dumps(results, indent=1))

    search([fault for fault in wanted if fault.name not in known], runner.quick_suites)
    left = [fault for fault in wanted if not known[fault.name]["suite"]]
    print(f"The slow suites look for {len(left)} of {len(wanted)} faults.")
    search(left, lambda _: runner.slow_suites())
    unnoticed = [fault.name for fault in wanted if not known[fault.name]["suite"]]
    if unnoticed:
        fail("Nobody noticed: " + ", ".join(unnoticed))
    print(f"Each of {len(wanted)} faults was found.")


if __name__ == "__main__":
    main()
