"""Plays a rolling deployment with two versions on one Redis, there and back, under load and kills, and
accounts for each job. `make upgrade-check` builds the two commands and runs it."""

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from fleet import PATIENCE, Daemon, Redis
from journal import Journal
from load import Load

DAEMONS = 3


class Play:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="keyfall-upgrade-"))
        self.binaries = {"old": options.old, "new": options.new}
        self.redis, self.journal, self.daemons = Redis(self.folder), Journal(), []
        self.load = Load(self.journal, self.redis, self.daemons, self.binaries, options.seed)
        port = self.load.receiver.server_address[1]
        for number in range(DAEMONS):
            self.daemons.append(Daemon(self.folder, number, self.redis, port))

    def command(self, which, *words, codes=(0,)):
        """Runs a command of one version."""
        line = [self.binaries[which], *words, "--redis-url", self.redis.url]
        ran = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE)
        if ran.returncode not in codes:
            told = f"{ran.stdout}{ran.stderr}"
            raise AssertionError(f"{which}: keyfall {' '.join(words)}: {ran.returncode}: {told}")
        return ran.stdout

    def play(self):
        for daemon in self.daemons:
            daemon.run("old", self.binaries["old"])
        self.archives = self.begin_archive()
        self.load.start()
        rule = {"every": "1s", "template": True}
        body = {"payload": {"number": "{{number}}"}, "recurring": rule}
        told, _ = self.load.call("PUT", "/v1/jobs/up:pull:tick:one", body)
        if "placed" not in told:
            raise AssertionError(f"a recurring job was refused: {told}")
        self.phase("the old version alone")
        for which in ["new", "old"]:
            for daemon in self.daemons:
                daemon.end()
                daemon.run(which, self.binaries[which])
                self.phase(" ".join(each.version for each in self.daemons))
        self.end()

    def begin_archive(self):
        """Has both versions leave records of ended jobs, if both know how."""
        try:
            for which in ["old", "new"]:
                self.command(which, "archive", "set", "up:")
        except AssertionError:
            print("the archive is not tried: one of the versions has none")
            return False
        return True

    def phase(self, name):
        """Some seconds of load, in which a daemon and Redis are killed, and kinds pause."""
        began, runs = time.monotonic(), sum(map(len, self.journal.runs.values()))
        for fault in [self.kill_daemon, self.pause, self.kill_redis]:
            time.sleep(self.options.seconds / 4)
            fault()
        time.sleep(self.options.seconds / 4)
        if self.load.faults:
            raise AssertionError("; ".join(self.load.faults))
        runs = sum(map(len, self.journal.runs.values())) - runs
        print(f"{name}: {runs} runs in {time.monotonic() - began:.1f} s", flush=True)
        if runs == 0:
            raise AssertionError("nothing ran")

    def kill_daemon(self):
        self.random.choice(self.daemons).kill()

    def kill_redis(self):
        self.redis.kill()

    def pause(self):
        """One version pauses a kind, and the other one resumes it."""
        first, second = self.random.sample(["old", "new"], 2)
        self.command(first, "pause", "up:call:")
        time.sleep(0.3)
        self.command(second, "resume", "up:call:")

    def end(self):
        """All jobs end; the dead letters of both versions are requeued by the other one."""
        load = self.load
        load.produces.clear()
        time.sleep(1)
        for key in ["up:pull:tick:one", "up:pull:tick:declared"]:
            load.call("DELETE", f"/v1/jobs/{key}")
        # The plan of a series stays for a month.
        load.drain("all jobs have ended", left=len(load.series))
        for key in load.series:
            load.call("DELETE", f"/v1/series/{key}")
        load.buries = False
        letters = json.loads(self.command("old", "count", "up:", "--json"))["dead"]
        self.command("new", "dead", "requeue", "up:pull:", "--yes")
        load.drain("all dead letters have ended")
        left = json.loads(self.command("old", "count", "up:", "--json"))["dead"]
        load.stop()
        faults = load.faults + self.journal.faults()
        if letters == 0 or left != 0:
            faults.append(f"{letters} dead letters, and {left} after the requeue")
        for which in ["old", "new"]:
            # 5 is a warning, such as one about the settings of Redis.
            for check, codes in [("audit", (0,)), ("doctor", (0, 5))]:
                try:
                    self.command(which, check, codes=codes)
                except AssertionError as fault:
                    faults.append(str(fault))
        if self.archives:
            faults += self.unrecorded()
        for daemon in self.daemons:
            daemon.end()
        for way, count in sorted(self.journal.by.items()):
            print(f"{way}: {count}")
        print(f"dead letters that were requeued: {letters}; repeats of calls: {load.repeats}")
        if faults:
            shown = "\n".join(faults[:20])
            raise AssertionError(f"{len(faults)} faults:\n{shown}")

    def unrecorded(self):
        """Kinds whose records for the archive are not one for each job that has ended."""
        found = []
        kinds = self.redis.ask("HKEYS", "keyfall:kinds")
        for kind in (kind.decode() for kind in kinds if kind.startswith(b"up:")):
            key = f"keyfall:{{{kind}/0}}:"
            stats = self.redis.ask("HGETALL", f"{key}stats")
            stats = dict(zip(stats[::2], map(int, stats[1::2]), strict=True))
            ended = ["done", "cancelled", "replaced", "unrun"]
            ended = sum(stats.get(name.encode(), 0) for name in ended)
            records = self.redis.ask("LLEN", f"{key}ended")
            letters = self.redis.ask("LLEN", f"{key}died")
            if (records, letters) != (ended, stats.get(b"buried", 0)):
                found.append(f"{kind}: {records} and {letters} records of ends: {stats}")
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--old", required=True, type=pathlib.Path)
    parser.add_argument("--new", required=True, type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=8, help="of each of the seven phases")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    play = Play(options)
    is_well = False
    try:
        play.play()
        is_well = True
    except AssertionError as fault:
        print(f"{fault}\nThe logs are in {play.folder}.", file=sys.stderr)
    finally:
        for daemon in play.daemons:
            if daemon.process and daemon.process.poll() is None:
                daemon.process.kill()
        play.redis.stop()
    if is_well:
        shutil.rmtree(play.folder)
        print("ok: every job is accounted for")
    return 0 if is_well else 1


if __name__ == "__main__":
    sys.exit(main())
