"""Plants small faults, one at a time, and finds out which suite notices each of them.

A fault is a file in `faults/`: its name says the mistake, and its fields are

    file      the path of the file that has the mistake
    from, to  the text that is replaced, which occurs once in the file, and its replacement
    promise   the promise of Keyfall that the mistake breaks
    history   the report of such a mistake in another system, if there is one: owner/name#number
    switch    of a fault in Rust: the text that has both the code and the mistake, see below
    near      filters of the tests to begin with; by default those of the area of the file
    scenario  a scenario of the fault suite to begin with, for a fault that no test can notice
    sample    true for the faults that stand for the rest in `--sample`

Faults in Rust are all compiled into one copy of the repository, each behind a switch: an
expression becomes `(if PLANTED { TO } else { FROM })`, where PLANTED asks whether the process has
the fault. For a text that is no expression, `switch` says how both stand side by side, such as
`if !PLANTED { FROM }`. Faults in Lua are files in a folder that builds with the feature
`internals` read scripts from. So one build serves for all faults.

A test that fails with a fault is run again twice, with the fault and without it. The fault is
found if the test fails again with the fault and passes without it.

The quick suites run with one fault at a time. The faults that they leave go through the slow suites
in groups: all faults of a group are planted at once, and each test that fails is run with one fault
after the other until one explains the failure. What is found leaves the group, and the rest is run
again until nothing more is found.

Results stay in `results.json`, and a later run asks for the missing ones only: those of faults that
are new or have changed, and those of faults that nobody noticed. `--again` asks for all. A result
says nothing about the tests of today: a test that was weakened since keeps its faults.
"""

import argparse
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from building import WORK, build, build_examples, compile_all, copy_repository
from faults import ROOT, fail, read_faults, with_switches
from results import Results, page
from runner import Runner

RESULTS = Path(__file__).parent / "results.json"
PAGE = ROOT / "docs/internals/faults.md"

# The faults that the quick suites look for at the same time: most tests wait.
AT_ONCE = 3

# The faults of a group. With more of them, one hides the other.
TOGETHER = 12


def search(runner, faults, results, again=False, quick=False):
    """Looks for faults that have no result, or for all, and notes the results. Returns the names of
    those that nobody notices."""
    def note(fault, found):
        # A fault that went through the quick suites before has taken that long already.
        if (before := results.of(fault)) and not again:
            found["seconds"] += before["seconds"]
        print(f"  {fault.name}: {found['suite'] or 'nobody'} {found['test']} {found['seconds']} s",
              flush=True)
        results.note(fault, found)

    # The quick suites find most faults. So the page is almost complete before a slow one runs.
    unknown = [fault for fault in faults if again or not results.of(fault)]
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        searches = {pool.submit(runner.find, fault): fault for fault in unknown}
        for number, found in enumerate(as_completed(searches), 1):
            print(f"{number} of {len(unknown)}", flush=True)
            note(searches[found], found.result())
    left = [fault for fault in faults if not results.of(fault)["suite"]]
    if not quick:
        print(f"The slow suites look for {len(left)} of {len(faults)} faults.", flush=True)
        for start in range(0, len(left), TOGETHER):
            for fault, found in runner.find_in_group(left[start:start + TOGETHER]):
                note(fault, found)
    return [fault.name for fault in faults if not results.of(fault)["suite"]]


def copy_with_switches(faults):
    """The folder of the copy that has all faults in Rust."""
    tree = WORK / "tree"
    paths = {fault.path for fault in faults if not fault.is_lua()}
    copy_repository(tree, {path: with_switches(path, faults) for path in paths})
    return tree


def main():
    parser = argparse.ArgumentParser(description="Plants faults, and says which suite finds each.")
    parser.add_argument("only", nargs="*", help="texts that the names of the faults contain")
    parser.add_argument("--sample", action="store_true", help="the few that stand for the rest")
    parser.add_argument("--again", action="store_true", help="also those with a result")
    parser.add_argument("--quick", action="store_true", help="the quick suites alone")
    parser.add_argument("--table", action="store_true", help="write the page, and run nothing")
    parser.add_argument("--check", action="store_true", help="check that each fault applies")
    parser.add_argument("--compile", action="store_true", help="check that all in Rust compile")
    options = parser.parse_args()

    faults = read_faults()
    results = Results(RESULTS)
    if options.check or options.table:
        if options.table:
            PAGE.write_text(page(faults, results))
        print(f"All {len(faults)} faults apply.")
        return
    if options.compile:
        # Beside `make lint`, which has checked the dependencies there.
        compile_all(copy_with_switches(faults), ROOT / "target")
        return
    wanted = [
        fault for fault in faults
        if (not options.only or any(part in fault.name for part in options.only))
        and (fault.sample or not options.sample)
    ]
    if not wanted:
        fail(f"No fault has a name that contains {' or '.join(options.only)}.")
    WORK.mkdir(parents=True, exist_ok=True)
    if options.sample:
        # All in Lua, so that the tests of the repository serve as they were built.
        runner = Runner(build(ROOT, ROOT / "target"))
        unnoticed = search(runner, wanted, Results(None), quick=True)
    else:
        tree, target = copy_with_switches(faults), WORK / "build"
        runner = Runner(build(tree, target))
        build_examples(tree, target)
        runner.learn_noise()
        results.keep(faults)
        unnoticed = search(runner, wanted, results, options.again, options.quick)
        PAGE.write_text(page(faults, results))
    if unnoticed:
        fail("Nobody noticed: " + ", ".join(unnoticed))
    print(f"Each of {len(wanted)} faults was found.")


if __name__ == "__main__":
    main()
