//! The plan of a series: its anchor, its members, and what becomes of each when the plan changes.
//!
//! [`decide`] is a pure function of the plan before, the wish of the caller, and where each member
//! stands. The client carries its decision out in one script, if all is still as it was read.

#[cfg(test)]
mod tests;

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use super::occurrence::{instant, unix};
use super::quiet::{PASSED, QuietHours, Quieted, Shift};
use super::{Offset, Zone, invalid, written};
use crate::durations::shown;
use crate::error::{Error, ErrorKind, Result};
use crate::key::is_id_char;
use crate::settings::MAX_DELAY;
use crate::time::UnixMs;

/// The most members of a series.
pub const MAX_MEMBERS: usize = 64;

/// The longest name of a member, in bytes.
const NAME: usize = 64;

/// How long a plan is kept after its last member, in ms: 30 days.
const KEPT: u64 = 30 * 24 * 3_600_000;

/// The date that a series is relative to: a time, or a text such as `2026-12-24 18:00`, which is on
/// the wall of the zone, `2026-12-24` or `2026-12-24T17:00:00Z`.
#[derive(Debug, Clone)]
pub struct Anchor(AnchorTime);

#[derive(Debug, Clone)]
enum AnchorTime {
    Instant(SystemTime),
    Text(String),
}

/// What becomes of a member whose time has passed when the series is made or moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Past {
    /// It is left out. The default.
    #[default]
    Skip,
    /// It is due at once.
    Run,
}

/// The field `series` in the header of the plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// The anchor, Unix ms.
    pub(crate) anchor: u64,
    /// The name of its zone.
    pub(crate) zone: String,
    #[serde(default, skip_serializing_if = "is_skip")]
    pub(crate) past: Past,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) quiet: Option<QuietHours>,
    /// How long the plan is kept after its last member, in ms.
    #[serde(default = "kept", skip_serializing_if = "is_kept")]
    pub(crate) keep: u64,
    /// In the order of the caller.
    pub(crate) members: Vec<Planned>,
}

/// One member of a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Planned {
    /// The offset as text.
    pub(crate) at: String,
    /// The end of the id, unless it is the amount of the offset.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// The payload as text, unless it is the payload of the series.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<String>,
    /// The time of the offset, Unix ms. Of a member that had begun when the anchor was moved, the
    /// time by the anchor before.
    pub(crate) named: u64,
    /// The due time, if it is not that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) shift: Option<Shift>,
    /// The reason why it was left out, if it was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) out: Option<String>,
}

/// A member that a caller wants.
#[derive(Debug, Clone)]
pub(crate) struct WantedMember {
    pub(crate) offset: Offset,
    pub(crate) name: Option<String>,
    pub(crate) payload: Option<String>,
}

/// What a caller wants of a series. What is `None` stays as it is.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    /// With the name of its zone.
    pub(crate) anchor: Option<(Anchor, Option<String>)>,
    pub(crate) members: Option<Vec<WantedMember>>,
    pub(crate) past: Option<Past>,
    pub(crate) quiet: Option<Option<QuietHours>>,
    /// In ms.
    pub(crate) keep: Option<u64>,
    /// Whether members that have ended run again.
    pub(crate) is_again: bool,
    /// Whether members that stay where they are are written too: they get another payload or other
    /// terms.
    pub(crate) is_rewritten: bool,
}

/// Where a member stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stand {
    /// No job of its name is pending or running.
    Absent,
    /// It waits for its first attempt.
    Fresh,
    /// It waits for a further attempt.
    Retrying,
    Running,
}

/// What is to be done with the job of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Deed {
    Leave,
    /// It is stored, or moved, due then.
    Put(UnixMs),
    Remove,
}

