#!/usr/bin/env python3
"""Pushes orders over the classic interface, and closes them when they are due.

Start a Redis and `keyfall serve --classic-listen 127.0.0.1:9277 --classic-prefix app1:queue`, then
`python3 examples/classic/push_and_pop.py`. It needs Python 3.8 or later and nothing else. The
interface is at KEYFALL_CLASSIC, or else at http://127.0.0.1:9277.
"""

import json
import os
import sys
from urllib.request import urlopen

URL = os.environ.get("KEYFALL_CLASSIC", "http://127.0.0.1:9277")


def call(name, **body):
    """Makes a call; returns what came of it. A pop is held for up to 180 s."""
    with urlopen(f"{URL}/{name}", json.dumps(body).encode(), timeout=200) as response:
        answer = json.load(response)
    if answer["code"] != 0:
        raise RuntimeError(f"{name}: {answer['message']}")
    return answer["data"]


for order in 41, 42, 43:
    body = json.dumps({"order": order})
    call("push", topic="order.close", id=f"close:{order}", delay=1, ttr=1, body=body)
call("delete", id="close:43")  # It was paid.

closed = set()
seen = set()
while len(closed) < 2:
    job = call("pop", topic="order.close,order.remind")
    if job is None:
        continue
    order = json.loads(job["body"])["order"]
    if order == 42 and order not in seen:
        seen.add(order)
        print(f"order {order}: not finished, so it comes again")
        continue
    call("finish", id=job["id"])
    closed.add(order)
    print(f"order {order}: closed", file=sys.stdout)
