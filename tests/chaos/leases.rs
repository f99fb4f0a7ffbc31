//! The leases in the log of Redis: whether two leases of a job were ever valid at once, whether a
//! lease was given too early, and which one took the place of a lapsed one. The judgement uses the
//! clock of Redis and the writes alone, not the beliefs of scripts and workers.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;

use keyfall_testing::resp::Command;

use crate::aof;
use crate::journal::Version;
use crate::order::Order;
use crate::scenarios::KINDS_THAT_SUFFER;

/// A lease that a ledger holds.
#[derive(Debug, Clone)]
struct Lease {
    token: String,
    fence: u64,
    /// Unix ms.
    given: u64,
    /// The deadline in the ledger, Unix ms.
    deadline: u64,
}

/// The findings from a log.
#[derive(Default)]
pub(crate) struct Leases {
    /// Leases that were given while another lease of the same job was valid, or before their job
    /// was due, and fencing values that did not grow.
    pub(crate) wrong: Vec<String>,
    /// Claims by job key, in the order of each log.
    pub(crate) claims: HashMap<String, Vec<Claim>>,
    /// The versions that ledgers have stored.
    pub(crate) stored: HashSet<Version>,
    /// Whether at least one lease with a deadline was found.
    shows_deadlines: bool,
    /// Spans by job key.
    spans: HashMap<String, Vec<Span>>,
}

/// A lease that was given.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) fence: u64,
    /// Unix ms.
    pub(crate) at: u64,
    /// The deadline of the lapsed lease that this one replaced, Unix ms.
    pub(crate) lapsed: Option<u64>,
    /// The reason for the retry, as the holder of the lease stated it.
    pub(crate) error: Option<String>,
}

/// The time for which a ledger had given a job to a worker, Unix ms.
#[derive(Debug)]
struct Span {
    ledger: String,
    from: u64,
    to: u64,
}

/// The facts about a new lease.
struct Given {
    fence: u64,
    /// The deadline of the lease that it replaced.
    lapsed: Option<u64>,
    fault: Option<String>,
}

/// The contents of a ledger while its log is read.
#[derive(Default)]
struct Ledger {
    leases: HashMap<String, Lease>,
    /// The largest fencing value given out, and the claim whose jobs have it.
    fence: u64,
    claim: String,
}

/// Reads the logs of all servers, which keep one, to their ends.
pub(crate) fn read(logs: &[Vec<PathBuf>]) -> Result<Leases, String> {
    let mut shown = Leases::default();
    let without = logs.iter().filter(|logs| logs.is_empty()).count();
    for logs in logs {
        read_one(logs, &mut shown)?;
    }
    let seen = [
        ("lease", !shown.claims.is_empty()),
        ("deadline", shown.shows_deadlines),
        ("job", !shown.stored.is_empty()),
    ];
    for (what, is_seen) in seen {
        if !is_seen {
            let told = format!("the log of Redis shows no {what}: is it read right?");
            shown.wrong.push(told);
        }
    }
    if without > 0 {
        let told = format!("{without} servers keep no log, or not where it is looked for");
        shown.wrong.push(told);
    }
    Ok(shown)
}