/// What becomes of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemberFate {
    /// It is stored, and due at this time.
    Created(SystemTime),
    /// It was pending, and is due at this time from now on.
    Moved(SystemTime),
    /// It stays as it is, due at this time.
    Unchanged(SystemTime),
    /// It was pending, and will not run: the series has it no more.
    Cancelled,
    /// It will not run, for this reason. If it was pending, it was removed.
    LeftOut(String),
    /// It is running, and the run goes on.
    Running,
    /// It waits for a further attempt, and stays as it is.
    Retrying,
    /// It ended before: it ran, died or was cancelled by itself. It does not run again.
    Ended,
}

/// The decision about one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) name: String,
    pub(crate) offset: String,
    pub(crate) deed: Deed,
    pub(crate) fate: MemberFate,
}

/// The plan after a change, and what is to be done for it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Decision {
    pub(crate) plan: Plan,
    /// The members of the plan in their order, then those that it has no more.
    pub(crate) verdicts: Vec<Verdict>,
}

impl Plan {
    /// When the plan ends: it is kept for a while after its last member.
    pub(crate) fn ends(&self, now: UnixMs) -> UnixMs {
        let dues = self.members.iter().map(Planned::due);
        let last = dues.max().map_or(now.0, |last| last.max(now.0));
        UnixMs(last.saturating_add(self.keep)).min(now.plus(MAX_DELAY))
    }

    pub(crate) fn member(&self, name: &str) -> Option<&Planned> {
        self.members.iter().find(|it| it.own_name() == name)
    }
}

impl Planned {
    /// The due time when it was stored, Unix ms.
    pub(crate) fn due(&self) -> u64 {
        self.shift.as_ref().map_or(self.named, |shift| shift.to)
    }

    /// The end of its id.
    pub(crate) fn own_name(&self) -> String {
        let by_offset = || {
            let offset = self.at.parse::<Offset>();
            offset.map_or_else(|_| self.at.replace([' ', ':'], ""), |it| it.name())
        };
        self.name.clone().unwrap_or_else(by_offset)
    }
}

impl WantedMember {
    pub(crate) fn own_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.offset.name())
    }
}

impl Wish {
    /// # Errors
    /// [`ErrorKind::InvalidRule`] for the first member that is not valid.
    fn check(&self) -> Result<()> {
        let Some(members) = &self.members else {
            return Ok(());
        };
        if members.is_empty() || members.len() > MAX_MEMBERS {
            return Err(invalid(format!(
                "`at` has {} offsets, and a series has 1 to {MAX_MEMBERS}: begin a second series \
                 for more, or cancel the series to end it",
                members.len()
            )));
        }
        for (place, member) in members.iter().enumerate() {
            let name = member.own_name();
            let is_char = |it: char| is_id_char(it) && it != '~';
            if name.is_empty() || name.len() > NAME || !name.chars().all(is_char) {
                return Err(invalid(format!(
                    "{:?} is no name of a member: write up to {NAME} bytes without `~`, `:`, `*`, \
                     braces and white space",
                    shown(&name)
                )));
            }
            let twin = members[..place].iter().find(|it| it.own_name() == name);
            if let Some(twin) = twin {
                return Err(invalid(format!(
                    "`at` has `{}` and `{}`, whose ids would both end in ~{name}: give one of them \
                     a `name`",
                    twin.offset, member.offset
                )));
            }
        }
        Ok(())
    }
}

