//! Entries of a history as English sentences, and durations as people read them.

use std::fmt::Write as _;
use std::time::{Duration, SystemTime};

use super::{Happening, What};
use crate::source::Source;

/// Changes to plain keys: the word in `lua/lib/history.lua`, and its wording for people.
const DONE_TO_KEYS: [(&str, &str); 6] = [
    ("key set", "its key was set"),
    ("key time", "its key was given another time"),
    ("key expired", "its key expired sooner than expected"),
    ("key gone", "its key was deleted"),
    ("key lasting", "its key has no time to live any more"),
    (
        "key lost",
        "its key is missing, and no worker heard it expire",
    ),
];

/// The change of a plain key that a note stands for.
pub(super) fn done_to_key(note: &str) -> Option<&'static str> {
    let mut known = DONE_TO_KEYS.iter();
    known.find(|(word, _)| *word == note).map(|(_, done)| *done)
}

impl Happening {
    /// The entry in plain words, such as `attempt 1 failed after 3.2 s: connection refused, next at
    /// 12:00:15`. `show` writes times. The time of the entry itself is not part of the text.
    pub fn sentence(&self, show: impl Fn(SystemTime) -> String) -> String {
        let mut text = self.deed(&show);
        if let Some(done) = self.done_to_key() {
            text = match self.what {
                What::Postponed => done.to_owned(),
                _ => format!("{done}: {text}"),
            };
        }
        let is_by_someone = !matches!(
            self.what,
            What::Claimed | What::Lapsed | What::Follows | What::Recurs | What::Superseded
        );
        if is_by_someone && !self.by.is_empty() && !self.has_run() {
            let seen = match self.done_to_key() {
                Some(_) if text.ends_with(',') => " seen",
                Some(_) => ", seen",
                None => "",
            };
            _ = write!(text, "{seen} by {}", self.by);
        }
        match (self.what, self.due) {
            (What::Failed | What::Again | What::Snoozed, Some(due)) => {
                _ = write!(text, ", next at {}", show(due));
            }
            (What::Claimed | What::Lapsed | What::Fired, _) => {}
            (_, Some(due)) => _ = write!(text, ", due {}", show(due)),
            _ => {}
        }
        text
    }

    /// The change of the job's plain key, if that caused the entry.
    fn done_to_key(&self) -> Option<&str> {
        let note = self.note.as_deref()?;
        let mut known = DONE_TO_KEYS.iter().map(|(_, done)| *done);
        known.find(|done| *done == note)
    }

    /// Whether the entry is the end of a run; the claim has named its process.
    fn has_run(&self) -> bool {
        self.took.is_some()
    }

    /// The change, without process and times.
    fn deed(&self, show: &impl Fn(SystemTime) -> String) -> String {
        let after = self.took.map(|took| format!(" after {}", span(took)));
        let after = after.unwrap_or_default();
        let note = self.note.as_ref().map(|note| format!(": {note}"));
        let note = note.unwrap_or_default();
        let letter = self.letter.map(|number| format!(" {number}"));
        let letter = letter.unwrap_or_default();
        let failed = match self.attempt {
            Some(attempt) => format!("attempt {attempt} failed{after}{note}"),
            None => format!("an attempt failed{after}{note}"),
        };
        let deed = match self.what {
            What::Scheduled => "scheduled",
            What::Replaced => "scheduled anew, replacing the pending job,",
            What::Succeeds => "scheduled while it runs, to follow the run,",
            What::Follows => "the job that was scheduled during the run takes its place",
            What::Recurs => "its next occurrence is pending",
            What::Postponed => "given another due time",
            What::Fired => "made due at once",
            What::Updated => "payload updated",
            What::Cancelled => "cancelled",
            What::Stopping => "cancelled while it runs, and told to stop,",
            What::Superseded => "not run again, since another job takes its place",
            What::Requeued => "dead letter requeued",
            What::Restored => "restored from a backup",
            What::Moved => "moved here from another shard of its kind",
            What::Paused => "kind paused",
            What::Resumed => "kind resumed",
            What::Limited => "kind limited",
            What::Unlimited => "limit of the kind removed",
            What::Unknown => "unknown change",
            What::Claimed => return self.claim(show),
            What::Lapsed => return format!("lease lapsed, taken over by {}", self.by),
            What::Done => return format!("done{after}"),
            What::Skipped => return format!("skipped without a run{note}"),
            What::Again => return format!("asked{after} to run again"),
            What::Snoozed if self.note.is_some() => return format!("put off{after}{note}"),
            What::Snoozed => return format!("asked{after} to be put off"),
            What::Returned => return format!("given back{after} before it ran"),
            What::Failed => return failed,
            What::Buried if self.attempt.is_some_and(|number| number > 0) => {
                return format!("{failed}; buried as dead letter{letter}");
            }
            What::Buried => return format!("buried as dead letter{letter}{note}"),
            What::Deleted => return format!("dead letter{letter} deleted"),
            What::Repaired => return format!("repaired by an audit{note}"),
        };
        deed.to_owned()
    }

