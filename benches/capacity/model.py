#!/usr/bin/env python3
"""How many calls a firing takes, played through; and from that what a plan needs.

    model.py check [measured.json]   holds it against what was measured; fails beyond the tolerance
    model.py plan                    the plan of docs/capacity.md
    model.py plan --pending N --rate N --payload BYTES --instances N --nodes N --shards N

What Keyfall does is played: jobs fall due, at random; the pacer of each ledger touches them in strides;
each instance claims those of a touch that are its own, and gathers what it settles. That gives calls
for each job. What a call, a job and an event cost are the constants, each with where it is from.
"""

import argparse
import json
import random
import sys
from pathlib import Path

HERE = Path(__file__).parent

# The behaviour of Keyfall: src/worker/finding/pacer/track.rs and src/settings.rs.
STRIDE_S = 0.002
GATHER_S = 0.008
ENOUGH = 64
# While jobs fall due, instances sweep each ledger: the first so long after the next due time, and
# each further one so much later: src/worker/finding/reconciler.rs.
FIRST_S, TURN_S = 0.24, 0.1

# CPU time of Redis, in µs, fitted to the measurements: a call after a pause, the further cost of a
# firing, and an event for one listener. A call that finds Redis at work: docs/performance.md.
COLD_CALL_US = 71.0
CALL_US = 26.0
JOB_US = 5.4
EVENT_US = 2.5
# A job that is scheduled in bulk, and its trigger on another node of a cluster.
SCHEDULE_US = 6.0
TRIGGER_US = 11.0
# The factor of each call on a cluster: measured with three servers beside each other on two cores.
CLUSTERED = 1.28
# Among millions of jobs: the further cost of a firing whose data are in no cache, and the share of
# a core that a server needs for each million of keys that expire.
COLD_DATA_US = 17.0
MILLION_SHARE = 0.007
# Below so many firings a second a call costs more, since Redis sleeps deeper; no plan needs fewer.
SLEEPY_PER_S = 200

# Bytes, with a key of 24 bytes: the event for each listener; the further bytes of a firing that
# Redis sends; the bytes that a client sends; and the bytes in the log of writes.
EVENT_BYTES = 82
SENT_BYTES = 420
RECEIVED_BYTES = 330
LOG_SCHEDULE_BYTES = 200
LOG_FIRING_BYTES = 230
LOG_CALL_BYTES = 660
# A pending job without its payload: trigger, due time, record, and the tables that hold them.
PENDING_BYTES = 365
# The commands of an idle instance in a second.
IDLE_PER_S = 1.36

# The largest deviation of a measured point from the model.
TOLERANCE = 0.30

# The limit of a plan. Redis works on one core; beyond this share of it calls wait for each other.
BUSY = 0.7
# While a snapshot or a rewrite is made, pages that are written are copied: this share of the data.
FORK_SHARE = 0.5
# The largest data set of one node: it must copy the data to a new replica, and load them at a
# start, in minutes.
NODE_BYTES = 12e9
# The most jobs of a shard: `shard-size` of `keyfall doctor`.
SHARD_JOBS = 250_000


def play(per_s, shards=1, instances=1, even=False, seconds=4.0, seed=1):
    """Touches, claims, settlements for each job, of one ledger of so many. In a measurement jobs are due
    at even distances, and each of them falls to any of the shards."""
    rate, luck = per_s / shards, random.Random(seed)
    seconds = max(seconds, 400 / rate)

    def pause():
        if not even:
            return luck.expovariate(rate)
        others = 0
        while luck.random() * shards >= 1:
            others += 1
        return (1 + others) / per_s

    due, jobs = pause(), 0
    touches = claims = settlements = 0
    next_touch = 0.0
    gathering = [(0.0, 0)] * instances  # until when, and how many of them
    while due < seconds:
        # The first touch after a pause at once, the next ones in strides.
        touch = max(due, next_touch)
        next_touch, touches = touch + STRIDE_S, touches + 1
        takers = {}
        while due <= touch:
            taker = luck.randrange(instances)
            takers[taker] = takers.get(taker, 0) + 1
            due += pause()
            jobs += 1
        claims += len(takers)
        for taker, count in takers.items():
            until, gathered = gathering[taker]
            if touch > until or gathered + count > ENOUGH:
                settlements += 1
                until, gathered = touch + GATHER_S, 0
            gathering[taker] = (until, gathered + count)
    return touches / jobs, claims / jobs, settlements / jobs


