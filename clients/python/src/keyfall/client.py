"""The client for programs without asyncio."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Iterable, Iterator, List, Optional, Sequence, Tuple, Type
from typing import TypeVar

import httpx

from . import answers, calls, protocol
from .calls import Batch, BatchCall, BatchResult, Call
from .errors import KeyfallError
from .options import Duration, Rule, ScheduleOptions, SearchOptions, SeriesOptions, Time

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")


class Client:
    """Calls a daemon of Keyfall. It may be shared by threads.

    `timeout` is the time in seconds for a request, beside the time for which a pull waits.
    A call that may be repeated is repeated up to `retries` times while the daemon is away or asks to
    wait. `http` replaces the HTTP client, for example to set a CA or a proxy; it then has the URL and the
    token.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:9276",
        *,
        token: Optional[str] = None,
        timeout: float = 10.0,
        retries: int = 5,
        http: Optional[httpx.Client] = None,
    ) -> None:
        self._http = http or httpx.Client(**protocol.http_settings(url, token, timeout))
        self._timeout = timeout
        self._retries = retries

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def schedule(
        self, key: str, payload: Any = None, **options: Unpack[ScheduleOptions]
    ) -> answers.Scheduled:
        """Creates the job, or replaces it. The payload is anything that JSON can hold, or `bytes`."""
        return self.send(calls.schedule(key, payload, options))

    def get(self, key: str) -> Optional[answers.Job]:
        """The job, or its latest dead letter; `None` if there is neither."""
        return self.send(calls.get(key))

    def cancel(
        self, key: str, *, durable: Optional[int] = None, fsynced: bool = False
    ) -> answers.Cancelled:
        """Cancels the job. A run goes on and is told to stop; it is not tried again."""
        return self.send(calls.cancel(key, durable, fsynced))

    def postpone(
        self, key: str, *, after: Optional[Duration] = None, at: Optional[Time] = None
    ) -> answers.Changed:
        """Gives a pending job another due time."""
        return self.send(calls.postpone(key, after, at))

    def fire(self, key: str) -> answers.Changed:
        """Makes a pending job due now."""
        return self.send(calls.fire(key))

    def update(self, key: str, payload: Any) -> Optional[answers.Changed]:
        """Changes the payload. `None` means that the job runs, and has the new payload if it runs
        again."""
        return self.send(calls.update(key, payload))

    def change_rule(self, key: str, rule: Rule) -> answers.RuleChanged:
        """Gives a recurring job another rule."""
        return self.send(calls.change_rule(key, rule))

    def pause_rule(self, key: str) -> answers.RuleChanged:
        """Pauses the rule of a recurring job."""
        return self.send(calls.pause_rule(key))

    def resume_rule(self, key: str) -> answers.RuleChanged:
        """Resumes a rule that was paused, with its next time."""
        return self.send(calls.resume_rule(key))

    def preview_rule(self, rule: Rule) -> answers.RulePreview:
        """Says a rule in words, with its next times. Nothing is stored."""
        return self.send(calls.preview_rule(rule))

    def set_series(self, key: str, **options: Unpack[SeriesOptions]) -> answers.SeriesChanged:
        """Makes a series, moves its date, or changes its members, in one step."""
        return self.send(calls.set_series(key, options))

    def preview_series(self, key: str, **options: Unpack[SeriesOptions]) -> answers.SeriesChanged:
        """What `set_series` would do. Nothing is stored."""
        return self.send(calls.preview_series(key, options))

    def get_series(self, key: str) -> Optional[answers.Series]:
        """The series as a whole; `None` if there is none."""
        return self.send(calls.get_series(key))

    def cancel_series(self, key: str) -> Optional[answers.SeriesChanged]:
        """Cancels the members that are pending, and the plan; `None` if there is no series."""
        return self.send(calls.cancel_series(key))

    def jobs(self, prefix: str = "", **options: Unpack[SearchOptions]) -> Iterator[answers.Job]:
        """All jobs with this prefix, page by page."""
        cursor: Optional[str] = None
        while True:
            page = self.send(calls.jobs(prefix, options, cursor))
            yield from page.jobs
            if page.next is None:
                return
            cursor = page.next

    def count(self, prefix: str = "") -> answers.Counts:
        """How many jobs are in each state."""
        return self.send(calls.count(prefix))

    def cancel_many(self, prefix: str, *, dry_run: bool = False) -> answers.ManyChanged:
        """Cancels all jobs with this prefix."""
        return self.send(calls.many("cancel", prefix, dry_run))

    def fire_many(self, prefix: str, *, dry_run: bool = False) -> answers.ManyChanged:
        """Makes all pending jobs with this prefix due now."""
        return self.send(calls.many("fire", prefix, dry_run))

    def postpone_many(
        self,
        prefix: str,
        *,
        after: Optional[Duration] = None,
        at: Optional[Time] = None,
        by: Optional[Duration] = None,
        dry_run: bool = False,
    ) -> answers.ManyChanged:
        """Gives all pending jobs with this prefix another due time. With `by`, the call is not repeated
        if its answer is lost: each repeat would postpone the jobs again."""
        return self.send(calls.many("postpone", prefix, dry_run, after=after, at=at, by=by))

    def dead_letters(self, key: str) -> Tuple[answers.Job, ...]:
        """The dead letters of a job, the latest first."""
        return self.send(calls.dead_letters(key))

    def requeue(
        self,
        key: str,
        letter: int,
        *,
        after: Optional[Duration] = None,
        at: Optional[Time] = None,
    ) -> answers.Requeued:
        """Makes a dead letter a job again, with all its attempts."""
        return self.send(calls.requeue(key, letter, after, at))

    def delete_letter(self, key: str, letter: int) -> None:
        """Deletes a dead letter."""
        return self.send(calls.delete_letter(key, letter))

    def batch(self, lines: Iterable[BatchCall]) -> List[BatchResult]:
        """Makes many calls in few requests. A faulty line does not affect the others."""
        batch = Batch(list(lines), self._retries)
        while not batch.is_answered:
            error = self._send_lines(batch)
            if error is not None and batch.retry_or_give_up(error):
                time.sleep(protocol.pause(batch.attempt, error.retry_after))
        return batch.results

    def _send_lines(self, batch: Batch) -> Optional[KeyfallError]:
        some, content = batch.next()
        text = b""
        try:
            with self._http.stream(
                "POST", "/v1/batch", content=content, headers=protocol.NDJSON
            ) as answer:
                if not answer.is_success:
                    answer.read()
                    return protocol.refusal(answer)
                for piece in answer.iter_bytes():
                    text += piece
        except httpx.RequestError as fault:
            return batch.answered(some, text) and protocol.failure(fault, self._http.base_url)
        return batch.answered(some, text)

    def pull(
        self,
        *,
        kinds: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        max: int = 1,
        wait: float = 30.0,
    ) -> Tuple[answers.PulledJob, ...]:
        """Waits up to `wait` seconds for jobs that are due, each with a lease. `Worker` does this, and
        keeps the leases."""
        return self.send(calls.pull(kinds, prefixes, max, wait))

    def finish(self, leases: Sequence[str]) -> Tuple[answers.LeaseResult, ...]:
        """The jobs are done."""
        return self.send(calls.settle("finish", leases))

    def extend(self, leases: Sequence[str], by: Duration) -> Tuple[answers.LeaseResult, ...]:
        """The leases end after this time from now."""
        return self.send(calls.settle("extend", leases, by=by))

    def fail(
        self,
        leases: Sequence[str],
        error: str,
        *,
        after: Optional[Duration] = None,
        bury: bool = False,
    ) -> Tuple[answers.LeaseResult, ...]:
        """The attempts failed."""
        return self.send(calls.settle("fail", leases, error=error, after=after, bury=bury))

    def snooze(
        self, leases: Sequence[str], after: Optional[Duration] = None
    ) -> Tuple[answers.LeaseResult, ...]:
        """The jobs run later, and the attempts do not count."""
        return self.send(calls.settle("snooze", leases, after=after))

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Any other call of the HTTP API, such as `("GET", "/v1/kinds")`. It is not repeated if its
        answer is lost, unless it is a `GET`."""
        return self.send(Call(method, path, lambda it: it, body, repeatable=method == "GET"))

    def send(
        self, call: Call[T], *, retries: Optional[int] = None, timeout: Optional[float] = None
    ) -> T:
        """Makes a call, and repeats it as far as that is allowed."""
        left = self._retries if retries is None else retries
        attempt = 0
        while True:
            try:
                sent = self._http.request(
                    **protocol.request(call, self._timeout if timeout is None else timeout)
                )
                return protocol.value(call, sent)
            except httpx.RequestError as fault:
                error = protocol.failure(fault, self._http.base_url)
            except KeyfallError as refused:
                error = refused
            attempt += 1
            if attempt > left or not protocol.may_repeat(call, error):
                raise error
            time.sleep(protocol.pause(attempt, error.retry_after))
