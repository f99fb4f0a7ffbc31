#!/usr/bin/env python3
"""Schedules payment notices over HTTP, and delivers them when they are due.

Start a Redis and `keyfall serve`, then `python3 examples/http/schedule_and_pull.py`. It needs
Python 3.8 or later and nothing else, and ends on Ctrl-C or SIGTERM. The daemon is at KEYFALL_API,
or else at http://127.0.0.1:9276; one that asks for a token finds it in KEYFALL_TOKEN.
"""

import http.client
import json
import os
import signal
import socket
import sys
import time
from urllib.parse import quote, urlsplit

KIND = (sys.argv[1] if len(sys.argv) > 1 else "app1") + ":trans:notice"


class Problem(Exception):
    """What the daemon refuses: `code` says why and never changes, `retryable` whether to try again."""

    def __init__(self, body):
        super().__init__(f"{body['code']}: {body['detail']}")
        self.code, self.retryable = body["code"], body["retryable"]


class Keyfall:
    """A daemon."""

    def __init__(self, url, token=None):
        self.url = urlsplit(url)
        self.headers = {"authorization": f"Bearer {token}"} if token else {}
        self.waiting = None  # the connection of a pull
        self.stopping = False

    def call(self, method, path, body=None, holds=0):
        """Makes a call, which is answered after `holds` seconds at the latest; returns its JSON."""
        https = self.url.scheme == "https"
        kind = http.client.HTTPSConnection if https else http.client.HTTPConnection
        connection = kind(self.url.netloc, timeout=holds + 15)
        try:
            connection.request(method, path, json.dumps(body) if body else None, self.headers)
            if holds:
                self.waiting = connection
                if self.stopping:
                    self.stop()
            response = connection.getresponse()
            answer = json.loads(response.read())
        finally:
            self.waiting = None
            connection.close()
        if response.status >= 400:
            raise Problem(answer)
        return answer

    def schedule(self, key, payload, after):
        body = {"payload": payload, "after": after}
        return self.call("PUT", f"/v1/jobs/{quote(key, safe='')}", body)

    def pull(self, kind, most, seconds):
        """Jobs of this kind, as soon as there are some; none, if none falls due in time."""
        body = {"kinds": [kind], "max": most, "wait": f"{seconds}s"}
        return self.call("POST", "/v1/pull", body, holds=seconds)["jobs"]

    def stop(self, *_):
        """Pulls no more. A pull that waits is cut off, and what was claimed for it goes back. But if
        its answer is on its way already, it is read, and the jobs in it are ours: hence not `close`."""
        self.stopping = True
        if self.waiting:
            self.waiting.sock.shutdown(socket.SHUT_WR)

    def settle(self, verb, job, **more):
        """Finishes, extends or fails the lease of a job; returns what became of it."""
        answer = self.call("POST", f"/v1/leases/{verb}", {"leases": [job["lease"]], **more})
        return answer["results"][0]["result"]

    def requeue(self, key):
        """Makes the last dead letter of a job a job again, with all its attempts ahead."""
        letter = self.call("GET", f"/v1/dead/{quote(key, safe='')}")["letters"][0]["letter"]
        self.call("POST", f"/v1/dead/{quote(key, safe='')}/requeue", {"letter": letter})


MENDED = set()


def deliver(keyfall, job):
    """Runs one job. It may come twice, so whatever this does must bear that."""
    order, shop = job["payload"]["order"], job["payload"]["shop"]
    print(f"order {order}, attempt {job['attempt']}: the shop is {shop}")
    if shop == "busy" and job["attempt"] == 1:
        result = keyfall.settle("fail", job, error="the shop answered 503", after="1s")
    elif shop == "closed" and order not in MENDED:
        result = keyfall.settle("fail", job, error="the shop answered 404", bury=True)
    elif shop == "slow" and keyfall.settle("extend", job, by="2m") != "extended":
        # It was cancelled, or its lease had lapsed and somebody else has the job.
        result = "not ours any more"
    else:
        result = keyfall.settle("finish", job)
    print(f"order {order}: {result}")
    if result == "buried":
        # This is what an operator does, who has mended the shop.
        MENDED.add(order)
        keyfall.requeue(job["key"])


def main():
    keyfall = Keyfall(
        os.environ.get("KEYFALL_API", "http://127.0.0.1:9276"), os.environ.get("KEYFALL_TOKEN")
    )
    signal.signal(signal.SIGINT, keyfall.stop)
    signal.signal(signal.SIGTERM, keyfall.stop)

    for number, shop in enumerate(["open", "busy", "slow", "closed"], start=41):
        job = keyfall.schedule(f"{KIND}:{number}", {"order": number, "shop": shop}, after="500ms")
        print(f"order {number} is due at {job['due']}")

    while not keyfall.stopping:
        try:
            for job in keyfall.pull(KIND, most=10, seconds=60):
                deliver(keyfall, job)
        except Problem as problem:
            if not problem.retryable:
                raise
            time.sleep(1)
        except (OSError, http.client.HTTPException) as fault:
            if not keyfall.stopping:
                print(f"the daemon does not answer: {fault}", file=sys.stderr)
                time.sleep(1)
    print("stopped")


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)
    main()
