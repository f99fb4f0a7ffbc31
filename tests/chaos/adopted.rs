//! Rules for one adopted key, judged by the commands on it and by the listeners of the time.
//!
//! Each answer tells the program whether its key was still there. That decides most: a key that was
//! there had not expired, and so its job cannot have been due.

use std::borrow::Cow;
use std::collections::HashSet;

use keyfall_testing::journals::Micros;

use crate::bounds::IN_TIME;
use crate::journal::{Answer, Ask, Version, What};
use crate::kept::{Kept, KeptAs};
use crate::order::NO_MORE;
use crate::plain::CANCEL;
use crate::races::CLOSE;
use crate::report::Adopted;
use crate::restored;
use crate::story::{Call, Rollback, Run, Story, Wrong};
use crate::witness::Ears;

/// How long a listener must have been there to have looked at a changed key.
const HEARD: Micros = 1_000_000;

/// How long a listener must have been there to have found a key that was changed before.
const FOUND: Micros = 3_000_000;

/// For how long after the first looks listeners may take longer: all programs of the trial start at
/// once, load the scripts and meet all kinds. Measured: 0.6 to 1.5 s from one look to the next.
const STARTING: Micros = 1_000_000;

/// How far apart the clocks of programs and of Redis may be, and how exact times to live are.
const EXACT: Micros = 50_000;

/// How much sooner a time may be over: a time that a program names is a whole millisecond, and is
/// computed before the call is written down.
const NAMED: Micros = 2_000;

/// If a key is set so soon after it expired, the two may be confused.
const CONFUSED: Micros = 100_000;

/// A time to live from here on is longer than any trial.
const LONG: Micros = 24 * 3600 * 1_000_000;

/// Faults that change keys or their times.
pub(crate) const EVICTION: &str = "eviction";
pub(crate) const JUMP: &str = "the clock of Redis jumps";

/// Facts beside the commands on a key.
pub(crate) struct Sight<'a> {
    pub(crate) kept: &'a Kept,
    /// The versions that ledgers have had, by the log of Redis.
    pub(crate) stored: &'a HashSet<Version>,
    pub(crate) rollbacks: &'a [Rollback],
    pub(crate) ears: Ears,
    /// When all programs were started.
    pub(crate) begun: Micros,
    /// Other faults that keep listeners from looking: their start and length.
    pub(crate) hindrances: Vec<(Micros, Micros)>,
    /// The times at which the clock of Redis was set.
    pub(crate) jumps: Vec<Micros>,
    /// Whether keys were evicted.
    pub(crate) evicts: bool,
    /// How much later everything may be than on an idle machine.
    pub(crate) allowance: Micros,
}

impl Sight<'_> {
    /// Takes in a fault of Redis or of the network.
    pub(crate) fn take_in(&mut self, what: &What, at: Micros) {
        match what {
            What::Begun => self.begun = at,
            What::AtWork => self
                .hindrances
                .push((self.begun, at - self.begun + STARTING)),
            _ => {}
        }
        if let What::Fault { name, .. } = what {
            let hindrance = hindrance(name).map(|time| (at, time));
            self.hindrances.extend(hindrance);
            self.evicts |= name == EVICTION;
            if name == JUMP {
                self.jumps.push(at);
            }
        }
    }
}

/// How long a fault keeps a listener from looking although it hears.
fn hindrance(fault: &str) -> Option<Micros> {
    // The call waits for as long as it may.
    if fault.starts_with("HalfOpen") {
        return Some(2_500_000);
    }
    // The call is made once more, after a while.
    let is_cut = ["LosesRequest", "SwallowsReply", "DeliversLate"];
    let is_cut = is_cut.iter().any(|ill| fault.starts_with(ill));
    is_cut.then_some(500_000)
}

/// The life of a key from one `SET` on.
struct Life<'a> {
    version: Version,
    set: &'a Call,
    /// The call that gave the key its time.
    changed: &'a Call,
    /// The soonest and the latest time of its expiry; `None` if it lasts.
    due: Option<(Micros, Micros)>,
    end: LifeEnd<'a>,
}

