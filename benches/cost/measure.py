#!/usr/bin/env python3
"""Counts the instructions of server and client for each job, with callgrind: `make cost`.

    measure.py write    measures, and writes the table into docs/performance.md
    measure.py check    measures, and fails if a cost has grown against that table

ONLY, in the environment: words that the names of the phases contain; the other ones are neither
measured nor compared.
"""

import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import auxiliary
import callgrind
import shares
import table

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/performance.md"
KEYFALL = ROOT / "target/release/keyfall"
# The same binary on every machine, and one that has its symbols: Debian's has none.
SERVER = ROOT / "target/servers/redis-8.2/redis-server"
WORK = ROOT / "target/cost"
CLOCK = WORK / "slow_clock.so"

# The client says so if jobs fall due before all of them are scheduled.
TOO_FAST = "slow the clock down more"

# A part of a run ends at a call of this function, in the server and in the client.
MARKS = {"server": "echoCommand", "client": "*part_ends*"}


@dataclass(frozen=True)
class Phase:
    """A row of the table, or several."""

    name: str
    # The options of `keyfall bench`.
    flags: str
    # By the name of the row: the part of the run that counts.
    rows: dict
    # Each second of the clocks takes so many seconds.
    slowed: int = 20
    # Whether the batches are the same in each run.
    exact: bool = False
    times: int = 3
    sides: tuple = table.SIDES


def life(name, flags, slowed=20):
    rows = {f"{name}: schedule": "schedule", f"{name}: claim, run, settle": "run"}
    return Phase(name, flags, rows, slowed)


PHASES = [
    Phase(
        "bare",
        "--workload bare --jobs 10000",
        {"bare writes by a script": "script", "bare writes by commands": "commands"},
        exact=True,
        times=1,
        sides=("server",),
    ),
    Phase("bulk", "--workload bulk --jobs 10000", {"schedule, in bulk": "bulk"}, exact=True, times=1),
    Phase("schedule", "--workload schedule --jobs 10000", {"schedule, one by one": "schedule"}),
    life("burst", "--workload burst --jobs 10000"),
    life("burst, 4 instances", "--workload burst --jobs 10000 --instances 4"),
    life("burst, 16 instances", "--workload burst --jobs 10000 --instances 16"),
    life("250 jobs/s", "--workload paced --jobs 500 --window 2s", slowed=40),
    life("1,000 jobs/s", "--workload paced --jobs 1000 --window 1s", slowed=40),
    life("a retry", "--workload retry --jobs 10000"),
    life("a recurring job", "--workload recur --jobs 10000"),
    life("a kind with a limit", "--workload limited --jobs 10000"),
    life("a group for each job", "--workload groups --jobs 10000"),
    life("an archived job", "--workload archived --jobs 10000"),
    Phase(
        "idle",
        "--workload idle --jobs 10000 --window 20s",
        {"a second without jobs, server alone": "alone", "a second without jobs, idle instance": "idle"},
        slowed=1,
        times=1,
    ),
]


def run(phase, side, number):
    """Counts one run, and returns the profile and the number of jobs of each part."""
    folder = WORK / re.sub(r"\W+", "-", phase.name) / f"{side}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    counting = [
        "valgrind", "--tool=callgrind", "--fair-sched=yes", f"--callgrind-out-file={folder}/dump",
        f"--dump-before={MARKS[side]}", f"--log-file={folder}/log",
    ]
    words = [str(KEYFALL), "bench", *phase.flags.split()]
    server = str(SERVER)
    if side == "client":
        words = [*counting, *words]
    else:
        server = str(folder / "server")
        Path(server).write_text(f'#!/bin/sh\nexec {shlex.join([*counting, str(SERVER)])} "$@"\n')
        Path(server).chmod(0o755)
    done = started(words, server, phase.slowed, side == "client")
    # On a machine that is busy with other things.
    for slowed in (2 * phase.slowed, 8 * phase.slowed):
        if TOO_FAST in done.stderr:
            done = started(words, server, slowed, side == "client")
    if done.returncode:
        sys.exit(f"{shlex.join(words)}: {done.stderr}\n{folder} has the log of valgrind")
    parts = {}
    for place, line in enumerate(done.stdout.splitlines(), start=1):
        name, jobs = line.rsplit(" ", 1)
        dump = (folder / f"dump.{place}").rename(folder / f"{name}.callgrind")
        parts[name] = profile_of(dump), int(jobs)
    return parts


