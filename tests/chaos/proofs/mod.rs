//! Histories, written by hand, that the checker must reject; beside each, where there is one, the
//! same history with a fact that explains it.
//!
//! They are tried whenever the suite is run, before anything else.
//!
//! | module | subject |
//! |---|---|
//! | [`versions`] | each version of a job |
//! | [`rollbacks`] | data that Redis may forget |
//! | [`rebuilds`] | data that Redis has lost, and jobs that were brought back from the copy |
//! | [`times`] | lateness, and bounds that were not judged |
//! | [`keys`] | adopted keys |
//! | [`ids`] | ids that topics share |
//! | [`logs`] | findings in logs |
//! | [`repeats`] | functions that are called again under their ids |
//! | [`occurrences`] | recurring jobs |
//! | [`series`] | members of series |
//! | [`limits`] | jobs of a limited kind |
//! | [`databases`] | the archive, and rows of the outbox |
//! | [`gaps`] | scenarios that are not played, keys that are left out, and processes that end by themselves |

mod databases;
mod gaps;
mod ids;
mod keys;
mod limits;
mod logs;
mod occurrences;
mod rebuilds;
mod repeats;
mod rollbacks;
mod series;
mod times;
mod versions;

use std::collections::BTreeMap;
use std::panic::catch_unwind;

use keyfall_testing::journals::{Micros, at_unix_ms, now};

use crate::checker;
use crate::journal::{Answer, Ask, Noted, Version, What};
use crate::kept::{Kept, KeptAs};
use crate::leases::Leases;
use crate::report::Row;
use crate::scenarios;
use crate::strain::Strain;

