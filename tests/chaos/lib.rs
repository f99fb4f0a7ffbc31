//! Faults: Redis, workers and producers as processes of their own, ill-treated in every way
//! that a machine or a network may think of, and a checker of what became of every job.
//!
//! | module | what it does |
//! |---|---|
//! | [`scenarios`] | the faults |
//! | [`lanes`] | two scenarios at a time |
//! | [`trial`] | one scenario, from its first process to its row in the table |
//! | [`setting`], [`stage`] | what a trial begins with; workers and producers, and what can be done to them |
//! | [`deployment`] | Redis, in each of the ways in which several belong together |
//! | [`roles`] | this program, started again as a worker or a producer |
//! | [`load`], [`service`], [`sundry`], [`order`] | the producer: which calls it makes and to whom, what the jobs carry |
//! | [`shared`] | ids that several topics of the classic interface share, and who pushed them last |
//! | [`plain`] | the program that knows nothing of jobs, and sets keys that are adopted |
//! | [`witness`] | who listens to what is done to keys, by what Redis says |
//! | [`worker`], [`settled`] | the worker: it writes down runs, and what Redis said to their ends |
//! | [`daemons`], [`target`] | `keyfall serve`, and how jobs get from it to consumers |
//! | [`outlet`] | the Redis that lists and streams are on, and how it forgets |
//! | [`consumer`], [`classic`] | the consumer: it takes jobs in each of these ways |
//! | [`journal`] | what is written down, by each process for itself |
//! | [`kept`] | what the data set that Redis kept still holds |
//! | [`agreed`] | whether adopted keys and the ledgers agree |
//! | [`history`], [`story`] | what all of them have written down, put together for each key |
//! | [`checker`], [`ends`] | what must hold of all of it, and of each version of a job |
//! | [`evidence`] | what explains that something happened twice, late or not at all |
//! | [`punctual`], [`bounds`] | how late jobs were, and how late they may be |
//! | [`proofs`] | histories that the judge must not pass, and some that it must |
//! | [`spared`] | what must hold of what others have, where something is done to one of several servers |
//! | [`adopted`] | what must hold of each adopted key |
//! | [`sentinels`] | two replicas of Redis, and who chooses the next primary |
//! | [`cluster`] | three primaries with replicas, and slots that move |
//! | [`several`] | independent servers that have the jobs together |
//! | [`waiting`], [`resharding`] | jobs that wait meanwhile, and who spreads them over other shards |
//! | [`wires`] | the network between servers |
//! | [`clock`] | a wall clock that can be set |
//! | [`aof`], [`leases`] | what the log of Redis shows of its leases |
//! | [`strain`] | how late the machine makes things by itself |
//! | [`report`] | the table |
//!
//! The judge is tried first, each time, in a moment. `cargo test` plays a few scenarios for a few seconds each; `make chaos` plays all of them
//! for as long as it is told. `docs/reliability.md` has the table and says what it means.
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the tables of modules are for readers of the source"
)]
#![cfg(unix)]

mod adopted;
mod agreed;
mod aof;
mod bounds;
mod checker;
mod classic;
mod clock;
mod cluster;
mod consumer;
mod daemons;
mod deployment;
mod ends;
mod evidence;
mod history;
mod journal;
mod kept;
mod lanes;
mod leases;
mod load;
mod order;
mod outlet;
mod plain;
mod proofs;
mod punctual;
mod report;
mod resharding;
mod roles;
mod scenarios;
mod sentinels;
mod service;
mod setting;
mod settled;
mod several;
mod shared;
mod spared;
mod stage;
mod story;
mod strain;
mod sundry;
mod target;
mod trial;
mod waiting;
mod wires;
mod witness;
mod worker;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use report::Row;
use scenarios::Scenario;

/// How many seconds the faults go on, over all scenarios; with it, all are played.
const SECONDS: &str = "KEYFALL_CHAOS_SECONDS";

/// What the calls, and most of the faults, follow from.
const SEED: &str = "KEYFALL_SEED";

/// Of a scenario in the short version, and the least in the long one.
const SHORT: Duration = Duration::from_secs(4);

/// Scenarios with seeds that found a bug. The long version plays them as well.
const FOUND: [(&str, u64); 1] = [("stop a worker", 1)];

/// What the program does: it plays scenarios, or is one of the processes of a scenario.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let parse = "a process of this program is given its terms";
    match args.as_slice() {
        [role, terms] if role == "worker" => {
            worker::main(&serde_json::from_str(terms).expect(parse))
        }
        [role, terms] if role == "consumer" => {
            consumer::main(&serde_json::from_str(terms).expect(parse))
        }
        [role, terms] if role == "producer" => {
            load::main(serde_json::from_str(terms).expect(parse))
        }
        [role, rest @ ..] if role == "keyfall" => {
            return keyfall_cli::run(
                ["keyfall"]
                    .into_iter()
                    .chain(rest.iter().map(String::as_str)),
            );
        }
        [role, terms] if role == "plain" => plain::main(&serde_json::from_str(terms).expect(parse)),
        flags if flags.iter().any(|flag| flag == "--list") => {
            for (name, _) in proofs::all() {
                println!("{name}: test");
            }
            for scenario in scenarios::all() {
                println!("{}: test", scenario.name);
            }
        }
        // Words that a name must contain, as for any test; what else `cargo test` hands on is
        // not for us.
        words => {
            // A judge that passes what it must not says nothing of any scenario.
            if !proofs::hold() {
                return ExitCode::FAILURE;
            }
            return play_all(words.iter().filter(|word| !word.starts_with('-')).collect());
        }
    }
    ExitCode::SUCCESS
}

