"""A Redis, and daemons of two versions, all of which can be killed."""

import os
import pathlib
import signal
import socket
import subprocess
import time

PATIENCE = 60
REPOSITORY = pathlib.Path(__file__).resolve().parents[2]

CONFIG = """
[worker]
grace = "5s"
[[route]]
pattern = "up:pull:*:*"
target = "pull"
lease = "3s"
retry = {{ fixed = "500ms", attempts = 50 }}
[[route]]
pattern = "up:call:*:*"
target = {{ http = {{ url = "http://127.0.0.1:{receiver}/" }} }}
lease = "5s"
retry = {{ fixed = "500ms", attempts = 50 }}
[[route]]
pattern = "up:list:*:*"
target = {{ list = {{ key = "up-list", acknowledged = true }} }}
lease = "10s"
concurrency = 20
retry = {{ fixed = "500ms", attempts = 50 }}
[[route]]
pattern = "up:stream:*:*"
target = {{ stream = {{ key = "up-stream", group = "readers" }} }}
lease = "5s"
retry = {{ fixed = "500ms", attempts = 50 }}
[[limit]]
kind = "up:call:job"
concurrency = 20
[[recurring]]
key = "up:pull:tick:declared"
every = "1s"
template = true
payload = {{ number = "{{{{number}}}}" }}
"""


def eventually(what, condition):
    """The first answer of the condition that is true."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        answer = condition()
        if answer:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Redis:
    """A server that has each write on disk before it answers."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.url = f"redis://127.0.0.1:{self.port}"
        self.log = open(folder / "redis.log", "ab")
        self.start()

    def start(self):
        command = [
            os.environ.get("KEYFALL_REDIS_BIN", "redis-server"), REPOSITORY / "redis.conf",
            "--port", str(self.port), "--dir", self.folder, "--daemonize", "no",
            "--appendonly", "yes", "--appendfsync", "always",
        ]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        eventually("Redis answers", self.answers)

    def answers(self):
        try:
            return self.ask("PING") == b"PONG"
        except (OSError, RedisError):
            return False

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def ask(self, *words, wait=10):
        """One command on a connection of its own."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            words = [str(word).encode() if not isinstance(word, bytes) else word for word in words]
            parts = b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
            connection.sendall(b"*%d\r\n%s" % (len(words), parts))
            with connection.makefile("rb") as answer:
                return read(answer)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class RedisError(Exception):
    pass


def read(answer):
    """One reply in the protocol of Redis."""
    line = answer.readline()
    if not line.endswith(b"\r\n"):
        raise OSError("Redis has closed the connection")
    kind, rest = line[:1], line[1:-2]
    if kind == b"-":
        raise RedisError(rest.decode())
    if kind == b":":
        return int(rest)
    if kind == b"+":
        return rest
    if int(rest) < 0:
        return None
    if kind == b"*":
        return [read(answer) for _ in range(int(rest))]
    text = answer.read(int(rest) + 2)
    if len(text) != int(rest) + 2:
        raise OSError("Redis has closed the connection")
    return text[:-2]


class Daemon:
    """A place for one daemon, whose version changes."""

    def __init__(self, folder, number, redis, receiver):
        self.redis, self.port = redis, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.config = folder / "keyfall.toml"
        self.config.write_text(CONFIG.format(receiver=receiver))
        self.log = open(folder / f"daemon-{number}.log", "ab")
        self.process = self.version = self.binary = None

    def run(self, version, binary):
        self.version, self.binary = version, binary
        command = [
            binary, "serve", "--config", self.config, "--redis-url", self.redis.url,
            "--http-listen", f"127.0.0.1:{self.port}",
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, start_new_session=True
        )
        line = self.process.stdout.readline()
        if not line.startswith(b"listening on "):
            raise AssertionError(f"{binary} does not start: see {self.log.name}")

    def end(self, how=signal.SIGTERM):
        """Ends the daemon; one that is told to stop has to stop well."""
        self.process.send_signal(how)
        code = self.process.wait(PATIENCE)
        self.process.stdout.close()
        if how == signal.SIGTERM and code != 0:
            raise AssertionError(f"{self.binary} ended with {code}: see {self.log.name}")

    def kill(self):
        self.end(signal.SIGKILL)
        self.run(self.version, self.binary)