def sweeps(per_s, shards, instances):
    """For each firing."""
    next_due_s = shards / per_s
    pauses = (FIRST_S + TURN_S * turn + next_due_s for turn in range(instances))
    return sum(1 / pause for pause in pauses) * shards / per_s


def busy(per_s, calls, job_us, dearer=1.0):
    """Which share of its core a server uses: the busier it is, the less a call costs it."""
    # share = per_s * (calls * (call_us + (cold_us - call_us) * (1 - share)) + job_us)
    cold_us, call_us = COLD_CALL_US * dearer, CALL_US * dearer
    warmer = per_s * calls * (cold_us - call_us) / 1e6
    share = (per_s * (calls * call_us + job_us) / 1e6 + warmer) / (1 + warmer)
    # Beyond its core no call finds it asleep.
    return share if share < 1 else per_s * (calls * call_us + job_us) / 1e6


def scripts(per_s, shards, instances, even=False):
    """Those that write for each firing, and those that do not."""
    _, claims, settlements = play(per_s, shards, instances, even)
    return claims + settlements, sweeps(per_s, shards, instances) + instances * IDLE_PER_S / per_s


def redis_us(per_s, shards, instances):
    """CPU time of Redis for each firing."""
    touches, _, _ = play(per_s, shards, instances, even=True)
    calls = touches + sum(scripts(per_s, shards, instances, even=True))
    return busy(per_s, calls, JOB_US + instances * EVENT_US) / per_s * 1e6


def on_cluster(per_s, nodes, shards, instances, even=False):
    """Calls for each firing, all nodes together: a trigger is touched on its own node, which is
    another one than that of the ledger as a rule, and read is on that of the ledger."""
    touches, _, _ = play(per_s, shards, instances, even)
    touched_nodes = nodes * (1 - (1 - 1 / nodes) ** (1 / touches))
    return touches * touched_nodes + sum(scripts(per_s, shards, instances, even))


def sent_bytes(instances):
    return SENT_BYTES + EVENT_BYTES * instances


def log_of_firing(writes):
    return LOG_FIRING_BYTES + writes * LOG_CALL_BYTES


def check(path):
    """Prints each point beside the model; returns whether all of them fit."""
    measured, fits = json.loads(path.read_text()), True
    print(f"{'':<52} {'measured':>10} {'model':>10} {'off':>6}")

    def hold(what, value, expected):
        nonlocal fits
        off = value / expected - 1
        good = abs(off) <= TOLERANCE
        fits = fits and good
        verdict = "" if good else "   DOES NOT FIT"
        print(f"{what:<52} {value:>10.2f} {expected:>10.2f} {off:>+6.0%}{verdict}")

    def middle(value):
        return value["median"]

    for group in ("rates", "instances", "shards", "both"):
        for one in measured.get(group, []):
            load = one["per_s"], one["shards"], one["instances"]
            where = f"{load[0]}/s, {load[2]} instances, {load[1]} shards"
            hold(f"scripts, {where}", middle(one["scripts"]), sum(scripts(*load, even=True)))
            if load[0] > SLEEPY_PER_S:
                hold("... CPU of Redis, µs", middle(one["redis_cpu_us"]), redis_us(*load))
            if group == "instances":
                hold("... bytes sent", middle(one["bytes_out"]), sent_bytes(one["instances"]))
    for one in measured.get("clustered", []):
        where = f"1000/s, {one['nodes']} nodes, {one['shards']} shards"
        calls = on_cluster(1000, one["nodes"], one["shards"], 1, even=True)
        each = JOB_US + EVENT_US
        share = busy(1000 / one["nodes"], calls, each, CLUSTERED)
        hold(f"Redis CPU, µs, {where}", middle(one["firing.redis_cpu_us"]), share * one["nodes"] * 1e3)
        hold("... of a schedule", middle(one["bulk.redis_cpu_us"]), SCHEDULE_US + TRIGGER_US)
    for one in measured.get("idle", []):
        what = f"idle commands, {one['instances']} instances, {one['shards']} shards"
        hold(what, middle(one["commands_per_s"]), IDLE_PER_S * one["instances"])
    for one in measured.get("replicated", []):
        hold("log of a schedule, bytes", middle(one["bulk"]), LOG_SCHEDULE_BYTES + 200)
        writes, _ = scripts(1000, 1, 1, even=True)
        hold("log of a firing, bytes", middle(one["firing"]), log_of_firing(writes))
        hold("... where calls are full", middle(one["burst"]), log_of_firing(0))
    for one in measured.get("memory", []) + measured.get("payloads", []):
        what = f"memory of {one['pending']} jobs of {one['payload']} bytes, each"
        hold(what, middle(one["bytes_per_job"]), PENDING_BYTES + one["payload"])
    return fits