fn play_all(words: Vec<&String>) -> ExitCode {
    let number = |name| std::env::var(name).ok().map(|text| text.parse::<u64>());
    let seed = number(SEED).map_or_else(rand::random, |seed| seed.expect("the seed is a number"));
    let seconds = number(SECONDS).map(|seconds| seconds.expect("the seconds are a number"));
    let is_wanted = |one: &Scenario| {
        let is_named = words.iter().any(|word| one.name.contains(word.as_str()));
        is_named || words.is_empty() && (one.quick || seconds.is_some())
    };
    let mut scenarios = scenarios::all();
    scenarios.retain(is_wanted);
    if scenarios.is_empty() {
        return ExitCode::SUCCESS;
    }
    let share = Duration::from_secs(seconds.unwrap_or(0)) / scenarios.len() as u32;
    let mut plays: Vec<(&Scenario, u64, String)> = scenarios
        .iter()
        .map(|scenario| (scenario, seed, scenario.name.to_owned()))
        .collect();
    let found = FOUND.iter().filter(|_| seconds.is_some());
    plays.extend(found.filter_map(|(name, seed)| {
        let scenario = scenarios.iter().find(|one| one.name == *name)?;
        Some((scenario, *seed, format!("{name}, seed {seed}")))
    }));
    println!("{SEED}={seed}\n\n{}", report::HEAD);
    let mut rows = Vec::new();
    let play = |(scenario, seed, name): &(&Scenario, u64, String)| {
        let dir = journals(name);
        let seed = seed_of(*seed, scenario.name);
        let mut row = lanes::alone(trial::play(scenario, dir.clone(), seed, share.max(SHORT)));
        row.scenario = name.clone();
        (row, dir)
    };
    // Two unoptimised daemons with their clients take most of two cores: beside another scenario they
    // would measure that.
    let is_heavy =
        |(scenario, ..): &(&Scenario, u64, String)| (scenario.setting)().target.is_some();
    lanes::each_in_order(&plays, is_heavy, play, |(row, dir)| {
        println!("{row}");
        if row.violations.is_empty() {
            let _ = fs::remove_dir_all(&dir);
        } else {
            tell_violations(&row, &dir);
        }
        rows.push(row);
    });
    let sum = Row::sum(&rows);
    println!("{sum}\n\n{}", report::HEAD_OF_ADOPTED);
    let with_keys = rows.iter().filter(|row| row.adopted.set > 0);
    for row in with_keys.chain([&sum]) {
        println!("{}", row.adopted());
    }
    println!("\n{}", report::HEAD_OF_FAIL_OVERS);
    rows.iter()
        .filter_map(Row::fail_overs)
        .for_each(|row| println!("{row}"));
    println!("\n{}", spared::HEAD);
    for row in rows.iter().chain([&sum]) {
        let spared = row.spared.iter();
        spared.for_each(|it| println!("{}", it.row(&row.scenario)));
    }
    println!("\n{}\n{}", sum.strain, sum.summary());
    if sum.violations.is_empty() {
        return ExitCode::SUCCESS;
    }
    // Once more at the end: of a long output, often the last lines alone are kept.
    for row in rows.iter().filter(|row| !row.violations.is_empty()) {
        eprintln!("{}: {}", row.scenario, row.violations[0]);
    }
    eprintln!("{SEED}={seed}: {} violations", sum.violations.len());
    ExitCode::FAILURE
}

/// A directory for the journals of one trial.
fn journals(name: &str) -> PathBuf {
    let name = name.replace(' ', "-");
    let dir = std::env::temp_dir().join(format!("keyfall-chaos-{}-{name}", std::process::id()));
    fs::create_dir_all(&dir).expect("the temporary directory is writable");
    dir
}

/// The seed of one scenario, which is the same whichever others are played.
fn seed_of(seed: u64, scenario: &str) -> u64 {
    scenario.bytes().fold(seed, |seed, byte| {
        (seed.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

fn tell_violations(row: &Row, journals: &std::path::Path) {
    const TOLD: usize = 20;
    eprintln!("{}: {} violations", row.scenario, row.violations.len());
    for violation in row.violations.iter().take(TOLD) {
        eprintln!("  {violation}");
    }
    eprintln!("  the journals are in {}", journals.display());
}
