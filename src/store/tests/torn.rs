//! The variants of the scripts for a cluster, where parts of a ledger can be missing; see
//! `lua/cluster/whole.lua`. They check for missing parts first, so a single server suffices here.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use regex::Regex;

use super::support::{Bench, HOUR, State, after, soon};
use crate::names::LEDGER_PARTS;
use crate::store::ledger::script::{self, STATS};

use State::*;

/// The scripts that callers send without this check, although they belong to a ledger, with the
/// reasons. [`Ledger::call`](crate::store::Ledger) sends all others with it.
const CALLED_AS_THEY_ARE: [(&str, &str); 11] = [
    (
        "ADOPT",
        "plain keys are in other slots: nobody adopts them on a cluster",
    ),
    ("ARM", "triggers are in slots of their own"),
    (
        "ASIDE",
        "moves a key of another type away, and makes no ledger whole",
    ),
    ("BEAT", "it is about no ledger"),
    ("CURE", "changes a value that was found to be none"),
    ("FOUND", "where somebody gives up what is missing"),
    ("IDLE", "where there is no cluster"),
    ("LAYOUT", "on the list of kinds"),
    ("ACTIVITY", "its keys are beside the ledger"),
    ("TOUCH", "writes once more what is there"),
    ("UNMARK", "on the list of kinds"),
];

#[tokio::test]
async fn every_script_refuses_a_ledger_with_a_missing_part_and_writes_nothing() {
    let bench = Bench::new().await;
    for state in [Pending, Due, LeasedNext, Dead] {
        bench.bring(&state.id(), state).await;
    }
    let (server, names) = (&bench.ledger.server, bench.names());
    let founded = server.found_one(bench.ledger.kind(), 0, soon());
    founded.await.unwrap();
    for (key, part) in names.all().into_iter().zip(LEDGER_PARTS) {
        let elsewhere = format!("{key}:elsewhere");
        let _: String = bench.ask(&["RENAME", key, &elsewhere]).await;
        let stored = bench.snapshot().await;
        for (script, _) in script::all() {
            let call = script.call_on_whole(&bench.keys_of(script), names);
            let Err(fault) = server.evaluate(script, &call, soon()).await else {
                panic!("{} took a ledger without {part}", script.name);
            };
            let error = fault.error();
            assert!(fault.is_torn(), "{} without {part}: {error}", script.name);
            assert_eq!(fault.missing(), Some(part), "{}: {error}", script.name);
        }
        assert_eq!(bench.snapshot().await, stored, "without {part}");
        let there: u64 = bench.ask(&["EXISTS", key]).await;
        assert_eq!(there, 0, "{part}");
        let _: String = bench.ask(&["RENAME", &elsewhere, key]).await;
    }
    bench.balanced().await;
}

#[tokio::test]
async fn every_script_refuses_an_absent_ledger_unless_it_may_be_new() {
    let bench = Bench::new().await;
    let (server, names) = (&bench.ledger.server, bench.names());
    for (script, _) in script::all() {
        let call = script.call_on_whole(&bench.keys_of(script), names);
        let Err(fault) = server.evaluate(script, &call, soon()).await else {
            panic!("{} took a ledger of which nothing is there", script.name);
        };
        let error = fault.error();
        assert!(fault.is_unfounded(), "{}: {error}", script.name);
    }
    assert!(bench.snapshot().await.is_empty());
    let call = STATS.call_on_whole(&bench.keys_of(&STATS), names);
    let counted = server.evaluate(&STATS, &STATS.if_new(&call), soon()).await;
    assert!(counted.is_ok());
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_that_never_had_all_its_keys_is_not_torn() {
    let bench = Bench::new().await;
    bench.schedule("job", after(HOUR)).await;
    let call = STATS.call_on_whole(&bench.keys_of(&STATS), bench.names());
    let counted = bench.ledger.server.evaluate(&STATS, &call, soon()).await;
    assert!(counted.is_ok());
    bench.balanced().await;
}

#[test]
fn every_other_call_of_a_script_checks_for_missing_parts() {
    let store = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/store");
    let folders = ["connections", "servers", "kinds", "ledger"].map(|folder| store.join(folder));
    let files = folders
        .iter()
        .flat_map(|folder| fs::read_dir(folder).unwrap());
    let files = files.map(|entry| entry.unwrap().path());
    let sources = files.filter(|path| path.extension().is_some_and(|ending| ending == "rs"));
    let call = Regex::new(r"\b([A-Z]+)\.call\(").unwrap();
    let mut called = BTreeSet::new();
    for path in sources {
        let text = fs::read_to_string(path).unwrap();
        called.extend(call.captures_iter(&text).map(|found| found[1].to_owned()));
    }
    let known = CALLED_AS_THEY_ARE.map(|(script, _why)| script.to_owned());
    assert_eq!(
        called,
        BTreeSet::from(known),
        "`Ledger::call` calls a script of a ledger; `CALLED_AS_THEY_ARE` lists each script that \
         is called in another way, with the reason"
    );
}
