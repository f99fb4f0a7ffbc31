"""Repeats, errors and options, without a daemon."""

import inspect
from datetime import datetime, timedelta, timezone

import httpx
import pytest

import keyfall
from keyfall.options import text


def test_a_call_that_may_not_be_repeated_is_sent_once():
    sent = []

    def answer(request):
        sent.append(request.url.path)
        raise httpx.ReadError("cut")

    transport = httpx.MockTransport(answer)
    http = httpx.Client(transport=transport, base_url="http://daemon")
    client = keyfall.Client(retries=2, http=http)
    for call, times in [
        (lambda: client.postpone_many("app1:", by="1h"), 1),
        (lambda: client.postpone_many("app1:", after="1h"), 3),
        (lambda: client.schedule("app1:trans:notice:1"), 3),
    ]:
        sent.clear()
        with pytest.raises(keyfall.KeyfallError) as lost:
            call()
        assert lost.value.code == "no_answer"
        assert len(sent) == times


@pytest.mark.parametrize(
    "answer, retryable",
    [
        (httpx.Response(200, text="<html>"), False),
        (httpx.Response(502, text="bad gateway"), True),
        (
            httpx.Response(404, json={}, headers={"content-type": "application/problem+json"}),
            False,
        ),
    ],
)
def test_answers_of_other_programs_are_told_apart(answer, retryable):
    transport = httpx.MockTransport(lambda _: answer)
    http = httpx.Client(transport=transport, base_url="http://proxy")
    with pytest.raises(keyfall.KeyfallError) as other:
        keyfall.Client(retries=0, http=http).get("app1:trans:notice:1")
    assert (other.value.code, other.value.retryable) == ("not_keyfall", retryable)
    assert other.value.status == answer.status_code


def test_the_two_clients_have_the_same_calls():
    def calls(cls):
        names = [name for name in vars(cls) if not name.startswith("_")]
        return {name: list(inspect.signature(getattr(cls, name)).parameters) for name in names}

    assert calls(keyfall.Client) == calls(keyfall.AsyncClient)


def test_times_without_a_zone_are_refused():
    with pytest.raises(ValueError, match="at: .* has no time zone"):
        text("at", datetime(2026, 12, 24, 18))
    east = timezone(timedelta(hours=1))
    assert text("at", datetime(2026, 12, 24, 18, tzinfo=east)) == "2026-12-24T17:00:00Z"
    assert text("after", timedelta(minutes=15)) == "900000000us"
