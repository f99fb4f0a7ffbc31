"""Plants the faults that cargo-mutants chooses in the modules where a fault loses jobs, and finds out
which suite notices each of them: run.py without a hand in the choice.

cargo-mutants builds the tests anew for each fault. Here all its faults stand behind switches in one
copy of the repository, as the faults of run.py do. scripts/chosen-mutants.sh installs what it needs.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import tree_sitter
import tree_sitter_rust
from building import WORK as ALL_WORK
from building import build, copy_repository
from faults import ROOT, Fault, fail
from results import Results
from run import search
from runner import Runner

# Claim, lease, settle, shard map and acknowledgement.
FILES = {
    "src/worker/claiming/claimer.rs": "claiming:: firing:: workers:: pausing:: pulling:: adopting:: limits:: bulk::",
    "src/worker/claiming/inbox.rs": "claiming:: firing:: pausing:: crowding::",
    "src/worker/claiming/pick.rs": "claiming:: firing:: crowding:: instances:: pausing::",
    "src/worker/running/leases.rs": "running::leases workers:: cancelling:: outages::a_run",
    "src/client/leases.rs": "client::leases pulling:: handing_over:: streams:: forgotten:: hooks:: resharding::a_run",
    "src/client/settling.rs": "settling:: store::tests::settle outcomes:: pulling:: letters::",
    "src/store/ledger/work.rs": "ledger::work store::tests:: workers:: topology::clustered",
    "src/shards.rs": "shards:: store::tests::moving resharding:: founding::",
    "src/store/kinds/layout.rs": "kinds::layout store::tests:: resharding:: founding:: dropping:: topology::founded topology::dropped topology::several topology::returned",
    "src/target/watch.rs": "target::watch streams:: forgotten:: topology::outlets",
    "src/target/receipts.rs": "target:: lists:: topology::outlets",
}
WORK = ALL_WORK / "chosen"
RESULTS = Path(__file__).parent / "chosen.json"
PARSER = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language()))


@dataclass
class Switch:
    """The bytes of a file that one fault replaces, or several."""

    start: int
    end: int
    # By the name of the fault, the text in place of these bytes.
    others: dict = field(default_factory=dict)
    # What stands around the bytes and their replacements: an expression, unless said otherwise.
    kind: str = "expression"


def chosen():
    """The faults that cargo-mutants would plant, with their names."""
    patterns = [word for file in FILES for word in ("-f", file)]
    listed = subprocess.run(["cargo", "mutants", "--list", "--json", *patterns], cwd=ROOT,
                            capture_output=True, check=True, text=True)
    return json.loads(listed.stdout)


def position(lines, at):
    """The place in bytes of a line and a column, both from 1; a column is a character."""
    before = sum(len(line) for line in lines[: at["line"] - 1])
    return before + len(lines[at["line"] - 1].decode()[: at["column"] - 1].encode())


def smallest(node, kinds, start, end):
    """The smallest node of these kinds that contains the bytes."""
    found = None
    while node is not None:
        if node.type in kinds:
            found = node
        node = next((child for child in node.children
                     if child.start_byte <= start and end <= child.end_byte), None)
    return found


def switch_of(mutant, text, root, lines):
    """The bytes of the file that this fault replaces, their replacement, and their kind; None where
    no switch can stand."""
    start, end = (position(lines, mutant["span"][side]) for side in ("start", "end"))
    new = mutant["replacement"].encode()
    match mutant["genre"]:
        case "FnValue" if "impl " in mutant["function"]["return_type"]:
            return None
        case "FnValue":
            return start, start, new, "statement"
        case "BinaryOperator":
            node = smallest(root, ("binary_expression", "compound_assignment_expr"), start, end)
        case "UnaryOperator":
            node = smallest(root, ("unary_expression",), start, end)
        case "MatchArmGuard":
            return start, end, new, "expression"
        case "MatchArm":
            arm = smallest(root, ("match_arm",), start, end)
            pattern = arm.child_by_field_name("pattern")
            guard = pattern.child_by_field_name("condition")
            if guard:
                return guard.start_byte, guard.end_byte, b"false", "expression"
            if pattern.named_child(0) and pattern.named_child(0).type == "identifier":
                return None
            return pattern.end_byte, pattern.end_byte, b"", "guard"
        case _:
            return None
    if node is None:
        return None
    first, last = node.start_byte, node.end_byte
    return first, last, text[first:start] + new + text[end:last], "expression"


def switched(text, switches):
    """The text with all faults behind switches; the smallest are put in first."""

    def planted(name):
        return b'crate::planted::is("%s")' % name.encode()

    def render(start, end, inner):
        """The bytes from start to end, with the switches that lie within them."""
        parts, at = [], start
        for outer in inner:
            if outer.start < at:
                continue
            # Two that are empty stand at the beginning of a function, or at the end of a pattern.
            within = [it for it in inner if it is not outer
                      and outer.start <= it.start and it.end <= outer.end
                      and (it.start < it.end or outer.start < it.start < outer.end)]
            parts += [text[at:outer.start], dressed(outer, within)]
            at = outer.end
        return b"".join(parts) + text[at:end]

    def dressed(switch, within):
        body = render(switch.start, switch.end, within)
        if switch.kind == "statement":
            return b"".join(b"\n/*%s*/ if %s { return %s; }\n" % (name.encode(), planted(name), new)
                            for name, new in switch.others.items()) + body
        if switch.kind == "guard":
            return b" if " + b" && ".join(b"!" + planted(name) for name in switch.others)
        choices = b"".join(b"\n/*%s*/ if %s { %s }\n else " % (name.encode(), planted(name), new)
                           for name, new in switch.others.items())
        return b"(%s { %s })" % (choices, body)

    # An empty one comes before what begins there, and a larger one before those within it.
    order = sorted(switches, key=lambda it: (it.start, it.end > it.start, -it.end))
    return render(0, len(text), order)


def name_of(mutant):
    """The name without line and column, which change with the code before it."""
    name = re.sub(r":\d+:\d+:", ":", mutant["name"].removeprefix("src/"), count=1)
    # The switch is a Rust text, and a list of names has commas.
    return name.replace('"', "'").replace(",", ";")


def plant(mutants, unviable):
    """The texts of the files with the faults, and the faults."""
    texts, faults = {}, []
    for path, near in FILES.items():
        text = (ROOT / path).read_bytes()
        lines, root = text.splitlines(keepends=True), PARSER.parse(text).root_node
        switches, seen = {}, {}
        for mutant in (it for it in mutants if it["file"] == path):
            name = name_of(mutant)
            count = seen[name] = seen.get(name, 0) + 1
            name += f" ({count})" if count > 1 else ""
            if name in unviable:
                continue
            found = switch_of(mutant, text, root, lines)
            if found is None:
                unviable[name] = "no switch can stand there: try it by hand"
                continue
            start, end, new, kind = found
            switch = switches.setdefault((start, end, kind), Switch(start, end, kind=kind))
            switch.others[name] = new
            faults.append(Fault(name, path, "", name, "", area=near))
        # Some faults are obvious to the compiler.
        allowed = "#![allow(warnings, arithmetic_overflow, unconditional_panic)]\n"
        texts[path] = allowed + switched(text, switches.values()).decode()
    return texts, faults


def unviable_in(tree, target):
    """Names of the faults that do not compile, with the error."""
    process = subprocess.run(
        ["cargo", "check", "-p", "keyfall", "--all-features", "--lib", "--message-format=json"],
        cwd=tree, env=os.environ | {"CARGO_TARGET_DIR": str(target)}, capture_output=True, text=True,
    )
    wrong, errors = {}, []
    for line in process.stdout.splitlines():
        message = json.loads(line).get("message")
        if not message or message["level"] != "error":
            continue
        errors.append(message["rendered"])
        for span in message["spans"]:
            # Another file is of a crate that a fault cannot please.
            if span["file_name"] not in FILES:
                continue
            lines = (tree / span["file_name"]).read_text().splitlines()
            if name := re.match(r"/\*(.*?)\*/", lines[span["line_start"] - 1]):
                wrong[name[1]] = message["message"]
    if process.returncode and not wrong:
        fail(*errors, "No fault is the reason that the copy does not compile.")
    return wrong


def main():
    parser = argparse.ArgumentParser(description="Plants the faults that cargo-mutants chooses.")
    parser.add_argument("only", nargs="*", help="texts that the names of the faults contain")
    parser.add_argument("--build", action="store_true", help="find those that compile, and stop")
    parser.add_argument("--quick", action="store_true", help="the quick suites alone")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    unviable = {}
    tree, target = WORK / "tree", WORK / "build"
    while True:
        texts, faults = plant(chosen(), unviable)
        copy_repository(tree, texts)
        wrong = unviable_in(tree, target)
        if not wrong:
            break
        unviable |= wrong
    print(f"{len(faults)} faults compile, and {len(unviable)} do not:")
    for name, why in unviable.items():
        print(f"  {name}: {why}")
    if options.build:
        return
    wanted = [fault for fault in faults
              if not options.only or any(part in fault.name for part in options.only)]
    parts = ["-p", "keyfall", "-p", "keyfall-cli", "--lib", "--test", "it"]
    binaries = build(tree, target, parts)
    # No unit test of the command runs the code of these modules.
    del binaries["keyfall_cli"]
    runner = Runner(binaries)
    runner.learn_noise()
    results = Results(RESULTS)
    results.keep(faults)
    survivors = search(runner, wanted, results, quick=options.quick)
    print(f"{len(survivors)} of {len(wanted)} survive:", *survivors, sep="\n  ")


if __name__ == "__main__":
    sys.exit(main())
