"""The worker with threads."""

from __future__ import annotations

import queue
import signal
import threading
import time
from types import FrameType
from typing import Callable, List, Optional, Tuple, TypeVar

from . import calls, protocol
from .answers import PulledJob
from .client import Client
from .errors import KeyfallError
from .leases import Leases
from .working import LAST_SECONDS, Handlers, Outage, log, settlement, settlement_after

Handler = Callable[[PulledJob], object]
F = TypeVar("F", bound=Handler)


class Worker:
    """Pulls jobs that are due, and runs up to `concurrency` of them at a time, each in a thread.

    A handler that returns has done its job; one that raises has failed, and the retry policy decides.
    `Retry`, `Bury` and `Snooze` say what happens instead. The worker extends the leases of jobs while
    they run. `wait` is the time in seconds for which a pull waits, and so the time that a stop of an
    idle worker takes. `grace` is the time in seconds that jobs have to end after a stop; the others are
    given back, and do not count as attempts.
    """

    def __init__(
        self, client: Client, *, concurrency: int = 10, wait: float = 2.0, grace: float = 25.0
    ) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency: {concurrency} is too low: give 1 or more")
        self._client = client
        self._concurrency = concurrency
        self._wait = wait
        self._grace = grace
        self._handlers: Handlers[Handler] = Handlers()
        self._leases = Leases()
        self._free = threading.Semaphore(concurrency)
        self._jobs: queue.SimpleQueue[Optional[PulledJob]] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._ended = threading.Event()

    def on(self, jobs: str) -> Callable[[F], F]:
        """Makes a function the handler of a kind, `app1:trans:notice`, or of the kinds with a prefix,
        `app1:trans:`. The handler of the kind comes before that of a prefix."""
        return self._handlers.adding(jobs)

    def stop(self) -> None:
        """Pulls no more, and lets jobs end within the grace. May be called from any thread."""
        self._stopping.set()

    def run(self, *, signals: bool = False) -> None:
        """Works until `stop` is called, and returns when its jobs have ended or are given back. With
        `signals`, SIGTERM and SIGINT stop it, and a second one ends the process at once. Raises if the
        daemon refuses a pull for good, for example because of the token."""
        kinds, prefixes = self._handlers.kinds, self._handlers.prefixes
        wanted = (signal.SIGTERM, signal.SIGINT) if signals else ()
        before = {number: signal.signal(number, self._signalled) for number in wanted}
        threads = [threading.Thread(target=self._run_jobs) for _ in range(self._concurrency)]
        threads.append(threading.Thread(target=self._extend_leases))
        for thread in threads:
            # A handler that never ends must not keep the process alive.
            thread.daemon = True
            thread.start()
        try:
            self._pull_jobs(kinds, prefixes)
        finally:
            self._stopping.set()
            self._end_jobs()
            self._ended.set()
            for _ in range(self._concurrency):
                self._jobs.put(None)
            for number, handler in before.items():
                signal.signal(number, handler or signal.SIG_DFL)

    def _signalled(self, number: int, _frame: Optional[FrameType]) -> None:
        signal.signal(number, signal.SIG_DFL)
        self.stop()

    def _pull_jobs(self, kinds: List[str], prefixes: List[str]) -> None:
        outage = Outage()
        while not self._stopping.is_set():
            free = self._take_slots()
            if free == 0:
                continue
            pulled: Tuple[PulledJob, ...] = ()
            try:
                pulled = self._client.send(calls.pull(kinds, prefixes, free, self._wait), retries=0)
                outage.over()
            except KeyfallError as error:
                if not error.retryable:
                    raise
                outage.failed(error)
                self._stopping.wait(protocol.pause(outage.failures, error.retry_after))
            finally:
                for _ in range(free - len(pulled)):
                    self._free.release()
            for job in pulled:
                self._leases.hold(job)
                self._jobs.put(job)

    def _take_slots(self) -> int:
        """All slots that are free; waits for one, for a while."""
        free = int(self._free.acquire(timeout=0.5))
        while 0 < free < calls.MOST_JOBS and self._free.acquire(blocking=False):
            free += 1
        return free

    def _run_jobs(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            try:
                self._run_job(job)
            except Exception:
                log.exception("%s: the end of its run could not be told", job.key)
            finally:
                self._free.release()

    def _run_job(self, job: PulledJob) -> None:
        error: Optional[BaseException] = None
        try:
            if self._stopping.is_set():
                job.stop.request("stopping")
            job.stop.check()
            self._handlers.of(job)(job)
        # Whatever ends a handler, the worker goes on, and the daemon hears of it.
        except BaseException as raised:
            error = raised
        try:
            try:
                self._settle(job, error)
            # An outcome that cannot be sent, such as a delay of another type, is a failure.
            except Exception as odd:
                self._settle(job, odd)
        finally:
            self._leases.release(job)

    def _settle(self, job: PulledJob, error: Optional[BaseException]) -> None:
        """Tells the daemon how the attempt ended, for as long as that takes."""
        end = settlement(job, error)
        attempt = 0
        # A job that was given back, because the grace is over, has no lease any more.
        while end is not None and self._leases.holds(job):
            try:
                call = calls.settle(end.verb, [job.lease], **end.more)
                result = self._client.send(call, retries=0)[0]
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
            self._ended.wait(protocol.pause(attempt, fault.retry_after))

    def _extend_leases(self) -> None:
        while not self._ended.wait(self._leases.pause()):
            for length, leases in self._leases.due():
                since = time.monotonic()
                try:
                    call = calls.settle("extend", leases, by=f"{int(length * 1000)}ms")
                    patience = self._leases.patience(length)
                    results = self._client.send(call, retries=0, timeout=patience)
                    self._leases.extended(results, since)
                except KeyfallError as error:
                    log.debug("leases were not extended: %s", error)
                    self._leases.not_extended(leases, since)

    def _end_jobs(self) -> None:
        """Waits for jobs within the grace, and gives back the others."""
        self._leases.wait_for_all(self._grace)
        for job in self._leases.all():
            job.stop.request("stopping")
        self._leases.wait_for_all(LAST_SECONDS)
        left = self._leases.all()
        for first in range(0, len(left), calls.MOST_JOBS):
            some = left[first : first + calls.MOST_JOBS]
            for job in some:
                self._leases.release(job)
            try:
                self._client.send(calls.settle("snooze", [job.lease for job in some]), retries=1)
                log.warning("%d jobs did not end within the grace, and were given back", len(some))
            except KeyfallError as error:
                log.warning("%d jobs run again when their leases end: %s", len(some), error)
