"""Keyfall: a producer by batches or in ten threads, and a consumer that pulls, both over HTTP, with the standard library."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

KEYFALL = Path(__file__).resolve().parents[2] / "target/release/keyfall"
KIND = "app1:bench:job"
CONSUMERS = CALLERS = 10


def serve(port):
    """Starts a daemon, and returns its address."""
    flags = ["--redis-url", f"redis://127.0.0.1:{port}", "--http-listen", "127.0.0.1:0"]
    daemon = subprocess.Popen(
        [KEYFALL, "serve", "--http-access-log=false", *flags], stdout=subprocess.PIPE, text=True
    )
    for line in daemon.stdout:
        if line.startswith("listening on "):
            return daemon, line.split("//")[1].strip()
    sys.exit("the daemon does not listen")


def call(connection, path, body, method="POST", status=200):
    connection.request(method, path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == status, answer.read()
    return answer.read()


def job(number, first_ms, step_ms):
    due = first_ms + number * step_ms
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(due // 1000))}.{int(due % 1000):03}Z"
    payload = {"due": due, "text": "x" * 180}
    return f"{KIND}:{first_ms}-{number}", {"at": at, "payload": payload}


def schedule_many(address, count, first_ms, step_ms):
    connection = http.client.HTTPConnection(address)
    for start in range(0, count, 500):
        lines = []
        for number in range(start, min(start + 500, count)):
            key, terms = job(number, first_ms, step_ms)
            lines.append(json.dumps({"call": "schedule", "key": key} | terms))
        answers = call(connection, "/v1/batch", "\n".join(lines))
        assert answers.count(b'"status":201') == len(lines), answers[:500]


def schedule_each(address, count, first_ms, step_ms):
    def caller(numbers):
        connection = http.client.HTTPConnection(address)
        for number in numbers:
            key, terms = job(number, first_ms, step_ms)
            call(connection, f"/v1/jobs/{key}", json.dumps(terms), method="PUT", status=201)

    with ThreadPoolExecutor(CALLERS) as callers:
        list(callers.map(caller, (range(at, count, CALLERS) for at in range(CALLERS))))


def schedule(how, port, *jobs):
    daemon, address = serve(port)
    began = time.monotonic()
    (schedule_many if how == "many" else schedule_each)(address, *jobs)
    print(time.monotonic() - began)
    daemon.terminate()
    daemon.wait()


def consume(address, log, lock):
    connection = http.client.HTTPConnection(address)
    while True:
        pulled = call(connection, "/v1/pull", json.dumps({"kinds": [KIND], "max": 10, "wait": "60s"}))
        jobs = json.loads(pulled)["jobs"]
        for job in jobs:
            with lock:
                print(job["payload"]["due"], time.time() * 1000, file=log, flush=True)
        if jobs:
            call(connection, "/v1/leases/finish", json.dumps({"leases": [it["lease"] for it in jobs]}))


def work(port):
    daemon, address = serve(port)
    with open(os.environ["COMPARE_LOG"], "w") as log:
        lock = threading.Lock()
        for _ in range(CONSUMERS):
            threading.Thread(target=consume, args=(address, log, lock), daemon=True).start()
        daemon.wait()


if sys.argv[1] == "work":
    work(int(sys.argv[2]))
else:
    schedule(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
