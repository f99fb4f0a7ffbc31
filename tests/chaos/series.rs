//! Series whose anchors move, and the rules for their members: each that is not left out runs, and
//! none runs for two dates.
//!
//! They run beside the other jobs. Where Redis can forget, a member may run again, and a series may be
//! gone.

use std::collections::{BTreeMap, BTreeSet};
use std::future::IntoFuture;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keyfall::{Client, Handler, Job, MemberState, Result};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::history::Journals;
use crate::journal::{Journal, What};

/// Their kind.
pub(crate) const KIND: &str = "chaos:series:job";

/// How many there are at a time.
const SERIES: usize = 6;

/// Their members.
const MEMBERS: [&str; 4] = ["-3s", "-2s", "-1s", "+1s"];

/// How far the first anchor is away, and the last member behind it.
const AHEAD: Duration = Duration::from_secs(4);
const BEHIND: Duration = Duration::from_secs(1);

/// How far each move goes, and the pause before the next: time passes faster than anchors move.
const STEP: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(120);

/// The least number of members that must have run.
const LEAST: usize = SERIES;

/// Where each member stands at the end.
pub(crate) type Stored = BTreeMap<String, Standing>;

/// Where a member stands at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    Ended,
    LeftOut,
    /// The series does not know the member.
    Gone,
}

/// A task that makes series, and moves them.
pub(crate) struct Mover {
    stop: watch::Sender<bool>,
    /// Ends with the keys of all series.
    task: JoinHandle<Result<Vec<String>>>,
}

/// Repeats a call until its answer comes.
pub(crate) async fn insisted<T, Call>(call: impl Fn() -> Call) -> Result<T>
where
    Call: IntoFuture<Output = Result<T>>,
{
    loop {
        match call().into_future().await {
            Err(error) if error.is_retryable() => sleep(Duration::from_millis(20)).await,
            answer => return answer,
        }
    }
}

impl Mover {
    /// Begins. The times are by the clock of this process.
    pub(crate) fn begin(client: Client) -> Self {
        let (stop, stopped) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut keys: Vec<String> = Vec::new();
            let mut anchors: Vec<(String, SystemTime)> = Vec::new();
            for turn in 0.. {
                if *stopped.borrow() {
                    break;
                }
                let place = turn % SERIES;
                let now = SystemTime::now();
                match anchors.get_mut(place) {
                    Some((_, anchor)) if *anchor + BEHIND > now => *anchor += STEP,
                    past => {
                        let key = format!("{KIND}:{}", keys.len());
                        keys.push(key.clone());
                        let fresh = (key, now + AHEAD);
                        match past {
                            Some(past) => *past = fresh,
                            None => anchors.push(fresh),
                        }
                    }
                }
                let (key, anchor) = &anchors[place];
                insisted(|| client.series(key).anchor(*anchor, "UTC").at(MEMBERS)).await?;
                sleep(PAUSE).await;
            }
            Ok(keys)
        });
        Mover { stop, task }
    }

    /// Stops the moves, waits until no member is to come, and cancels all series.
    pub(crate) async fn end(self, client: &Client) -> Result<Stored> {
        self.stop.send_replace(true);
        let keys = self.task.await.expect("it does not panic")?;
        let mut stored = Stored::new();
        for key in keys {
            let view = loop {
                let view = insisted(|| client.series(&key).view()).await?;
                let is_to_come = view.iter().flat_map(|it| &it.members).any(|member| {
                    matches!(
                        member.state,
                        MemberState::Planned | MemberState::Retrying | MemberState::Running
                    )
                });
                match is_to_come {
                    true => sleep(Duration::from_millis(50)).await,
                    false => break view,
                }
            };
            for offset in MEMBERS {
                let member = format!("{key}~{offset}");
                let all = view.iter().flat_map(|it| &it.members);
                let there = all.clone().find(|it| it.key.as_str() == member);
                let standing = match there.map(|it| &it.state) {
                    None => Standing::Gone,
                    Some(MemberState::LeftOut(_)) => Standing::LeftOut,
                    Some(_) => Standing::Ended,
                };
                stored.insert(member, standing);
            }
            insisted(|| client.series(&key).cancel()).await?;
        }
        Ok(stored)
    }
}

/// Writes down each run.
pub(crate) fn handler(journal: Arc<Journal>) -> impl Handler<(Job,), ()> {
    async move |job: Job| {
        let due = job.due().duration_since(UNIX_EPOCH).unwrap_or_default();
        journal.note(What::Came {
            key: job.key().to_string(),
            due: due.as_millis() as u64,
        });
    }
}

/// What is wrong with the members that ran, and with those that did not. If Redis can forget, it may
/// have forgotten that a member ran, or a whole series.
pub(crate) fn judge(journals: &Journals, stored: &Stored, forgets: bool) -> Vec<String> {
    let mut ran: BTreeMap<&str, BTreeSet<u64>> = BTreeMap::new();
    for line in journals.iter().flat_map(|(_, lines)| lines) {
        if let What::Came { key, due } = &line.what {
            ran.entry(key).or_default().insert(*due);
        }
    }
    let mut wrong = Vec::new();
    if ran.len() < LEAST {
        wrong.push(format!("only {} members of series ran", ran.len()));
    }
    for (key, dates) in &ran {
        if dates.len() > 1 && !forgets {
            wrong.push(format!("{key} ran for two dates: {dates:?}"));
        }
        if !stored.contains_key(*key) {
            wrong.push(format!("{key} ran, and no series has it"));
        }
    }
    for (key, standing) in stored {
        match (standing, ran.contains_key(&**key)) {
            (Standing::Gone, _) if !forgets => {
                wrong.push(format!("{key} is not in its series any more"))
            }
            (Standing::Ended, false) => wrong.push(format!("{key} ended without a run")),
            (Standing::LeftOut, true) if !forgets => {
                wrong.push(format!("{key} ran, and was left out"))
            }
            _ => {}
        }
    }
    wrong
}
