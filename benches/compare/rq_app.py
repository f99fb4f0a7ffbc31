"""rq: a worker that does not fork, with its scheduler, and no results, as its guide on performance says.
It has no call for many scheduled jobs."""

import functools
import os
import sys
import time
from datetime import datetime, timezone

from redis import Redis
from rq import Queue, SimpleWorker


@functools.cache
def log():
    return open(os.environ["COMPARE_LOG"], "a")


def job(due, text):
    print(due, time.time() * 1000, file=log(), flush=True)


def schedule(queue, count, first_ms, step_ms):
    began = time.monotonic()
    for number in range(count):
        due = first_ms + number * step_ms
        at = datetime.fromtimestamp(due / 1000, timezone.utc)
        name = f"{first_ms}-{number}"
        queue.enqueue_at(at, "rq_app.job", due, "x" * 180, job_id=name, result_ttl=0)
    print(time.monotonic() - began)


if __name__ == "__main__":
    redis = Redis(port=int(sys.argv[2]))
    queue = Queue("bench", connection=redis)
    if sys.argv[1] != "work":
        schedule(queue, int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
    else:
        SimpleWorker([queue], connection=redis).work(with_scheduler=True)
