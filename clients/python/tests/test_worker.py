"""Workers: the end of each attempt, leases, stops, outages, and kills."""

import asyncio
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from site_of_tests import KEYFALL, PATIENCE, Daemon, eventually

import keyfall
from keyfall.working import Handlers

#: Long enough for a busy machine, short enough for a test that waits for it to lapse.
LEASE = "3s"


@pytest.fixture(scope="module")
def quick(redis):
    """A daemon whose leases are short."""
    one = Daemon(redis, "--worker-lease", LEASE)
    yield one
    one.close()


class Threads:
    """A worker with threads, which runs beside the test."""

    def __init__(self, url, kind, handler, **settings):
        self.client = keyfall.Client(url)
        self.worker = keyfall.Worker(self.client, wait=0.5, **settings)
        self.worker.on(kind)(handler)
        self.thread = threading.Thread(target=self.worker.run, daemon=True)
        self.thread.start()

    def stop(self):
        self.worker.stop()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.client.close()


class Asyncio(Threads):
    """A worker of asyncio, whose handler runs the function of the test in a thread."""

    def __init__(self, url, kind, handler, **settings):
        self.url, self.kind, self.handler, self.settings = url, kind, handler, settings
        self.begun = threading.Event()
        self.thread = threading.Thread(target=lambda: asyncio.run(self.work()), daemon=True)
        self.thread.start()
        assert self.begun.wait(PATIENCE)

    async def work(self):
        async with keyfall.AsyncClient(self.url) as client:
            worker = keyfall.AsyncWorker(client, wait=0.5, **self.settings)

            @worker.on(self.kind)
            async def run(job):
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(None, self.handler, job)

            self.loop, self.worker = asyncio.get_running_loop(), worker
            self.begun.set()
            await worker.run()

    def stop(self):
        self.loop.call_soon_threadsafe(self.worker.stop)
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def left(client, kind):
    """The number of jobs that have not ended."""
    counts = client.count(kind + ":")
    return counts.pending + counts.running + counts.lapsed


ways = pytest.mark.parametrize("way", [Threads, Asyncio])


@ways
def test_each_end_of_a_handler(way, quick, app):
    kind, seen = f"{app}:trans:notice", []

    def handle(job):
        seen.append((job.id, job.attempt))
        if job.attempt == 1:
            if job.id == "raises":
                raise RuntimeError("the shop answered 503")
            if job.id == "retries":
                raise keyfall.Retry("the shop is busy", after="10ms")
            if job.id == "buried":
                raise keyfall.Bury("the order does not exist")
            if job.id == "snoozes" and seen.count(("snoozes", 1)) == 1:
                raise keyfall.Snooze("10ms")

    worker = way(quick.url, kind, handle)
    with keyfall.Client(quick.url) as client:
        for id in ("done", "raises", "retries", "buried", "snoozes"):
            client.schedule(f"{kind}:{id}", {"id": id})
        eventually("the buried one is dead", lambda: client.count(kind + ":").dead == 1)
        eventually("the failed one waits", lambda: left(client, kind) == 1)
        worker.stop()
        raised = client.get(f"{kind}:raises")
        assert (raised.state, raised.attempts) == ("retrying", 1)
        assert raised.last_error == "RuntimeError: the shop answered 503"
        dead = client.get(f"{kind}:buried")
        assert (dead.state, dead.last_error) == ("dead", "the order does not exist")
        client.cancel_many(kind + ":")
    assert sorted(seen) == [
        ("buried", 1),
        ("done", 1),
        ("raises", 1),
        ("retries", 1),
        ("retries", 2),
        ("snoozes", 1),
        ("snoozes", 1),
    ]


class WithoutText(Exception):
    def __str__(self):
        raise ValueError("no text")


ODD = {
    "without-text": WithoutText(),
    "half-a-pair": RuntimeError("\udcff"),
    "no-reason": keyfall.Bury(ValueError("gone")),
    "no-delay": keyfall.Snooze(object()),
    "refused-snooze": keyfall.Snooze("5 parsecs"),
    "refused-retry": keyfall.Retry("busy", after="5 parsecs"),
}


@ways
def test_an_odd_end_of_a_handler_is_a_failure_and_costs_no_slot(way, quick, app):
    kind = f"{app}:trans:notice"

    def handle(job):
        if job.id in ODD:
            raise ODD[job.id]

    worker = way(quick.url, kind, handle, concurrency=1)
    with keyfall.Client(quick.url) as client:
        for id in [*ODD, "last"]:
            client.schedule(f"{kind}:{id}")
        eventually("the last has run", lambda: client.get(f"{kind}:last") is None)
        eventually("none runs", lambda: client.count(kind + ":").running == 0)
        worker.stop()
        told = {id: client.get(f"{kind}:{id}") for id in ODD}
        assert told["without-text"].last_error == "WithoutText: it has no text"
        assert told["half-a-pair"].last_error == "RuntimeError: ?"
        assert (told["no-reason"].state, told["no-reason"].last_error) == ("dead", "gone")
        assert told["no-delay"].state == "retrying", told["no-delay"]
        for id in ("refused-snooze", "refused-retry"):
            assert told[id].state == "retrying", told[id]
            assert "the delay of its handler was refused: after: " in told[id].last_error
        client.cancel_many(kind + ":")


