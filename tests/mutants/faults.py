"""The faults: one file each in `faults/`, and the texts of the code with them in it."""

import hashlib
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FAULTS = Path(__file__).parent / "faults"

# The filters of the tests to begin with, by the beginning of the path that has the fault.
AREAS = [
    ("lua/adopt", "adopt"),
    ("lua/streams/", "streams forgotten"),
    ("lua/functions/", "functions"),
    ("lua/cluster/", "torn"),
    ("lua/", "store::tests:: scheduling:: outcomes::"),
    ("src/worker/adopting", "adopting"),
    ("src/worker/finding", "pacer finding firing instances"),
    ("src/worker", "worker workers firing instances outages"),
    ("src/target", "target lists streams forgotten callbacks pull"),
    ("src/client", "client scheduling bulk limits operating"),
    ("src/store/connections", "connections outages weather topology::sentineled topology::clustered"),
    ("src/store/servers", "servers topology::several topology::sentineled"),
    ("src/store/kinds", "kinds shards resharding"),
    ("src/store", "store"),
    ("crates/daemon/src/classic", "classic"),
    ("crates/daemon/src/tokens", "tokens revoking"),
    ("crates/database/src/archive", "archive:: archiver"),
    ("crates/database/src/copy", "copy copier"),
    ("crates/database", "outbox crashes trouble"),
    ("crates/daemon", "http classic tokens"),
    ("crates/cli", "commands"),
]


@dataclass
class Fault:
    name: str
    path: str
    before: str
    after: str
    promise: str
    history: str = ""
    switch: str = "(if PLANTED { TO } else { FROM })"
    near: str = ""
    area: str = ""
    scenario: str = ""
    sample: bool = False

    def is_lua(self):
        return self.path.endswith(".lua")

    def package(self):
        """The package whose unit tests know the code with the fault."""
        parts = self.path.split("/")
        return f"keyfall_{parts[1]}" if parts[0] == "crates" else "keyfall"

    def applied(self, text):
        """The text of the file with the fault."""
        return text.replace(self.before, self.after)

    def switched(self):
        """The Rust text that has both the code and the fault."""
        crate = "crate" if self.path.startswith("src/") else "keyfall"
        words = {
            "PLANTED": f'{crate}::planted::is("{self.name}")',
            "FROM": self.before.strip(),
            "TO": self.after.strip(),
        }
        return re.sub(r"\b(PLANTED|FROM|TO)\b", lambda match: words[match[0]], self.switch)

    def filters(self):
        if self.near or self.area:
            return (self.near or self.area).split()
        return next((near.split() for start, near in AREAS if self.path.startswith(start)), [])

    def version(self):
        """Changes when the fault does, so that its result is asked for again."""
        mistake = (self.path, self.before, self.after, self.switch)
        return hashlib.sha256(repr(mistake).encode()).hexdigest()[:16]


def fail(*lines):
    print(*lines, sep="\n", file=sys.stderr)
    sys.exit(1)


def read_faults():
    """All faults. Ends the program if one does not apply to its file any more."""
    faults, wrong = [], []
    for file in sorted(FAULTS.glob("*.toml")):
        fields = tomllib.loads(file.read_text())
        fields["path"], fields["before"] = fields.pop("file"), fields.pop("from")
        fields["after"] = fields.pop("to")
        fault = Fault(file.stem, **fields)
        faults.append(fault)
        source = ROOT / fault.path
        count = source.read_text().count(fault.before) if source.exists() else 0
        if count != 1:
            wrong.append(f"{file.name}: the text of `from` occurs {count} times in {fault.path}")
        elif fault.before == fault.after:
            wrong.append(f"{file.name}: `to` is the text of `from`")
    if wrong:
        fail(*wrong, "Each fault has to name a text that occurs exactly once. Mend these files.")
    return faults


def with_switches(path, faults):
    """The text of a Rust file with all its faults behind switches."""
    text = (ROOT / path).read_text()
    there = [(text.index(fault.before), fault) for fault in faults if fault.path == path]
    parts, end = ["#![allow(unused_braces, unused_parens)]\n"], 0
    for start, fault in sorted(there, key=lambda pair: pair[0]):
        if start < end:
            fail(f"{fault.name}: its text overlaps that of another fault in {path}")
        parts += [text[end:start], fault.switched()]
        end = start + len(fault.before)
    return "".join(parts) + text[end:]
