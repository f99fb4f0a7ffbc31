#!/usr/bin/env python3
"""Moves what waits in a classic delay queue to Keyfall, job by job, through both interfaces.

The ids come by standard input, one a line, from the sorted sets of the queue:

    redis-cli --raw ZRANGE dq_bucket_1 0 -1 | python3 examples/classic/move.py OLD NEW

OLD and NEW are URLs such as http://127.0.0.1:9277. Nothing is deleted from the old queue, so stop
its consumers first; whoever starts this again moves all of it again, and replaces what is there.
"""

import json
import sys
import time
from urllib.request import urlopen

OLD, NEW = sys.argv[1:]


def call(url, name, **body):
    with urlopen(f"{url}/{name}", json.dumps(body).encode(), timeout=30) as response:
        answer = json.load(response)
    if answer["code"] != 0:
        sys.exit(f"{name} {body.get('id')}: {answer['message']}")
    return answer["data"]


moved = 0
for line in sys.stdin:
    job = call(OLD, "get", id=line.rstrip("\n"))
    if job is None:
        continue  # It has ended meanwhile.
    # The old queue says when it is due; what is overdue is due now. A second too late is better
    # than one too early.
    job["delay"] = max(0, int(job["delay"] - time.time()) + 1)
    call(NEW, "push", **job)
    moved += 1
print(f"{moved} moved")