@ways
def test_a_long_run_keeps_its_lease(way, quick, app):
    kind, seen = f"{app}:trans:notice", []

    def handle(job):
        seen.append(job.attempt)
        time.sleep(2.5 * job.lease_ms / 1000)

    worker = way(quick.url, kind, handle, concurrency=2)
    with keyfall.Client(quick.url) as client:
        client.schedule(f"{kind}:1")
        eventually("it begins", lambda: seen)
        eventually("it ends", lambda: client.get(f"{kind}:1") is None)
    worker.stop()
    assert seen == [1]


@ways
def test_a_cancelled_job_is_stopped(way, quick, app):
    kind, stopped = f"{app}:trans:notice", []

    def handle(job):
        if job.stop.wait(PATIENCE):
            stopped.append(job.stop.reason)
            job.stop.check()

    worker = way(quick.url, kind, handle)
    with keyfall.Client(quick.url) as client:
        client.schedule(f"{kind}:1")
        eventually("it runs", lambda: client.count(kind + ":").running)
        assert client.cancel(f"{kind}:1") == "running"
        eventually("the handler stops", lambda: stopped == ["cancelled"])
        eventually("the job is gone", lambda: client.get(f"{kind}:1") is None)
    worker.stop()


@ways
def test_a_worker_never_holds_more_than_it_can_run(way, quick, app):
    kind, running, most = f"{app}:trans:notice", set(), []
    lock = threading.Lock()

    def handle(job):
        with lock:
            running.add(job.key)
            most.append(len(running))
        time.sleep(0.01)
        with lock:
            running.discard(job.key)

    with keyfall.Client(quick.url) as client:
        client.batch(keyfall.BatchCall.schedule(f"{kind}:{id}") for id in range(100))
        worker = way(quick.url, kind, handle, concurrency=4)
        held = []

        def ended():
            counts = client.count(kind + ":")
            held.append(counts.running)
            return left(client, kind) == 0

        eventually("all have ended", ended)
        worker.stop()
    assert len(most) == 100
    assert max(held) <= 4 and max(most) <= 4


@ways
def test_a_stop_gives_back_what_does_not_end(way, quick, app):
    kind, seen = f"{app}:trans:notice", []
    blocked = threading.Event()

    def handle(job):
        seen.append((job.id, job.attempt))
        if job.id == "ends":
            time.sleep(0.5)
        elif job.id == "hears":
            job.stop.wait(PATIENCE)
            job.stop.check()
        else:
            blocked.wait(PATIENCE)

    worker = way(quick.url, kind, handle, grace=2.0)
    with keyfall.Client(quick.url) as client:
        for id in ("ends", "hears", "deaf"):
            client.schedule(f"{kind}:{id}")
        eventually("all begin", lambda: len(seen) == 3)
        if way is Asyncio:
            # A thread cannot be cancelled: let it end, so that the loop can close.
            threading.Timer(4.0, blocked.set).start()
        worker.stop()
        blocked.set()
        assert client.get(f"{kind}:ends") is None
        for id in ("hears", "deaf"):
            job = client.get(f"{kind}:{id}")
            assert (job.state, job.attempts) == ("pending", 0), job
        client.cancel_many(kind + ":")


@ways
def test_a_worker_bears_an_outage(way, redis, app):
    daemon = Daemon(redis, "--worker-lease", "1h")
    kind, seen, held = f"{app}:trans:notice", [], threading.Event()

    def handle(job):
        seen.append(job.id)
        if job.id == "before":
            held.wait(PATIENCE)

    worker = way(daemon.url, kind, handle)
    with keyfall.Client(daemon.url) as client:
        client.schedule(f"{kind}:before")
        eventually("it begins", lambda: seen)
        daemon.kill()
        held.set()
        with pytest.raises(keyfall.KeyfallError) as refused:
            keyfall.Client(daemon.url, retries=0).get(f"{kind}:before")
        assert (refused.value.code, refused.value.retryable) == ("unreachable", True)
        daemon.start()
        client.schedule(f"{kind}:after")
        eventually("both have ended", lambda: client.get(f"{kind}:after") is None)
        eventually("both have ended", lambda: client.get(f"{kind}:before") is None)
    worker.stop()
    daemon.close()
    assert seen == ["before", "after"]


