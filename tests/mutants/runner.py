"""Runs suites with planted faults, and tells which test notices which fault."""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from faults import ROOT, fail

# Integration tests mostly wait.
THREADS = f"--test-threads={3 * os.cpu_count()}"

# A suite that has not ended by then hangs, which a fault may cause. Each takes a fifth of it.
LIMITS = {"unit": 400, "integration": 1800, "database": 600, "topology": 900, "fault suite": 900}

FAILED = re.compile(r"test (\S+)(?: - should panic)? \.\.\. FAILED")

# The harness says so of a test that takes long, and a fault may make it wait for ever.
HANGS = re.compile(r"test (\S+) has been running for over 60 seconds")


class Runner:
    """Runs suites with one fault, with several, or with none."""

    def __init__(self, binaries):
        names = ("keyfall", "keyfall_daemon", "keyfall_cli")
        self.units = {name: binaries[name] for name in names if name in binaries}
        self.integration = binaries["it"]
        self.database = binaries.get("database")
        self.chaos = binaries.get("chaos")
        # Some unit tests read the text of the code, and the copy has another text.
        self.noise = []

    def environment(self, faults, folder):
        """The environment of a process that has these faults; the folder is for its files."""
        env = {name: value for name, value in os.environ.items() if name != "RUST_BACKTRACE"}
        env["KEYFALL_PLANTED"] = ",".join(fault.name for fault in faults)
        # A process that is killed leaves its files behind.
        env["TMPDIR"] = str(folder)
        for fault in faults:
            if fault.is_lua():
                script = folder / "lua" / fault.path.removeprefix("lua/")
                script.parent.mkdir(parents=True, exist_ok=True)
                # Another fault may be in the same script.
                text = script if script.exists() else ROOT / fault.path
                script.write_text(fault.applied(text.read_text()))
                env["KEYFALL_LUA"] = str(folder / "lua")
        return env

    def first_failure(self, faults, binary, arguments, limit):
        """The first test that fails, or a text that begins with `(`; None if all pass."""
        with contextlib.closing(self.failures(faults, binary, arguments, limit)) as failures:
            return next(failures, None)

    def failures(self, faults, binary, arguments, limit):
        """Each test that fails, and at the end a text that begins with `(` if the run has another
        fault than these."""
        # A path of a Unix socket has at most a hundred letters, so this is not below `target`.
        with tempfile.TemporaryDirectory(prefix="planted-", ignore_cleanup_errors=True) as folder:
            # PostgreSQL runs as another user if this one is root.
            os.chmod(folder, 0o755)
            yield from self.run(self.environment(faults, Path(folder)), binary, arguments, limit)

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
                match = FAILED.match(line)
                if not match and binary in self.units.values():
                    match = HANGS.match(line)
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
            self.first_failure(faults, binary, arguments, 150) for faults in ([fault], [])
        )
        return with_it is not None and without is None

    def quick_suites(self, fault):
        """Name, binary and arguments of the runs that take seconds, the quickest first."""
        near = fault.filters()
        if fault.package() == "keyfall_database":
            # Its tests are beside a PostgreSQL.
            yield "database", self.database, [THREADS, *near]
            yield "database", self.database, [THREADS]
            if fault.scenario:
                yield "fault suite", self.chaos, [fault.scenario]
            return
        nearby = ("integration", self.integration, [THREADS, *near])
        own = self.units[fault.package()]
        others = [] if fault.package() != "keyfall" else list(self.units.values())[1:]
        if near:
            yield "unit", own, [THREADS, *near]
        if fault.near:
            # These are few, and quicker than all unit tests.
            yield nearby
            if self.database:
                yield "database", self.database, [THREADS, *near]
        if fault.scenario:
            yield "fault suite", self.chaos, [fault.scenario]
        yield from (("unit", binary, [THREADS]) for binary in [own, *others])
        if near and not fault.near:
            yield nearby

    def slow_suites(self):
        """The same of the runs that take minutes, for faults that the quick ones did not find."""
        yield "integration", self.integration, [THREADS, "--skip", "topology::"]
        yield "database", self.database, [THREADS]
        yield "topology", self.integration, [THREADS, "topology::"]

    def learn_noise(self):
        """Notes the unit tests that fail without a fault."""
        for binary in self.units.values():
            while failed := self.first_failure([], binary, self.skipping(), LIMITS["unit"]):
                if failed.startswith("("):
                    fail(f"The unit tests in {binary[0]} fail without a fault: {failed}")
                print(f"  {failed} fails without a fault, and is left out", flush=True)
                self.noise.append(failed)

    def skipping(self, more=()):
        return [word for test in [*self.noise, *more] for word in ("--skip", test)]

    def find(self, fault):
        """The quick suite and the test that notice a fault, and the seconds until then."""
        begun = time.monotonic()
        noise = []
        for suite, binary, arguments in self.quick_suites(fault):
            if suite == "fault suite":
                if self.judged([fault], arguments):
                    return result(suite, fault.scenario, time.monotonic() - begun)
                continue
            while True:
                skipped = self.skipping(noise)
                failed = self.first_failure([fault], binary, [*arguments, *skipped], LIMITS[suite])
                if failed is None:
                    break
                if failed.startswith("(") or self.explains(fault, binary, failed):
                    return result(suite, failed, time.monotonic() - begun)
                noise.append(failed)
                print(f"  {fault.name}: {failed} failed, and not only because of the fault",
                      flush=True)
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

    def judged(self, faults, words=()):
        """The faults that the fault suite notices: it is run with half of those with which it
        fails."""
        def fails(planted):
            return self.first_failure(planted, self.chaos, words, LIMITS["fault suite"])

        if not faults or not fails(faults):
            return []
        if len(faults) == 1:
            # A busy machine fails as well.
            return faults if fails(faults) and not fails([]) else []
        middle = len(faults) // 2
        return self.judged(faults[:middle], words) + self.judged(faults[middle:], words)


def result(suite, test, seconds):
    return {"suite": suite, "test": test, "seconds": round(seconds)}


def stop(process):
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
