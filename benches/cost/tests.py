"""Tests of the pure parts: `python3 benches/cost/tests.py`."""

import unittest

import callgrind
import shares
import table

SERVER = "/usr/bin/redis-server"

# A command deletes a key, and another one that has expired. The server deletes by zfree, which is
# inlined, and by free of the C library; a timer prints.
DUMP = f"""\
version: 1
creator: callgrind-3.19.0
part: 2
positions: line
events: Ir
summary: 1220

ob=(1) {SERVER}
fl=(1) /redis/src/t_string.c
fn=(1) delCommand
10 100
+2 50
cfi=(2) /redis/src/db.c
cfn=(2) delete
calls=2 20
* 300
cfn=(3) deleteExpiredKeyAndPropagate
calls=1 40
-1 710

fl=(2)
fn=(2)
20 60
fi=(3) /redis/src/zmalloc.c
7 40
fe=(2)
22 200
cob=(2) /lib/libc.so.6
cfi=(4) ./malloc.c
cfn=(4) free
calls=3 5
22 600

fl=(2)
fn=(3)
40 10
cfn=(2)
calls=1 20
+1 600
cfi=(5) /redis/src/notify.c
cfn=(5) notifyKeyspaceEvent
calls=1 30
+2 100

fl=(5)
fn=(5)
30 100

fl=(6) /redis/src/server.c
fn=(6) serverCron
50 20
cob=(2)
cfi=(7) ./vfprintf.c
cfn=(7) vfprintf
calls=1 1
50 30
cfn=(2)
calls=1 20
50 0

ob=(2)
fl=(4)
fn=(4)
5 600

fl=(7)
fn=(7)
1 30

ob=(1)
fl=(1)
fn=(1)
13 10

totals: 1220
"""


def rows(**phases):
    return [table.Row(phase, *costs) for phase, costs in phases.items()]


class Reading(unittest.TestCase):
    def setUp(self):
        self.profile = callgrind.read(DUMP.splitlines(keepends=True))

    def test_instructions_go_to_the_file_that_they_come_from(self):
        self.assertEqual(self.profile.total(), 1220)
        self.assertEqual(self.profile.own[SERVER, "/redis/src/t_string.c", "delCommand"], 160)
        self.assertEqual(self.profile.own[SERVER, "/redis/src/zmalloc.c", "delete"], 40)
        self.assertEqual(self.profile.own["/lib/libc.so.6", "./malloc.c", "free"], 600)

    def test_a_call_has_all_that_the_callee_executed(self):
        delete, expired = (SERVER, "delete"), (SERVER, "deleteExpiredKeyAndPropagate")
        self.assertEqual(self.profile.calls[expired, delete], 600)
        self.assertEqual(self.profile.calls[delete, ("/lib/libc.so.6", "free")], 600)

    def test_what_an_expiry_calls_belongs_to_it_unless_it_is_memory(self):
        found = shares.of(self.profile)
        self.assertAlmostEqual(sum(found.values()), 1220)
        self.assertAlmostEqual(found[shares.MEMORY], 640)
        # Two thirds of delete, which took 600 of 900 instructions when a key had expired.
        self.assertAlmostEqual(found[shares.EVENTS], 10 + 100 + 260 * 2 / 3)
        self.assertAlmostEqual(found[shares.COMMANDS], 160 + 260 / 3)

    def test_libraries_belong_to_their_callers(self):
        self.assertAlmostEqual(shares.of(self.profile)[shares.HOUSEKEEPING], 20 + 30)


class Parts(unittest.TestCase):
    def test_each_place_has_its_part(self):
        for part, file, function in [
            (shares.LUA, "???", "luaV_execute"),
            (shares.CALLS, "/redis/src/script_lua.c", "luaRedisGenericCommand"),
            (shares.COMMANDS, "/redis/src/t_zset.c", "zaddCommand"),
            (shares.COMMANDS, "/redis/src/dict.c", "dictFind"),
            (shares.EVENTS, "/redis/src/pubsub.c", "pubsubPublishMessage"),
            (shares.PROTOCOL, "/redis/src/networking.c", "processMultibulkBuffer"),
            (shares.MEMORY, "/redis/deps/jemalloc/src/arena.c", "arena_malloc_hard"),
        ]:
            self.assertEqual(shares.part_of(SERVER, file, function), part, function)
        for part, function in [
            (shares.MEMORY, "__memcpy_avx_unaligned_erms"),
            (shares.MEMORY, "malloc"),
            (None, "strtol"),
        ]:
            self.assertEqual(shares.part_of("/lib/libc.so.6", "./x.c", function), part, function)


class Comparing(unittest.TestCase):
    def setUp(self):
        split = {"Lua": 600, "memory": 400}
        self.old = table.Table("Redis 8.2.3", rows(bulk=(1000, 2000, split), bare=(300, None, split)))

    def growths(self, exact=(), **phases):
        new = table.Table("Redis 8.2.3", rows(**phases))
        return list(table.growths(self.old, new, exact))

    def test_a_table_is_read_as_it_was_written(self):
        page = f"before\n{table.BEGIN}\nversions\n\n| |\n|---|\n{table.END}\nafter\n"
        page = table.replace(page, self.old)
        self.assertEqual(table.read(page), self.old)
        self.assertTrue(page.startswith("before\n") and page.endswith("\nafter\n"))
        self.assertEqual(table.replace(page, self.old), page)

    def test_what_stays_or_shrinks_is_no_growth(self):
        self.assertEqual(self.growths(["bulk"], bulk=(1030, 2300, {}), bare=(100, None, {})), [])

    def test_an_exact_phase_may_grow_by_three_percent_and_others_by_fifteen(self):
        split = {"Lua": 631, "memory": 400}
        self.assertEqual(self.growths(bulk=(1031, 2000, split)), [])
        [complaint] = self.growths(["bulk"], bulk=(1031, 2000, split))
        for word in ["bulk", "server", "1,031", "1,000", "3.1%", "Lua, 600 before", "`make cost`"]:
            self.assertIn(word, complaint)
        [complaint] = self.growths(["bulk"], bulk=(1000, 2301, split))
        self.assertIn("the client executes 2,301", complaint)

    def test_a_phase_that_is_not_in_the_table_is_told(self):
        [complaint] = self.growths(burst=(1, 1, {}))
        self.assertIn("burst: not in the table", complaint)

    def test_other_versions_are_not_compared(self):
        new = table.Table("Redis 9", self.old.rows)
        [complaint] = table.growths(self.old, new, [])
        self.assertIn("now:  Redis 9", complaint)


if __name__ == "__main__":
    unittest.main()
