//! Compares the stored data of a ledger with its model.

use std::collections::BTreeMap;

use redis::{FromRedisValue, Pipeline, Value, from_redis_value};

use super::ledger::{Job, Kept, Ledger, Limited, Trigger};
use super::operations::{IDS, LIMITED_BY, Limit};
use crate::names::MARKER;
use crate::store::ledger::reply::Reply;
use crate::store::ledger::script::AUDIT;
use crate::store::tests::support::{Bench, key_called, soon};

const SETS: [&str; 4] = ["due", "leased", "dead", "lanes"];
/// The parts that hold the memory of calls, which may expire.
const PASSING: [&str; 2] = ["calls", "lanes"];
const EXPIRES: &[u8] = b"(expires)";
const HASHES: [&str; 6] = ["shadow", "lease", "next", "grave", "stats", "calls"];

/// The contents of a ledger: `part field` → value, in a form that can be printed.
pub(super) type Parts = BTreeMap<String, String>;

/// The contents of a ledger, read at one instant.
struct Stored {
    parts: Parts,
    /// For each trigger the value under its name, and the remaining time in ms.
    triggers: Vec<(Option<String>, i64)>,
    /// The server's clock before and after the reading, Unix ms.
    between: [u64; 2],
    /// The answer of the audit for each name.
    audit: Vec<String>,
}

/// The differences between the stored data and the model. Also checks that the books balance and an
/// audit finds nothing, for which it needs no model.
pub(super) async fn differences(bench: &Bench, model: &Ledger) -> Vec<String> {
    let names = model.names();
    let stored = Stored::read(bench, &names).await;
    let mut found = stored.parts_that_differ(&model.parts());
    found.extend(stored.triggers_that_differ(model));
    let faults = names
        .iter()
        .zip(&stored.audit)
        .filter(|(_, word)| *word != "sound");
    found.extend(faults.map(|(name, word)| format!("an audit finds {name} {word}")));
    found.extend(stored.imbalance());
    found
}

impl Stored {
    async fn read(bench: &Bench, names: &[String]) -> Self {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        for part in SETS {
            let key = key_called(bench.names(), part);
            pipe.cmd("ZRANGE").arg(key).arg(0).arg(-1).arg("WITHSCORES");
        }
        for part in HASHES {
            pipe.cmd("HGETALL").arg(key_called(bench.names(), part));
        }
        for id in IDS {
            let trigger = bench.key(id);
            pipe.cmd("GET").arg(trigger.as_str());
            pipe.cmd("PTTL").arg(trigger.as_str());
        }
        for part in PASSING {
            pipe.cmd("PTTL").arg(key_called(bench.names(), part));
        }
        audit(&mut pipe, bench, names);
        pipe.cmd("TIME");

        let answer = bench.ledger.server.pipeline(&pipe, soon()).await.unwrap();
        let mut answers = read::<Vec<Value>>(answer).into_iter();
        let mut next = || answers.next().expect("an answer to each command");
        let ms = |time: Value| {
            let (seconds, micros): (u64, u64) = read(time);
            seconds * 1000 + micros / 1000
        };
        let before = ms(next());
        let mut parts = Parts::new();
        for part in SETS.into_iter().chain(HASHES) {
            for (field, value) in read::<Vec<(Vec<u8>, Vec<u8>)>>(next()) {
                // A counter that was never raised can be 0 or missing.
                if (part, &value[..]) != ("stats", b"0") && field != PLACEHOLDER {
                    parts.insert(name(part, &field), printed(&value));
                }
            }
        }
        let triggers = IDS.map(|_| (read(next()), read(next())));
        for part in PASSING {
            if read::<i64>(next()) > 0 {
                parts.insert(name(part, EXPIRES), printed(b"1"));
            }
        }
        let mut audit = Reply::parse(next()).unwrap();
        Stored {
            parts,
            triggers: triggers.into(),
            audit: audit.words().unwrap(),
            between: [before, ms(next())],
        }
    }

    fn parts_that_differ(&self, expected: &Parts) -> Vec<String> {
        let all: BTreeMap<_, _> = self.parts.iter().chain(expected).collect();
        let nothing = "nothing".to_owned();
        let differ = all.into_keys().filter_map(|name| {
            let is = self.parts.get(name).unwrap_or(&nothing);
            let should = expected.get(name).unwrap_or(&nothing);
            // Of a remembered claim, only number and time are compared.
            let same = match should.strip_suffix(ANYTHING) {
                Some(beginning) => is.starts_with(beginning),
                None => is == should,
            };
            (!same).then(|| format!("{name} is {is}, and should be {should}"))
        });
        differ.collect()
    }

    fn triggers_that_differ(&self, model: &Ledger) -> Vec<String> {
        let [before, after] = self.between;
        let differ = IDS.into_iter().zip(&self.triggers).filter_map(|(id, is)| {
            let (value, left) = is;
            let value = value.as_deref();
            let right = match model.triggers.get(id) {
                Some(Trigger::Foreign) => value == Some(FOREIGN),
                // The trigger has expired, whether or not Redis has noticed.
                Some(Trigger::Ours(due)) if (before..=after + 1).contains(due) => true,
                Some(Trigger::Ours(due)) if *due > after => {
                    let left = u64::try_from(*left).unwrap_or_default();
                    // Redis measures the remaining time from the millisecond in which the call
                    // began.
                    let expires = before + left - 2..=after + left + 2;
                    value == Some(MARKER) && expires.contains(due)
                }
                _ => value.is_none(),
            };
            let should = model.triggers.get(id);
            (!right).then(|| format!("the trigger of {id} is {is:?}, and should be {should:?}"))
        });
        differ.collect()
    }