fn read_one(logs: &[PathBuf], shown: &mut Leases) -> Result<(), String> {
    let mut ledgers: HashMap<String, Ledger> = HashMap::new();
    // The time of the last known call.
    let mut latest = 0;
    for block in aof::read(logs)? {
        let now = block.iter().find_map(called_at);
        latest = now.unwrap_or(latest);
        // A deadline is written before its lease, and does not belong to the lease before.
        let mut deadlines = Vec::new();
        // A lease that ends is removed before its job is put back.
        let mut ended = Vec::new();
        for write in &block {
            let words: Vec<String> = words(write);
            let [command, key, rest @ ..] = &words[..] else {
                continue;
            };
            let command = command.to_ascii_uppercase();
            // The ledger is on another server from now on, or empty. When a slot moves, several
            // keys go at once.
            if matches!(&*command, "DEL" | "UNLINK") {
                for gone in words[1..].iter().filter_map(|key| part_of_a_ledger(key)) {
                    if let (name, "lease") = gone
                        && let Some(ledger) = ledgers.get_mut(name)
                    {
                        ledger.leases.clear();
                    }
                }
                continue;
            }
            let Some((name, part)) = part_of_a_ledger(key) else {
                continue;
            };
            // The leases of these kinds were written by hand, outside of any call.
            if name.starts_with(KINDS_THAT_SUFFER) {
                continue;
            }
            let ledger = ledgers.entry(name.to_owned()).or_default();
            match (&*command, part) {
                ("ZADD", "leased") => {
                    // An extension never shortens a lease.
                    let extends = rest.first().is_some_and(|word| word == "GT");
                    let pairs = pairs(name, &rest[usize::from(extends)..]);
                    deadlines.extend(pairs.into_iter().map(|pair| (extends, pair)));
                }
                ("HSET", "shadow" | "next") => {
                    let records = pairs(name, rest);
                    shown.stored.extend(records.iter().filter_map(version));
                    if part == "shadow" {
                        shown.failed(&ended, &records);
                    }
                }
                ("HDEL", "lease") => {
                    for id in rest {
                        if let Some(lease) = ledger.leases.remove(id) {
                            shown.held(name, id, &lease, latest);
                            ended.push((name.to_owned(), id.clone(), lease.fence));
                        }
                    }
                }
                ("HSET", "lease") => {
                    for (_, id, lease) in pairs(name, rest) {
                        let before = ledger.leases.get(&id).cloned();
                        let Some(one) = ledger.give(&id, &lease, now) else {
                            continue;
                        };
                        if let Some(before) = before {
                            shown.held(name, &id, &before, latest);
                        }
                        let key = format!("{}:{id}", kind_of(name));
                        let wrong = one.fault.map(|fault| format!("{key}: {fault}"));
                        shown.wrong.extend(wrong);
                        let claims = shown.claims.entry(key).or_default();
                        claims.push(Claim {
                            fence: one.fence,
                            at: latest,
                            lapsed: one.lapsed,
                            error: None,
                        });
                    }
                }
                _ => {}
            }
        }
        for (extends, (name, deadline, id)) in deadlines {
            let lease = ledgers.get_mut(name.as_str());
            if let Some(lease) = lease.and_then(|ledger| ledger.leases.get_mut(&id)) {
                let deadline = deadline.parse().unwrap_or(0);
                shown.shows_deadlines |= deadline > lease.given;
                lease.deadline = if extends {
                    deadline.max(lease.deadline)
                } else {
                    deadline
                };
            }
        }
    }
    Ok(())
}

impl Leases {
    /// A ledger has given a lease, which was over at this time, or before.
    fn held(&mut self, ledger: &str, id: &str, lease: &Lease, over: u64) {
        let key = format!("{}:{id}", kind_of(ledger));
        self.spans.entry(key).or_default().push(Span {
            ledger: ledger.to_owned(),
            from: lease.given,
            to: lease.deadline.min(over),
        });
    }

    /// These leases have ended, and these records were put back: a job in both lists was tried in
    /// vain.
    fn failed(&mut self, ended: &[(String, String, u64)], records: &[(String, String, String)]) {
        for (name, id, fence) in ended {
            let mut records = records.iter();
            let record = records.find(|(ledger, of, _)| ledger == name && of == id);
            let claims = self.claims.get_mut(&format!("{}:{id}", kind_of(name)));
            let mut claims = claims.into_iter().flatten();
            if let Some((_, _, record)) = record
                && let Some(claim) = claims.find(|claim| claim.fence == *fence)
            {
                claim.error = error(record);
            }
        }
    }

    /// Leases of one job that two ledgers, between which it was moved, had at the same time. Leases
    /// of one ledger are judged in the order of its log.
    pub(crate) fn in_two_ledgers(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, spans) in &self.spans {
            for (number, one) in spans.iter().enumerate() {
                let other = spans[number + 1..].iter().find(|other| {
                    one.ledger != other.ledger && one.from < other.to && other.from < one.to
                });
                wrong.extend(other.map(|other| format!("{key}: {one:?} and {other:?}")));
            }
        }
        wrong
    }
}

