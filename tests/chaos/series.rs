//! Series whose anchors move, and the rules for their members: each that is not left out runs, for
//! the date that the latest move gave it, and none runs for two dates.
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

/// Their members, and how many ms each is away from the anchor.
const MEMBERS: [&str; 4] = ["-3s", "-2s", "-1s", "+1s"];
const OFFSETS: [i64; 4] = [-3000, -2000, -1000, 1000];

/// How far the first anchor is away, and the last member behind it.
const AHEAD: Duration = Duration::from_secs(4);
const BEHIND: Duration = Duration::from_secs(1);

/// How far each move goes, and the pause before the next: time passes faster than anchors move.
const STEP: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(120);

/// The least number of members that must have run.
const LEAST: usize = SERIES;

/// How long before its old date a member must have moved that must not run for that date: the two
/// clocks are one.
const IN_ADVANCE: u64 = 1000;

/// What is known of all series at the end.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Where each member stands.
    pub(crate) members: BTreeMap<String, Standing>,
    /// The moves of each series in their order; the first one makes it.
    pub(crate) moves: Moves,
}

/// The moves of each series, by its key.
pub(crate) type Moves = BTreeMap<String, Vec<Moved>>;

/// A call that gave a series an anchor.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moved {
    /// Unix ms.
    pub(crate) anchor: u64,
    /// When the call began, Unix ms.
    pub(crate) asked: u64,
    /// The time of the answer, Unix ms.
    pub(crate) answered: u64,
}

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
    /// Ends with the moves of all series.
    task: JoinHandle<Result<Moves>>,
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
            let mut moves = Moves::new();
            let mut anchors: Vec<(String, SystemTime)> = Vec::new();
            for turn in 0.. {
                if *stopped.borrow() {
                    break;
                }
                let place = turn % SERIES;
                // Redis keeps whole milliseconds.
                let now = UNIX_EPOCH + Duration::from_millis(unix_ms(SystemTime::now()));
                match anchors.get_mut(place) {
                    Some((_, anchor)) if *anchor + BEHIND > now => *anchor += STEP,
                    past => {
                        let key = format!("{KIND}:{}", moves.len());
                        let fresh = (key, now + AHEAD);
                        match past {
                            Some(past) => *past = fresh,
                            None => anchors.push(fresh),
                        }
                    }
                }
                let (key, anchor) = &anchors[place];
                let asked = unix_ms(SystemTime::now());
                insisted(|| client.series(key).anchor(*anchor, "UTC").at(MEMBERS)).await?;
                moves.entry(key.clone()).or_default().push(Moved {
                    anchor: unix_ms(*anchor),
                    asked,
                    answered: unix_ms(SystemTime::now()),
                });
                sleep(PAUSE).await;
            }
            Ok(moves)
        });
        Mover { stop, task }
    }

    /// Stops the moves, waits until no member is to come, and cancels all series.
    pub(crate) async fn end(self, client: &Client) -> Result<Stored> {
        self.stop.send_replace(true);
        let moves = self.task.await.expect("it does not panic")?;
        let mut members = BTreeMap::new();
        for key in moves.keys() {
            let view = loop {
                let view = insisted(|| client.series(key).view()).await?;
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
                members.insert(member, standing);
            }
            insisted(|| client.series(key).cancel()).await?;
        }
        Ok(Stored { members, moves })
    }
}

fn unix_ms(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_millis() as u64
}

/// Writes down each run.
pub(crate) fn handler(journal: Arc<Journal>) -> impl Handler<(Job,), ()> {
    async move |job: Job| {
        journal.note(What::Came {
            key: job.key().to_string(),
            due: unix_ms(job.due()),
        });
    }
}

/// What is wrong with the members that ran, and with those that did not. If Redis can forget, it may
/// have forgotten that a member ran, or a whole series, or a move. If its clock was set, a member can
/// have run long before its date, and a date can have passed before the call was carried out.
pub(crate) fn judge(
    journals: &Journals,
    stored: &Stored,
    forgets: bool,
    is_set: bool,
) -> Vec<String> {
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
        if !stored.members.contains_key(*key) {
            wrong.push(format!("{key} ran, and no series has it"));
            continue;
        }
        let told = dates
            .iter()
            .filter_map(|due| stored.misdated(key, *due, forgets, is_set));
        wrong.extend(told.map(|told| format!("{key} ran for {dates:?}, {told}")));
    }
    for (key, standing) in &stored.members {
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

impl Stored {
    /// Why a member cannot have run for this date: no call gave it that date, or another call had
    /// moved it by then.
    fn misdated(&self, member: &str, due: u64, forgets: bool, is_set: bool) -> Option<String> {
        let (key, offset) = member.rsplit_once('~')?;
        let place = MEMBERS.iter().position(|it| *it == offset)?;
        let moves = self.moves.get(key)?;
        let date = |moved: &Moved| moved.anchor.saturating_add_signed(OFFSETS[place]);
        let Some(last) = moves.iter().rposition(|moved| date(moved) == due) else {
            // A date that passed while the call waited for Redis: the member was due at once.
            let has_passed = |moved: &Moved| {
                let date = date(moved);
                let was_ahead = moved.asked < date;
                was_ahead && date < due && (is_set || due <= moved.answered)
            };
            let told = || format!("which no move gave it: {moves:?}");
            return (!moves.iter().any(has_passed)).then(told);
        };
        let mut later = moves[last + 1..].iter();
        let later = later.find(|moved| moved.answered + IN_ADVANCE < due)?;
        (!forgets && !is_set).then(|| format!("and had been moved by then: {later:?}"))
    }
}
