"""What sync and async clients share: requests, answers, and when a call is repeated."""

from __future__ import annotations

import json
import random
from typing import Any, Dict, Optional, TypeVar

import httpx

from .answers import problem
from .calls import Call
from .errors import KeyfallError

T = TypeVar("T")

#: The longest pause before a repeat, unless the daemon asks for a longer one.
LONGEST_PAUSE = 5.0
NDJSON = {"content-type": "application/x-ndjson"}


def http_settings(url: str, token: Optional[str], timeout: float) -> Dict[str, Any]:
    """The settings of the HTTP client that is made if none is given."""
    return {
        "base_url": url,
        "headers": {"authorization": f"Bearer {token}"} if token else {},
        "timeout": timeout,
        "limits": httpx.Limits(max_connections=None, max_keepalive_connections=100),
    }


def request(call: Call[Any], timeout: float) -> Dict[str, Any]:
    """The arguments for the HTTP client."""
    content = None
    if call.body is not None:
        content = json.dumps(call.body, allow_nan=False, separators=(",", ":")).encode()
    return {
        "method": call.method,
        "url": call.path,
        "content": content,
        "params": call.params,
        "headers": {"content-type": "application/json"} if content else {},
        "timeout": httpx.Timeout(timeout, read=timeout + call.holds),
    }


def value(call: Call[T], answer: httpx.Response) -> T:
    """The value of an answer; raises the error of a refusal."""
    if answer.is_success:
        try:
            return call.read(json.loads(answer.content) if answer.content else None)
        except (ValueError, KeyError, TypeError) as unread:
            raise not_keyfall(answer, "with something else") from unread
    error = refusal(answer)
    if call.means is not None and error.code in call.means:
        return call.means[error.code]
    raise error


def refusal(answer: httpx.Response) -> KeyfallError:
    """The error of an answer that is no success."""
    after = answer.headers.get("retry-after", "")
    retry_after = float(after) if after.isdigit() else None
    if answer.headers.get("content-type") == "application/problem+json":
        try:
            return problem(json.loads(answer.content), retry_after)
        except (ValueError, KeyError, TypeError):
            return not_keyfall(answer, "with the problem of another program", retry_after)
    return not_keyfall(answer, "without a problem document", retry_after)


def not_keyfall(
    answer: httpx.Response, how: str, retry_after: Optional[float] = None
) -> KeyfallError:
    """The error of an answer that a daemon does not give."""
    return KeyfallError(
        "not_keyfall",
        f"{answer.url} answered {answer.status_code} {how}: is this the address of a Keyfall daemon, "
        "and which proxy answers in its place?",
        title="Something else answered",
        status=answer.status_code,
        # A proxy may answer so while it cannot reach the daemon.
        retryable=answer.status_code in (502, 503, 504),
        retry_after=retry_after,
    )


def failure(fault: httpx.RequestError, url: httpx.URL) -> KeyfallError:
    """The error of a request without an answer."""
    if isinstance(fault, (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)):
        detail = f"no daemon answers at {url}: {fault}; start `keyfall serve`, or name its URL"
        error = KeyfallError("unreachable", detail, retryable=True)
    else:
        reason = str(fault) or type(fault).__name__
        detail = f"the answer from {url} was lost, and the call may have been carried out: {reason}"
        error = KeyfallError("no_answer", detail, retryable=True)
    error.__cause__ = fault
    return error


def may_repeat(call: Call[Any], error: KeyfallError) -> bool:
    """Whether the call may be sent again after this error."""
    carried_out = error.code in ("no_answer", "outcome_unknown", "not_keyfall")
    return error.retryable and (call.repeatable or not carried_out)


def pause(attempt: int, retry_after: Optional[float] = None) -> float:
    """The seconds before a repeat: a random part of a doubling time, or what the daemon asks for."""
    longest = min(LONGEST_PAUSE, 0.1 * 2.0 ** min(attempt, 10))
    return (retry_after or 0.0) + random.uniform(longest / 10, longest)