/// What becomes of a series and of its members.
///
/// # Errors
/// [`ErrorKind::InvalidRule`] if the wish is not valid, or lacks what a new series needs;
/// [`ErrorKind::InvalidTime`] if a member would be due more than 10 years ahead.
pub(crate) fn decide(
    before: Option<&Plan>,
    wish: &Wish,
    now: UnixMs,
    stand: impl Fn(&str) -> Stand,
) -> Result<Decision> {
    wish.check()?;
    let missing = |field: &str, example: &str| {
        invalid(format!(
            "there is no such series yet, and `{field}` is missing: add it, such as {example}"
        ))
    };
    let (anchor, zone) = match (&wish.anchor, before) {
        (Some((anchor, zone)), _) => {
            let zone = zone.as_deref().or(before.map(|plan| &*plan.zone));
            let zone = zone.ok_or_else(|| missing("zone", "\"Europe/Berlin\""))?;
            let zone = Zone::named(zone)?;
            (anchor.in_zone(&zone)?, zone)
        }
        (None, Some(plan)) => (UnixMs(plan.anchor), Zone::named(&plan.zone)?),
        (None, None) => return Err(missing("anchor", "\"2026-12-24 18:00\"")),
    };
    let members = match (&wish.members, before) {
        (Some(members), _) => members.clone(),
        (None, Some(plan)) => plan
            .members
            .iter()
            .map(Planned::wanted)
            .collect::<Result<_>>()?,
        (None, None) => return Err(missing("at", "[\"-3d 09:00\", \"-1h\"]")),
    };
    let mut plan = Plan {
        anchor: anchor.0,
        zone: zone.name.clone(),
        past: wish.past.or(before.map(|it| it.past)).unwrap_or_default(),
        quiet: match &wish.quiet {
            Some(quiet) => quiet.clone(),
            None => before.and_then(|it| it.quiet.clone()),
        },
        keep: wish.keep.or(before.map(|it| it.keep)).unwrap_or(KEPT),
        members: Vec::new(),
    };
    let is_as_quiet = before.is_some_and(|it| it.quiet == plan.quiet);
    let mut verdicts = Vec::new();
    for member in members {
        let name = member.own_name();
        let named = named(&member.offset, anchor, &zone, now)?;
        let old = before.and_then(|it| it.member(&name));
        let judged = Judged {
            old: old.filter(|it| it.out.is_none()),
            named,
            now,
            is_as_quiet,
            wish,
        };
        let (shift, out, deed, fate, named) = judged.judge(&plan, &zone, stand(&name));
        plan.members.push(Planned {
            at: member.offset.to_string(),
            name: member.name,
            payload: member.payload,
            named: named.0,
            shift,
            out,
        });
        verdicts.push(Verdict {
            offset: member.offset.to_string(),
            name,
            deed,
            fate,
        });
    }
    for old in before.iter().flat_map(|plan| &plan.members) {
        let name = old.own_name();
        if plan.member(&name).is_some() {
            continue;
        }
        let (deed, fate) = match stand(&name) {
            Stand::Fresh | Stand::Retrying => (Deed::Remove, MemberFate::Cancelled),
            Stand::Running => (Deed::Leave, MemberFate::Running),
            Stand::Absent if old.out.is_some() => continue,
            Stand::Absent => (Deed::Leave, MemberFate::Ended),
        };
        verdicts.push(Verdict {
            offset: old.at.clone(),
            name,
            deed,
            fate,
        });
    }
    Ok(Decision { plan, verdicts })
}

/// The time of a member by its offset.
fn named(offset: &Offset, anchor: UnixMs, zone: &Zone, now: UnixMs) -> Result<UnixMs> {
    let fault = |fault: &str| {
        let message = format!("`{offset}` of this anchor is {fault}: is the anchor right?");
        Error::new(ErrorKind::InvalidTime, message)
    };
    let time = instant(anchor).and_then(|anchor| offset.from(anchor, zone));
    let time = time.ok_or_else(|| fault("a time that no calendar has"))?;
    let time = unix(time).ok_or_else(|| fault("before 1970"))?;
    match time > now.plus(MAX_DELAY) {
        true => Err(fault("more than 10 years ahead, which is the limit")),
        false => Ok(time),
    }
}

/// A member that is judged.
struct Judged<'a> {
    /// The member in the plan before, unless it was left out.
    old: Option<&'a Planned>,
    named: UnixMs,
    now: UnixMs,
    /// Whether the quiet hours stay as they are.
    is_as_quiet: bool,
    wish: &'a Wish,
}

/// Shift, reason to be left out, deed, fate and the time to note.
type Judgement = (Option<Shift>, Option<String>, Deed, MemberFate, UnixMs);

