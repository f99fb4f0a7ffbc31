"""Reads the dumps of callgrind: https://valgrind.org/docs/manual/cl-format.html."""

import re
from collections import defaultdict
from dataclasses import dataclass, field

# `fn=(12) name` names something for the first time, `fn=(12)` names it again.
NAMED = re.compile(r"(c?ob|fl|fi|fe|cfi|cfl|c?fn)=(?:\((\d+)\))? ?(.*)")
COST = re.compile(r"(?:[+-]?\d+|\*|0x[0-9a-f]+) (\d+)$")

# Each list of numbers names one sort of things.
SORTS = {"ob": "object", "cob": "object", "fn": "function", "cfn": "function"}


@dataclass
class Profile:
    """The instructions of one dump."""

    # By object, source file and function: a function has several files if others are inlined.
    own: dict = field(default_factory=lambda: defaultdict(int))
    # By object and function: the source file that it is in.
    homes: dict = field(default_factory=dict)
    # By caller and callee, each an object and a function: with all that the callee called.
    calls: dict = field(default_factory=lambda: defaultdict(int))

    def total(self):
        return sum(self.own.values())


def read(lines):
    """The profile in the lines of a dump."""
    profile, names = Profile(), {}
    here = {"ob": "", "fl": "", "fn": ""}
    callee, is_call = {}, False
    for line in lines:
        line = line.rstrip("\n")
        if named := NAMED.match(line):
            key, number, name = named.groups()
            sort = SORTS.get(key, "file")
            if number and name:
                names[sort, number] = name
            name = name or names[sort, number]
            if key in ("cob", "cfn"):
                callee[key] = name
            elif key in ("ob", "fn"):
                here[key] = name
                if key == "fn":
                    profile.homes[here["ob"], name] = here["fl"]
            elif key in ("fl", "fi", "fe"):
                here["fl"] = name
        elif line.startswith("calls="):
            is_call = True
        elif cost := COST.match(line):
            count = int(cost[1])
            if is_call:
                caller = here["ob"], here["fn"]
                called = callee.get("cob", here["ob"]), callee["cfn"]
                profile.calls[caller, called] += count
                callee, is_call = {}, False
            else:
                profile.own[here["ob"], here["fl"], here["fn"]] += count
    return profile
