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

The quick suites run with one fault at a time. The faults that they leave go through the slow suites
in groups: all faults of a group are planted at once, and each test that fails is run with one fault
after the other until one explains the failure. What is found leaves the group, and the rest is run
again until nothing more is found.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor, as_completed
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

# The faults that the quick suites look for at the same time: most tests wait.
AT_ONCE = 2

# The faults of a group. With more of them, one hides the other.
TOGETHER = 12


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
        # Some unit tests read the text of the code, and the copy has another text.
        self.noise = []

    def environment(self, faults, scripts):
        """The environment of a process that has these faults; `scripts` is a folder for those in
        scripts."""
        env = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
        env["KEYFALL_PLANTED"] = ",".join(fault.name for fault in faults)
        for fault in faults:
            if fault.is_lua():
                script = scripts / fault.path.removeprefix("lua/")
                script.parent.mkdir(parents=True, exist_ok=True)
                # Another fault may be in the same script.
                text = script if script.exists() else ROOT / fault.path
                script.write_text(fault.applied(text.read_text()))
                env["KEYFALL_LUA"] = str(scripts)
        return env

    def first_failure(self, faults, binary, arguments, limit):
        """The first test that fails, or a text that begins with `(`; None if all pass."""
        with contextlib.closing(self.failures(faults, binary, arguments, limit)) as failures:
            return next(failures, None)

    def failures(self, faults, binary, arguments, limit):
        """Each test that fails, and at the end a text that begins with `(` if the run has another
        fault than these."""
        with tempfile.TemporaryDirectory(prefix="lua-", dir=WORK) as scripts:
            yield from self.run(self.environment(faults, Path(scripts)), binary, arguments, limit)

    def run(self, environment, binary, arguments, limit):
        program, folder = binary
        process = subprocess.Popen(
            [program, *arguments], cwd=folder,
            env=environment | {"CARGO_MANIFEST_DIR": str(folder)},
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            text=True, start_new_session=True,
        )
        timer = subprocess.Popen(
            ["sh", "-c", f"sleep {limit}; kill -9 -{process.pid}"],
            start_new_session=True, stderr=subprocess.DEVNULL,
        )
        begun = time.monotonic()
        failed = False
        try:
            for line in process.stdout:
                match = re.match(r"test (\S+)(?: - should panic)? \.\.\. FAILED", line)
                if match:
                    failed = True
                    yield match[1]
        finally:
            # Nobody may want more failures.
            if failed and process.poll() is None:
                stop(process)
            code = process.wait()
            stop(timer)
        if time.monotonic() - begun >= limit:
            yield "(does not end)"
        elif code and not failed:
            yield f"(ends with {code})"

    def explains(self, fault, binary, test):
        """Whether this test fails because of this fault."""
        if test.startswith("("):
            return False
        arguments = [test, "--exact"]
        with_it, without = (
            self.first_failure(faults, binary, arguments, 400) for faults in ([fault], [])
        )
        return with_it is not None and without is None

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

    def learn_noise(self):
        """Notes the unit tests that fail without a fault."""
        for binary in self.units:
            while failed := self.first_failure([], binary, self.skipping(), LIMITS["unit"]):
                if failed.startswith("("):
                    fail(f"The unit tests in {binary[0]} fail without a fault: {failed}")
                print(f"  {failed} fails without a fault, and is left out")
                self.noise.append(failed)

    def skipping(self, more=()):
        return [word for test in [*self.noise, *more] for word in ("--skip", test)]

    def find(self, fault):
        """The quick suite and the test that notice a fault, and the seconds until then."""
        begun = time.monotonic()
        noise = []
        for suite, binary, arguments in self.quick_suites(fault):
            while True:
                skipped = self.skipping(noise)
                failed = self.first_failure([fault], binary, [*arguments, *skipped], LIMITS[suite])
                if failed is None:
                    break
                if failed.startswith("(") or self.explains(fault, binary, failed):
                    return result(suite, failed, time.monotonic() - begun)
                noise.append(failed)
                print(f"  {failed} failed, and not only because of the fault")
        return result("", "", time.monotonic() - begun)

    def find_in_group(self, faults):
        """Each fault of a group with its result, as soon as it is known."""
        begun = time.monotonic()
        left = list(faults)
        for suite, binary, arguments in self.slow_suites():
            found_some = True
            while left and found_some:
                found_some = False
                failed = list(self.failures(left, binary, arguments, LIMITS[suite]))
                print(f"  {suite}: {len(failed)} tests fail with {len(left)} faults", flush=True)
                for test in failed:
                    fault = next((f for f in left if self.explains(f, binary, test)), None)
                    if fault:
                        found_some = True
                        left.remove(fault)
                        yield fault, result(suite, test, time.monotonic() - begun)
        for fault in self.judged(left):
            left.remove(fault)
            yield fault, result("fault suite", "", time.monotonic() - begun)
        for fault in left:
            yield fault, result("", "", time.monotonic() - begun)

    def judged(self, faults):
        """The faults that the fault suite notices: it is run with half of those with which it
        fails."""
        if not faults or not self.first_failure(faults, self.chaos, [], LIMITS["fault suite"]):
            return []
        if len(faults) == 1:
            # A busy machine fails as well.
            again = self.first_failure(faults, self.chaos, [], LIMITS["fault suite"])
            return faults if again else []
        middle = len(faults) // 2
        return self.judged(faults[:middle]) + self.judged(faults[middle:])


