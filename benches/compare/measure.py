#!/usr/bin/env python3
"""Compares Keyfall with apalis, BullMQ, Celery, rq and Sidekiq, and writes docs/compare.md: `make compare`, on an idle machine.

Each system gets a private Redis with redis.conf, and one worker process. PENDING jobs that are due in
an hour show what it costs to schedule and to keep a job; JOBS that fall due one by one within SECONDS
show how late a job starts, from its due time to the first line of its handler, by one clock; BURST jobs
that fall due at one instant show how many a worker starts in a second.
"""

import contextlib
import datetime
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
TOOLS = ROOT / "target/compare-tools"
PAGE = ROOT / "docs/compare.md"
PYTHON = TOOLS / "python/bin/python"
KEYFALL = ROOT / "target/release/keyfall"
PENDING, JOBS, SECONDS, BURST = 20_000, 600, 30, 5_000
# All systems in turn, so often: the machine may be slower for a while.
ROUNDS, BURSTS = 5, 3
# Until the worker is ready and the jobs are scheduled.
LEAD_MS = 15_000

SYSTEMS = {
    "Keyfall, library": [TOOLS / "rust/release/keyfall"],
    "Keyfall, daemon": [sys.executable, HERE / "pull.py"],
    "apalis-redis": [TOOLS / "rust/release/apalis"],
    "BullMQ": ["node", TOOLS / "node/bullmq.mjs"],
    "Celery": [PYTHON, HERE / "celery_app.py"],
    "rq": [PYTHON, HERE / "rq_app.py"],
    "Sidekiq": ["ruby", HERE / "sidekiq.rb"],
}
# They have no call for many delayed jobs.
ONE_BY_ONE = {"Celery", "rq"}


def said(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def version(system):
    match system:
        case "Keyfall, library" | "Keyfall, daemon":
            return said(KEYFALL, "--version").split()[-1]
        case "apalis-redis":
            lock = tomllib.loads((HERE / "rust/Cargo.lock").read_text())
            return next(it["version"] for it in lock["package"] if it["name"] == system)
        case "BullMQ":
            package = TOOLS / "node/node_modules/bullmq/package.json"
            return json.loads(package.read_text())["version"]
        case "Sidekiq":
            return said("ruby", "-e", "require 'sidekiq'; puts Sidekiq::VERSION")
        case python:
            script = "import importlib.metadata as m, sys; print(m.version(sys.argv[1]))"
            return said(PYTHON, "-c", script, python.lower())


@contextlib.contextmanager
def redis():
    """The port of a private Redis."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as work:
        flags = ["--port", str(port), "--dir", work, "--daemonize", "no"]
        server = subprocess.Popen(
            ["redis-server", ROOT / "redis.conf", *flags], stdout=subprocess.DEVNULL
        )
        try:
            wait("Redis", lambda: ask(port, "ping", check=False) == "PONG")
            yield port
        finally:
            server.kill()
            server.wait()


def ask(port, *command, check=True):
    call = ["redis-cli", "-p", str(port), *command]
    return subprocess.run(call, check=check, capture_output=True, text=True).stdout.strip()


def wait(what, is_so, seconds=120):
    until = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > until:
            sys.exit(f"not within {seconds} s: {what}")
        time.sleep(0.1)


def used(port):
    memory = dict(line.split(":") for line in ask(port, "info", "memory").splitlines() if ":" in line)
    return int(memory["used_memory"])


def schedule(program, how, port, count, first_ms, step_ms):
    """Schedules jobs, many or each with a call of its own; returns the seconds that the program says it took."""
    figures = [str(figure) for figure in (port, count, first_ms, step_ms)]
    return float(said(*program, how, *figures).splitlines()[-1])


def pending(system):
    """The rates of schedules one by one and in bulk, and the memory of a pending job."""
    program, rates = SYSTEMS[system], []
    for how in ("each",) if system in ONE_BY_ONE else ("each", "many"):
        with redis() as port:
            in_an_hour = int(time.time() * 1000) + 3_600_000
            schedule(program, how, port, 10, in_an_hour, 1)
            before = used(port)
            rates.append(PENDING / schedule(program, how, port, PENDING, in_an_hour + 1000, 1))
            memory = (used(port) - before) / PENDING
    return rates[0], rates[-1], memory


def lateness(program):
    """How late each job started, in milliseconds."""
    runs = run(program, JOBS, SECONDS * 1000 / JOBS)
    return sorted(began - due for due, began in runs)


def burst(program):
    """How many jobs a second started, once the first of them had."""
    starts = [began for _, began in run(program, BURST, 0)]
    return (BURST - 1) * 1000 / (max(starts) - min(starts))


def run(program, count, step_ms):
    """The due time of each job, and when it started, in milliseconds."""
    with redis() as port, tempfile.TemporaryDirectory() as work:
        log = Path(work) / "log"
        environment = os.environ | {"COMPARE_LOG": str(log)}
        worker = subprocess.Popen(
            [*program, "work", str(port)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            # A whole second: two systems cut times to that.
            first = int(time.time()) * 1000 + LEAD_MS
            schedule(program, "many", port, count, first, step_ms)
            wait("all jobs have run", lambda: log.exists() and log.read_text().count("\n") >= count)
        finally:
            os.killpg(worker.pid, 15)
            worker.wait()
        lines = [line.split() for line in log.read_text().splitlines()]
        if len(lines) != count:
            sys.exit(f"{len(lines)} runs of {count} jobs")
        return [(float(due), float(began)) for due, began in lines]


def row(system, rounds, bursts, late):
    """The row of a system in the table."""
    each, many, memory = (statistics.median(figures) for figures in zip(*rounds))
    early = sum(it < 0 for it in late)
    bulk = "" if system in ONE_BY_ONE else f"{many:,.0f}/s"
    p50, p99 = statistics.median(late), late[int(len(late) * 0.99)]
    return (
        f"| {system} {version(system)} | {p50:,.1f} ms | {p99:,.1f} ms | {early} | "
        f"{statistics.median(bursts):,.0f}/s | {bulk} | {each:,.0f}/s | {memory:,.0f} |"
    )


def main():
    load, cores = os.getloadavg()[0], os.cpu_count()
    if load > cores / 2:
        sys.exit(f"the load average is {load:.1f}: on a busy machine the figures say nothing")
    rounds = [
        {system: pending(system) for system in SYSTEMS} for _ in range(ROUNDS)
    ]
    bursts = [{system: burst(program) for system, program in SYSTEMS.items()} for _ in range(BURSTS)]
    rows = [
        row(system, [it[system] for it in rounds], [it[system] for it in bursts], lateness(program))
        for system, program in SYSTEMS.items()
    ]
    date = datetime.date.today().isoformat()
    server = said("redis-server", "--version").split()[2].removeprefix("v=")
    table = "\n".join(
        [
            f"{date}, Redis {server}, {cores} cores; "
            f"{JOBS} jobs in {SECONDS} s; bursts of {BURST:,} jobs; {PENDING:,} pending jobs; "
            f"medians of {BURSTS} and {ROUNDS} rounds over all systems:",
            "",
            "| system | lateness p50 | p99 | early | burst | scheduled in bulk | one by one | bytes of a pending job |",
            "|---|--:|--:|--:|--:|--:|--:|--:|",
            *rows,
        ]
    )
    PAGE.write_text((HERE / "page.txt").read_text().replace("TABLE", table))
    print(table)


if __name__ == "__main__":
    main()
