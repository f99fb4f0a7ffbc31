"""The answers of the daemon. A field that a newer daemon adds is ignored."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Callable, Dict, List, Literal, Mapping, Optional, Tuple, Type, TypeVar

from .errors import KeyfallError
from .stop import Stop

T = TypeVar("T")

Placed = Literal["created", "replaced", "succeeds", "left_out"]
#: `running`: the run goes on, but the job is not tried again.
Cancelled = Literal["cancelled", "running", "absent"]
State = Literal["pending", "retrying", "held", "running", "lapsed", "dead"]
LeaseFate = Literal[
    "done", "pending", "replaced", "cancelled", "buried", "extended", "gone", "taken", "failed"
]


def read(cls: Type[T], data: Mapping[str, Any]) -> T:
    """An answer, made of the fields of its JSON."""
    values: Dict[str, Any] = {}
    for one in fields(cls):  # type: ignore[arg-type]
        if data.get(one.name) is not None:
            convert = one.metadata.get("read", _same)
            values[one.name] = convert(data[one.name])
    if "payload_base64" in data:
        values["payload"] = base64.b64decode(data["payload_base64"])
    return cls(**values)


def read_each(cls: Type[T]) -> Callable[[List[Mapping[str, Any]]], Tuple[T, ...]]:
    return lambda all: tuple(read(cls, one) for one in all)


def _same(value: Any) -> Any:
    return value


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def problem(data: Mapping[str, Any], retry_after: Optional[float] = None) -> KeyfallError:
    """The error of a problem document."""
    return KeyfallError(
        data["code"],
        data["detail"],
        title=data["title"],
        status=data["status"],
        field=data.get("field"),
        retryable=data["retryable"],
        retry_after=retry_after,
    )


def _as(convert: Callable[[Any], Any], **more: Any) -> Any:
    return field(metadata={"read": convert}, **more)


@dataclass(frozen=True)
class Caution:
    """A job that is stored and may nevertheless not run."""

    code: str
    detail: str


@dataclass(frozen=True)
class Reached:
    """The replicas and disks that have a durable call."""

    met: bool
    replicas: int
    on_disk: Optional[bool] = None
    replicas_on_disk: Optional[int] = None


@dataclass(frozen=True)
class Scheduled:
    """A job that was scheduled."""

    key: str
    placed: Placed
    due: datetime = _as(_time)
    armed: bool = True
    reached: Optional[Reached] = _as(lambda it: read(Reached, it), default=None)
    warnings: Tuple[Caution, ...] = _as(read_each(Caution), default=())


@dataclass(frozen=True)
class Changed:
    """A job that was changed; `successor` says that it runs, and its successor was changed."""

    key: str
    successor: bool
    due: datetime = _as(_time)


@dataclass(frozen=True)
class Step:
    """An event of a job."""

    what: str
    at: datetime = _as(_time)


@dataclass(frozen=True)
class Occurrence:
    """An occurrence of a recurring job."""

    number: int
    rule: Any
    scheduled_for: datetime = _as(_time)
    skipped: int = 0
    paused_since: Optional[datetime] = _as(_time, default=None)
    declared_by: Optional[str] = None


@dataclass(frozen=True)
class Shift:
    """The due time that was asked for, and why the job is due at another one."""

    why: str
    from_: datetime


@dataclass(frozen=True)
class Job:
    """A job, or its latest dead letter. A payload that is not JSON is `bytes`."""

    key: str
    state: State
    due: datetime = _as(_time)
    attempts: int = 0
    first_scheduled_at: Optional[datetime] = _as(_time, default=None)
    last_error: Optional[str] = None
    steps: Tuple[Step, ...] = _as(read_each(Step), default=())
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: Any = None
    retry: Any = None
    max_attempts: Optional[int] = None
    timeout: Optional[str] = None
    max_lateness: Optional[str] = None
    occurrence: Optional[Occurrence] = _as(lambda it: read(Occurrence, it), default=None)
    series: Any = None
    shift: Optional[Shift] = _as(lambda it: Shift(it["why"], _time(it["from"])), default=None)
    letter: Optional[int] = None
    successor_due: Optional[datetime] = _as(_time, default=None)
    successor: Optional[Job] = _as(lambda it: read(Job, it), default=None)
    cancelled: bool = False
    adopted: bool = False


@dataclass(frozen=True)
class Counts:
    """How many jobs are in each state."""

    pending: int
    overdue: int
    running: int
    lapsed: int
    dead: int


@dataclass(frozen=True)
class ManyChanged:
    """The effect of a call on many jobs."""

    matched: int
    done: int
    running: int
    skipped: int
    dry_run: bool


@dataclass(frozen=True)
class Requeued:
    """A dead letter that is a job again."""

    key: str
    letter: int
    due: datetime = _as(_time)


@dataclass(frozen=True)
class RuleChanged:
    """The rule of a job; `after_run` says that the job runs, and the change applies from its end."""

    key: str
    changed: bool
    after_run: bool
    due: Optional[datetime] = _as(_time, default=None)


@dataclass(frozen=True)
class RulePreview:
    """A rule in words, with its next five times."""

    words: str
    rule: Any
    times: Tuple[datetime, ...] = _as(lambda all: tuple(map(_time, all)), default=())


@dataclass(frozen=True)
class MemberChanged:
    """What became of a member of a series."""

    key: str
    at: str
    what: Literal[
        "created", "moved", "unchanged", "cancelled", "left_out", "running", "retrying", "ended"
    ]
    due: Optional[datetime] = _as(_time, default=None)
    why: Optional[str] = None


@dataclass(frozen=True)
class SeriesChanged:
    """What became of a series."""

    key: str
    members: Tuple[MemberChanged, ...] = _as(read_each(MemberChanged), default=())
    kept_until: Optional[datetime] = _as(_time, default=None)


@dataclass(frozen=True)
class Member:
    """A member of a series, as it stands."""

    key: str
    at: str
    state: Literal["planned", "retrying", "running", "dead", "ended", "left_out"]
    due: datetime = _as(_time)
    why: Optional[str] = None
    letter: Optional[int] = None


@dataclass(frozen=True)
class Series:
    """A series as a whole."""

    key: str
    zone: str
    past: str
    anchor: datetime = _as(_time)
    kept_until: datetime = _as(_time)
    quiet: Any = None
    members: Tuple[Member, ...] = _as(read_each(Member), default=())


@dataclass(frozen=True)
class PulledJob:
    """A job that is yours until its lease ends. A payload that is not JSON is `bytes`."""

    key: str
    lease: str
    lease_ms: int
    attempt: int
    max_attempts: int
    #: The same for all attempts of this job, and for no other job.
    idempotency_key: str
    lag_ms: int
    #: It grows with each run of a key: a store that remembers the largest can refuse lower ones.
    fence: int
    due: datetime = _as(_time)
    first_scheduled_at: datetime = _as(_time)
    headers: Mapping[str, str] = field(default_factory=dict)
    payload: Any = None
    stop: Stop = field(default_factory=Stop, compare=False, repr=False)

    @property
    def kind(self) -> str:
        """The first three segments of the key."""
        return ":".join(self.key.split(":", 3)[:3])

    @property
    def id(self) -> str:
        """The last segment of the key."""
        return self.key.split(":", 3)[3]


@dataclass(frozen=True)
class LeaseResult:
    """What became of a lease, and of its job."""

    lease: str
    result: LeaseFate
    due: Optional[datetime] = _as(_time, default=None)
    letter: Optional[int] = None
    problem: Optional[KeyfallError] = _as(problem, default=None)