    /// A claim: how the job was found, who claimed it, and how late.
    fn claim(&self, show: &impl Fn(SystemTime) -> String) -> String {
        let found = match self.source {
            Some(Source::Event) => "event heard",
            Some(Source::Pacer) => "found by the pacer",
            Some(Source::Reconciler) => "found by the reconciler",
            Some(Source::Backlog) => "next in the backlog",
            None => "found",
        };
        let mut text = String::new();
        if let Some(due) = self.due {
            _ = write!(text, "due {}, ", show(due));
        }
        _ = write!(text, "{found}, claimed by {}", self.by);
        if let Some(lag) = self.lag() {
            _ = write!(text, ", {} late", span(lag));
        }
        text
    }
}

/// A duration as people read it: `2 ms`, `3.2 s`, `4 min 5 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn span(time: Duration) -> String {
    let (ms, seconds) = (time.as_millis(), time.as_secs());
    let two = |large: u64, one: &str, small: u64, other: &str| match small {
        0 => format!("{large} {one}"),
        _ => format!("{large} {one} {small} {other}"),
    };
    match seconds {
        0 => format!("{ms} ms"),
        1..60 => format!("{}.{} s", seconds, ms / 100 % 10),
        60..3600 => two(seconds / 60, "min", seconds % 60, "s"),
        3600..86_400 => two(seconds / 3600, "h", seconds / 60 % 60, "min"),
        _ => two(seconds / 86_400, "d", seconds / 3600 % 24, "h"),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::key::Kind;
    use crate::store::Line;

    fn told(what: &str, number: &str, more: &str, note: &str) -> String {
        let line = Line {
            entry: "5000-0".into(),
            what: what.into(),
            by: "web:7".into(),
            id: "42".into(),
            number: number.into(),
            more: more.into(),
            note: note.into(),
        };
        let happening = Happening::of(&Kind::parse("app1:trans:notice").unwrap(), line);
        let seconds = |at: SystemTime| {
            let since = at.duration_since(UNIX_EPOCH).unwrap();
            format!("at {}", since.as_secs_f64())
        };
        happening.sentence(seconds)
    }

    #[test]
    fn each_event_has_its_sentence() {
        for (line, sentence) in [
            (
                ["scheduled", "9000", "-", ""],
                "scheduled by web:7, due at 9",
            ),
            (
                ["claimed", "4998", "e", ""],
                "due at 4.998, event heard, claimed by web:7, 2 ms late",
            ),
            (
                ["claimed", "5001", "b", ""],
                "due at 5.001, next in the backlog, claimed by web:7, 0 ms late",
            ),
            (
                ["lapsed", "4998", "2", ""],
                "lease lapsed, taken over by web:7",
            ),
            (["done", "-", "3210", ""], "done after 3.2 s"),
            (
                ["failed", "9000", "3210", "1 connection refused"],
                "attempt 1 failed after 3.2 s: connection refused, next at at 9",
            ),
            (
                ["snoozed", "9000", "5", ""],
                "asked after 5 ms to be put off, next at at 9",
            ),
            (
                ["buried", "7", "61000", "3 no such host"],
                "attempt 3 failed after 1 min 1 s: no such host; buried as dead letter 7",
            ),
            (["buried", "7", "-", ""], "buried as dead letter 7 by web:7"),
            (
                ["buried", "7", "0", "0 no record"],
                "buried as dead letter 7: no record",
            ),
            (["deleted", "7", "-", ""], "dead letter 7 deleted by web:7"),
            (["cancelled", "-", "-", ""], "cancelled by web:7"),
            (
                ["scheduled", "9000", "-", "key set"],
                "its key was set: scheduled, seen by web:7, due at 9",
            ),
            (
                ["postponed", "9000", "-", "key time"],
                "its key was given another time, seen by web:7, due at 9",
            ),
            (
                ["fired", "5000", "-", "key expired"],
                "its key expired sooner than expected: made due at once, seen by web:7",
            ),
            (
                ["cancelled", "-", "-", "key gone"],
                "its key was deleted: cancelled, seen by web:7",
            ),
            (
                ["cancelled", "-", "-", "key lasting"],
                "its key has no time to live any more: cancelled, seen by web:7",
            ),
            (["fired", "5000", "-", ""], "made due at once by web:7"),
            (
                ["repaired", "-", "-", "bare"],
                "repaired by an audit: bare by web:7",
            ),
            (["teleported", "-", "-", ""], "unknown change by web:7"),
        ] {
            let [what, number, more, note] = line;
            assert_eq!(told(what, number, more, note), sentence);
        }
    }

    #[test]
    fn spans_are_rounded_for_people() {
        for (ms, text) in [
            (0, "0 ms"),
            (999, "999 ms"),
            (3_250, "3.2 s"),
            (60_000, "1 min"),
            (245_000, "4 min 5 s"),
            (7_500_000, "2 h 5 min"),
            (273_600_000, "3 d 4 h"),
        ] {
            assert_eq!(span(Duration::from_millis(ms)), text);
        }
    }
}
