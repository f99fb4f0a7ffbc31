"""What the workers with and without asyncio share: handlers, outcomes, settings."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Generic, List, Optional, TypeVar

from .answers import PulledJob
from .errors import Bury, JobStopped, KeyfallError, Retry, Snooze

F = TypeVar("F", bound=Callable[..., Any])
H = TypeVar("H", bound=Callable[..., Any])
log = logging.getLogger("keyfall")

#: How long the error text of a failed attempt may be.
LONGEST_ERROR = 2000
#: After the grace, handlers have so many seconds to notice that they are to stop.
LAST_SECONDS = 1.0


@dataclass(frozen=True)
class Settlement:
    """The call that ends a lease."""

    verb: str
    more: Dict[str, Any] = field(default_factory=dict)


def settlement(job: PulledJob, error: Optional[BaseException]) -> Optional[Settlement]:
    """How the attempt ends; `None` if its lease is lost, and there is nothing to end."""
    if error is None:
        return Settlement("finish")
    if isinstance(error, Bury):
        return Settlement("fail", {"error": text_of(error.reason), "bury": True})
    if isinstance(error, Retry):
        return Settlement("fail", {"error": text_of(error.reason), "after": error.after})
    if isinstance(error, Snooze):
        return Settlement("snooze", {"after": error.after})
    reason = error.reason if isinstance(error, JobStopped) else job.stop.reason
    if reason == "lost":
        return None
    if reason == "stopping":
        return Settlement("snooze")
    text = "the job was cancelled" if reason == "cancelled" else told(error)
    return Settlement("fail", {"error": text})


def settlement_after(refusal: KeyfallError) -> Optional[Settlement]:
    """How the attempt ends if the daemon refuses its end: with a wrong delay it has failed."""
    if refusal.field != "after":
        return None
    return Settlement("fail", {"error": text_of(f"the delay of its handler was refused: {refusal}")})


def told(error: BaseException) -> str:
    """The error of a handler as text."""
    return text_of(f"{type(error).__name__}: {text_of(error)}")


def text_of(reason: Any) -> str:
    """A reason as text that JSON can hold, whatever a handler gives as one."""
    try:
        text = str(reason)
    except Exception:
        text = "it has no text"
    # The daemon refuses half of a pair of surrogates, as in the name of a file that is no UTF-8.
    return text[:LONGEST_ERROR].encode("utf-8", "replace").decode()


class Handlers(Generic[H]):
    """The handlers of a worker, by kind or by a prefix of kinds."""

    def __init__(self) -> None:
        self._all: Dict[str, Any] = {}

    def adding(self, jobs: str) -> Callable[[F], F]:
        """A decorator that makes a function the handler of these jobs."""
        if not jobs.endswith(":") and jobs.count(":") != 2:
            raise ValueError(
                f"jobs: {jobs!r} is neither a kind nor a prefix: write three segments such as "
                "app1:trans:notice, or a prefix of kinds that ends with a colon, app1:trans:"
            )
        if jobs in self._all:
            raise ValueError(f"jobs: {jobs} has a handler already: remove one of the two")

        def add(handler: F) -> F:
            self._all[jobs] = handler
            return handler

        return add

    @property
    def kinds(self) -> List[str]:
        self._check()
        return [jobs for jobs in self._all if not jobs.endswith(":")]

    @property
    def prefixes(self) -> List[str]:
        return [jobs for jobs in self._all if jobs.endswith(":")]

    def _check(self) -> None:
        if not self._all:
            raise ValueError("the worker has no handler: add one, @worker.on('app1:trans:notice')")

    def of(self, job: PulledJob) -> H:
        """The handler of the kind itself, or else of its longest prefix."""
        prefixes = [jobs for jobs in self.prefixes if job.key.startswith(jobs)]
        jobs = job.kind if job.kind in self._all else max(prefixes, key=len)
        handler: H = self._all[jobs]
        return handler


class Outage:
    """Logs once that the daemon is away, and once that it is back."""

    def __init__(self) -> None:
        self.failures = 0

    def failed(self, error: KeyfallError) -> None:
        self.failures += 1
        if self.failures == 1:
            log.warning("no jobs for now, the worker tries again: %s", error)

    def over(self) -> None:
        if self.failures:
            log.info("jobs can be pulled again")
        self.failures = 0