@ways
def test_a_lease_that_cannot_be_extended_is_lost(way, redis, app):
    daemon = Daemon(redis, "--worker-lease", LEASE)
    kind, seen = f"{app}:trans:notice", []

    def handle(job):
        if job.attempt == 1:
            daemon.kill()
            job.stop.wait(PATIENCE)
        seen.append((job.attempt, job.stop.reason))
        job.stop.check()

    worker = way(daemon.url, kind, handle)
    with keyfall.Client(daemon.url) as client:
        client.schedule(f"{kind}:1")
        eventually("the handler hears of it", lambda: seen)
        daemon.start()
        eventually("another run ends", lambda: client.get(f"{kind}:1") is None)
    worker.stop()
    daemon.close()
    assert seen == [(1, "lost"), (2, None)]


@ways
def test_a_worker_whose_token_is_revoked_ends(way, redis, app, tmp_path):
    kind, file = f"{app}:trans:notice", str(tmp_path / "tokens.toml")
    make = [KEYFALL, "token", "make", "--file", file, "--scope", "schedule,consume"]
    made = subprocess.run([*make, "--prefix", f"{app}:"], check=True, capture_output=True)
    token = made.stdout.decode().strip()
    daemon = Daemon(redis, "--tokens-file", file)
    with keyfall.Client(daemon.url, token=token) as client:
        assert client.schedule(f"{kind}:1", after="1h").placed == "created"
        for refused, code in [
            (lambda: keyfall.Client(daemon.url).get(f"{kind}:1"), "unauthorized"),
            (lambda: client.get(f"{kind}:1"), "forbidden"),
        ]:
            with pytest.raises(keyfall.KeyfallError) as error:
                refused()
            assert (error.value.code, error.value.retryable) == (code, False)
        client.cancel(f"{kind}:1")
    ended = []

    def run():
        try:
            work_with(way, daemon.url, token, kind)
        except keyfall.KeyfallError as error:
            ended.append(error.code)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    subprocess.run([KEYFALL, "token", "revoke", token.split("_")[1], "--file", file], check=True)
    thread.join(PATIENCE)
    daemon.close()
    assert ended == ["unauthorized"]


def work_with(way, url, token, kind):
    """Runs a worker until it ends by itself."""
    if way is Threads:
        worker = keyfall.Worker(keyfall.Client(url, token=token))
        worker.on(kind)(print)
        worker.run()
        return

    async def work():
        async with keyfall.AsyncClient(url, token=token) as client:
            worker = keyfall.AsyncWorker(client)
            worker.on(kind)(asyncio.sleep)
            await worker.run()

    asyncio.run(work())


def test_a_job_goes_to_the_handler_of_its_kind_or_else_of_its_longest_prefix():
    handlers = Handlers()
    names = ["app1:order:pay", "app1:order:", "app1:order:paid:", "app1:order:paid"]
    for name in names:
        handlers.adding(name)(name)
    for kind, name in {
        "app1:order:pay": "app1:order:pay",
        "app1:order:payment": "app1:order:",
        "app1:order:paid": "app1:order:paid",
    }.items():
        job = SimpleNamespace(kind=kind, key=f"{kind}:7")
        assert handlers.of(job) == name


def test_a_worker_ends_if_it_may_not_pull(quick):
    with keyfall.Client(quick.url) as client:
        worker = keyfall.Worker(client)
        with pytest.raises(ValueError, match="no handler"):
            worker.run()
        with pytest.raises(ValueError, match="three segments"):
            worker.on("app1:trans")
        worker.on("no app:trans:notice")(print)
        with pytest.raises(keyfall.KeyfallError) as refused:
            worker.run()
        assert (refused.value.code, refused.value.field) == ("invalid_key", "kinds")


@pytest.mark.parametrize("way", ["threads", "asyncio"])
def test_kills_lose_no_job(way, redis, app, tmp_path):
    """Several hundred jobs while worker processes and the daemon are killed at random moments."""
    daemon = Daemon(redis, "--worker-lease", LEASE)
    kind, journal, count = f"{app}:trans:notice", tmp_path / "journal", 300
    journal.touch()
    program = Path(__file__).with_name("journal_worker.py")

    def start():
        command = [sys.executable, str(program), way, daemon.url, kind, str(journal)]
        return subprocess.Popen(command)

    def done():
        return {line.split()[0] for line in journal.read_text().splitlines()}

    with keyfall.Client(daemon.url, retries=20) as client:
        results = client.batch(
            keyfall.BatchCall.schedule(f"{kind}:{id}", id, retry={"fixed": "1s", "attempts": 99})
            for id in range(count)
        )
        assert [result.unwrap().placed for result in results] == ["created"] * count
        worker = start()
        for part in range(1, 6):
            eventually(f"part {part} of the jobs", lambda: len(done()) >= part * count // 7)
            worker.kill()
            worker.wait()
            worker = start()
            if part % 2:
                daemon.kill()
                daemon.start()
        eventually("no job is left", lambda: left(client, kind) == 0)
        assert client.count(kind + ":").dead == 0
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE) == 0
    daemon.close()
    assert done() == {f"{kind}:{id}" for id in range(count)}
