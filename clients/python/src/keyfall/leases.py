"""The leases that a worker holds, by a clock that never goes back."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import Dict, Iterable, List, Tuple

from .answers import LeaseResult, PulledJob
from .calls import MOST_JOBS


@dataclass
class Held:
    """A lease: when it ends at the earliest, and when it is extended, in seconds."""

    job: PulledJob
    length: float
    ends: float
    next: float


class Leases:
    """Extends each lease after a third of its time, so that two failures do not lose it."""

    def __init__(self) -> None:
        self._held: Dict[str, Held] = {}
        self._lock = threading.Condition()

    def hold(self, job: PulledJob) -> None:
        """A job that was pulled. Its lease began as the daemon had sent the answer."""
        length, since = job.lease_ms / 1000, time.monotonic()
        with self._lock:
            self._held[job.lease] = Held(job, length, since + length, since + length / 3)

    def release(self, job: PulledJob) -> None:
        """The lease has ended, or is extended no more."""
        with self._lock:
            self._held.pop(job.lease, None)
            self._lock.notify_all()

    def holds(self, job: PulledJob) -> bool:
        with self._lock:
            return job.lease in self._held

    def all(self) -> List[PulledJob]:
        with self._lock:
            return [held.job for held in self._held.values()]

    def wait_for_all(self, seconds: float) -> None:
        """Waits until all leases are released, for so long at most."""
        with self._lock:
            self._lock.wait_for(lambda: not self._held, seconds)

    def pause(self) -> float:
        """The seconds until a lease is to be extended; a quarter of a second at the most, because a
        lease that comes meanwhile can last only a second."""
        with self._lock:
            first = min((held.next for held in self._held.values()), default=float("inf"))
        return max(0.0, min(0.25, first - time.monotonic()))

    def due(self) -> Iterable[Tuple[float, List[str]]]:
        """Leases that are to be extended now, by their length in seconds. Handlers whose leases have
        lapsed are told to stop."""
        now = time.monotonic()
        by_length: Dict[float, List[str]] = {}
        with self._lock:
            for lease, held in self._held.items():
                if held.ends <= now:
                    held.job.stop.request("lost")
                if held.next <= now:
                    by_length.setdefault(held.length, []).append(lease)
        for length, leases in by_length.items():
            for first in range(0, len(leases), MOST_JOBS):
                yield length, leases[first : first + MOST_JOBS]

    def extended(self, results: Iterable[LeaseResult], since: float) -> None:
        """The answers to a call that was sent at `since`."""
        with self._lock:
            for one in results:
                held = self._held.get(one.lease)
                if held is None:
                    continue
                if one.result == "extended":
                    held.ends = since + held.length
                    held.next = since + held.length / 3
                elif one.result == "cancelled":
                    held.job.stop.request("cancelled")
                    held.next = float("inf")
                elif one.result == "failed":
                    held.next = since + self._soon(held)
                else:
                    held.job.stop.request("lost")
                    held.next = float("inf")

    def not_extended(self, leases: Iterable[str], since: float) -> None:
        """The call failed, and is repeated soon."""
        with self._lock:
            for lease in leases:
                if lease in self._held:
                    held = self._held[lease]
                    held.next = since + self._soon(held)

    @staticmethod
    def _soon(held: Held) -> float:
        return min(1.0, held.length / 20)

    @staticmethod
    def patience(length: float) -> float:
        """The seconds that a call which extends such leases may take."""
        return min(10.0, max(0.5, length / 6))
