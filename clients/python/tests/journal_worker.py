"""A worker in a process of its own: it writes each job into a journal, and then it is done.

Arguments: `threads` or `asyncio`, URL, kind, journal.
"""

import asyncio
import os
import sys

import keyfall

way, url, kind, journal = sys.argv[1:]
file = os.open(journal, os.O_WRONLY | os.O_APPEND)


def note(job):
    os.write(file, f"{job.key} {job.attempt}\n".encode())


def with_threads():
    with keyfall.Client(url) as client:
        worker = keyfall.Worker(client, concurrency=8)
        worker.on(kind)(note)
        worker.run(signals=True)


async def with_asyncio():
    async with keyfall.AsyncClient(url) as client:
        worker = keyfall.AsyncWorker(client, concurrency=8)

        @worker.on(kind)
        async def run(job):
            note(job)

        await worker.run(signals=True)


if way == "threads":
    with_threads()
else:
    asyncio.run(with_asyncio())
