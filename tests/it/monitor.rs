//! The commands of a server, as `MONITOR` reports them, in the order of their execution. Assertions
//! on that order hold on a slow machine, too.

use std::collections::{HashMap, HashSet};

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::runs::PATIENCE;
use crate::site::Site;

/// The silence after which an instance counts as gone, minus rounding errors.
const SILENCE_MS: u64 = 1250 - 10;

/// The commands that a server carries out from now on.
pub(crate) struct Monitor(mpsc::UnboundedReceiver<String>);

/// A command.
pub(crate) struct Asked {
    at_ms: u64,
    /// The words up to the first with a quote in it; claims have no such word.
    pub(crate) words: Vec<String>,
}

impl Monitor {
    pub(crate) async fn of(url: &str) -> Self {
        let client = redis::Client::open(url).unwrap();
        let monitor = client.get_async_monitor().await.unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut lines = monitor.into_on_message::<String>();
            while let Some(line) = lines.next().await {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Monitor(told)
    }

    pub(crate) async fn next(&mut self) -> Asked {
        let line = timeout(PATIENCE, self.0.recv()).await;
        Asked::parse(&line.expect("a command").expect("the server lives"))
    }

    /// All commands that the server has carried out by now.
    pub(crate) async fn so_far(&mut self, site: &Site) -> Vec<Asked> {
        let _: String = site.command(&["ECHO", "so far"]).await;
        let mut all = Vec::new();
        loop {
            let asked = self.next().await;
            if asked.words[0] == "ECHO" {
                return all;
            }
            all.push(asked);
        }
    }

    /// Waits until each of this number of instances has looked at the others.
    pub(crate) async fn looks(&mut self, size: usize) {
        let mut looks: HashMap<String, u32> = HashMap::new();
        // An instance that looks again has processed its previous look.
        while looks.values().filter(|looks| **looks >= 2).count() < size {
            if let Some(id) = self.next().await.beat() {
                *looks.entry(id.to_owned()).or_default() += 1;
            }
        }
    }

    /// Waits until each of this number of instances knows that all others live.
    pub(crate) async fn company(&mut self, size: usize) -> Company {
        let mut company = Company {
            size,
            last: HashMap::new(),
        };
        let mut looks: HashMap<String, u32> = HashMap::new();
        // An instance that looks again has processed its previous look.
        while looks.len() < size || looks.values().any(|looks| *looks < 2) {
            let asked = self.next().await;
            if company.is_whole(&asked) {
                if let Some(id) = asked.beat() {
                    *looks.entry(id.to_owned()).or_default() += 1;
                }
            } else {
                looks.clear();
            }
        }
        company
    }
}

impl Asked {
    /// `1763000000.123456 [0 unix:/path] "EVALSHA" "…" …`
    fn parse(line: &str) -> Self {
        let (time, _) = line.split_once(' ').unwrap();
        Asked {
            at_ms: (time.parse::<f64>().unwrap() * 1000.0) as u64,
            words: line.split('"').skip(1).step_by(2).map(Into::into).collect(),
        }
    }

    fn calls(&self, keys: &str) -> bool {
        self.words.len() > 7 && self.words[0] == "EVALSHA" && self.words[2] == keys
    }

    /// The instance that sends this heartbeat.
    pub(crate) fn beat(&self) -> Option<&str> {
        let is_beat = self.calls("1") && self.words[3] == "keyfall:instances";
        is_beat.then(|| &*self.words[4])
    }

    pub(crate) fn is_sweep(&self) -> bool {
        self.calls("3") && self.words[3].ends_with(":due") && self.words[4].ends_with(":leased")
    }

    pub(crate) fn is_claim(&self) -> bool {
        self.calls("7") && self.words[5].ends_with(":leased")
    }
}

/// For each job, the calls with which workers claimed it after its event. A call that is repeated
/// after a lost answer counts once.
pub(crate) fn asked_by_hearers(all: &[Asked]) -> HashMap<&str, HashSet<(&str, &str)>> {
    let mut calls: HashMap<&str, HashSet<(&str, &str)>> = HashMap::new();
    for Asked { words, .. } in all.iter().filter(|asked| asked.is_claim()) {
        let (lane, number, found) = (&words[10], &words[11], &words[18]);
        for (id, found) in words[19..].iter().zip(found.bytes()) {
            if found == b'e' {
                calls.entry(id).or_default().insert((lane, number));
            }
        }
    }
    calls
}

/// Whether an instance has left a job to others before the pacer checked the job.
pub(crate) fn left_unchecked(all: &[Asked]) -> bool {
    let (mut due, mut checked) = (HashSet::<&str>::new(), HashSet::<&str>::new());
    for Asked { words, .. } in all {
        match &*words[0] {
            // The script that stores a job has looked for it, too, before it says that it is due.
            "ZMSCORE" => {
                let ids = words[2..].iter().map(String::as_str);
                checked.extend(ids.filter(|id| due.contains(id)));
            }
            "PUBLISH" => match words[2].split(' ').collect::<Vec<_>>()[..] {
                ["now", _, ref ids @ ..] => due.extend(ids),
                ["left", _, _, ref ids @ ..] if ids.iter().any(|id| !checked.contains(id)) => {
                    return true;
                }
                _ => {}
            },
            _ => {}
        }
    }
    false
}

/// The number of heartbeats of one instance before the last claim. There are some 37 heartbeats
/// between two sweeps of an idle ledger, and a slow worker sends its heartbeats just as slowly.
pub(crate) fn beats_until_the_last_claim(all: &[Asked]) -> usize {
    let end = all.iter().rposition(Asked::is_claim).unwrap_or(0);
    let mut beats: HashMap<&str, usize> = HashMap::new();
    for id in all[..end].iter().filter_map(Asked::beat) {
        *beats.entry(id).or_default() += 1;
    }
    beats.into_values().max().unwrap_or(0)
}

/// Instances that know each other, as long as the heartbeats of each come in time. A delayed
/// instance counts as gone: then the others rightly choose another instance to claim.
pub(crate) struct Company {
    size: usize,
    last: HashMap<String, u64>,
}

impl Company {
    /// The commands at which all instances were known to live.
    pub(crate) fn undisturbed<'a>(&mut self, all: &'a [Asked]) -> &'a [Asked] {
        let end = all.iter().position(|asked| !self.is_whole(asked));
        &all[..end.unwrap_or(all.len())]
    }

    /// Whether this is not a read of the list of instances, or a read that finds all of them, with
    /// room for jobs.
    fn is_whole(&mut self, asked: &Asked) -> bool {
        let Some(id) = asked.beat() else {
            return true;
        };
        self.last.insert(id.to_owned(), asked.at_ms);
        let live = |at: &&u64| asked.at_ms.saturating_sub(**at) < SILENCE_MS;
        let is_ready = asked.words[6].starts_with("1/") && asked.words[6].ends_with("h");
        is_ready && self.last.values().filter(live).count() == self.size
    }
}