    /// Promise 13 of `docs/design.md`: the books balance, by the stored data alone.
    fn imbalance(&self) -> Option<String> {
        let size = |part: &str| {
            let begins = |name: &&String| name.starts_with(&format!("{part} "));
            self.parts.keys().filter(begins).count() as i64
        };
        let counted = |counter: &str| -> i64 {
            let value = self.parts.get(&format!("stats {counter}"));
            value.map_or(0, |value| value.parse().expect("a number"))
        };
        let came = counted("accepted") + counted("requeued");
        let ended = ["done", "cancelled", "replaced", "buried", "unrun"].map(counted);
        let jobs = size("due") + size("leased") + size("next") + ended.iter().sum::<i64>();
        let fell = ["requeued", "deleted", "trimmed"].map(counted);
        let letters = counted("buried") - fell.iter().sum::<i64>();
        let balanced = came == jobs && size("dead") == letters;
        (!balanced).then(|| "the books do not balance".to_owned())
    }
}

/// Adds an audit of each name, without repairs.
fn audit(pipe: &mut Pipeline, bench: &Bench, names: &[String]) {
    let mut cmd = bench
        .ledger
        .call(&AUDIT, &bench.keys_of(&AUDIT), [].into_iter());
    cmd.arg(0)
        .arg(0)
        .arg(&bench.ledger.wake)
        .arg(&bench.names().subject)
        .arg("who");
    for name in names {
        cmd.arg(name).arg("").arg("").arg("");
    }
    pipe.add_command(cmd);
}

/// The member that keeps a key in existence; `lua/lib/placeholder.lua`.
const PLACEHOLDER: &[u8] = b":";

/// A foreign value.
pub(super) const FOREIGN: &str = "theirs";

/// Stands for the rest of a value of which only the beginning is known.
const ANYTHING: &str = "…";

impl Ledger {
    /// Every name with stored data.
    pub(super) fn names(&self) -> Vec<String> {
        let letters = self
            .letters
            .iter()
            .map(|(number, letter)| letter.name(*number));
        IDS.map(str::to_owned).into_iter().chain(letters).collect()
    }

    /// The data that the ledger should hold.
    pub(super) fn parts(&self) -> Parts {
        let mut parts = Parts::new();
        let mut put = |part: &str, field: &str, value: Vec<u8>| {
            parts.insert(name(part, field.as_bytes()), printed(&value));
        };
        let number = |number: u64| number.to_string().into_bytes();
        for (id, job) in &self.jobs {
            match job {
                Job::Pending(job) => {
                    put("due", id, number(job.due));
                    put("shadow", id, job.record.bytes());
                }
                Job::Leased(run) => {
                    put("leased", id, number(run.deadline));
                    put("lease", id, run.lease().into());
                    put("shadow", id, run.record.bytes());
                    if let Some(successor) = &run.successor {
                        put("next", id, successor.bytes());
                    }
                }
            }
        }
        for (at, letter) in &self.letters {
            put("dead", &letter.name(*at), number(letter.died));
            put("grave", &letter.name(*at), letter.record.bytes());
        }
        for id in IDS {
            let own = self.letters_of(id).into_iter().rev();
            let own: Vec<String> = own.map(|number| number.to_string()).collect();
            if !own.is_empty() {
                put("grave", id, own.join(" ").into());
            }
        }
        for (counter, value) in &self.counters {
            put("stats", counter, number(*value));
        }
        for (id, lane) in &self.lanes {
            let kept = match &lane.kept {
                Kept::Answers(answers) => answers,
                Kept::Claim(_) => ANYTHING,
            };
            put(
                "calls",
                id,
                format!("{} {} {kept}", lane.number, lane.called).into(),
            );
            put("lanes", id, number(lane.met));
        }
        for part in PASSING.into_iter().filter(|_| self.passing) {
            put(part, "(expires)", number(1));
        }
        let fields = [
            ("fence", self.fence),
            ("paused", self.paused),
            ("unlisted", self.unlisted),
        ];
        for (field, value) in fields {
            if let Some(value) = value {
                put("calls", field, number(value));
            }
        }
        if let Some(Limited { terms, full, hold }) = self.limited {
            let Limit {
                gap,
                burst,
                most,
                set,
            } = terms;
            let text = format!("{full} {gap} {burst} {most} {hold} {set} {LIMITED_BY}");
            put("calls", "limit", text.into());
        }
        parts
    }
}

fn name(part: &str, field: &[u8]) -> String {
    format!("{part} {}", printed(field))
}

fn printed(value: &[u8]) -> String {
    match str::from_utf8(value) {
        Ok(text) if text.ends_with(ANYTHING) => text.to_owned(),
        _ => value.escape_ascii().to_string(),
    }
}

fn read<T: FromRedisValue>(value: Value) -> T {
    from_redis_value(value).expect("what the command answers")
}
