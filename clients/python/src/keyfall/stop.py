"""How a handler learns that its work is no longer wanted."""

from __future__ import annotations

import threading
from typing import Callable, Literal, Optional

from .errors import JobStopped

#: `cancelled`: the job was cancelled. `lost`: the lease has lapsed, and another worker may have the
#: job. `stopping`: the grace of the worker is over, and it gives the job back.
StopReason = Literal["cancelled", "lost", "stopping"]


class Stop:
    """Tells a handler to stop. A handler of `AsyncWorker` is cancelled as well."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._reason: Optional[StopReason] = None
        self._then: Optional[Callable[[], object]] = None

    @property
    def reason(self) -> Optional[StopReason]:
        """Why the handler is to stop; `None` while it may go on."""
        return self._reason

    def wait(self, seconds: float) -> bool:
        """Sleeps for so long, or until the handler is to stop: then it returns `True` at once."""
        return self._event.wait(seconds)

    def check(self) -> None:
        """Raises `JobStopped` if the handler is to stop."""
        if self._reason is not None:
            raise JobStopped(self._reason)

    def request(self, reason: StopReason) -> None:
        """Tells the handler to stop. The first reason stays."""
        if self._reason is None:
            self._reason = reason
            self._event.set()
            if self._then is not None:
                self._then()

    def on_request(self, then: Callable[[], object]) -> None:
        """Calls a function when the handler is to stop."""
        self._then = then
