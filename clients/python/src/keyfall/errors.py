"""The error of a call, and the exceptions by which a handler ends its attempt."""

from __future__ import annotations

from datetime import timedelta
from typing import Optional, Union


class KeyfallError(Exception):
    """A call that did not succeed.

    `code` never changes between versions, so compare that. `detail` has the fault, the rule and the
    remedy, and `field` names the wrong part of the call. The codes of the daemon are in its manual;
    this client adds `unreachable` (nothing was sent), `no_answer` (the call may have been carried
    out) and `not_keyfall` (something else answered, such as a proxy).
    """

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        title: str = "",
        status: Optional[int] = None,
        field: Optional[str] = None,
        retryable: bool = False,
        retry_after: Optional[float] = None,
    ) -> None:
        super().__init__(code, detail)
        self.code = code
        self.detail = detail
        self.title = title
        #: The HTTP status; `None` if there was no answer.
        self.status = status
        self.field = field
        #: Whether the same call can succeed later.
        self.retryable = retryable
        #: The seconds to wait before that, if the daemon named them.
        self.retry_after = retry_after

    def __str__(self) -> str:
        where = f"{self.field}: " if self.field else ""
        return f"{where}{self.detail} ({self.code})"


class Retry(Exception):
    """Raised by a handler: the attempt failed. The retry policy decides when the job runs again,
    unless `after` does."""

    def __init__(self, reason: str, *, after: Union[str, timedelta, None] = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.after = after


class Bury(Exception):
    """Raised by a handler: no further attempt can help. The job becomes a dead letter."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Snooze(Exception):
    """Raised by a handler: the job runs later, and this attempt does not count."""

    def __init__(self, after: Union[str, timedelta]) -> None:
        super().__init__(after)
        self.after = after


class JobStopped(Exception):
    """Raised by `job.stop.check()`: the work of this attempt is no longer wanted."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
