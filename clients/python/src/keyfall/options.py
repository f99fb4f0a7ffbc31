"""The options of the calls, and their form in JSON."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, Dict, List, Literal, Mapping, Optional, TypedDict, Union

#: `"15m"`, `"2h 30m"`, or a `timedelta`.
Duration = Union[str, timedelta]
#: RFC 3339, or a `datetime` with a time zone.
Time = Union[str, datetime]
#: A cron expression, `"every 90m"`, or a table with `cron`, `every` or `after_end`.
Rule = Union[str, Mapping[str, Any]]
#: `"22:00-08:00"`, or a table with `hours`, `days`, `holidays`, `zone`, `instead`.
QuietHours = Union[str, Mapping[str, Any]]
#: `"15s 3m 10m"`, `"none"`, or a table such as `{"fixed": "30s", "attempts": 5}`.
RetryPolicy = Union[str, Mapping[str, Any]]


class ScheduleOptions(TypedDict, total=False):
    """What a schedule may say beside key and payload. Without a time, the job is due now."""

    after: Optional[Duration]
    at: Optional[Time]
    #: Gathers the calls for this key: due when they have been silent for so long. Needs `at_most`.
    debounce: Optional[Duration]
    at_most: Optional[Duration]
    #: Spaces the jobs of this key.
    throttle: Optional[Duration]
    #: Makes the job recur; the times come from the rule.
    recurring: Optional[Rule]
    quiet: Optional[QuietHours]
    headers: Optional[Mapping[str, str]]
    retry: Optional[RetryPolicy]
    attempts: Optional[int]
    timeout: Optional[Duration]
    #: `"1h skip"`, `"1h bury"`, `"1h spread 10m"`, `"1h run"`.
    max_lateness: Optional[str]
    #: Schedules only if there is no such job, or only if there is one.
    if_: Optional[Literal["absent", "present"]]
    #: The number of replicas that must have the job before the call is answered.
    durable: Optional[int]
    fsynced: Optional[bool]


class SeriesOptions(TypedDict, total=False):
    """What makes or changes a series. What is left out stays; a new series needs `anchor`, `zone` and
    `at`."""

    #: `"2026-12-24 18:00"`, on the wall of the zone, or RFC 3339.
    anchor: Time
    zone: str
    #: Offsets such as `"-3d 09:00"`, or tables with `at`, and `name` or `payload`.
    at: List[Union[str, Mapping[str, Any]]]
    payload: Any
    past: Literal["skip", "run"]
    #: `None` ends the quiet hours.
    quiet: Optional[QuietHours]
    keep: Duration
    again: bool
    headers: Mapping[str, str]
    retry: RetryPolicy
    attempts: int
    timeout: Duration


class SearchOptions(TypedDict, total=False):
    """Which jobs a list has."""

    state: Literal["pending", "retrying", "held", "running", "lapsed", "dead"]
    #: Jobs of a page; the list itself goes on through all pages.
    limit: int
    due_before: Union[Time, Duration]
    due_after: Union[Time, Duration]
    attempts_over: int
    error: str
    reason: str
    recurring: bool


def written(options: Mapping[str, Any], known: Any) -> Dict[str, Any]:
    """Options as the fields of a body. `None` means that an option is not given."""
    unknown = options.keys() - known.__annotations__.keys()
    if unknown:
        names = ", ".join(sorted(known.__annotations__))
        raise TypeError(f"there is no option {min(unknown)!r}: this call has {names}")
    given = {name: value for name, value in options.items() if value is not None}
    return {name.rstrip("_"): text(name, value) for name, value in given.items()}


def text(name: str, value: Any) -> Any:
    """A time or a duration as text; any other value as it is."""
    if isinstance(value, timedelta):
        return f"{value // timedelta(microseconds=1)}us"
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError(
                f"{name}: {value!r} has no time zone: give one, such as tzinfo=timezone.utc"
            )
        return value.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
    return value
