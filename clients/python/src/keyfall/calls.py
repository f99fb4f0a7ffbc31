"""Each call of the HTTP API: what it sends, and how its answer is read. Nothing here sends."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Callable,
    Dict,
    Generic,
    List,
    Mapping,
    Optional,
    Sequence,
    Tuple,
    TypeVar,
)
from urllib.parse import quote

from . import answers, options
from .answers import read
from .errors import KeyfallError
from .options import Duration, Rule, ScheduleOptions, SearchOptions, SeriesOptions, Time

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
Body = Dict[str, Any]

#: The lines of one request of a batch. The daemon answers while it reads, so a client that sends
#: everything first must not send more than the buffers between hold.
LINES = 500

#: The most jobs of a pull, and the most leases of a call.
MOST_JOBS = 1000


@dataclass(frozen=True)
class Call(Generic[T]):
    """A request, and the way to read its answer."""

    method: str
    path: str
    read: Callable[[Any], T]
    body: Optional[Body] = None
    params: Optional[Mapping[str, Any]] = None
    #: Whether a repeat does no harm if the first answer was lost.
    repeatable: bool = True
    #: The seconds for which the daemon may wait before it answers.
    holds: float = 0.0
    #: What a refusal with one of these codes means as an answer.
    means: Optional[Mapping[str, T]] = None


def job(key: str, rest: str = "") -> str:
    return f"/v1/jobs/{quote(key, safe=':')}{rest}"


def payload(value: Any) -> Body:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"payload_base64": base64.b64encode(value).decode()}
    return {"payload": value}


def schedule(key: str, value: Any, given: ScheduleOptions) -> Call[answers.Scheduled]:
    body = {**payload(value), **options.written(given, ScheduleOptions)}
    return Call("PUT", job(key), lambda it: read(answers.Scheduled, it), body)


def get(key: str) -> Call[Optional[answers.Job]]:
    return Call("GET", job(key), lambda it: read(answers.Job, it), means={"job_absent": None})


def cancel(
    key: str, durable: Optional[int] = None, fsynced: bool = False
) -> Call[answers.Cancelled]:
    wanted: Body = {} if durable is None else {"durable": durable}
    if fsynced:
        wanted["fsynced"] = "true"
    return Call(
        "DELETE",
        job(key),
        lambda it: "running" if it["running"] else "cancelled",
        params=wanted,
        means={"job_absent": "absent"},
    )


def _when(**times: Any) -> Body:
    return {name: options.text(name, time) for name, time in times.items() if time is not None}


def _changed(it: Any) -> answers.Changed:
    return read(answers.Changed, it)


def postpone(key: str, after: Optional[Duration], at: Optional[Time]) -> Call[answers.Changed]:
    return Call("POST", job(key, "/postpone"), _changed, _when(after=after, at=at))


def fire(key: str) -> Call[answers.Changed]:
    return Call("POST", job(key, "/fire"), _changed, {})


def update(key: str, value: Any) -> Call[Optional[answers.Changed]]:
    return Call(
        "PUT", job(key, "/payload"), lambda it: it and read(answers.Changed, it), payload(value)
    )


def _rule_changed(it: Any) -> answers.RuleChanged:
    return read(answers.RuleChanged, it)


def change_rule(key: str, rule: Rule) -> Call[answers.RuleChanged]:
    return Call("PUT", job(key, "/rule"), _rule_changed, {"rule": rule})


def pause_rule(key: str) -> Call[answers.RuleChanged]:
    return Call("POST", job(key, "/rule/pause"), _rule_changed, {})


def resume_rule(key: str) -> Call[answers.RuleChanged]:
    return Call("POST", job(key, "/rule/resume"), _rule_changed, {})


def preview_rule(rule: Rule) -> Call[answers.RulePreview]:
    return Call(
        "POST", "/v1/rules/preview", lambda it: read(answers.RulePreview, it), {"rule": rule}
    )


def _series(given: SeriesOptions) -> Body:
    body = options.written(given, SeriesOptions)
    for name in ("payload", "quiet"):
        # `null` is a payload, and ends quiet hours.
        if name in given and given[name] is None:
            body[name] = None
    return body


def _series_changed(it: Any) -> answers.SeriesChanged:
    return read(answers.SeriesChanged, it)


def _series_path(key: str) -> str:
    return f"/v1/series/{quote(key, safe=':')}"


def set_series(key: str, given: SeriesOptions) -> Call[answers.SeriesChanged]:
    return Call("PUT", _series_path(key), _series_changed, _series(given))


def preview_series(key: str, given: SeriesOptions) -> Call[answers.SeriesChanged]:
    body = {"key": key, "series": _series(given)}
    return Call("POST", "/v1/series/preview", _series_changed, body)


def get_series(key: str) -> Call[Optional[answers.Series]]:
    return Call(
        "GET",
        _series_path(key),
        lambda it: read(answers.Series, it),
        means={"job_absent": None},
    )


def cancel_series(key: str) -> Call[Optional[answers.SeriesChanged]]:
    return Call("DELETE", _series_path(key), _series_changed, means={"job_absent": None})


@dataclass(frozen=True)
class Page:
    """A page of a list."""

    jobs: Tuple[answers.Job, ...]
    next: Optional[str]


def jobs(prefix: str, given: SearchOptions, cursor: Optional[str]) -> Call[Page]:
    wanted = {"prefix": prefix, **options.written(given, SearchOptions)}
    if wanted.get("recurring") is not None:
        wanted["recurring"] = "true" if wanted["recurring"] else "false"
    if cursor is not None:
        wanted["cursor"] = cursor
    found = answers.read_each(answers.Job)
    return Call(
        "GET", "/v1/jobs", lambda it: Page(found(it["jobs"]), it.get("next")), params=wanted
    )


def count(prefix: str) -> Call[answers.Counts]:
    return Call(
        "GET", "/v1/jobs/count", lambda it: read(answers.Counts, it), params={"prefix": prefix}
    )


def many(verb: str, prefix: str, dry_run: bool, **when: Any) -> Call[answers.ManyChanged]:
    body = {"prefix": prefix, "dry_run": dry_run, **_when(**when)}
    return Call(
        "POST",
        f"/v1/jobs/{verb}",
        lambda it: read(answers.ManyChanged, it),
        body,
        # Each repeat would postpone the jobs again.
        repeatable="by" not in body,
    )


def _dead(key: str, rest: str = "") -> str:
    return f"/v1/dead/{quote(key, safe=':')}{rest}"


def dead_letters(key: str) -> Call[Tuple[answers.Job, ...]]:
    letters = answers.read_each(answers.Job)
    return Call("GET", _dead(key), lambda it: letters(it["letters"]))


def requeue(
    key: str, letter: int, after: Optional[Duration], at: Optional[Time]
) -> Call[answers.Requeued]:
    body = {"letter": letter, **_when(after=after, at=at)}
    return Call("POST", _dead(key, "/requeue"), lambda it: read(answers.Requeued, it), body)


def delete_letter(key: str, letter: int) -> Call[None]:
    return Call("DELETE", _dead(key), lambda _: None, params={"letter": letter})


def pull(
    kinds: Sequence[str], prefixes: Sequence[str], max: int, wait: float
) -> Call[Tuple[answers.PulledJob, ...]]:
    body = {
        "kinds": list(kinds),
        "prefixes": list(prefixes),
        "max": max,
        "wait": f"{int(wait * 1000)}ms",
    }
    pulled = answers.read_each(answers.PulledJob)
    return Call("POST", "/v1/pull", lambda it: pulled(it["jobs"]), body, holds=wait)


def settle(verb: str, leases: Sequence[str], **more: Any) -> Call[Tuple[answers.LeaseResult, ...]]:
    body = {"leases": list(leases), **_when(**more)}
    results = answers.read_each(answers.LeaseResult)
    return Call("POST", f"/v1/leases/{verb}", lambda it: results(it["results"]), body)


@dataclass(frozen=True)
class BatchCall:
    """A line of a batch."""

    body: Body
    read: Callable[[Any], Any]
    means: Optional[Mapping[str, Any]] = None

    @staticmethod
    def _of(verb: str, key: str, call: Call[Any]) -> BatchCall:
        return BatchCall({"call": verb, "key": key, **(call.body or {})}, call.read, call.means)

    @staticmethod
    def schedule(key: str, payload: Any = None, **given: Unpack[ScheduleOptions]) -> BatchCall:
        return BatchCall._of("schedule", key, schedule(key, payload, given))

    @staticmethod
    def cancel(key: str) -> BatchCall:
        return BatchCall._of("cancel", key, cancel(key))

    @staticmethod
    def postpone(
        key: str, *, after: Optional[Duration] = None, at: Optional[Time] = None
    ) -> BatchCall:
        return BatchCall._of("postpone", key, postpone(key, after, at))

    @staticmethod
    def fire(key: str) -> BatchCall:
        return BatchCall._of("fire", key, fire(key))

    @staticmethod
    def update(key: str, payload: Any) -> BatchCall:
        return BatchCall._of("payload", key, update(key, payload))

    @staticmethod
    def requeue(
        key: str,
        letter: int,
        *,
        after: Optional[Duration] = None,
        at: Optional[Time] = None,
    ) -> BatchCall:
        return BatchCall._of("requeue", key, requeue(key, letter, after, at))

    @staticmethod
    def delete_letter(key: str, letter: int) -> BatchCall:
        return BatchCall({"call": "delete", "key": key, "letter": letter}, lambda _: None)


@dataclass(frozen=True)
class BatchResult:
    """The answer to a line of a batch: a value, as the single call returns it, or an error."""

    value: Any = None
    error: Optional[KeyfallError] = None

    def unwrap(self) -> Any:
        """The value; raises the error, if the line was refused."""
        if self.error is not None:
            raise self.error
        return self.value


class Batch:
    """The lines of one batch, and the answers so far."""

    def __init__(self, lines: Sequence[BatchCall], retries: int) -> None:
        self._lines = lines
        self._retries = retries
        #: The requests since the last one that brought an answer.
        self.attempt = 0
        self._results: List[Optional[BatchResult]] = [None] * len(lines)
        self._open = list(range(len(lines)))
        #: The lines that the last request has refused for now, and why.
        self._refused: Dict[int, KeyfallError] = {}

    @property
    def results(self) -> List[BatchResult]:
        return [result for result in self._results if result is not None]

    @property
    def is_answered(self) -> bool:
        return not self._open

    def next(self) -> Tuple[List[int], bytes]:
        """The lines of the next request, as their numbers and as text."""
        some = self._open[:LINES]
        self._refused = {}
        return some, b"".join(json_line(self._lines[number].body) for number in some)

    def answered(self, some: Sequence[int], text: bytes) -> Optional[KeyfallError]:
        """Takes answers in; they may break off. Returns the reason if lines have to be sent again."""
        again: Optional[KeyfallError] = None
        last = {self._lines[number].body["key"]: number for number in some}
        for one in text.split(b"\n")[:-1]:
            answer = json.loads(one)
            # Older daemons that stop answer one line more than there is.
            if answer["line"] > len(some):
                continue
            number = some[answer["line"] - 1]
            line = self._lines[number]
            if "problem" not in answer:
                self._results[number] = BatchResult(line.read(answer.get("result")))
                continue
            error = answers.problem(answer["problem"])
            # Lines about one job keep their order: only its last line can be sent again.
            if error.retryable and last[line.body["key"]] == number:
                self._refused[number] = again = error
            elif line.means is not None and error.code in line.means:
                self._results[number] = BatchResult(line.means[error.code])
            else:
                self._results[number] = BatchResult(error=error)
        if self._close():
            self.attempt = 0
        if again is None and any(self._results[number] is None for number in some):
            again = KeyfallError("no_answer", "the answer to the batch broke off", retryable=True)
        return again

    def retry_or_give_up(self, error: KeyfallError) -> bool:
        """Returns whether to send the lines that are left again. Otherwise lines that were refused get
        their errors; if the request itself has failed, all lines without an answer get this error."""
        self.attempt += 1
        if self.attempt <= self._retries and error.retryable:
            return True
        for number, why in (self._refused or dict.fromkeys(self._open, error)).items():
            self._results[number] = BatchResult(error=why)
        self._close()
        self.attempt = 0
        return False

    def _close(self) -> int:
        """Closes the lines that have an answer. Returns their number."""
        before = len(self._open)
        self._open = [number for number in self._open if self._results[number] is None]
        return before - len(self._open)


def json_line(body: Body) -> bytes:
    return json.dumps(body, allow_nan=False, separators=(",", ":")).encode() + b"\n"
