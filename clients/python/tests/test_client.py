"""Repeats, errors and options, without a daemon."""

import asyncio
import inspect
import json
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


def batch(answer, keys, is_async):
    """Sends a line for each key to a daemon with these answers."""
    settings = {"transport": httpx.MockTransport(answer), "base_url": "http://daemon"}
    lines = [keyfall.BatchCall.delete_letter(key, 1) for key in keys]

    async def send():
        async with httpx.AsyncClient(**settings) as http:
            return await keyfall.AsyncClient(retries=1, http=http).batch(lines)

    if is_async:
        return asyncio.run(send())
    return keyfall.Client(retries=1, http=httpx.Client(**settings)).batch(lines)


def refused(line, code):
    problem = {"code": code, "title": "no", "detail": "no", "status": 503, "retryable": True}
    return {"line": line, "status": 503, "problem": problem}


def ndjson(answers):
    return httpx.Response(200, text="".join(f"{json.dumps(answer)}\n" for answer in answers))


@pytest.mark.parametrize("is_async", [False, True])
def test_a_line_that_is_always_refused_fails_alone(is_async):
    def answer(request):
        keys = [json.loads(line)["key"] for line in request.content.splitlines()]
        return ndjson(
            refused(line, "unavailable") if "bad" in key else {"line": line, "status": 200}
            for line, key in enumerate(keys, 1)
        )

    keys = ["app1:trans:notice:bad", *(f"app1:trans:notice:{id}" for id in range(1200))]
    first, *others = batch(answer, keys, is_async)
    assert first.error.code == "unavailable"
    assert [one.error for one in others] == [None] * 1200


@pytest.mark.parametrize("is_async", [False, True])
def test_a_request_that_always_fails_fails_all_lines(is_async):
    def answer(request):
        raise httpx.ReadError("cut")

    results = batch(answer, [f"app1:trans:notice:{id}" for id in range(1200)], is_async)
    assert [one.error.code for one in results] == ["no_answer"] * 1200


@pytest.mark.parametrize("is_async", [False, True])
def test_an_answer_to_a_line_that_was_not_sent_is_ignored(is_async):
    def answer(_):
        return ndjson([{"line": 1, "status": 200}, refused(2, "stopping")])

    (only,) = batch(answer, ["app1:trans:notice:1"], is_async)
    assert only.error is None


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