def result(suite, test, seconds):
    return {"suite": suite, "test": test, "seconds": round(seconds)}


def stop(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def search(runner, faults, file, again=False):
    """Looks for faults that have no result in the file, or for all, and writes the results there.
    Returns the names of those that nobody notices."""
    results = json.loads(file.read_text()) if file.exists() else {}
    known = {} if again else {
        fault.name: results[fault.name] for fault in faults
        if results.get(fault.name, {}).get("version") == fault.version()
    }

    def note(fault, found):
        # A fault that went through the quick suites before has taken that long already.
        found["seconds"] += known.get(fault.name, {}).get("seconds", 0)
        print(f"  {fault.name}: {found['suite'] or 'nobody'} {found['test']} {found['seconds']} s",
              flush=True)
        known[fault.name] = results[fault.name] = found | {"version": fault.version()}
        file.write_text(json.dumps(results, indent=1))

    # The quick suites find most faults. So the table is almost complete before a slow one runs.
    unknown = [fault for fault in faults if fault.name not in known]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        searches = {pool.submit(runner.find, fault): fault for fault in unknown}
        for number, found in enumerate(as_completed(searches), 1):
            print(f"{number} of {len(unknown)}", flush=True)
            note(searches[found], found.result())
    left = [fault for fault in faults if not known[fault.name]["suite"]]
    print(f"The slow suites look for {len(left)} of {len(faults)} faults.", flush=True)
    for start in range(0, len(left), TOGETHER):
        for fault, found in runner.find_in_group(left[start:start + TOGETHER]):
            note(fault, found)
    return [fault.name for fault in faults if not known[fault.name]["suite"]]


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
        tree, target = WORK / "tree", WORK / "build"
        paths = {fault.path for fault in faults if not fault.is_lua()}
        copy_repository(tree, {path: with_switches(path, faults) for path in paths})
        runner = Runner(build(tree, target))
        # Some tests run the examples.
        examples = ["cargo", "build", "--workspace", "--all-features", "--examples"]
        subprocess.run(examples, cwd=tree, env=os.environ | {"CARGO_TARGET_DIR": str(target)},
                       check=True)
        runner.learn_noise()
    unnoticed = search(runner, wanted, RESULTS, again=options.again or options.sample)
    if unnoticed:
        fail("Nobody noticed: " + ", ".join(unnoticed))
    print(f"Each of {len(wanted)} faults was found.")


if __name__ == "__main__":
    main()
