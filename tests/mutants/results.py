"""The results, which stay in the repository, and the page that shows them."""

import json


class Results:
    """Which test noticed which fault, in a file. A result holds as long as its fault is the same;
    one of a fault that nobody noticed, as long as the same tests are near it."""

    def __init__(self, file):
        self.file = file
        self.by_name = json.loads(file.read_text()) if file and file.exists() else {}

    def of(self, fault):
        result = self.by_name.get(fault.name)
        if not result or result["version"] != fault.version():
            return None
        if not result["suite"] and result["near"] != nearby(fault):
            return None
        return result

    def note(self, fault, found):
        found["version"] = fault.version()
        if not found["suite"]:
            found["near"] = nearby(fault)
        self.by_name[fault.name] = found
        if self.file:
            text = json.dumps(self.by_name, indent=1, sort_keys=True, ensure_ascii=False)
            self.file.write_text(text + "\n")

    def keep(self, faults):
        """Forgets the faults that are not there any more."""
        names = {fault.name for fault in faults}
        self.by_name = {name: it for name, it in self.by_name.items() if name in names}


def nearby(fault):
    return " ".join([*fault.filters(), fault.scenario]).strip()


# The headings of the page, by the beginning of the path that has the fault.
PARTS = [
    ("lua/streams/", "Scripts of streams"),
    ("lua/functions/", "Functions"),
    ("lua/cluster/", "Scripts of clusters"),
    ("lua/", "Scripts of ledgers"),
    ("src/worker", "Workers"),
    ("src/target", "Targets"),
    ("src/store/connections", "Connections"),
    ("src/store", "Store, kinds and servers"),
    ("crates/daemon", "Daemon"),
    ("crates/database", "Beside PostgreSQL"),
    ("src/", "The rest of the library"),
]

HEAD = """\
# Which test finds which planted fault?

`make mutants` writes this page. [The page on reliability](../reliability.md#how-do-we-know-that-the-tests-can-fail) says what a planted fault is.

- **promise**: the promise that the fault breaks, and what happens then.
- **found by**: the first suite and test that fail with the fault and pass without it. The suites run from quick to slow, and the tests near the fault come first, so other tests may find it too.
- **after**: seconds from the start of the first test until the fault was found, while the machine ran several faults at once.
- **history**: the report of such a mistake in another system.

{summary}
"""


def summary(faults, found, results):
    suites = {}
    for result in found:
        suites[result["suite"]] = suites.get(result["suite"], 0) + 1
    parts = [f"{suites[suite]} by {name}" for suite, name in (
        ("unit", "unit tests"), ("integration", "integration tests"),
        ("topology", "topologies"), ("database", "tests beside PostgreSQL"), ("fault suite", "the fault suite"),
    ) if suite in suites]
    text = f"{len(found)} of {len(faults)} faults are found: " + ", ".join(parts) + "."
    if left := [fault.name for fault in faults if not results.by_name.get(fault.name)]:
        text += f" No result yet: {len(left)}."
    return text


def page(faults, results):
    """The page docs/internals/faults.md."""
    found = [it for it in map(results.of, faults) if it and it["suite"]]
    lines = [HEAD.format(summary=summary(faults, found, results)).rstrip("\n")]
    parts = {}
    for fault in faults:
        heading = next(name for start, name in PARTS if fault.path.startswith(start))
        parts.setdefault(heading, []).append(fault)
    for _, heading in PARTS:
        if heading not in parts:
            continue
        lines += ["", f"## {heading}", "", "| fault | promise | found by | after |", "|---|---|---|--:|"]
        lines += [row(fault, results.of(fault)) for fault in parts[heading]]
    return "\n".join(lines) + "\n"


def row(fault, result):
    name = f"`{fault.name}`"
    if fault.history:
        name += "<br>" + fault.history
    found, after = "no result yet", ""
    if result:
        found = f"{result['suite']}: `{result['test']}`" if result["suite"] else "**nobody**"
        after = f"{result['seconds']} s"
    promise = fault.promise.replace("|", "\\|")
    return f"| {name} | {promise} | {found} | {after} |"