impl Judged<'_> {
    fn judge(&self, plan: &Plan, zone: &Zone, stand: Stand) -> Judgement {
        // What has begun keeps the time for which it began.
        let stays = |fate| {
            let (named, shift) = match self.old {
                Some(old) => (UnixMs(old.named), old.shift.clone()),
                None => (self.named, None),
            };
            (shift, None, Deed::Leave, fate, named)
        };
        match (stand, self.old) {
            (Stand::Running, _) => return stays(MemberFate::Running),
            (Stand::Retrying, _) => return stays(MemberFate::Retrying),
            (Stand::Absent, Some(_)) if !self.wish.is_again => return stays(MemberFate::Ended),
            (Stand::Fresh, Some(old)) if self.is_as_quiet && old.named == self.named.0 => {
                let due = UnixMs(old.due());
                let (.., deed, _, named) = stays(MemberFate::Ended);
                let deed = match self.wish.is_rewritten {
                    true => Deed::Put(due),
                    false => deed,
                };
                let fate = MemberFate::Unchanged(due.to_system());
                return (old.shift.clone(), None, deed, fate, named);
            }
            _ => {}
        }
        let is_past = self.named <= self.now;
        let left_out = |why: String| {
            let deed = match stand {
                Stand::Fresh => Deed::Remove,
                _ => Deed::Leave,
            };
            let fate = MemberFate::LeftOut(why.clone());
            (None, Some(why), deed, fate, self.named)
        };
        if is_past && plan.past == Past::Skip {
            return left_out(PASSED.to_owned());
        }
        let asked = if is_past { self.now } else { self.named };
        let quieted = plan
            .quiet
            .as_ref()
            .map(|it| it.settle(asked, self.now, zone));
        let shift = match quieted {
            Some(Quieted::Out(why)) => return left_out(why),
            Some(Quieted::Moved(shift)) => Some(Shift {
                from: self.named.0,
                ..shift
            }),
            Some(Quieted::Same) | None if is_past => Some(Shift {
                from: self.named.0,
                to: asked.0,
                why: PASSED.to_owned(),
            }),
            Some(Quieted::Same) | None => None,
        };
        let due = UnixMs(shift.as_ref().map_or(asked.0, |shift| shift.to));
        let fate = match stand {
            Stand::Fresh => MemberFate::Moved(due.to_system()),
            _ => MemberFate::Created(due.to_system()),
        };
        (shift, None, Deed::Put(due), fate, self.named)
    }
}

impl Planned {
    fn wanted(&self) -> Result<WantedMember> {
        Ok(WantedMember {
            offset: self.at.parse()?,
            name: self.name.clone(),
            payload: self.payload.clone(),
        })
    }
}

impl Anchor {
    fn in_zone(&self, zone: &Zone) -> Result<UnixMs> {
        let before = || {
            let fault = "the anchor is before 1970: give a time since the Unix epoch";
            Error::new(ErrorKind::InvalidTime, fault)
        };
        match &self.0 {
            AnchorTime::Instant(time) => UnixMs::from_system(*time).ok_or_else(before),
            AnchorTime::Text(text) => {
                let day = text.trim().parse::<jiff::civil::Date>();
                let text = match day {
                    Ok(day) if text.trim().len() == 10 => format!("{day} 00:00"),
                    _ => text.clone(),
                };
                let time = written::point_in_time("anchor", &text, zone)?;
                unix(time).ok_or_else(before)
            }
        }
    }
}

impl From<SystemTime> for Anchor {
    fn from(time: SystemTime) -> Self {
        Anchor(AnchorTime::Instant(time))
    }
}

impl From<&str> for Anchor {
    fn from(text: &str) -> Self {
        Anchor(AnchorTime::Text(text.to_owned()))
    }
}

impl From<String> for Anchor {
    fn from(text: String) -> Self {
        Anchor(AnchorTime::Text(text))
    }
}

fn kept() -> u64 {
    KEPT
}

// By reference: serde wants it so.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_kept(keep: &u64) -> bool {
    *keep == KEPT
}

#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_skip(past: &Past) -> bool {
    *past == Past::Skip
}
