"""The table of costs in docs/performance.md: writes it, reads it, and compares another one with it."""

import re
from dataclasses import dataclass, field

BEGIN, END = "<!-- cost: written by `make cost` -->", "<!-- end of cost -->"

# By how much a cost may exceed the table. The batches of an exact phase do not depend on time.
EXACT_GROWTH, GROWTH = 0.03, 0.15

SIDES = ("server", "client")


@dataclass
class Row:
    """The instructions for each job of a phase, or for each second without jobs."""

    phase: str
    server: int
    client: int | None
    shares: dict = field(default_factory=dict)

    def side(self, side):
        return getattr(self, side)


@dataclass
class Table:
    # The versions that were measured: of the server, and of the compiler of the client.
    versions: str
    rows: list


def write(table):
    """The table as Markdown, with its markers."""
    parts = list(table.rows[0].shares)
    names = ["", *SIDES[:1], *(f"... {part}" for part in parts), *SIDES[1:]]
    lines = [BEGIN, table.versions, "", cells(names), cells(["---"] + ["--:"] * (len(names) - 1))]
    for row in table.rows:
        numbers = [row.server, *(row.shares[part] for part in parts), row.client]
        lines.append(cells([row.phase, *map(shown, numbers)]))
    return "\n".join([*lines, END])


def cells(texts):
    return f"| {' | '.join(texts)} |"


def shown(number):
    return "" if number is None else f"{number:,}"


def replace(page, table):
    """The page with this table instead of its own."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return before + write(table) + after


def read(page):
    """The table of a page."""
    text = page.split(BEGIN)[1].split(END)[0]
    versions, head, _, *lines = [line for line in text.splitlines() if line]
    names = [name.removeprefix("... ") for name in split(head)]
    rows = []
    for line in lines:
        phase, *texts = split(line)
        numbers = [int(text.replace(",", "")) if text else None for text in texts]
        values = dict(zip(names[1:], numbers))
        server, client = (values.pop(side) for side in SIDES)
        rows.append(Row(phase, server, client, values))
    return Table(versions, rows)


def split(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def growths(old, new, exact):
    """What grew by more than it may, as sentences. `exact` has the names of the exact phases."""
    if old.versions != new.versions:
        yield (
            f"The table was measured with other versions.\n  then: {old.versions}\n"
            f"  now:  {new.versions}\n"
            "  Remedy: run `make cost` on the commit that was measured, and then compare."
        )
        return
    before = {row.phase: row for row in old.rows}
    for row in new.rows:
        if row.phase not in before:
            yield f"{row.phase}: not in the table.\n  Remedy: run `make cost`, and commit the table."
            continue
        for side in SIDES:
            then, now = before[row.phase].side(side), row.side(side)
            # The client has threads, and what they do twice depends on time.
            limit = EXACT_GROWTH if side == "server" and row.phase in exact else GROWTH
            if then is not None and now > then * (1 + limit):
                yield grown(row, side, then, now, limit, before[row.phase].shares)


def grown(row, side, then, now, limit, shares):
    lines = [
        f"{row.phase}: the {side} executes {now:,} instructions, {now / then - 1:.1%} more "
        f"than the {then:,} in docs/performance.md; {limit:.0%} more are allowed."
    ]
    if side == "server":
        changes = {part: row.shares[part] - shares.get(part, 0) for part in row.shares}
        part = max(changes, key=changes.get)
        lines.append(f"  Most of it in: {part}, {shares.get(part, 0):,} before, {row.shares[part]:,} now.")
    lines.append(
        "  Remedy: `callgrind_annotate` lists the functions of the dumps in target/cost. If the "
        "growth buys something, run `make cost` and commit the table."
    )
    return "\n".join(lines)
