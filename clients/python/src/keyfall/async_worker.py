"""The worker for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import Awaitable, Callable, List, Optional, Set, TypeVar

from . import calls, protocol
from .answers import PulledJob
from .async_client import AsyncClient
from .errors import KeyfallError
from .leases import Leases
from .working import LAST_SECONDS, Handlers, Outage, log, settlement, settlement_after

Handler = Callable[[PulledJob], Awaitable[object]]
F = TypeVar("F", bound=Handler)


class AsyncWorker:
    """`Worker` for asyncio: runs up to `concurrency` coroutines at a time.

    A handler whose job is cancelled, whose lease is lost, or whose worker has used up its grace, is
    cancelled; `job.stop.reason` says which. A handler that blocks the event loop loses its lease.
    """

    def __init__(
        self, client: AsyncClient, *, concurrency: int = 10, wait: float = 2.0, grace: float = 25.0
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: {concurrency} is too low: give 1 or more")
        self._client = client
        self._concurrency = concurrency
        self._wait = wait
        self._grace = grace
        self._handlers: Handlers[Handler] = Handlers()
        self._leases = Leases()
        self._running: Set[asyncio.Task[None]] = set()
        # Made in `run`: before Python 3.10 an event belongs to the loop in which it is made.
        self._stopping: Optional[asyncio.Event] = None
        self._is_stopped = False

    def on(self, jobs: str) -> Callable[[F], F]:
        """Makes a coroutine function the handler of a kind, `app1:trans:notice`, or of the kinds with a
        prefix, `app1:trans:`. The handler of the kind comes before that of a prefix."""
        return self._handlers.adding(jobs)

    def stop(self) -> None:
        """Pulls no more, and lets jobs end within the grace. Called from the loop of `run`."""
        self._is_stopped = True
        if self._stopping is not None:
            self._stopping.set()

    async def run(self, *, signals: bool = False) -> None:
        """Works until `stop` is called, and returns when its jobs have ended or are given back. With
        `signals`, SIGTERM and SIGINT stop it, and a second one ends the process at once. Raises if the
        daemon refuses a pull for good, for example because of the token."""
        kinds, prefixes = self._handlers.kinds, self._handlers.prefixes
        self._stopping = asyncio.Event()
        if self._is_stopped:
            self._stopping.set()
        wanted = (signal.SIGTERM, signal.SIGINT) if signals else ()
        loop = asyncio.get_running_loop()
        for number in wanted:
            loop.add_signal_handler(number, self._signalled, number)
        extending = asyncio.create_task(self._extend_leases())
        try:
            await self._pull_jobs(self._stopping, kinds, prefixes)
        finally:
            self.stop()
            await self._end_jobs()
            extending.cancel()
            for number in wanted:
                loop.remove_signal_handler(number)

    def _signalled(self, number: int) -> None:
        asyncio.get_running_loop().remove_signal_handler(number)
        self.stop()

    async def _pull_jobs(
        self, stopping: asyncio.Event, kinds: List[str], prefixes: List[str]
    ) -> None:
        outage = Outage()
        while not stopping.is_set():
            free = min(self._concurrency - len(self._running), calls.MOST_JOBS)
            if free == 0:
                await self._slot_or_stop(stopping)
                continue
            try:
                pulled = await self._client.send(
                    calls.pull(kinds, prefixes, free, self._wait), retries=0
                )
                outage.over()
            except KeyfallError as error:
                if not error.retryable:
                    raise
                outage.failed(error)
                pause = protocol.pause(outage.failures, error.retry_after)
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(stopping.wait(), pause)
                continue
            for job in pulled:
                self._leases.hold(job)
                task = asyncio.create_task(self._run_job(job))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    async def _slot_or_stop(self, stopping: asyncio.Event) -> None:
        stop = asyncio.create_task(stopping.wait())
        await asyncio.wait({stop, *self._running}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()

    async def _run_job(self, job: PulledJob) -> None:
        """Runs the handler in a task of its own, so that the end of its run cannot be cancelled with it."""
        if self._is_stopped:
            job.stop.request("stopping")
        handler = asyncio.ensure_future(self._handle(job))
        job.stop.on_request(handler.cancel)
        try:
            await asyncio.wait({handler})
            error: Optional[BaseException]
            error = asyncio.CancelledError() if handler.cancelled() else handler.exception()
            try:
                await self._settle(job, error)
            # An outcome that cannot be sent, such as a delay of another type, is a failure.
            except Exception as odd:
                await self._settle(job, odd)
        finally:
            self._leases.release(job)

    async def _handle(self, job: PulledJob) -> None:
        job.stop.check()
        await self._handlers.of(job)(job)

    async def _settle(self, job: PulledJob, error: Optional[BaseException]) -> None:
        """Tells the daemon how the attempt ended, for as long as that takes."""
        end = settlement(job, error)
        attempt = 0
        # A job that was given back, because the grace is over, has no lease any more.
        while end is not None and self._leases.holds(job):
            try:
                call = calls.settle(end.verb, [job.lease], **end.more)
                result = (await self._client.send(call, retries=0))[0]
                if result.problem is None:
                    log.debug("%s, attempt %d: %s", job.key, job.attempt, result.result)
                    return
                fault = result.problem
            except KeyfallError as refused:
                fault = refused
            if not fault.retryable:
                log.error("%s: the end of its run was refused: %s", job.key, fault)
                end = settlement_after(fault)
                continue
            attempt += 1
            await asyncio.sleep(protocol.pause(attempt, fault.retry_after))

    async def _extend_leases(self) -> None:
        while True:
            await asyncio.sleep(self._leases.pause())
            for length, leases in self._leases.due():
                since = time.monotonic()
                try:
                    call = calls.settle("extend", leases, by=f"{int(length * 1000)}ms")
                    patience = self._leases.patience(length)
                    results = await self._client.send(call, retries=0, timeout=patience)
                    self._leases.extended(results, since)
                except KeyfallError as error:
                    log.debug("leases were not extended: %s", error)
                    self._leases.not_extended(leases, since)

    async def _end_jobs(self) -> None:
        """Waits for jobs within the grace, and gives back the others."""
        await self._wait_for_jobs(self._grace)
        for job in self._leases.all():
            job.stop.request("stopping")
        await self._wait_for_jobs(LAST_SECONDS)
        left = self._leases.all()
        for first in range(0, len(left), calls.MOST_JOBS):
            some = left[first : first + calls.MOST_JOBS]
            for job in some:
                self._leases.release(job)
            try:
                call = calls.settle("snooze", [job.lease for job in some])
                await self._client.send(call, retries=1)
                log.warning("%d jobs did not end within the grace, and were given back", len(some))
            except KeyfallError as error:
                log.warning("%d jobs run again when their leases end: %s", len(some), error)

    async def _wait_for_jobs(self, seconds: float) -> None:
        if self._running:
            await asyncio.wait(set(self._running), timeout=seconds)
