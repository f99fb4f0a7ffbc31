"""Schedules and runs delayed jobs over the HTTP API of Keyfall.

    import keyfall

    client = keyfall.Client("http://127.0.0.1:9276")
    client.schedule("app1:trans:notice:42", {"order": 42}, after="15m")

    worker = keyfall.Worker(client, concurrency=10)

    @worker.on("app1:trans:notice")
    def notify(job: keyfall.PulledJob) -> None:
        print(job.id, job.payload)

    worker.run(signals=True)

`AsyncClient` and `AsyncWorker` are the same for asyncio.
"""

from .answers import (
    Cancelled,
    Caution,
    Changed,
    Counts,
    Job,
    LeaseResult,
    ManyChanged,
    Member,
    MemberChanged,
    Occurrence,
    PulledJob,
    Reached,
    Requeued,
    RuleChanged,
    RulePreview,
    Scheduled,
    Series,
    SeriesChanged,
    Shift,
    Step,
)
from .async_client import AsyncClient
from .async_worker import AsyncWorker
from .calls import BatchCall, BatchResult
from .client import Client
from .errors import Bury, JobStopped, KeyfallError, Retry, Snooze
from .options import ScheduleOptions, SearchOptions, SeriesOptions
from .stop import Stop
from .worker import Worker

__all__ = [
    "AsyncClient",
    "AsyncWorker",
    "BatchCall",
    "BatchResult",
    "Bury",
    "Cancelled",
    "Caution",
    "Changed",
    "Client",
    "Counts",
    "Job",
    "JobStopped",
    "KeyfallError",
    "LeaseResult",
    "ManyChanged",
    "Member",
    "MemberChanged",
    "Occurrence",
    "PulledJob",
    "Reached",
    "Requeued",
    "Retry",
    "RuleChanged",
    "RulePreview",
    "ScheduleOptions",
    "Scheduled",
    "SearchOptions",
    "Series",
    "SeriesChanged",
    "SeriesOptions",
    "Shift",
    "Snooze",
    "Step",
    "Stop",
    "Worker",
]
