"""Takes jobs from an acknowledged list. pip install redis; REDIS_URL=… python3 list.py orders"""

import json
import os
import sys

import redis

LIST = sys.argv[1]
db = redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def close_order(job):
    print("done", job["key"], job["payload"], flush=True)


while True:
    taken = db.blpop(LIST, timeout=1)
    if taken is None:
        continue
    job = json.loads(taken[1])
    try:
        close_order(job)
    except Exception as error:
        # Not acknowledged, it comes again when its lease is over.
        print(job["key"], error, file=sys.stderr)
        continue
    db.rpush(LIST + ":done", job["lease"])
