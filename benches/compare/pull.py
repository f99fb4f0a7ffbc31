"""Keyfall: a producer by batches, and a consumer that pulls, both over HTTP, with the standard library."""

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

KEYFALL = Path(__file__).resolve().parents[2] / "target/release/keyfall"
KIND = "app1:bench:job"
CONSUMERS = 10


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


def call(connection, path, body):
    connection.request("POST", path, body, {"content-type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    return answer.read()


def schedule(port, count, first_ms, step_ms):
    daemon, address = serve(port)
    connection = http.client.HTTPConnection(address)
    began = time.monotonic()
    for start in range(0, count, 500):
        lines = []
        for number in range(start, min(start + 500, count)):
            due = first_ms + number * step_ms
            at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(due // 1000))}.{int(due % 1000):03}Z"
            key = f"{KIND}:{first_ms}-{number}"
            payload = {"due": due, "text": "x" * 180}
            lines.append(json.dumps({"call": "schedule", "key": key, "at": at, "payload": payload}))
        answers = call(connection, "/v1/batch", "\n".join(lines))
        assert answers.count(b'"status":201') == len(lines), answers[:500]
    print(time.monotonic() - began)
    daemon.terminate()
    daemon.wait()


def consume(address, log, lock):
    connection = http.client.HTTPConnection(address)
    while True:
        pulled = call(connection, "/v1/pull", json.dumps({"kinds": [KIND], "wait": "60s"}))
        for job in json.loads(pulled)["jobs"]:
            with lock:
                print(job["payload"]["due"], time.time() * 1000, file=log, flush=True)
            call(connection, "/v1/leases/finish", json.dumps({"leases": [job["lease"]]}))


def work(port):
    daemon, address = serve(port)
    with open(os.environ["COMPARE_LOG"], "w") as log:
        lock = threading.Lock()
        for _ in range(CONSUMERS):
            threading.Thread(target=consume, args=(address, log, lock), daemon=True).start()
        daemon.wait()


if sys.argv[1] == "schedule":
    schedule(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
else:
    work(int(sys.argv[2]))
