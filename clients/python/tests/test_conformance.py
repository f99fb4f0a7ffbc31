"""Plays the scenarios of clients/conformance with both clients."""

import asyncio
import base64
import dataclasses
import inspect
import json
from datetime import datetime

import pytest
from site_of_tests import REPOSITORY

import keyfall

SCENARIOS = [
    scenario
    for file in sorted((REPOSITORY / "clients/conformance").glob("*.json"))
    for scenario in json.loads(file.read_text())
]


def filled(value, names):
    """A value of a step, with the names in braces replaced."""
    if isinstance(value, str):
        for name, text in names.items():
            value = value.replace("{" + name + "}", text)
        return value
    if isinstance(value, list):
        return [filled(one, names) for one in value]
    if isinstance(value, dict):
        return {name: filled(one, names) for name, one in value.items()}
    return value


def plain(value):
    """An answer in the form of the scenarios."""
    if isinstance(value, bytes):
        return {"$bytes": base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    if isinstance(value, keyfall.KeyfallError):
        return {name: getattr(value, name) for name in ("code", "status", "field", "retryable")}
    if dataclasses.is_dataclass(value):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        if isinstance(value.get("payload"), bytes):
            value["bytes"] = base64.b64encode(value.pop("payload")).decode()
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def check(got, wanted, where):
    """Objects need the wanted fields, lists the wanted length."""
    if wanted == "$present":
        assert got is not None, where
    elif isinstance(wanted, dict) and isinstance(got, dict):
        for name, value in wanted.items():
            check(got.get(name), value, f"{where}.{name}")
    elif isinstance(wanted, list) and isinstance(got, list):
        assert len(got) == len(wanted), f"{where}: {got}"
        for number, value in enumerate(wanted):
            check(got[number], value, f"{where}[{number}]")
    else:
        assert got == wanted and type(got) is type(wanted), where


def arguments(given):
    """The arguments of a method: payloads as bytes, and names that Python reserves."""
    given = dict(given)
    if "bytes" in given:
        given["payload"] = base64.b64decode(given.pop("bytes"))
    if "if" in given:
        given["if_"] = given.pop("if")
    return given


def line(given):
    given = arguments(given)
    return getattr(keyfall.BatchCall, given.pop("call"))(**given)


async def make(client, call, given):
    if call == "batch":
        answer = client.batch([line(one) for one in given["lines"]])
    else:
        answer = getattr(client, call)(**arguments(given))
    if inspect.isawaitable(answer):
        answer = await answer
    if inspect.isasyncgen(answer):
        answer = [one async for one in answer]
    return list(answer) if inspect.isgenerator(answer) else answer


async def play(client, scenario, app):
    # Due times are at most ten years ahead.
    names = {"app": app, "year": str(datetime.now().year + 2)}
    for number, step in enumerate(scenario["steps"]):
        where = f"step {number}, {step['call']}"
        try:
            got = plain(await make(client, step["call"], filled(step["with"], names)))
        except keyfall.KeyfallError as error:
            assert "error" in step, f"{where}: {error}"
            assert error.detail and error.title
            check(plain(error), step["error"], where)
            continue
        assert "error" not in step, f"{where}: {got}"
        check(got, filled(step["expect"], names), where)
        for name, path in step.get("save", {}).items():
            position, field = path.split(".")
            names[name] = got[int(position)][field]


def scenarios(test):
    return pytest.mark.parametrize(
        "scenario", SCENARIOS, ids=[one["scenario"] for one in SCENARIOS]
    )(test)


@scenarios
def test_client(daemon, app, scenario):
    with keyfall.Client(daemon.url) as client:
        asyncio.run(play(client, scenario, app))


@scenarios
def test_async_client(daemon, app, scenario):
    async def all_of_it():
        async with keyfall.AsyncClient(daemon.url) as client:
            await play(client, scenario, app)

    asyncio.run(all_of_it())
