//! A model of a ledger: the table of `docs/states.md`, written a second time as a small program.
//! Random calls go to a real ledger and to the model; each reply, and all stored
//! data after each step, must agree.
//!
//! | part | contents |
//! |---|---|
//! | [`operations`] | the calls and other events |
//! | [`draw`], [`aim`] | random sequences of operations, whose steps find a job |
//! | [`ledger`], [`produce`], [`work`], [`letters`] | the model: a job is one value, in one state |
//! | [`limit`] | the limit of the ledger |
//! | [`answer`], [`read`] | the answers of the model |
//! | [`call`], [`pages`] | the same call to the real script, and operations of several calls |
//! | [`compare`] | the stored data, against the model |
//! | [`copy`] | a copy of the jobs, by the changes that the scripts note |
//! | [`rig`] | both, step by step |
//!
//! The model is written from the documentation and shares nothing with the scripts. It has no
//! clock: each reply carries the server's time, and the model judges by it which jobs are due and
//! which leases have lapsed. So a comparison never depends on the speed of a test.

mod aim;
mod answer;
mod call;
mod compare;
mod copy;
mod draw;
mod ledger;
mod letters;
mod limit;
mod operations;
mod pages;
mod produce;
mod read;
mod rig;
mod work;

use std::collections::BTreeSet;

use proptest::test_runner::{Config, TestError, TestRunner};
use tokio::runtime::Builder;

use self::draw::sequences;
use self::rig::Rig;
use super::support::Bench;
use crate::store::ledger::script;

/// The scripts without an operation, with the reasons.
const WITHOUT_OPERATION: [(&str, &str); 30] = [
    ("adopt", "the model has no plain keys"),
    ("archived", "the model has no archive"),
    ("arm", "triggers are in the slot of the ledger"),
    ("aside", "the model has no damage"),
    ("beat", "it is about no job"),
    ("changes", "`copy` follows the model with it"),
    ("copied", "`copy` follows the model with it"),
    ("copy", "`copy` follows the model with it"),
    ("cure", "the model has no damage"),
    ("drop", "the model has one ledger"),
    ("ended", "the model has no archive"),
    ("found", "the rig calls it before the first step"),
    ("idle", "the model has one ledger"),
    ("keep", "the model has no history"),
    ("layout", "the model has one ledger"),
    ("names", "the model has one ledger"),
    ("put", "the model has one ledger"),
    ("raze", "a step of its own calls it"),
    ("restore", "the model has no backups"),
    ("scan", "the model has no damage"),
    ("activity", "it counts runs for charts, and changes no job"),
    ("share", "the model has one ledger"),
    ("allot", "the model has one ledger"),
    ("start", "the model has one ledger"),
    ("story", "the model has no history"),
    ("take", "the model has one ledger"),
    ("terms", "the model has no archive"),
    ("touch", "it repeats a remembered reply"),
    ("unmark", "a step of its own calls it"),
    ("upcoming", "it only reads due times, as `stats` does"),
];

#[test]
fn every_other_script_has_an_operation() {
    let source = [
        include_str!("call.rs"),
        include_str!("pages.rs"),
        include_str!("rig.rs"),
    ]
    .concat();
    let words = source.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let words: BTreeSet<&str> = words.collect();
    let all = script::all().into_iter().map(|(script, _)| script.name);
    let without: BTreeSet<&str> = all
        .filter(|name| !words.contains(&*name.to_uppercase()))
        .collect();
    let listed = BTreeSet::from(WITHOUT_OPERATION.map(|(script, _why)| script));
    let differing: Vec<_> = without.symmetric_difference(&listed).collect();
    assert!(
        differing.is_empty(),
        "either an `Operation` of the model calls the script, or `WITHOUT_OPERATION` has the \
         reason: {differing:?}"
    );
}

#[test]
fn random_calls_agree_with_the_table() {
    random_calls_do_so_on(Keys::AsNeeded);
}

#[test]
fn random_calls_agree_with_the_table_on_keys_with_placeholders() {
    random_calls_do_so_on(Keys::Always);
}

#[test]
fn random_calls_note_all_that_they_change_for_a_copy() {
    random_calls_do_so_on(Keys::Copied);
}

/// The time for which the keys of a ledger exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// While they have contents.
    AsNeeded,
    /// Always, by placeholders, as on a cluster.
    Always,
    /// While they have contents, and a copy of the jobs is kept.
    Copied,
}

fn random_calls_do_so_on(keys: Keys) {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let bench = runtime.block_on(Bench::new());
    let config = Config {
        source_file: Some(file!()),
        test_name: Some(module_path!()),
        ..Config::default()
    };
    let result = TestRunner::new(config).run(&sequences(), |steps| {
        runtime.block_on(Rig::run(&bench, keys, &steps))
    });
    match result {
        Ok(()) => {}
        Err(TestError::Fail(why, _) | TestError::Abort(why)) => panic!("{why}"),
    }
    runtime.block_on(bench.balanced());
}
