"""A private Redis, and daemons on it that tests start and kill."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(os.environ.get("KEYFALL_REPOSITORY", Path(__file__).parents[3]))
KEYFALL = os.environ.get("KEYFALL_BINARY", str(REPOSITORY / "target/debug/keyfall"))
#: Nothing here takes as long, unless it fails.
PATIENCE = 60.0


def eventually(what, condition):
    """Waits until the condition holds, and returns its value."""
    until = time.monotonic() + PATIENCE
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"not in time: {what}"
        time.sleep(0.02)


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Redis:
    def __init__(self):
        self.folder = tempfile.mkdtemp(prefix="keyfall-python-")
        port = free_port()
        self.url = f"redis://127.0.0.1:{port}"
        config = str(REPOSITORY / "redis.conf")
        command = ["redis-server", config, "--port", str(port), "--dir", self.folder]
        with open(f"{self.folder}/redis.log", "wb") as log:
            self.process = subprocess.Popen([*command, "--daemonize", "no"], stdout=log)

    def close(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder)


class Daemon:
    """`keyfall serve`. It keeps its port when it is started again."""

    def __init__(self, redis, *flags, config="", environment=None):
        self.folder = tempfile.mkdtemp(prefix="keyfall-python-")
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [KEYFALL, "serve", "--redis-url", redis.url]
        self.command += ["--http-listen", f"127.0.0.1:{self.port}", *flags]
        if config:
            Path(self.folder, "keyfall.toml").write_text(config)
            self.command += ["--config", f"{self.folder}/keyfall.toml"]
        self.environment = {**os.environ, **(environment or {})}
        self.start()

    def start(self):
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen(
                self.command, stdout=log, stderr=log, env=self.environment
            )
        eventually("the daemon listens", self.listens)

    def listens(self):
        with socket.socket() as one:
            return one.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self):
        self.process.kill()
        self.process.wait()

    def close(self):
        self.kill()
        shutil.rmtree(self.folder)