enum LifeEnd<'a> {
    /// The key expires at its time, if it has one.
    Time,
    /// The key got another value, or lost its time.
    Replaced,
    Deleted(&'a Call),
    /// The last command is not known.
    Unsure,
}

/// Judges one key, and counts it.
pub(crate) fn judge(key: &str, story: &Story, sight: &Sight, count: &mut Adopted) -> Vec<Wrong> {
    let mut told = Vec::new();
    // The story as it goes on from the last snapshot that Redis went back to.
    let mut story = Cow::Borrowed(story);
    for (place, back) in sight.rollbacks.iter().enumerate() {
        if let Some((before, after)) = restored::split(&story, back) {
            told.extend(restored::returned(&story, back, sight.kept));
            let judge = Judge {
                key,
                story: &before,
                sight,
                kept: &Kept::default(),
                rollbacks: &sight.rollbacks[..place],
            };
            told.extend(judge.started_wrongly());
            story = Cow::Owned(after);
        }
    }
    let judge = Judge {
        key,
        story: &story,
        sight,
        kept: sight.kept,
        rollbacks: sight.rollbacks,
    };
    told.extend(judge.all(count));
    let forgotten = judge.was_forgotten();
    if forgotten {
        count.forgotten += told.len();
        told.fill_with(|| Wrong::Forgotten);
    }
    told
}

struct Judge<'a> {
    key: &'a str,
    story: &'a Story,
    sight: &'a Sight<'a>,
    kept: &'a Kept,
    rollbacks: &'a [Rollback],
}

impl<'a> Judge<'a> {
    fn all(&self, count: &mut Adopted) -> Vec<Wrong> {
        let (lives, mut told) = self.lives(count);
        for (place, life) in lives.iter().enumerate() {
            let before = place.checked_sub(1).map(|place| &lives[place]);
            told.extend(self.judge(life, (before, lives.get(place + 1)), count));
            told.extend(self.buried(life));
        }
        told.extend(lives.last().and_then(|last| self.what_is_left(last)));
        told
    }

    /// Violations by runs that started, as far as the story goes.
    fn started_wrongly(&self) -> Vec<Wrong> {
        let mut told = self.all(&mut Adopted::default());
        told.retain(|wrong| matches!(wrong, Wrong::AfterCancel(_)));
        told
    }

