"""Takes jobs from an acknowledged stream. REDIS_URL=… python3 stream.py orders closers me"""

import json
import os
import sys

import redis

STREAM, GROUP, ME = sys.argv[1:4]
db = redis.from_url(os.environ["REDIS_URL"], decode_responses=True)


def close_order(job):
    print("done", job["key"], json.loads(job["payload"]), flush=True)


while True:
    for _, entries in db.xreadgroup(GROUP, ME, {STREAM: ">"}, count=10, block=1000) or []:
        for entry, job in entries:
            try:
                close_order(job)
            except Exception as error:
                # Not acknowledged, it comes again as the policy of its route says.
                print(job["key"], error, file=sys.stderr)
                continue
            db.xack(STREAM, GROUP, entry)
