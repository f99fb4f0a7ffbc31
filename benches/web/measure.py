#!/usr/bin/env python3
"""Measures the web page over many jobs: how long each page takes, what it costs Redis, and what open
live pages cost: `make web-cost`.

    measure.py [--pending 5000000] [--dead 100000] [--live 50] [--kinds 20]

It starts a private Redis and a daemon, and prints a table for docs/web.md. Commands of Redis that
take longer than five milliseconds are listed with it.
"""

import argparse
import http.client
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEYFALL = os.environ.get("KEYFALL", str(ROOT / "target/release/keyfall"))
KINDS = [f"shop:{module}:{biz}" for module in ("orders", "mail", "carts", "stock") for biz in "abcde"]
# The longest names that a kind can have.
LONG = [f"{'a' * 64}:{'m' * 64}:{letter * 64}" for letter in "xyz"]
REASONS = ["timeout after 3000 ms", "order {} not found", "the mail server answered 550: no user {}"]
LINES = 1000
SLOW_US = 5000

PAGES = {
    "overview": "",
    "chart of the jobs to come": "ahead",
    "kinds with a prefix": "?prefix=shop%3Amail%3A",
    "search of a kind": "jobs?q=shop%3Amail%3A",
    "jobs": "jobs",
    "jobs with a prefix": "jobs?q=shop%3Aorders%3Ac%3A",
    "jobs due within an hour": "jobs?q=due%3A%3C1h",
    "jobs with an error": "jobs?q=state%3Adead+error%3Atimeout",
    "jobs with an error that no job has": "jobs?q=state%3Adead+error%3Anobodyhasthis",
    "a job": "job?key=shop%3Aorders%3Aa%3A0",
    "dead letters": "dead",
    "live": "live",
    "workers": "workers",
    "pauses": "pauses",
    "kinds to pause": "pauses?ask=pause&all=yes",
    "limits": "limits",
    "doctor": "doctor",
}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until_listening(port):
    for _ in range(200):
        try:
            return socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
    sys.exit(f"nothing listens on port {port}")


class Redis:
    """Just enough of a client for INFO and the slow log."""

    def __init__(self, port):
        self.file = socket.create_connection(("127.0.0.1", port)).makefile("rwb")

    def call(self, *words):
        lines = [f"*{len(words)}\r\n".encode()]
        lines += [f"${len(str(word))}\r\n{word}\r\n".encode() for word in words]
        self.file.write(b"".join(lines))
        self.file.flush()
        return self.reply()

    def reply(self):
        line = self.file.readline()
        sort, rest = line[:1], line[1:-2]
        if sort == b"$":
            return None if int(rest) < 0 else self.file.read(int(rest) + 2)[:-2].decode()
        if sort == b"*":
            return [self.reply() for _ in range(int(rest))]
        return int(rest) if sort == b":" else rest.decode()


CONNECTIONS = threading.local()


def must(port, method, path, body=None):
    """A call of the API; each thread keeps its connection."""
    if not hasattr(CONNECTIONS, "link"):
        CONNECTIONS.link = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    link = CONNECTIONS.link
    link.request(method, path, body)
    answer = link.getresponse()
    text = answer.read()
    if answer.status >= 300:
        sys.exit(f"{method} {path}: {answer.status} {text[:500]}")
    return text


def schedule(port, keys_and_delays):
    lines = [
        json.dumps({"call": "schedule", "key": key, "payload": {"order": key[-6:]}, "after": delay})
        for key, delay in keys_and_delays
    ]
    must(port, "POST", "/v1/batch", "\n".join(lines))


