"""Writes triples of cron expression, time zone and instant, and the next time that cronsim (PyPI)
names for them: an oracle that nobody here wrote.

    python cron-triples.py COUNT SEED > triples

Each line has, with tabs between: expression, zone, instant and next time, both Unix seconds.
Half of the instants are within a day of a change of the zone's clock.
"""

import random
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

ZONES = """UTC Europe/Berlin Europe/London Europe/Dublin America/New_York America/Sao_Paulo
America/Havana America/Santiago America/St_Johns America/Asuncion Australia/Lord_Howe
Australia/Sydney Pacific/Auckland Pacific/Chatham Asia/Tehran Asia/Beirut Asia/Kathmandu Asia/Gaza
Africa/Casablanca Africa/Cairo Atlantic/Azores Antarctica/Troll""".split()
# Whose clocks change by half an hour, or at a quarter to.
UNEVEN = {"Australia/Lord_Howe", "Pacific/Chatham"}
BEGIN, END = datetime(2015, 1, 1, tzinfo=UTC), datetime(2035, 1, 1, tzinfo=UTC)


def changes(zone):
    """The changes of the clock, to the hour."""
    found, at = [], BEGIN
    while at < END:
        if at.astimezone(zone).utcoffset() != (at + timedelta(hours=1)).astimezone(zone).utcoffset():
            found.append(at + timedelta(hours=1))
        at += timedelta(hours=1)
    return found


def field(rng, low, high, stars):
    """A number, a list, a range with a step, or a step of all."""
    number = lambda: rng.randint(low, high)
    kind = rng.random()
    if kind < 0.5:
        return str(number())
    if kind < 0.7:
        return ",".join(map(str, sorted({number() for _ in range(rng.randint(2, 4))})))
    if kind < 0.8:
        first, last = sorted((number(), number()))
        return f"{first}-{last}" if first < last else str(first)
    return rng.choice(stars)


def expression(rng):
    # The hours are those at which clocks change, mostly.
    hours = field(rng, 0, 3, ["*", "*/2", "*/3"]) if rng.random() < 0.6 else field(rng, 0, 23, ["*"])
    # `*/15 2 * * *` follows the time that passes in cronsim, as in Debian's cron, and the clock on
    # the wall here, because its hours are named: steps of minutes only with hours of `*`.
    stars = ["*", "*/5", "*/15", "*/20"] if hours.startswith("*") else ["0,30"]
    minutes = field(rng, 0, 59, stars)
    days, weekdays = "*", "*"
    chance = rng.random()
    if chance < 0.15:
        days = rng.choice([field(rng, 1, 28, ["1"]), "L", "31", "29"])
    elif chance < 0.3:
        weekdays = rng.choice([field(rng, 0, 6, ["1-5"]), "MON-FRI", "SUN#1", "5L"])
    elif chance < 0.4:
        days, weekdays = field(rng, 1, 28, ["13"]), field(rng, 0, 6, ["5"])
    months = field(rng, 1, 12, ["*", "*/2"]) if rng.random() < 0.2 else "*"
    return f"{minutes} {hours} {days} {months} {weekdays}"


def main(count, seed):
    rng = random.Random(seed)
    zones = {name: ZoneInfo(name) for name in ZONES}
    known = {name: changes(zone) for name, zone in zones.items()}
    written = 0
    while written < count:
        name = rng.choice(ZONES)
        cron = expression(rng)
        hours = cron.split()[1]
        if hours.startswith("*") and name in UNEVEN:
            # cronsim goes on by whole hours: it leaves out 03:02 or the second 01:40, and for
            # `55 */3 * * *` in the Chathams it never ends.
            continue
        if known[name] and rng.random() < 0.5:
            at = rng.choice(known[name]) + timedelta(seconds=rng.randint(-86400, 86400))
        else:
            at = BEGIN + timedelta(seconds=rng.randint(0, int((END - BEGIN).total_seconds())))
        local = at.astimezone(zones[name])
        if local.fold and not hours.startswith("*"):
            # cronsim drops the fold, and would begin its search at the first of two equal times.
            continue
        try:
            following = next(CronSim(cron, local))
        except (CronSimError, StopIteration):
            continue
        # cronsim can name a time that the clock skips; its instant is the end of the gap.
        instant = following.timestamp()
        around = [datetime.fromtimestamp(it, zones[name]) for it in (instant - 10_800, instant)]
        if hours.startswith("*/") and len({it.utcoffset() for it in (local, *around)}) > 1:
            # cronsim errs behind some changes: it names midnight for `*/3` where that is skipped.
            continue
        print(cron, name, int(at.timestamp()), int(following.timestamp()), sep="\t")
        written += 1


main(int(sys.argv[1]), int(sys.argv[2]))