/// The name of a proof, and a function that panics if the proof fails.
pub(crate) type Proof = (&'static str, fn());

pub(crate) fn all() -> Vec<Proof> {
    [
        versions::ALL,
        rollbacks::ALL,
        rebuilds::ALL,
        times::ALL,
        keys::ALL,
        ids::ALL,
        logs::ALL,
        repeats::ALL,
        occurrences::ALL,
        series::ALL,
        limits::ALL,
        databases::ALL,
        gaps::ALL,
    ]
    .concat()
}

/// Whether all proofs hold.
pub(crate) fn hold() -> bool {
    let all = all();
    let failed = all.iter().filter(|(name, proof)| {
        let failed = catch_unwind(proof).is_err();
        if failed {
            eprintln!("the judge: {name}: failed");
        }
        failed
    });
    let failed = failed.count();
    println!(
        "the judge: {} of {} proofs hold",
        all.len() - failed,
        all.len()
    );
    failed == 0
}

const SECOND: Micros = 1_000_000;

const KEY: &str = "chaos:load:notice:1";

/// A trial as its journals describe it. Times are in seconds.
#[derive(Default)]
struct Trial {
    journals: BTreeMap<&'static str, Vec<Noted>>,
    calls: u64,
    kept: Kept,
    leases: Leases,
    strain: Strain,
}

/// A run that ends well, in 0.1 s, and whose end Redis takes.
struct Run {
    process: &'static str,
    version: Version,
    fence: u64,
    attempt: u32,
    began: f64,
    /// Whether it is done or buried.
    last: bool,
    taken: Option<bool>,
}

fn run(version: Version, fence: u64, began: f64) -> Run {
    Run {
        process: "worker-0.1",
        version,
        fence,
        attempt: 1,
        began,
        last: true,
        taken: Some(true),
    }
}

fn at(seconds: f64) -> Micros {
    (seconds * SECOND as f64) as Micros
}

/// The fencing value of a claim at this time.
fn fence_at(seconds: f64) -> u64 {
    let ms = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let ms = u64::try_from(ms.expect("it is after 1970").as_millis()).expect("it is not so late");
    // The journals of a proof begin when the machine started.
    let began = ms - now() / 1000;
    assert!(at_unix_ms(began) < 10_000, "the clocks agree");
    (began + at(seconds) / 1000) * 1000
}

impl Trial {
    fn note(mut self, process: &'static str, seconds: f64, what: What) -> Self {
        let at = at(seconds);
        let journal = self.journals.entry(process).or_default();
        journal.push(Noted { at, what });
        self
    }

    /// A call that is answered within 10 ms.
    fn call(self, seconds: f64, ask: Ask, answer: Answer) -> Self {
        self.call_of(KEY, (seconds, seconds + 0.01), ask, answer)
    }

    /// A call about this key, sent and answered at these times.
    fn call_of(mut self, key: &str, (sent, until): (f64, f64), ask: Ask, answer: Answer) -> Self {
        let call = self.calls;
        self.calls += 1;
        let key = key.to_owned();
        self.note("producer-0", sent, What::Sent { call, key, ask })
            .note("producer-0", until, What::Answered { call, answer })
    }

    fn schedule(self, seconds: f64, version: Version, answer: Answer) -> Self {
        let ask = Ask::Schedule {
            version,
            deadly: false,
            after: 0,
        };
        self.call(seconds, ask, answer)
    }

    fn run(self, run: Run) -> Self {
        self.run_of(KEY, run)
    }

    /// A run of the job of this key.
    fn run_of(self, key: &str, run: Run) -> Self {
        let Run { process, fence, .. } = run;
        let key = || key.to_owned();
        let began = What::Began {
            key: key(),
            version: run.version,
            attempt: run.attempt,
            fence,
            late: 0,
        };
        let ended = What::Ended {
            key: key(),
            fence,
            last: run.last,
        };
        let told = self
            .note(process, run.began, began)
            .note(process, run.began + 0.1, ended);
        match run.taken {
            None => told,
            Some(taken) => {
                let key = key();
                told.note(
                    process,
                    run.began + 0.11,
                    What::Settled { key, fence, taken },
                )
            }
        }
    }

    fn fault(self, seconds: f64, name: &str, process: Option<&str>) -> Self {
        let what = What::Fault {
            name: name.to_owned(),
            process: process.map(str::to_owned),
        };
        self.note("harness", seconds, what)
    }

    fn weather(self, from: f64, to: f64) -> Self {
        self.note("harness", from, What::Weather { bad: true })
            .note("harness", to, What::Weather { bad: false })
    }

    fn keep(mut self, version: Version, place: KeptAs) -> Self {
        self.kept.versions.insert(version, place);
        self
    }

    /// The checker's judgement.
    fn check(self) -> Row {
        self.judge_as(None)
    }

    /// The judgement for a trial of this scenario.
    fn judge(self, scenario: &str) -> Row {
        self.judge_as(Some(scenario))
    }

    fn judge_as(self, scenario: Option<&str>) -> Row {
        let journals = self.journals.into_iter();
        let journals: Vec<_> = journals
            .map(|(process, lines)| (process.to_owned(), lines))
            .collect();
        let mut row = checker::check(
            scenario.unwrap_or_default(),
            &journals,
            &self.kept,
            &self.leases,
            &self.strain,
        );
        row.strain = self.strain;
        if let Some(scenario) = scenario {
            let mut all = scenarios::all().into_iter();
            let it = all.find(|one| one.name == scenario).expect("it is played");
            it.expect(&mut row);
        }
        row
    }
}

impl Row {
    /// Panics unless a violation contains these words.
    #[track_caller]
    fn tells(&self, words: &str) {
        let mut violations = self.violations.iter();
        assert!(
            violations.any(|violation| violation.contains(words)),
            "{words:?} is not reported: {:#?}",
            self.violations
        );
    }

    /// Panics if a violation contains these words.
    #[track_caller]
    fn does_not_tell(&self, words: &str) {
        let mut violations = self.violations.iter();
        let told = violations.find(|violation| violation.contains(words));
        assert!(told.is_none(), "it is reported: {told:?}");
    }

    #[track_caller]
    fn passes(&self) {
        assert!(self.violations.is_empty(), "{:#?}", self.violations);
    }
}