def started(words, server, slowed, is_counted):
    """Runs the client to its end, with this server and with slow clocks."""
    clocks = f"{slowed} {time.time_ns()} {time.monotonic_ns()}"
    environment = {"KEYFALL_REDIS_BIN": server, "LD_PRELOAD": str(CLOCK), "SLOW_CLOCK": clocks}
    return subprocess.run(
        words,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        preexec_fn=auxiliary.refuse if is_counted else None,
    )


def profile_of(dump):
    with dump.open() as lines:
        profile = callgrind.read(lines)
    for place in [place for place in profile.own if place[0].endswith(CLOCK.name)]:
        del profile.own[place]
    return profile


def measure(phase):
    """The rows of a phase: of each the run with the median."""
    found = {}
    for side in phase.sides:
        for number in range(phase.times):
            parts = run(phase, side, number)
            for row, name in phase.rows.items():
                found.setdefault((row, side), []).append(COST[side](*parts[name]))
    for row in phase.rows:
        ranges = {side: [cost for cost, _ in found[row, side]] for side in phase.sides}
        print(f"{row}: {ranges}", flush=True)
        middle = {side: sorted(found[row, side])[phase.times // 2] for side in phase.sides}
        server, split = middle["server"]
        client, _ = middle.get("client", (None, None))
        yield table.Row(row, server, client, dict(split))


def of_server(profile, jobs):
    """The instructions for each job, and of each part. Housekeeping goes by time, and not by jobs."""
    split = shares.of(profile)
    del split[shares.HOUSEKEEPING]
    return round(sum(split.values()) / jobs), [(part, round(n / jobs)) for part, n in split.items()]


def of_client(profile, jobs):
    return round(profile.total() / jobs), []


COST = {"server": of_server, "client": of_client}


def versions():
    server = subprocess.run([str(SERVER), "--version"], capture_output=True, text=True).stdout
    compiler = subprocess.run(["rustc", "--version"], capture_output=True, text=True, cwd=ROOT).stdout
    server = re.search(r"(\w+) server v=(\S+)", server)
    return f"{server[1]} {server[2]}; client by rustc {compiler.split()[1]}; payloads of 200 bytes."


def merged(old, new):
    """The new rows, and the old ones of phases that were not measured, in the order of the phases."""
    known = {row.phase: row for row in [*old, *new]}
    return [known[name] for phase in PHASES for name in phase.rows if name in known]


def main():
    what = sys.argv[1]
    WORK.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("slow_clock.c")
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", CLOCK, source, "-ldl"], check=True)
    words = os.environ.get("ONLY", "").split()
    phases = [phase for phase in PHASES if not words or any(word in phase.name for word in words)]
    old, rows = table.read(PAGE.read_text()), []
    kept = old.rows if old.versions == versions() else []
    for phase in phases:
        rows += measure(phase)
        if what == "write":
            # After each phase, so that a run that is ended early keeps what it has counted.
            page = PAGE.read_text()
            PAGE.write_text(table.replace(page, table.Table(versions(), merged(kept, rows))))
    new = table.Table(versions(), rows)
    print(table.write(new))
    if what == "write":
        return
    exact = {row for phase in PHASES if phase.exact for row in phase.rows}
    complaints = list(table.growths(old, new, exact))
    for complaint in complaints:
        print(complaint, file=sys.stderr)
    sys.exit(1 if complaints else 0)


if __name__ == "__main__":
    main()
