"""What schemathesis has to know of the API of `keyfall serve` that the document does not say."""

import json

import schemathesis


@schemathesis.serializer("application/x-ndjson")
def write_line(_context, line):
    """A batch of one line."""
    return (json.dumps(line) + "\n").encode()


@schemathesis.deserializer("application/x-ndjson")
def read_lines(_context, response):
    """The answer to the first line; an empty batch has none, and then any will do."""
    for line in response.content.splitlines():
        return json.loads(line)
    return {"line": 1, "status": 200}


@schemathesis.hook
def before_call(_context, case, _kwargs):
    """Nobody waits long for a job in a test."""
    if case.path == "/v1/pull" and isinstance(case.body, dict):
        wait = case.body.get("wait", "30s")
        if isinstance(wait, str) and wait in ("15m", "30s"):
            case.body["wait"] = "10ms"
