//! Entries of a history as sentences, and durations as people read them.

use std::time::{Duration, SystemTime};

use super::{Happening, What};
use crate::phrase::Phrase;
use crate::source::Source;

/// The words for changes to plain keys, in `lua/lib/history.lua`.
const KEY_CHANGES: [&str; 6] = [
    "key set",
    "key time",
    "key expired",
    "key gone",
    "key lasting",
    "key lost",
];

/// The change of a plain key that a word of a history stands for.
pub(super) fn done_to_key(word: &str) -> Option<Phrase> {
    let phrase = match word {
        "key set" => Phrase::new("key.set", "its key was set", []),
        "key time" => Phrase::new("key.time", "its key was given another time", []),
        "key expired" => Phrase::new("key.expired", "its key expired sooner than expected", []),
        "key gone" => Phrase::new("key.gone", "its key was deleted", []),
        "key lasting" => Phrase::new("key.lasting", "its key has no time to live any more", []),
        "key lost" => Phrase::new(
            "key.lost",
            "its key is missing, and no worker heard it expire",
            [],
        ),
        _ => return None,
    };
    Some(phrase)
}

impl Happening {
    /// The entry in plain words, such as `attempt 1 failed after 3.2 s: connection refused, next at
    /// 12:00:15`. `show` writes times. The time of the entry itself is not part of the sentence.
    pub fn sentence(&self, show: impl Fn(SystemTime) -> String) -> Phrase {
        let mut said = self.deed(&show);
        let cause = self.done_to_key();
        let is_caused = cause.is_some();
        if let Some(cause) = cause {
            said = match self.what {
                What::Postponed => cause,
                _ => Phrase::new("story.because", "{}: {}", [cause, said]),
            };
        }
        let is_by_someone = !matches!(
            self.what,
            What::Claimed | What::Lapsed | What::Follows | What::Recurs | What::Superseded
        );
        if is_by_someone && !self.by.is_empty() && !self.has_run() {
            let by = (&self.by).into();
            said = match (is_caused, said.ends_with(',')) {
                (true, true) => Phrase::new("story.seen-by", "{} seen by {}", [said, by]),
                (true, false) => Phrase::new("story.seen-by", "{}, seen by {}", [said, by]),
                (false, _) => Phrase::new("story.by", "{} by {}", [said, by]),
            };
        }
        match (self.what, self.due) {
            (What::Failed | What::Again | What::Snoozed, Some(due)) => {
                Phrase::new("story.next", "{}, next at {}", [said, show(due).into()])
            }
            (What::Claimed | What::Lapsed | What::Fired, _) => said,
            (_, Some(due)) => Phrase::new("story.due", "{}, due {}", [said, show(due).into()]),
            _ => said,
        }
    }

    /// The change of the job's plain key, if that caused the entry.
    fn done_to_key(&self) -> Option<Phrase> {
        let note = self.note.as_deref()?;
        let mut known = KEY_CHANGES.iter().filter_map(|word| done_to_key(word));
        known.find(|done| *done == note)
    }

    /// Whether the entry is the end of a run; the claim has named its process.
    fn has_run(&self) -> bool {
        self.took.is_some()
    }

    /// The change, without process and times.
    fn deed(&self, show: &impl Fn(SystemTime) -> String) -> Phrase {
        match self.what {
            What::Scheduled => Phrase::new("story.scheduled", "scheduled", []),
            What::Replaced => Phrase::new(
                "story.replaced",
                "scheduled anew, replacing the pending job,",
                [],
            ),
            What::Succeeds => Phrase::new(
                "story.succeeds",
                "scheduled while it runs, to follow the run,",
                [],
            ),
            What::Follows => Phrase::new(
                "story.follows",
                "the job that was scheduled during the run takes its place",
                [],
            ),
            What::Recurs => Phrase::new("story.recurs", "its next occurrence is pending", []),
            What::Postponed => Phrase::new("story.postponed", "given another due time", []),
            What::Fired => Phrase::new("story.fired", "made due at once", []),
            What::Updated => Phrase::new("story.updated", "payload updated", []),
            What::Cancelled => Phrase::new("story.cancelled", "cancelled", []),
            What::Stopping => Phrase::new(
                "story.stopping",
                "cancelled while it runs, and told to stop,",
                [],
            ),
            What::Superseded => Phrase::new(
                "story.superseded",
                "not run again, since another job takes its place",
                [],
            ),
            What::Requeued => Phrase::new("story.requeued", "dead letter requeued", []),
            What::Restored => Phrase::new("story.restored", "restored from a backup", []),
            What::Moved => Phrase::new(
                "story.moved",
                "moved here from another shard of its kind",
                [],
            ),
            What::Paused => Phrase::new("story.paused", "kind paused", []),
            What::Resumed => Phrase::new("story.resumed", "kind resumed", []),
            What::Limited => Phrase::new("story.limited", "kind limited", []),
            What::Unlimited => Phrase::new("story.unlimited", "limit of the kind removed", []),
            What::Unknown => Phrase::new("story.unknown", "unknown change", []),
            What::Claimed => self.claim(show),
            What::Lapsed => Phrase::new(
                "story.lapsed",
                "lease lapsed, taken over by {}",
                [(&self.by).into()],
            ),
            What::Done => self.after(Phrase::new("story.done", "done", [])),
            What::Skipped => self.noted(Phrase::new("story.skipped", "skipped without a run", [])),
            What::Again => match self.took {
                Some(took) => Phrase::new(
                    "story.again-after",
                    "asked after {} to run again",
                    [span(took)],
                ),
                None => Phrase::new("story.again", "asked to run again", []),
            },
            What::Snoozed if self.note.is_some() => {
                self.noted(self.after(Phrase::new("story.put-off", "put off", [])))
            }
            What::Snoozed => match self.took {
                Some(took) => Phrase::new(
                    "story.snoozed-after",
                    "asked after {} to be put off",
                    [span(took)],
                ),
                None => Phrase::new("story.snoozed", "asked to be put off", []),
            },
            What::Returned => match self.took {
                Some(took) => Phrase::new(
                    "story.returned-after",
                    "given back after {} before it ran",
                    [span(took)],
                ),
                None => Phrase::new("story.returned", "given back before it ran", []),
            },
            What::Failed => self.failed(),
            What::Buried if self.attempt.is_some_and(|number| number > 0) => {
                let buried = [
                    self.failed(),
                    self.numbered("story.buried", "buried as dead letter{}"),
                ];
                Phrase::joined(buried).expect("two of them")
            }
            What::Buried => self.noted(self.numbered("story.buried", "buried as dead letter{}")),
            What::Deleted => self.numbered("story.deleted", "dead letter{} deleted"),
            What::Repaired => self.noted(Phrase::new("story.repaired", "repaired by an audit", [])),
        }
    }