def fill(port, pending, dead):
    """Pending jobs of all kinds, due within a month, and dead letters."""
    batches = iter(range(0, pending, LINES))
    lock = threading.Lock()

    def work():
        while True:
            with lock:
                start = next(batches, None)
            if start is None:
                return
            numbers = range(start, min(start + LINES, pending))
            schedule(port, [(f"{KINDS[n % len(KINDS)]}:{n}", f"{600 + n * 7919 % 2592000}s") for n in numbers])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    left = dead
    while left > 0:
        some = range(left - min(LINES, left), left)
        # Of a few kinds: a pull looks into each kind of its prefix.
        schedule(port, [(f"{KINDS[n % 20]}:dead-{n}", "0s") for n in some])
        todo = len(some)
        while todo:
            wanted = json.dumps({"max": 1000, "wait": "5s", "prefixes": ["shop:"]})
            pulled = json.loads(must(port, "POST", "/v1/pull", wanted))["jobs"]
            for number, reason in enumerate(REASONS):
                leases = [job["lease"] for job in pulled[number::len(REASONS)]]
                if leases:
                    call = {"leases": leases, "error": reason.format(left + todo), "bury": True}
                    must(port, "POST", "/v1/leases/fail", json.dumps(call))
            todo -= len(pulled)
        left -= len(some)


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def cpu(process):
    """Seconds of processor time."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def count_rows(streams):
    """Reads streams of live pages, and returns a function that says how many rows have come."""
    counts = [0] * len(streams)

    def read(at):
        kept = b""
        while part := streams[at].recv(65536):
            *lines, kept = (kept + part).split(b"\n")
            counts[at] += lines.count(b"event: row")

    for at in range(len(streams)):
        threading.Thread(target=read, args=(at,), daemon=True).start()
    return lambda: sum(counts)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--pending", type=int, default=5_000_000)
    parser.add_argument("--dead", type=int, default=100_000)
    parser.add_argument("--live", type=int, default=50)
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--kinds", type=int, default=len(KINDS))
    options = parser.parse_args()
    more = [f"app{n % 7}:module{n % 50}:kind{n}" for n in range(options.kinds - len(KINDS) - len(LONG))]
    KINDS.extend(LONG + more if more else [])
    folder = Path(tempfile.mkdtemp(prefix="keyfall-web-"))
    redis_port, port = free_port(), free_port()
    server = os.environ.get("KEYFALL_REDIS_BIN") or shutil.which("redis-server") or "valkey-server"
    log = open(folder / "log", "wb")
    redis = subprocess.Popen(
        [server, str(ROOT / "redis.conf"), "--port", str(redis_port), "--dir", str(folder), "--save", "",
         "--appendonly", "no", "--daemonize", "no"], stdout=log, stderr=log)
    until_listening(redis_port)
    daemon = subprocess.Popen(
        [KEYFALL, "serve", "--redis-url", f"redis://127.0.0.1:{redis_port}", "--http-listen",
         f"127.0.0.1:{port}", "--http-access-log=false", "--worker-dead-letters", "1000000",
         "--http-new-kinds", "1000000"],
        cwd=folder, stdout=log, stderr=log)
    try:
        until_listening(port)
        begun = time.monotonic()
        fill(port, options.pending, options.dead)
        print(f"filled in {time.monotonic() - begun:.0f} s", file=sys.stderr)
        link = Redis(redis_port)
        link.call("CONFIG", "SET", "slowlog-log-slower-than", SLOW_US)
        print("| page | p50, ms | p99, ms | processor time, ms | slowest command of Redis, ms |\n|---|--:|--:|--:|--:|")
        for name, path in PAGES.items():
            link.call("SLOWLOG", "RESET")
            link.call("CONFIG", "RESETSTAT")
            times = []
            before = cpu(daemon)
            for _ in range(options.times):
                start = time.monotonic()
                must(port, "GET", f"/ui/{path}")
                times.append(1000 * (time.monotonic() - start))
            spent = 1000 * (cpu(daemon) - before) / options.times
            slow = link.call("SLOWLOG", "GET", "5")
            worst = max((entry[2] for entry in slow), default=0)
            shown = f"{worst / 1000:.1f}" if worst else "below 5"
            print(f"| {name} | {percentile(times, 0.5):.1f} | {percentile(times, 0.99):.1f} | {spent:.1f} | {shown} |")
            for entry in slow[:2]:
                print(f"{name}: {entry[2]} us: {' '.join(entry[3])[:160]}", file=sys.stderr)
        streams = []
        # The daemon closes connections that are idle for longer.
        CONNECTIONS.link.close()
        before = [cpu(daemon), cpu(redis)]
        time.sleep(10)
        idle = [now - then for now, then in zip([cpu(daemon), cpu(redis)], before)]
        for _ in range(options.live):
            one = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            one.request("GET", "/ui/stream")
            answer = one.getresponse()
            if answer.status != 200:
                sys.exit(f"a live page got {answer.status}: an address may have 128 at a time")
            streams.append(one.sock)
        rows = count_rows(streams)
        # The past changes come first.
        time.sleep(5)
        old = rows()
        before = [cpu(daemon), cpu(redis)]
        for second in range(10):
            schedule(port, [(f"shop:live:a:{second}-{n}", "1h") for n in range(10)])
            time.sleep(1)
        busy = [now - then for now, then in zip([cpu(daemon), cpu(redis)], before)]
        print(f"\n{options.live} live pages got {rows() - old} of {100 * options.live} rows")
        print(f"With them and 10 changes a second: {10 * busy[0]:.1f} % of a core for the daemon, "
              f"{10 * busy[1]:.1f} % for Redis; without pages {10 * idle[0]:.1f} % and {10 * idle[1]:.1f} %")
    finally:
        daemon.kill()
        redis.kill()
        daemon.wait()
        redis.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
