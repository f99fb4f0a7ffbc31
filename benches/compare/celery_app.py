"""Celery: one producer for all tasks, a visibility timeout above the longest delay, no results, and no
gossip, as its guides for Redis and for optimizing say."""

import functools
import os
import sys
import time
from datetime import datetime, timezone

from celery import Celery

port = sys.argv[2] if len(sys.argv) > 2 else os.environ["COMPARE_PORT"]
app = Celery("celery_app", broker=f"redis://127.0.0.1:{port}/0")
app.conf.task_ignore_result = True
app.conf.broker_transport_options = {"visibility_timeout": 7200}
app.conf.worker_hijack_root_logger = False


@functools.cache
def log():
    return open(os.environ["COMPARE_LOG"], "a")


@app.task
def job(due, text):
    print(due, time.time() * 1000, file=log(), flush=True)


def schedule(count, first_ms, step_ms):
    began = time.monotonic()
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(count):
            due = first_ms + number * step_ms
            eta = datetime.fromtimestamp(due / 1000, timezone.utc)
            job.apply_async(
                [due, "x" * 180], task_id=f"{first_ms}-{number}", eta=eta, producer=producer
            )
    print(time.monotonic() - began)


if __name__ == "__main__" and sys.argv[1] != "work":
    schedule(int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
elif __name__ == "__main__":
    flags = ["--pool=threads", "--concurrency=10", "--without-gossip", "--without-mingle"]
    app.worker_main(["worker", "--loglevel=ERROR", *flags])