/// The version in the order that ends a record.
fn version((_, _, record): &(String, String, String)) -> Option<Version> {
    let order = &record[record.rfind("{\"version\":")?..];
    let order: Order = serde_json::from_str(order).ok()?;
    Some(order.version)
}

/// The reason of the latest failed attempt, from the header that begins a record.
fn error(record: &str) -> Option<String> {
    let header = record.lines().next()?;
    let header: serde_json::Value = serde_json::from_str(header).ok()?;
    header["error"].as_str().map(str::to_owned)
}

/// Splits `keyfall:{app:module:biz/0}:lease` into `app:module:biz/0` and `lease`.
fn part_of_a_ledger(key: &str) -> Option<(&str, &str)> {
    key.strip_prefix("keyfall:{")?.rsplit_once("}:")
}

/// `app:module:biz` of `app:module:biz/0`.
fn kind_of(ledger: &str) -> &str {
    ledger.rsplit_once('/').map_or(ledger, |(kind, _)| kind)
}

fn pairs(name: &str, words: &[String]) -> Vec<(String, String, String)> {
    let pairs = words.chunks_exact(2);
    pairs
        .map(|pair| (name.to_owned(), pair[0].clone(), pair[1].clone()))
        .collect()
}

impl Ledger {
    /// Gives `lease`, whose form is `token claims fence due flag`, written at `now`. `None` if it
    /// is the present lease, marked as cancelled.
    fn give(&mut self, id: &str, lease: &str, now: Option<u64>) -> Option<Given> {
        let mut fields = lease.split(' ');
        // Behind the `@` is the group of the job: all jobs of a claim share what is before it.
        let token = fields.next()?.split('@').next()?.to_owned();
        let fence: u64 = fields.nth(1)?.parse().ok()?;
        let due: u64 = fields.next()?.parse().ok()?;
        let is_marked = fields.next() == Some("cancelled");
        let held = self.leases.get(id);
        // The log lacks leases that were given before the replica had the whole data set.
        if held.is_some_and(|held| held.token == token) || is_marked {
            return None;
        }
        let fault = match (held, now) {
            (_, None) => Some("a lease was given at an unknown time".into()),
            (Some(held), Some(now)) if held.deadline > now => Some(format!(
                "given to {token} at {now}, while {held:?} was valid"
            )),
            // A lease that lapsed was judged when it was given: since then the clock may have been
            // set back.
            (None, Some(now)) if due > now => {
                Some(format!("given to {token} at {now}, due at {due}"))
            }
            _ if fence < self.fence || fence == self.fence && token != self.claim => {
                Some(format!("fencing value {fence} after {}", self.fence))
            }
            _ => None,
        };
        let lapsed = held.map(|held| held.deadline);
        if fence > self.fence {
            (self.fence, self.claim) = (fence, token.clone());
        }
        let lease = Lease {
            token,
            fence,
            given: now.unwrap_or(u64::MAX),
            deadline: 0,
        };
        self.leases.insert(id.to_owned(), lease);
        Some(Given {
            fence,
            lapsed,
            fault,
        })
    }
}

/// The time of a call, which a ledger remembers with its reply, `number ms reply`, under the lane.
fn called_at(write: &Command) -> Option<u64> {
    let words = words(write);
    let [command, key, lane, reply, ..] = &words[..] else {
        return None;
    };
    // What waits for the archive is counted in the same hash.
    let is_it =
        command.eq_ignore_ascii_case("HSET") && key.ends_with("}:calls") && lane != "waiting";
    is_it
        .then(|| reply.split(' ').nth(1)?.parse().ok())
        .flatten()
}

fn words(write: &Command) -> Vec<String> {
    let text = |word: &Vec<u8>| String::from_utf8_lossy(word).into_owned();
    write.iter().map(text).collect()
}
