"""Producers and consumers of both versions: over HTTP, by command, by list and stream."""

import http.client
import http.server
import json
import random
import subprocess
import threading
import time
import urllib.error
import urllib.request
import zlib

from fleet import PATIENCE, RedisError, eventually

WAYS = ["pull", "call", "list", "stream"]
FAILS = 20  # one job in so many fails once, another one becomes a dead letter


class Load:
    """All producers and consumers, as threads that end at `stop`."""

    def __init__(self, journal, redis, daemons, binaries, seed):
        self.journal, self.redis, self.daemons, self.binaries = journal, redis, daemons, binaries
        self.random = random.Random(seed)
        self.is_over, self.produces, self.buries = threading.Event(), threading.Event(), True
        self.produces.set()
        self.threads, self.faults, self.repeats = [], [], 0
        self.failed, self.series = set(), []
        self.receiver = http.server.ThreadingHTTPServer(("127.0.0.1", 0), self.handler())

    def start(self):
        jobs = [self.receiver.serve_forever, self.lists, self.streams]
        jobs += [self.produce_over_http] * 3 + [self.produce_by_command] * 2 + [self.pull] * 3
        jobs += [self.produce_series]
        for job in jobs:
            self.threads.append(threading.Thread(target=self.guarded, args=(job,), daemon=True))
            self.threads[-1].start()

    def guarded(self, job):
        try:
            job()
        except Exception as fault:
            self.faults.append(f"{job.__name__}: {type(fault).__name__}: {fault}")

    def stop(self):
        self.is_over.set()
        self.receiver.shutdown()
        for thread in self.threads:
            thread.join(PATIENCE)

    # Calls

    def call(self, method, path, body=None):
        """The answer of some daemon, and whether an earlier try may have been carried out. Repeats
        the call until a daemon answers."""
        data, until, is_repeat = body and json.dumps(body).encode(), time.monotonic() + PATIENCE, False
        while time.monotonic() < until:
            url = self.random.choice(self.daemons).url + path
            request = urllib.request.Request(url, data, method=method)
            try:
                with urllib.request.urlopen(request, timeout=20) as answer:
                    return json.load(answer), is_repeat
            except urllib.error.HTTPError as refusal:
                told = json.load(refusal)
                if not told.get("retryable"):
                    return told, is_repeat
            except (OSError, ValueError, http.client.HTTPException):
                pass
            is_repeat = True
            self.repeats += 1
            time.sleep(0.05)
        raise AssertionError(f"no daemon has answered {method} {path}")

    def command(self, *words):
        """The output of a command of some version; repeated until Redis answers it."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            binary = self.random.choice(list(self.binaries))
            line = [self.binaries[binary], *words, "--redis-url", self.redis.url]
            ran = subprocess.run(line, capture_output=True, timeout=PATIENCE, text=True)
            if ran.returncode == 0:
                return binary, ran.stdout
            if ran.returncode != 4:
                raise AssertionError(f"{' '.join(map(str, line))}: {ran.stderr}")
        raise AssertionError(f"Redis did not answer {words}")

    # Producers

    def produce_over_http(self):
        number, name = 0, threading.get_ident()
        while not self.is_over.is_set():
            if not self.produces.wait(0.1):
                continue
            number += 1
            key = f"up:{self.random.choice(WAYS)}:job:h{name}-{number}"
            # Some are stored by one version and run long after by the other one.
            delay = self.random.choice([0, 50, 500, 2000, 8000])
            body = {"payload": {"key": key}, "after": f"{delay}ms", "headers": {"n": str(number)}}
            told, _ = self.call("PUT", f"/v1/jobs/{key}", body)
            if "placed" not in told:
                raise AssertionError(f"{key} was refused: {told}")
            self.journal.accepts(key, "HTTP")
            if delay == 8000 and number % 2:
                self.cancel(key)
            elif delay == 2000 and number % 2:
                self.call("POST", f"/v1/jobs/{key}/postpone", {"after": "1s"})
            time.sleep(0.02)

    def cancel(self, key):
        told, is_repeat = self.call("DELETE", f"/v1/jobs/{key}")
        # A repeat finds nothing if the first try was carried out.
        if told.get("running") is False or is_repeat:
            self.journal.cancels(key)
        else:
            raise AssertionError(f"{key} was not cancelled: {told}")

    def produce_by_command(self):
        number, name = 0, threading.get_ident()
        while not self.is_over.is_set():
            if not self.produces.wait(0.1):
                continue
            number += 1
            key = f"up:{self.random.choice(WAYS)}:job:c{name}-{number}"
            delay = self.random.choice(["0s", "1s", "8s"])
            payload = json.dumps({"key": key})
            binary, _ = self.command("schedule", key, payload, "--after", delay)
            self.journal.accepts(key, f"the {binary} command")

    def produce_series(self):
        number = 0
        while not self.is_over.is_set():
            if not self.produces.wait(0.1):
                continue
            number += 1
            anchor = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 8))
            key = f"up:pull:series:{number}"
            body = {"anchor": anchor, "zone": "UTC", "at": ["-2s", "+2s"]}
            told, _ = self.call("PUT", f"/v1/series/{key}", body)
            for member in told.get("members", []):
                self.journal.accepts(member["key"], "series")
            self.series.append(key)
            if len(told.get("members", [])) != 2:
                raise AssertionError(f"{key} was refused: {told}")
            time.sleep(1)

    # Consumers

    def pull(self):
        kinds = ["up:pull:job", "up:pull:series", "up:pull:tick"]
        while not self.is_over.is_set():
            told, _ = self.call("POST", "/v1/pull", {"kinds": kinds, "max": 10, "wait": "1s"})
            for job in told["jobs"]:
                payload = job.get("payload")
                number = payload.get("number") if isinstance(payload, dict) else None
                self.journal.run(job["key"], "pull", number)
                lease, chance = [job["lease"]], self.random.randrange(FAILS)
                if chance == 0 and not number:
                    continue  # As a consumer that dies: its lease lapses.
                if chance == 1 and self.buries and not number:
                    how = {"leases": lease, "error": "no more", "bury": True}
                    self.call("POST", "/v1/leases/fail", how)
                elif chance == 2:
                    how = {"leases": lease, "error": "not now", "after": "100ms"}
                    self.call("POST", "/v1/leases/fail", how)
                else:
                    self.call("POST", "/v1/leases/finish", {"leases": lease})

    def handler(load):
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                self.rfile.read(int(self.headers.get("content-length", 0)))
                key = self.headers["keyfall-key"]
                load.journal.run(key, "callback")
                fails = zlib.crc32(key.encode()) % FAILS == 0 and key not in load.failed
                load.failed.add(key)
                self.send_response(500 if fails else 200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        return Handler

    def lists(self):
        while not self.is_over.is_set():
            try:
                taken = self.redis.ask("BLPOP", "up-list", "1")
                if taken:
                    document = json.loads(taken[1])
                    self.journal.run(document["key"], "list")
                    self.redis.ask("RPUSH", "up-list:done", document["lease"])
            except (OSError, RedisError):
                time.sleep(0.05)

    def streams(self):
        after = ">"
        while not self.is_over.is_set():
            try:
                words = ["COUNT", "50", "BLOCK", "1000", "STREAMS", "up-stream", after]
                read = self.redis.ask("XREADGROUP", "GROUP", "readers", "one", *words)
                entries = read[0][1] if read else []
                for entry, fields in entries:
                    fields = dict(zip(fields[::2], fields[1::2], strict=True))
                    self.journal.run(fields[b"key"].decode(), "stream")
                    self.redis.ask("XACK", "up-stream", "readers", entry)
                after = ">"
            except (OSError, RedisError):
                after = "0"  # What it has read and not acknowledged.
                time.sleep(0.05)

    # The end

    def drain(self, what, left=0):
        """Waits until each job has ended, but dead letters and `left` pending ones."""

        def is_drained():
            if self.faults:
                raise AssertionError("; ".join(self.faults))
            _, counted = self.command("count", "up:", "--json")
            counts = json.loads(counted)
            return counts["pending"] == left and counts["running"] == 0

        try:
            eventually(what, is_drained)
        except AssertionError as fault:
            raise AssertionError(f"{fault}; left are:\n{self.command('list', 'up:')[1]}") from fault
