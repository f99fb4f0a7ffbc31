"""A private Redis, and a daemon on it, as an operator starts them."""

import base64
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEYFALL = os.environ.get("KEYFALL", str(ROOT / "target/debug/keyfall"))


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def until(condition, what, seconds=30):
    """Waits for a condition, and returns its value."""
    ends = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < ends, f"{what}: not within {seconds} s"
        time.sleep(0.05)


class Site:
    """A Redis with its log of writes, and a daemon with tokens."""

    def __init__(self, *flags):
        self.flags = flags
        self.folder = Path(tempfile.mkdtemp(prefix="keyfall-browser-"))
        self.redis_port, self.port = free_port(), free_port()
        self.tokens = self.folder / "tokens.toml"
        self.redis = self.daemon = None
        self.start_redis()
        self.token = self.make_token("read", "schedule", "consume", "operate", note="browser")
        self.start()

    def start_redis(self):
        server = os.environ.get("KEYFALL_REDIS_BIN") or shutil.which("redis-server") or "valkey-server"
        log = open(self.folder / "redis.log", "ab")
        self.redis = subprocess.Popen(
            [server, str(ROOT / "redis.conf"), "--port", str(self.redis_port), "--dir", str(self.folder),
             "--daemonize", "no", "--appendonly", "yes", "--appendfsync", "always"],
            stdout=log, stderr=log,
        )
        until(self.redis_answers, "Redis starts")

    def redis_answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.redis_port), timeout=1) as link:
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def reshard(self, kind, shards):
        subprocess.run(
            [KEYFALL, "reshard", kind, "--to", str(shards), "--redis-url", f"redis://127.0.0.1:{self.redis_port}"],
            check=True, capture_output=True,
        )

    def config(self, name, value):
        """Sets a setting of Redis."""
        words = ["CONFIG", "SET", name, value]
        command = f"*{len(words)}\r\n" + "".join(f"${len(it)}\r\n{it}\r\n" for it in words)
        with socket.create_connection(("127.0.0.1", self.redis_port), timeout=5) as link:
            link.sendall(command.encode())
            answer = link.recv(200)
        assert answer == b"+OK\r\n", answer

    def start(self):
        log = open(self.folder / "daemon.log", "ab")
        self.daemon = subprocess.Popen(
            [KEYFALL, "serve", "--redis-url", f"redis://127.0.0.1:{self.redis_port}",
             "--http-listen", f"127.0.0.1:{self.port}", "--tokens-file", str(self.tokens),
             "--pull", "shop:*:*:*", *self.flags],
            cwd=self.folder, stdout=log, stderr=log,
        )
        until(self.is_ready, "the daemon starts")

    def is_ready(self):
        assert self.daemon.poll() is None, (self.folder / "daemon.log").read_text()
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/readyz", timeout=2)
        except (urllib.error.URLError, OSError):
            return None

    def kill(self, process):
        process.kill()
        process.wait()

    def make_token(self, *scopes, prefix="", note="", expires=""):
        flags = [word for scope in scopes for word in ("--scope", scope)]
        flags += ["--prefix", prefix] if prefix else []
        flags += ["--expires", expires] if expires else []
        made = subprocess.run(
            [KEYFALL, "token", "make", "--file", str(self.tokens), "--note", note, *flags],
            check=True, capture_output=True, text=True,
        )
        return made.stdout.strip()

    def revoke(self, token):
        name = token.split("_")[1]
        subprocess.run([KEYFALL, "token", "revoke", name, "--file", str(self.tokens)], check=True,
                       capture_output=True)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/ui/"

    def call(self, method, path, body=None, token=None):
        """A call of the HTTP API; the status and the JSON of its answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {token or self.token}", "content-type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text else None
        except urllib.error.HTTPError as error:
            text = error.read()
            return error.code, json.loads(text) if text else None

    def must(self, method, path, body=None):
        status, answer = self.call(method, path, body)
        assert status < 300, f"{method} {path}: {status} {answer}"
        return answer

    def job(self, key):
        return self.call("GET", "/v1/jobs/" + urllib.parse.quote(key, safe=":"))

    def schedule(self, key, payload=None, **terms):
        body = {"payload": payload, **terms}
        if "after" not in terms and "at" not in terms:
            body["after"] = "1h"
        return self.must("PUT", "/v1/jobs/" + urllib.parse.quote(key, safe=":"), body)

    def bury(self, keys, error):
        """Makes dead letters of these jobs, which must be due."""
        left = set(keys)
        while left:
            pulled = self.must("POST", "/v1/pull", {"max": 50, "wait": "5s"})
            for job in pulled["jobs"]:
                assert job["key"] in left, f"{job['key']} is due as well"
                call = {"leases": [job["lease"]], "error": error, "bury": True}
                self.must("POST", "/v1/leases/fail", call)
                left.discard(job["key"])

    def close(self):
        for process in (self.daemon, self.redis):
            if process and process.poll() is None:
                self.kill(process)
        shutil.rmtree(self.folder, ignore_errors=True)
