//! Fault injection: Redis, workers and producers are processes of their own, which suffer the
//! faults of machines and networks, and a checker judges the fate of every job.
//!
//! | module | task |
//! |---|---|
//! | [`scenarios`] | the faults |
//! | [`lanes`] | two scenarios at a time |
//! | [`trial`] | one scenario, from its first process to its row in the table |
//! | [`setting`], [`stage`] | the start of a trial; workers and producers, and the faults that can hit them |
//! | [`deployment`] | Redis, in each supported topology |
//! | [`roles`] | this program, started again as a worker or a producer |
//! | [`load`], [`service`], [`sundry`], [`order`] | the producer: its calls, their recipients, and the payloads of its jobs |
//! | [`shared`], [`common`] | ids that several topics of the classic interface share: the last push wins; no topic ends or hides the job of another one |
//! | [`plain`], [`races`] | the program that knows nothing of jobs, and sets keys that are adopted; commands within two milliseconds of the time of a key |
//! | [`recurring`] | recurring jobs, and the rules for their occurrences |
//! | [`series`] | series whose anchors move, and the rules for their members |
//! | [`limited`] | jobs of a limited kind, and the rules for their starts and leases |
//! | [`foreign`] | the program that calls Redis functions, and repeats its calls under their ids |
//! | [`witness`] | the listeners to key events, according to Redis |
//! | [`worker`], [`settled`] | the worker: it writes down its runs, and the answers of Redis to their ends |
//! | [`daemons`], [`target`] | `keyfall serve`, and how jobs get from it to consumers |
//! | [`database`] | a PostgreSQL beside Redis: the outbox, the archive and the copy, and the rules for them |
//! | [`outlet`] | the Redis of lists and streams, and the ways in which it forgets |
//! | [`consumer`], [`classic`] | the consumer: it takes jobs in each of these ways |
//! | [`journal`] | the lines that each process writes down |
//! | [`kept`] | the data that Redis still holds at the end |
//! | [`agreed`] | whether adopted keys and the ledgers agree |
//! | [`history`], [`story`] | all journals, put together for each key |
//! | [`checker`], [`ends`] | the rules for the whole, and for each version of a job |
//! | [`evidence`] | facts that explain that something happened twice, late or not at all |
//! | [`punctual`], [`bounds`] | how late jobs were, and how late they may be |
//! | [`proofs`] | histories that the checker must reject, and some that it must accept |
//! | [`spared`] | rules for the jobs on healthy servers, while a fault hits one of several |
//! | [`adopted`], [`restored`] | rules for each adopted key; what is left of its commands when Redis has gone back to a snapshot |
//! | [`sentinels`] | two replicas of Redis, and the sentinels that choose the next primary |
//! | [`cluster`] | three primaries with replicas, and slots that move |
//! | [`several`] | independent servers that hold the jobs together |
//! | [`waiting`], [`resharding`] | jobs that wait meanwhile, and the command that spreads them over other shards |
//! | [`wires`] | the network between servers |
//! | [`hosts`] | network namespaces, which can drop all packets to each other |
//! | [`clock`] | a wall clock that can be set |
//! | [`aof`], [`leases`] | the log of Redis, and the leases in it |
//! | [`strain`] | the lateness that the machine causes by itself |
//! | [`report`] | the table |
//!
//! Each run first tests the checker, in a moment. `cargo test` plays a few scenarios for a few
//! seconds each; `make chaos` plays all of them for as long as it is told. `docs/reliability.md`
//! has the table and its meaning.
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
mod common;
mod consumer;
mod daemons;
mod database;
mod deployment;
mod ends;
mod evidence;
mod foreign;
mod history;
mod hosts;
mod journal;
mod kept;
mod lanes;
mod leases;
mod limited;
mod load;
mod order;
mod outlet;
mod plain;
mod proofs;
mod punctual;
mod races;
mod recurring;
mod report;
mod resharding;
mod restored;
mod roles;
mod scenarios;
mod sentinels;
mod series;
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

/// Sets how many seconds the faults go on, over all scenarios; with it, all are played.
const SECONDS: &str = "KEYFALL_CHAOS_SECONDS";

/// Seeds the calls, and most of the faults.
const SEED: &str = "KEYFALL_SEED";

/// The length of a scenario in the short version, and the least in the long one.
const SHORT: Duration = Duration::from_secs(4);

/// How many violations of a scenario are printed.
const TOLD: usize = 20;

/// Scenarios with seeds that found a bug. The long version plays them as well.
const FOUND: [(&str, u64); 1] = [("stop a worker", 1)];

/// Runs the program: it plays scenarios, or is one of the processes of a scenario.
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
        [role, terms] if role == "foreign" => {
            foreign::main(serde_json::from_str(terms).expect(parse))
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
        // Words that a name must contain, as for any test; other arguments of `cargo test` are
        // ignored.
        words => {
            // The results of a checker that accepts wrong histories would mean nothing.
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
        // All proofs were tried already.
        let is_proof = |word: &&String| {
            let mut proofs = proofs::all().into_iter();
            proofs.any(|(name, _)| name.contains(word.as_str()))
        };
        if words.is_empty() || words.iter().any(is_proof) {
            return ExitCode::SUCCESS;
        }
        eprintln!("no scenario has a name with one of these words: {words:?}");
        return ExitCode::FAILURE;
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
    // Two unoptimised daemons with their clients, or the six servers of a cluster, take most of two
    // cores: a scenario beside them would distort its own measurements.
    let is_heavy = |(scenario, ..): &(&Scenario, u64, String)| {
        let setting = (scenario.setting)();
        setting.target.is_some() || setting.cluster
    };
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
    // Once more at the end: readers often keep the last lines of a long output alone.
    for row in &rows {
        for violation in row.violations.iter().take(TOLD) {
            let told = violation.lines().next().unwrap_or_default();
            eprintln!("{}: {told}", row.scenario);
        }
    }
    eprintln!("{SEED}={seed}: {} violations", sum.violations.len());
    ExitCode::FAILURE
}

/// A directory for the journals of one trial.
fn journals(name: &str) -> PathBuf {
    let name = name.replace(' ', "-");
    let name = format!("keyfall-chaos-{:016x}-{name}", rand::random::<u64>());
    let dir = std::env::temp_dir().join(name);
    fs::create_dir(&dir).expect("the temporary directory is writable");
    dir
}

/// The seed of one scenario; it does not depend on the other scenarios that are played.
fn seed_of(seed: u64, scenario: &str) -> u64 {
    scenario.bytes().fold(seed, |seed, byte| {
        (seed.rotate_left(5) ^ u64::from(byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    })
}

fn tell_violations(row: &Row, journals: &std::path::Path) {
    eprintln!("{}: {} violations", row.scenario, row.violations.len());
    for violation in row.violations.iter().take(TOLD) {
        eprintln!("  {violation}");
    }
    eprintln!("  the journals are in {}", journals.display());
}
