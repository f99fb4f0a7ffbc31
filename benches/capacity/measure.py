#!/usr/bin/env python3
"""Measures what docs/capacity.md says, and writes it to a file: `make capacity`.

Each point is a run of `keyfall bench --json`, and what is kept of it is what a busy machine changes
little: bytes, commands, and the CPU time of Redis and of the clients. It takes 25 minutes.

    measure.py [measured.json] [only the groups with this in their name]
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
KEYFALL = os.environ.get("KEYFALL", str(HERE.parent.parent / "target/release/keyfall"))

# The number of measurements of each point; the median is kept, and the range beside it.
TIMES = int(os.environ.get("TIMES", "3"))


def bench(flags, url=None):
    """The medians of one run."""
    command = [KEYFALL, "bench", "--json", *flags.split()]
    if url:
        command += ["--url", url]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr}")
    return json.loads(done.stdout)


def of_phase(result, phase):
    """What a job of this phase cost."""
    return dict(result["cost"][phase])


def point(flags, read, url=None, **where):
    """The median of some runs, each value with its range."""
    runs = [read(bench(flags, url)) for _ in range(TIMES)]
    values = {}
    for name in runs[0]:
        all_of = sorted(run[name] for run in runs)
        values[name] = {"median": all_of[len(all_of) // 2], "range": [all_of[0], all_of[-1]]}
    print(where, {name: value["median"] for name, value in values.items()}, flush=True)
    return {**where, **values}


def firing(jobs=5000, per_s=1000, instances=1, shards=1, pending=None):
    flags = f"--only lateness --jobs {jobs} --window {jobs / per_s:g}s"
    flags += f" --instances {instances} --shards {shards}"
    flags += f" --pending {pending}" if pending else ""
    where = {"per_s": per_s, "instances": instances, "shards": shards, "pending": pending or 0}
    return point(flags, lambda result: of_phase(result, "firing"), **where)


def idle(instances, shards):
    flags = "--only idle --pending 1000 --window 20s"
    flags += f" --instances {instances} --shards {shards}"
    read = lambda result: {"commands_per_s": result["idle_commands_per_s"]}
    return point(flags, read, instances=instances, shards=shards)


def claims(instances, shards):
    flags = f"--only claims --jobs 2000 --window 2s --instances {instances} --shards {shards}"
    read = lambda result: {"claims_per_job": result["claims_per_job"]}
    return point(flags, read, instances=instances, shards=shards)


def memory(pending, payload=200):
    flags = f"--only memory --pending {pending} --payload {payload}"
    read = lambda result: {"bytes_per_job": result["bytes_per_pending_job"]}
    return point(flags, read, pending=pending, payload=payload)


@contextmanager
def servers(count, *more):
    """So many servers; the ports that they have."""
    with tempfile.TemporaryDirectory() as folder:
        ports, started = [], []
        while len(ports) < count:
            # The port of a cluster's bus is 10,000 above it.
            port = random.randrange(20_000, 30_000)
            with socket.socket() as free, socket.socket() as bus:
                try:
                    free.bind(("127.0.0.1", port))
                    bus.bind(("127.0.0.1", port + 10_000))
                    ports.append(str(port))
                except OSError:
                    continue
        common = ["--save", "", "--appendonly", "no", "--notify-keyspace-events", "Ex"]
        try:
            for port in ports:
                own = Path(folder, port)
                own.mkdir()
                words = ["redis-server", "--port", port, "--dir", str(own), *common, *more]
                started.append(subprocess.Popen(words, stdout=subprocess.DEVNULL))
            while "PONG" not in "".join(cli(port, "PING") for port in ports[-1:]):
                time.sleep(0.1)
            time.sleep(1)
            yield ports
        finally:
            for server in started:
                server.terminate()
                server.wait()


def cli(port, *words):
    words = ["redis-cli", "-p", port, *words]
    return subprocess.run(words, capture_output=True, text=True).stdout


def clustered():
    """On three primaries, where triggers are on other nodes than their ledger."""
    with servers(3, "--cluster-enabled", "yes") as ports:
        hosts = [f"127.0.0.1:{port}" for port in ports]
        cli(ports[0], "--cluster", "create", *hosts, "--cluster-yes")
        while any("cluster_state:ok" not in cli(port, "CLUSTER", "INFO") for port in ports):
            time.sleep(0.1)
        url = f"redis+cluster://{','.join(hosts)}"
        found = []
        for shards in (1, 3, 12):
            one = {"nodes": 3, "shards": shards}
            for phase, flags in (
                ("firing", "--only lateness --jobs 3000 --window 3s"),
                ("bulk", "--only bulk --jobs 30000"),
            ):
                read = lambda result, phase=phase: {
                    f"{phase}.{part}": value for part, value in of_phase(result, phase).items()
                }
                one |= point(f"{flags} --shards {shards}", read, url)
            found.append(one)
        return found


def replicated():
    """What goes to a replica, and so to an AOF: on a primary that has one."""
    with servers(2) as ports:
        cli(ports[1], "REPLICAOF", "127.0.0.1", ports[0])
        while "state=online" not in cli(ports[0], "INFO", "replication"):
            time.sleep(0.1)
        phases = {"bulk": "bulk", "schedule": "schedule", "lateness": "firing", "burst": "burst"}
        flags = f"--only {','.join(phases)} --jobs 5000 --burst 5000 --window 5s"
        read = lambda result: {
            phase: result["cost"][phase]["bytes_replicated"] for phase in phases.values()
        }
        return [point(flags, read, f"redis://127.0.0.1:{ports[0]}", replicas=1)]


def scheduling():
    found = []
    for phase, flags in (
        ("schedule", "--only schedule --jobs 50000"),
        ("bulk", "--only bulk --jobs 50000"),
        ("bare", "--only bare --jobs 50000"),
        ("burst", "--only burst --burst 20000"),
    ):
        found.append(point(flags, lambda result, phase=phase: of_phase(result, phase), phase=phase))
    return found


GROUPS = {
    "scheduling": scheduling,
    "rates": lambda: [firing(jobs=rate * 5, per_s=rate) for rate in (100, 300, 1000, 3000)],
    "instances": lambda: [firing(instances=count) for count in (1, 2, 4, 8, 16)],
    "shards": lambda: [firing(shards=count) for count in (1, 2, 8, 32)],
    "both": lambda: [firing(instances=4, shards=8), firing(instances=16, shards=32)],
    "idle": lambda: [idle(i, s) for i in (1, 4, 16) for s in (1, 8, 32)],
    "claims": lambda: [claims(i, s) for i, s in ((1, 1), (4, 1), (16, 1), (16, 32))],
    "clustered": clustered,
    "replicated": replicated,
    "payloads": lambda: [memory(100_000, payload) for payload in (20, 200, 1000, 2000)],
    "pending": lambda: [
        firing(pending=count) for count in (0, 10_000, 100_000, 1_000_000, 5_000_000)
    ],
    "memory": lambda: [memory(count) for count in (10_000, 100_000, 1_000_000, 5_000_000)],
}


def main():
    path = Path(sys.argv[1] if len(sys.argv) > 1 else HERE / "measured.json")
    wanted = sys.argv[2].split(",") if len(sys.argv) > 2 else list(GROUPS)
    measured = json.loads(path.read_text()) if path.exists() else {}
    for name, group in GROUPS.items():
        if name in wanted:
            print(f"{name}:", flush=True)
            measured[name] = group()
            path.write_text(json.dumps(measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
