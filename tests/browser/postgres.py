"""A private PostgreSQL. Its programs refuse to run as root; then they run as the user `postgres`."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path


class Postgres:
    def __init__(self):
        newest = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
        self.bin = os.environ.get("KEYFALL_POSTGRES_BIN") or str(newest[-1])
        self.folder = Path(tempfile.mkdtemp(prefix="keyfall-postgres-"))
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
        self.run("initdb", "--pgdata", self.data, "--username", "postgres", "--auth", "trust", "--no-sync",
                 "--encoding", "UTF8")
        self.start()

    @property
    def data(self):
        return str(self.folder / "data")

    @property
    def url(self):
        return f"host={self.folder} user=postgres dbname=postgres"

    def run(self, program, *words):
        user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
        done = subprocess.run([*user, f"{self.bin}/{program}", *words], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, cwd=self.folder)
        assert done.returncode == 0, f"{program}: {done.stderr}"

    def start(self):
        settings = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        self.run("pg_ctl", "--pgdata", self.data, "--wait", "--log", str(self.folder / "log"), "--options",
                 settings, "start")

    def stop(self):
        self.run("pg_ctl", "--pgdata", self.data, "--mode", "immediate", "stop")

    def close(self):
        try:
            self.stop()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)