    /// The lives of the key, by the answers to the commands; and the impossible answers.
    fn lives(&self, count: &mut Adopted) -> (Vec<Life<'a>>, Vec<Wrong>) {
        let mut lives: Vec<Life> = Vec::new();
        let mut wrong = Vec::new();
        for call in &self.story.calls {
            let until = call.until;
            let due = |ms: u64| (call.sent + ms * 1000, until.saturating_add(ms * 1000));
            let last = lives.last_mut();
            if call.is_unknown() {
                if let Some(last) = last {
                    last.end = LifeEnd::Unsure;
                }
                if let Ask::Set { version, ms } = call.ask {
                    lives.push(Life {
                        version,
                        set: call,
                        changed: call,
                        due: ms.map(due),
                        end: LifeEnd::Unsure,
                    });
                }
                break;
            }
            let was_there = match (&call.ask, &call.answer) {
                (Ask::Set { .. }, Some(Answer::Replaced)) => true,
                (Ask::Set { .. }, Some(Answer::Done)) => false,
                (_, Some(Answer::Done)) => true,
                (_, Some(Answer::Absent)) => false,
                // The command was refused.
                _ => continue,
            };
            if let Some(last) = last {
                if last.due.is_some_and(|due| is_close(call, due)) {
                    count.found_in_time += usize::from(was_there);
                    count.found_too_late += usize::from(!was_there);
                }
                match &call.ask {
                    _ if !was_there => {
                        let is_early = last.due.is_none_or(|(soonest, _)| until + EXACT < soonest);
                        if is_early && self.is_steady() {
                            wrong.push(Wrong::Other(format!(
                                "the key was gone before its time: {call:?}"
                            )));
                        }
                    }
                    Ask::Set { .. } => last.end = LifeEnd::Replaced,
                    Ask::Delete => last.end = LifeEnd::Deleted(call),
                    Ask::Persist => (last.due, last.end) = (None, LifeEnd::Replaced),
                    // The time may have been over when the command was carried out; then the
                    // command removes the key, as `DEL` does. Redis 7.0 reads its clock for the sum
                    // and once more for the comparison, and may have waited for the machine in
                    // between.
                    Ask::Expire { ms, .. } if until + NAMED > due(*ms).0 => {
                        last.end = LifeEnd::Unsure;
                        break;
                    }
                    Ask::Expire { ms, .. } => {
                        (last.due, last.changed) = (Some(due(*ms)), call);
                    }
                    _ => {}
                }
            }
            if let Ask::Set { version, ms } = call.ask {
                lives.push(Life {
                    version,
                    set: call,
                    changed: call,
                    due: ms.map(due),
                    end: LifeEnd::Time,
                });
            }
        }
        for life in &mut lives {
            // An hour is more than most keys live.
            let jumps = self.sight.jumps.iter().copied();
            if let (Some(due), Some(jump)) = (&mut life.due, jumps.max())
                && due.0 < life.set.sent + LONG
            {
                let first = self.sight.jumps.iter().find(|at| **at >= life.set.sent);
                *due = (due.0.min(first.copied().unwrap_or(due.0)), due.1.max(jump));
            }
        }
        (lives, wrong)
    }

    /// A dead letter of this life that no handler and no consumer has made.
    fn buried(&self, life: &Life) -> Option<Wrong> {
        let version = life.version;
        let Some(KeptAs::Dead(reason)) = self.kept.versions.get(&version) else {
            return None;
        };
        (!reason.contains(NO_MORE)).then(|| {
            Wrong::Other(format!(
                "version {version} is a dead letter for no reason: {reason:?}"
            ))
        })
    }

    /// Judges a life of the key, with the lives before and after it.
    fn judge(
        &self,
        life: &Life,
        (before, next): (Option<&Life>, Option<&Life>),
        count: &mut Adopted,
    ) -> Option<Wrong> {
        let version = life.version;
        let runs = || self.story.runs.iter().filter(|run| run.version == version);
        let place = self.kept.versions.get(&version);
        if !matches!(life.end, LifeEnd::Unsure)
            && matches!(life.set.ask, Ask::Set { ms: Some(_), .. })
        {
            count.set += 1;
        }
        let told = |what: &str| format!("version {version} {what}");
        match (&life.end, life.due) {
            (LifeEnd::Unsure, _) => {
                count.unanswered += 1;
                None
            }
            (LifeEnd::Replaced, _) | (_, None) => {
                count.cancelled += usize::from(matches!(life.end, LifeEnd::Replaced));
                // Of the run of the successor only the end may have been seen.
                let in_its_place = |run: &Run| {
                    next.and_then(|next| Some((next, next.due?)))
                        .is_some_and(|(next, due)| {
                            run.began + EXACT >= due.0 && !self.must_be_adopted(next, due)
                        })
                };
                let ran = runs().find(|run| !in_its_place(run))?;
                Some(Wrong::AfterCancel(told(&format!(
                    "never expired, and ran: {ran:?}"
                ))))
            }
            (LifeEnd::Deleted(call), Some(due)) => {
                let has_run = runs().next().is_some();
                if !has_run && place.is_none() {
                    count.cancelled += 1;
                } else if before.is_some_and(|before| self.may_be_confused(before, life)) {
                    count.deleted_unheard += 1;
                } else if has_run && self.cancels() || self.must_be_cancelled(call, due) {
                    let what = format!("was deleted, and that counts: {place:?}, {call:?}");
                    return Some(Wrong::AfterCancel(told(&what)));
                } else {
                    count.deleted_unheard += 1;
                }
                None
            }
            (LifeEnd::Time, Some(due)) => {
                let is_early = |run: &&Run| run.began + EXACT < due.0 && self.is_steady();
                if let Some(run) = runs().find(is_early) {
                    let what = format!("ran before its time: {run:?}");
                    return Some(Wrong::AfterCancel(told(&what)));
                }
                let is_far = due.0 > life.changed.sent + LONG;
                let has_ended =
                    runs().any(|run| run.last) || matches!(place, Some(KeptAs::Dead(_)));
                let is_pending = place == Some(&KeptAs::Pending);
                if has_ended {
                    count.run += 1;
                } else if let Some(next) = next {
                    if runs().next().is_none() && self.must_have_begun(life, due, next) {
                        let what = "expired, and had not run when its key was set anew";
                        return Some(Wrong::Lost(told(what)));
                    }
                    // The key was set anew before its job had run, or had been tried again.
                    count.cancelled += 1;
                } else if is_far && is_pending {
                    count.pending += 1;
                } else if is_pending && !is_far && !self.must_be_due(life, due) {
                    count.gone_unheard += 1;
                } else if is_pending && !is_far {
                    return Some(Wrong::Other(told("should be due by now, and is pending")));
                } else if self.sight.evicts && self.cancels() {
                    count.missing += 1;
                } else if !self.must_be_adopted(life, due) {
                    count.gone_unheard += 1;
                } else if self.cancels() && !self.was_open(due) {
                    count.missing += 1;
                } else {
                    return Some(Wrong::Lost(told("is lost")));
                }
                None
            }
        }
    }