def plan(pending, rate, payload, instances, nodes, shards):
    """What each part of it comes to, and whether it fits."""
    data = pending * (PENDING_BYTES + payload) / nodes
    calls = on_cluster(rate, nodes, shards, instances)
    writes, _ = scripts(rate, shards, instances)
    job = SCHEDULE_US + TRIGGER_US + JOB_US + COLD_DATA_US + instances * EVENT_US
    share = busy(rate / nodes, calls, job, CLUSTERED) + MILLION_SHARE * pending / nodes / 1e6
    events = rate * EVENT_BYTES
    sent = rate * sent_bytes(instances)
    log = rate * (LOG_SCHEDULE_BYTES + payload + log_of_firing(writes))
    rows = [
        ("jobs in a shard", pending / shards, SHARD_JOBS),
        ("data of a node, GB", data / 1e9, NODE_BYTES / 1e9),
        ("memory of a node while it forks, GB", data * (1 + FORK_SHARE) / 1e9, None),
        ("calls for each firing", calls, None),
        ("CPU of Redis for each job, µs", share * nodes / rate * 1e6, None),
        ("a primary is busy, share of a core", share, BUSY),
        ("events to one who listens, Mbit/s", events * 8 / 1e6, None),
        ("a primary sends to clients, Mbit/s", sent * 8 / nodes / 1e6, 5000),
        ("a primary sends to one replica, and to its AOF, MB/s", log / nodes / 1e6, 100),
        ("idle commands of all instances, a second", instances * IDLE_PER_S, None),
    ]
    print(f"{pending:,} pending, {rate:,} firings/s, {payload} bytes: "
          f"{nodes} primaries, {shards} shards, {instances} listen")
    for name, value, limit in rows:
        bound = f"of {limit:g}" if limit else ""
        over = "   TOO MUCH" if limit and value > limit else ""
        print(f"  {name:<54} {value:>12,.2f} {bound}{over}".rstrip())
    print()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["check", "plan"])
    parser.add_argument("measured", nargs="?", type=Path, default=HERE / "measured.json")
    for name in ("pending", "rate", "payload", "instances", "nodes", "shards"):
        parser.add_argument(f"--{name}", type=int)
    args = parser.parse_args()
    if args.what == "check":
        sys.exit(0 if check(args.measured) else 1)
    asked = {
        name: getattr(args, name) or default
        for name, default in {
            "pending": 100_000_000, "rate": 100_000, "payload": 200,
        }.items()
    }
    if args.nodes:
        return plan(**asked, instances=args.instances or 4, nodes=args.nodes, shards=args.shards or 256)
    for instances, nodes, shards in ((64, 32, 512), (4, 32, 512), (4, 24, 48)):
        plan(**asked, instances=instances, nodes=nodes, shards=shards)


if __name__ == "__main__":
    main()
