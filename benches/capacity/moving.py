#!/usr/bin/env python3
"""Measures how long the records of a shard take to move from one server to another, by their number:
what `shard-size` of `keyfall doctor` goes by. Starts two servers of its own."""

import sys
import time

from measure import cli, servers

TIMES = 3

# A record as Keyfall writes them, under ids of ten digits.
FILL = """
local record = '{"v":1}\\n1763712345678\\n' .. string.rep('x', tonumber(ARGV[3]))
for i = tonumber(ARGV[1]), tonumber(ARGV[2]) - 1 do
  local id = string.format('%010d', 1600000000 + i * 7)
  redis.call('HSET', KEYS[1], id, record)
  redis.call('ZADD', KEYS[2], 1763712345678 + i, id)
end"""


def cpu_s(port):
    lines = cli(port, "INFO", "cpu").splitlines()
    named = dict(line.split(":", 1) for line in lines if ":" in line)
    return float(named["used_cpu_user"]) + float(named["used_cpu_sys"])


def move(key, there, here):
    """Seconds that it took, and CPU seconds of both."""
    used, began = cpu_s(there) + cpu_s(here), time.monotonic()
    said = cli(there, "MIGRATE", "127.0.0.1", here, "", "0", "60000", "REPLACE", "KEYS", key)
    took = time.monotonic() - began
    if said.strip() != "OK":
        sys.exit(f"{key} could not be moved: {said}")
    return took, cpu_s(there) + cpu_s(here) - used


def main():
    with servers(2) as (there, here):
        for payload in (200, 2000):
            for jobs in (10_000, 30_000, 100_000, 300_000, 1_000_000):
                if payload * jobs > 700e6:
                    continue
                for port in (there, here):
                    cli(port, "FLUSHALL")
                for first in range(0, jobs, 10_000):
                    past = min(jobs, first + 10_000)
                    words = ("2", "shadow", "due", str(first), str(past), str(payload))
                    cli(there, "EVAL", FILL, *words)
                for key in ("shadow", "due"):
                    size = int(cli(there, "MEMORY", "USAGE", key))
                    for _ in range(TIMES):
                        took, used = move(key, there, here)
                        move(key, here, there)
                        print(
                            f"{jobs:>9,} jobs of {payload} bytes, {key:<6} {size / 1e6:>6.1f} MB:"
                            f" {used * 1e3:>6.0f} ms of CPU, {took * 1e3:>6.0f} ms",
                            flush=True,
                        )


if __name__ == "__main__":
    main()
