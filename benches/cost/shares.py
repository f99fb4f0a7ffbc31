"""Divides the instructions of a server among its parts.

An instruction belongs to the part that its source file belongs to, with two exceptions. All that
expiry, publishing and housekeeping call is theirs. And functions of the C library, such as those
that print numbers, belong to their callers."""

import re
from collections import defaultdict

LUA, CALLS, COMMANDS, EVENTS = "Lua", "calls from Lua", "commands", "expiry, events"
PROTOCOL, MEMORY, HOUSEKEEPING = "protocol", "memory", "housekeeping"
PARTS = [LUA, CALLS, COMMANDS, EVENTS, PROTOCOL, MEMORY, HOUSEKEEPING]

# The first that fits object, file and function. Of Redis, only Lua has no source files in the dump.
PLACES = [
    (MEMORY, r"jemalloc|/zmalloc\.|(^|[ _])(m|c|re)alloc$|[ _](cfree|free)$|_mem(cpy|move|set)_"),
    (CALLS, r"/(script|script_lua|eval|functions?|function_lua|resp_parser)\.c "),
    (EVENTS, r"/(expire|notify|pubsub)\.c "),
    (PROTOCOL, r"/(networking|ae|ae_epoll|connection|connhelpers|socket|unix|anet|iothread)\.[ch] "),
    (LUA, r"/redis-server \?\?\? |/lua/src/"),
    (COMMANDS, r"^\S*/redis-server "),
]

# Functions, to which all belongs that they call: that of the innermost, if there are several.
ROOTS = [
    (EVENTS, re.compile(r"(deleteExpiredKey|activeExpireCycle|notifyKeyspaceEvent|pubsubPublish)")),
    (HOUSEKEEPING, re.compile(r"serverCron")),
]


def of(profile):
    """The instructions of each part."""
    found = dict.fromkeys(PARTS, 0.0)
    callers = shares_of_callers(profile)
    for (where, file, function), count in profile.own.items():
        part = part_of(where, file, function)
        for owner, share in settled(part, callers[where, function]).items():
            found[owner] += count * share
    return found


def part_of(where, file, function):
    """The part of a place; `None` in libraries that all parts use."""
    place = f"{where} {file} {function}"
    return next((part for part, pattern in PLACES if re.search(pattern, place)), None)


def settled(part, shares):
    """The shares of a place in this part, which is called on behalf of others by these shares."""
    if part is None:
        return shares
    owners = [HOUSEKEEPING] if part == MEMORY else [HOUSEKEEPING, EVENTS]
    theirs = {owner: shares.get(owner, 0.0) for owner in owners}
    return {**theirs, part: theirs.get(part, 0.0) + 1 - sum(theirs.values())}


def shares_of_callers(profile):
    """By function, the parts on whose behalf it is called. A dump tells only who called a function,
    and how many instructions that took: the shares go by these."""
    callers = defaultdict(dict)
    for (caller, callee), count in profile.calls.items():
        callers[callee][caller] = count
    parts = {one: part_of(one[0], profile.homes.get(one, ""), one[1]) for one in profile.homes}
    fixed = {one: {part: 1.0} for one in profile.homes for part, root in ROOTS if root.match(one[1])}
    shares = defaultdict(lambda: {COMMANDS: 1.0}, fixed)
    # Enough for the longest chain of calls.
    for _ in range(40):
        for callee, counts in callers.items():
            if callee not in fixed:
                total = sum(counts.values()) or 1
                mixed = defaultdict(float)
                for caller, count in counts.items():
                    for part, share in settled(parts.get(caller), shares[caller]).items():
                        mixed[part] += share * count / total
                shares[callee] = mixed
    return shares
