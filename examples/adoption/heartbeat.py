"""Beats for a host, with redis-py and nothing else: whoever hears nothing of it for so long is told
by a job, on a route that adopts app1:host:silent:*. pip install redis

    python3 heartbeat.py web-1 30    beats every 10 s; silence is 30 s without a beat

REDIS_URL says where Redis is, KIND which kind of job, if it is not app1:host:silent.
"""

import json
import os
import signal
import sys
import threading

import redis

host, silence = sys.argv[1], int(sys.argv[2])
key = os.environ.get("KIND", "app1:host:silent") + ":" + host
db = redis.from_url(os.environ.get("REDIS_URL", "redis://127.0.0.1:6379"))

stopped = threading.Event()
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, lambda *_: stopped.set())


def beat():
    """A beat is EXPIRE. Where it finds no key, this is the first beat, or that of a host which was
    silent for a while."""
    if not db.expire(key, silence):
        db.set(key, json.dumps({"host": host}), ex=silence)


beat()
print(host, "beats", flush=True)
while not stopped.wait(silence / 3):
    try:
        beat()
    except redis.RedisError as error:
        # It may be away for a moment; the next beat is soon.
        print(error, file=sys.stderr)

# Who stops on purpose is not silent.
db.delete(key)
print(host, "is retired")
