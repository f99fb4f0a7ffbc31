"""The library of Standard Webhooks verifies the callbacks of the daemon."""

import base64
import os
import subprocess
import sys

import pytest
from site_of_tests import REPOSITORY, Daemon, eventually, free_port

import keyfall


@pytest.mark.parametrize("is_genuine", [True, False])
def test_signed_callbacks_are_verified(redis, app, tmp_path, is_genuine):
    port, received = free_port(), tmp_path / "received"
    received.touch()
    secrets = ["whsec_" + base64.b64encode(os.urandom(32)).decode() for _ in range(2)]
    example = REPOSITORY / "clients/python/examples/receiver.py"
    receiver = subprocess.Popen(
        [sys.executable, str(example), str(port), str(received)],
        env={**os.environ, "HOOK_SECRET": secrets[0 if is_genuine else 1]},
    )
    route = f"""
[[route]]
pattern = "{app}:trans:notice:*"
target = {{ http = {{ url = "http://127.0.0.1:{port}/", secret_env = "SIGNING_SECRET" }} }}
retry = "200ms 200ms 200ms 200ms 200ms 200ms 200ms 200ms 200ms"
"""
    daemon = Daemon(redis, config=route, environment={"SIGNING_SECRET": secrets[0]})
    with keyfall.Client(daemon.url) as client:
        client.schedule(f"{app}:trans:notice:1", {"order": 42})
        lines = eventually("it is received", lambda: received.read_text().splitlines())
        if is_genuine:
            assert lines == [f"{app}:trans:notice:1 {{'order': 42}}"]
        else:
            assert lines[0] == "refused: No matching signature found"
            client.cancel(f"{app}:trans:notice:1")
    receiver.kill()
    receiver.wait()
    daemon.close()