    /// Whether the key certainly became a job.
    fn must_be_adopted(&self, life: &Life, (soonest, _): (Micros, Micros)) -> bool {
        if self.sight.stored.contains(&life.version) {
            return true;
        }
        if self.sight.evicts {
            return false;
        }
        let heard = life.set.until + self.enough(life.set);
        heard <= soonest && self.listened(life.set.sent, heard)
            || self.was_found(life.set.until, soonest)
    }

    /// Whether a key was set so soon after it had expired that its expiry may count for the later
    /// life.
    fn may_be_confused(&self, before: &Life, life: &Life) -> bool {
        let expired = matches!(before.end, LifeEnd::Time);
        let latest = before.due.map_or(0, |(_, latest)| latest);
        expired && life.set.sent <= latest + CONFUSED + self.sight.allowance
    }

    /// Whether the job of an expired key certainly had time to begin before the key was set anew.
    fn must_have_begun(&self, life: &Life, due: (Micros, Micros), next: &Life) -> bool {
        let begun = due.1 + IN_TIME.as_micros() as Micros + self.sight.allowance;
        begun < next.set.sent
            && self.listened(due.0, begun)
            && self.must_be_adopted(life, due)
            && self.must_be_due(life, due)
            && (!self.cancels() || self.was_open(due))
    }

    /// Whether the job certainly learned of its last time: an instance heard the change, or the
    /// expiry.
    fn must_be_due(&self, life: &Life, due: (Micros, Micros)) -> bool {
        if self.sight.evicts {
            return false;
        }
        let heard = life.changed.until + self.enough(life.changed);
        heard <= due.0 && self.listened(life.changed.sent, heard) || self.was_open(due)
    }

    /// Whether the job is certainly gone. Where a missing key cancels, nobody can have heard the
    /// expiry.
    fn must_be_cancelled(&self, call: &Call, due: (Micros, Micros)) -> bool {
        let is_far = due.0 > call.until + LONG;
        let is_found = || self.was_found(call.until, due.0);
        self.was_heard(call, due) || self.cancels() && (!is_far || is_found())
    }

    /// Whether somebody listened to this call for long enough before the job was due.
    fn was_heard(&self, call: &Call, (soonest, _): (Micros, Micros)) -> bool {
        let heard = call.until + self.enough(call);
        heard <= soonest && self.listened(call.sent, heard)
    }

