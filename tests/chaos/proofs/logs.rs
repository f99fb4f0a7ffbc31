//! Findings that the reader of logs must make.

use std::fs;
use std::path::PathBuf;

use super::{KEY, Proof, Run, Trial, run};
use crate::journal::{Answer, What};
use crate::leases::{self, Claim};

pub(super) const ALL: &[Proof] = &[
    ("a log of Redis that shows no lease", no_lease),
    ("a server without a log", no_log),
    ("two leases, and a ledger that was moved", two_leases),
    ("runs that no worker's log tells the end of", no_settlement),
    ("interrupted runs, and no lease that lapsed", no_lapse),
];

/// A log with these commands.
fn log(name: &str, commands: &[&[&str]]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("keyfall-{name}-{}.aof", std::process::id()));
    let words = |words: &&[&str]| {
        let each = words
            .iter()
            .map(|word| format!("${}\r\n{word}\r\n", word.len()));
        format!("*{}\r\n{}", words.len(), each.collect::<String>())
    };
    let text: String = commands.iter().map(words).collect();
    fs::write(&path, text).expect("the temporary directory is writable");
    path
}

/// The violations in a log with these commands.
fn read(name: &str, commands: &[&[&str]]) -> String {
    let path = log(name, commands);
    let leases = leases::read(&[vec![path.clone()]]).expect("it can be read");
    fs::remove_file(path).expect("it is there");
    leases.wrong.join("; ")
}

/// The second lease is given while the first is still held, unless the ledger has been elsewhere.
fn two_leases() {
    let job = "1 2 {\"version\":1,\"plan\":\"Done\"}";
    let first: &[&[&str]] = &[
        &["HSET", "keyfall:{a:b:c/0}:shadow", "x", job],
        &["MULTI"],
        &["HSET", "keyfall:{a:b:c/0}:calls", "1", "1 5000 ok"],
        &["ZADD", "keyfall:{a:b:c/0}:leased", "7000", "x"],
        &["HSET", "keyfall:{a:b:c/0}:lease", "x", "1-1 1 9 4000 -"],
        &["EXEC"],
    ];
    let second: &[&[&str]] = &[
        &["MULTI"],
        &["HSET", "keyfall:{a:b:c/0}:calls", "1", "2 6000 ok"],
        &["ZADD", "keyfall:{a:b:c/0}:leased", "8000", "x"],
        &["HSET", "keyfall:{a:b:c/0}:lease", "x", "2-2 1 10 4000 -"],
        &["EXEC"],
    ];
    let told = read("two", &[first, second].concat());
    assert!(told.contains("given to 2-2 at 6000, while"), "{told}");
    for gone in [
        &["DEL", "keyfall:{a:b:c/0}:lease"][..],
        &["DEL", "keyfall:{a:b:c/0}:next", "keyfall:{a:b:c/0}:lease"],
    ] {
        let told = read("moved", &[first, &[gone], second].concat());
        assert_eq!(told, "", "{gone:?}");
    }
    let other = &["DEL", "keyfall:{a:b:c/0}:next", "keyfall:{a:b:c/1}:lease"][..];
    let told = read("other", &[first, &[other], second].concat());
    assert!(told.contains("given to 2-2 at 6000, while"), "{told}");
}

fn no_lease() {
    let whole: &[&[&str]] = &[
        &["MULTI"],
        &["HSET", "keyfall:{a:b:c/0}:calls", "1", "1 5000 ok"],
        &["ZADD", "keyfall:{a:b:c/0}:leased", "7000", "x"],
        &["HSET", "keyfall:{a:b:c/0}:lease", "x", "1-1 1 9 4000 -"],
        &["EXEC"],
        &[
            "HSET",
            "keyfall:{a:b:c/0}:shadow",
            "x",
            "1 2 {\"version\":1,\"plan\":\"Done\"}",
        ],
    ];
    assert_eq!(read("whole", whole), "");
    let tells = |told: &str, what: &str| {
        let words = format!("the log of Redis shows no {what}");
        assert!(told.contains(&words), "{words} is not told: {told}");
    };
    for what in ["lease", "deadline", "job"] {
        tells(&read("none", &[&["SET", "a", "b"]]), what);
    }
    // If the key were renamed, no two leases could ever overlap.
    let renamed: Vec<Vec<String>> = whole
        .iter()
        .map(|words| {
            words
                .iter()
                .map(|word| word.replace("}:leased", "}:held"))
                .collect()
        })
        .collect();
    let renamed: Vec<Vec<&str>> = renamed
        .iter()
        .map(|words| words.iter().map(String::as_str).collect())
        .collect();
    let renamed: Vec<&[&str]> = renamed.iter().map(Vec::as_slice).collect();
    tells(&read("renamed", &renamed), "deadline");
}

fn no_log() {
    let leases = leases::read(&[vec![], vec![]]).expect("there is nothing to read");
    let told = leases.wrong.join("; ");
    assert!(told.contains("2 servers keep no log"), "{told}");
}

fn no_settlement() {
    let told = "no worker's log tells of a run that was settled";
    let ended = |process| {
        let trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let taken = None;
        let run = run(7, 1, 2.0);
        trial
            .run(Run {
                process,
                taken,
                ..run
            })
            .check()
    };
    ended("worker-0.1").tells(told);
    // Consumers of lists never hear the result.
    ended("consumer-0.1").passes();
}

fn no_lapse() {
    let interrupted = |lapsed| {
        let mut trial = Trial::default().schedule(1.0, 7, Answer::Done);
        let (key, fence) = (KEY.to_owned(), 1);
        let began = What::Began {
            key: key.clone(),
            version: 7,
            attempt: 1,
            fence,
            late: 0,
        };
        let gone = What::Gone {
            process: "worker-1.1".into(),
        };
        let claim = Claim {
            fence: 2,
            at: 1,
            lapsed,
            error: None,
        };
        trial.leases.claims.insert(key, vec![claim]);
        let trial = trial
            .note("worker-1.1", 2.0, began)
            .note("harness", 2.1, gone);
        trial.run(run(7, 2, 5.0)).check()
    };
    interrupted(None).tells("the log of Redis shows no lease that lapsed");
    interrupted(Some(1)).passes();
}