    /// An attempt that failed, with its error.
    fn failed(&self) -> Phrase {
        let failed = match self.attempt {
            Some(attempt) => Phrase::new(
                "story.attempt-failed",
                "attempt {} failed",
                [attempt.into()],
            ),
            None => Phrase::new("story.failed", "an attempt failed", []),
        };
        self.noted(self.after(failed))
    }

    /// The sentence, with the time that the run took.
    fn after(&self, said: Phrase) -> Phrase {
        match self.took {
            Some(took) => Phrase::new("story.after", "{} after {}", [said, span(took)]),
            None => said,
        }
    }

    /// The sentence, with the note.
    fn noted(&self, said: Phrase) -> Phrase {
        match &self.note {
            Some(note) => Phrase::new("story.because", "{}: {}", [said, note.into()]),
            None => said,
        }
    }

    /// The sentence, with the number of the dead letter after a space.
    fn numbered(&self, code: &'static str, template: &'static str) -> Phrase {
        let number = self.letter.map(|number| format!(" {number}"));
        Phrase::new(code, template, [number.unwrap_or_default().into()])
    }

    /// A claim: how the job was found, who claimed it, and how late.
    fn claim(&self, show: &impl Fn(SystemTime) -> String) -> Phrase {
        let found = match self.source {
            Some(Source::Event) => Phrase::new("found.event", "event heard", []),
            Some(Source::Pacer) => Phrase::new("found.pacer", "found by the pacer", []),
            Some(Source::Reconciler) => {
                Phrase::new("found.reconciler", "found by the reconciler", [])
            }
            Some(Source::Backlog) => Phrase::new("found.backlog", "next in the backlog", []),
            None => Phrase::new("found.somehow", "found", []),
        };
        let mut said = Phrase::new(
            "story.claimed",
            "{}, claimed by {}",
            [found, (&self.by).into()],
        );
        if let Some(due) = self.due {
            said = Phrase::new("story.was-due", "due {}, {}", [show(due).into(), said]);
        }
        match self.lag() {
            Some(lag) => Phrase::new("story.late", "{}, {} late", [said, span(lag)]),
            None => said,
        }
    }
}

/// A duration as people read it: `2 ms`, `3.2 s`, `4 min 5 s`, `2 h 5 min`, `3 d 4 h`.
pub(crate) fn span(time: Duration) -> Phrase {
    let (ms, seconds) = (time.as_millis(), time.as_secs());
    match seconds {
        0 => Phrase::new("span.ms", "{} ms", [ms.into()]),
        1..60 => {
            let tenths = format!("{}.{}", seconds, ms / 100 % 10);
            Phrase::new("span.s", "{} s", [tenths.into()])
        }
        60..3600 => match (seconds / 60, seconds % 60) {
            (minutes, 0) => Phrase::new("span.min", "{} min", [minutes.into()]),
            (minutes, rest) => {
                Phrase::new("span.min-s", "{} min {} s", [minutes.into(), rest.into()])
            }
        },
        3600..86_400 => match (seconds / 3600, seconds / 60 % 60) {
            (hours, 0) => Phrase::new("span.h", "{} h", [hours.into()]),
            (hours, rest) => Phrase::new("span.h-min", "{} h {} min", [hours.into(), rest.into()]),
        },
        _ => match (seconds / 86_400, seconds / 3600 % 24) {
            (days, 0) => Phrase::new("span.d", "{} d", [days.into()]),
            (days, rest) => Phrase::new("span.d-h", "{} d {} h", [days.into(), rest.into()]),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::key::Kind;
    use crate::store::Line;

    fn told(what: &str, number: &str, more: &str, note: &str) -> Phrase {
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