    /// Whether somebody listened all the time, and Redis has not forgotten the result.
    fn listened(&self, from: Micros, to: Micros) -> bool {
        self.sight.ears.listened(from, to) && !self.may_forget(from, to)
    }

    /// Whether somebody listened for long enough to find each key, and Redis has not forgotten the
    /// result.
    fn was_found(&self, mut from: Micros, to: Micros) -> bool {
        let ears = &self.sight.ears;
        let found = FOUND + self.sight.allowance;
        for back in self.restored() {
            if back.kept < to && from < back.at {
                if from < back.kept && ears.listened_for(found, from, back.kept) {
                    return true;
                }
                from = back.at;
            }
        }
        from < to && ears.listened_for(found, from, to)
    }

    /// Whether Redis may have forgotten the result of a look at that time, for a snapshot.
    fn may_forget(&self, from: Micros, to: Micros) -> bool {
        self.restored().any(|back| back.kept < to && from < back.at)
    }

    /// The returns to a snapshot whose time is known.
    fn restored(&self) -> impl Iterator<Item = &Rollback> {
        let rollbacks = self.rollbacks.iter();
        rollbacks.filter(|back| back.undone.is_some())
    }

    /// Whether somebody was subscribed when this time came.
    fn was_open(&self, (soonest, latest): (Micros, Micros)) -> bool {
        let until = latest + HEARD + self.sight.allowance;
        self.sight.ears.were_open(soonest, until) && !self.may_forget(soonest, until)
    }

    fn cancels(&self) -> bool {
        self.key.starts_with(&format!("{CANCEL}:"))
    }

    /// How long a listener must be there after this call to have looked at the key.
    fn enough(&self, call: &Call) -> Micros {
        let enough = HEARD + self.sight.allowance;
        let hindrances = self.sight.hindrances.iter();
        let meets = |(at, time): &&(Micros, Micros)| {
            at + time >= call.sent && *at <= call.until.saturating_add(enough)
        };
        let longest = hindrances.filter(meets).map(|(_, time)| *time).max();
        enough + longest.unwrap_or(0)
    }

    /// Whether keys are there for as long as they should be.
    fn is_steady(&self) -> bool {
        self.sight.jumps.is_empty() && !self.sight.evicts
    }

    /// The value under the key in the end must be the value that the program set.
    fn what_is_left(&self, last: &Life) -> Option<Wrong> {
        let is_far = last
            .due
            .is_some_and(|(soonest, _)| soonest > last.changed.sent + LONG);
        let wanted = match last.end {
            LifeEnd::Unsure => return None,
            LifeEnd::Deleted(_) => None,
            _ if last.due.is_none() || is_far => Some((Some(last.version), is_far)),
            _ => None,
        };
        let value = self.kept.keys.get(self.key);
        let found = value.map(|value| (value.version, value.expiry.is_some()));
        let is_evicted = self.sight.evicts && is_far && found.is_none();
        (found != wanted && !is_evicted)
            .then(|| Wrong::Other(format!("there is {value:?} under the key, not {wanted:?}")))
    }

    /// Whether Redis went back to a time before a command on the key, or before its effect.
    fn was_forgotten(&self) -> bool {
        let undone = |back: &Rollback| {
            let mut calls = self.story.calls.iter();
            calls.any(|call| match back.undone {
                None => {
                    let until = call.until.saturating_add(self.enough(call));
                    until >= back.kept && call.sent <= back.at
                }
                // The key and its job go back together, and workers look at all keys afterwards. So
                // only the command itself counts.
                Some((_, gone)) => call.until >= back.kept && call.sent <= gone,
            })
        };
        self.rollbacks.iter().any(undone)
    }
}

/// Whether a command was carried out close to this time of its key, as far as its answer tells.
fn is_close(call: &Call, (soonest, latest): (Micros, Micros)) -> bool {
    let close = CLOSE.as_micros() as Micros;
    call.sent <= latest + close && soonest <= call.until + close
}
