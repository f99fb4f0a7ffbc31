//! The settlement of an attempt that has ended: the call to the ledger that its outcome asks for,
//! with the new header of the record.

use crate::ending::Ending;
use crate::lateness::Late;
use crate::outcome::Outcome;
use crate::record::Header;
use crate::recurrence::{Quieted, Recurring, RunEnd};
use crate::retry::RetryPolicy;
use crate::store::{Next, Verb, When};
use crate::time::UnixMs;
use crate::traces;

/// An attempt that has ended, or that does not take place after all.
pub(crate) struct Ended<'a> {
    /// The header as it was claimed.
    pub(crate) header: &'a Header,
    /// The number of the attempt, lapsed attempts included.
    pub(crate) attempt: u32,
    /// The policy of the job, or of its route.
    pub(crate) policy: &'a RetryPolicy,
}

impl Ended<'_> {
    /// The settlement that an outcome asks for. `random`, from 0 up to 1, is for the jitter of the
    /// policy. `None` for a job that was handed over: its new holder settles it.
    pub(crate) fn verb(&self, outcome: Outcome, random: f64) -> Option<Verb> {
        Some(
            match Ending::of(outcome, self.attempt, self.policy, random) {
                Ending::Done => Verb::Done,
                Ending::Again { after, error } => Verb::Later {
                    when: When::After(after),
                    step: if error.is_some() { "failed" } else { "again" },
                    header: self.counted(error.map(|it| it.as_str().into())),
                },
                Ending::Snooze { after, reason } => Verb::Later {
                    when: When::After(after),
                    header: self.uncounted(reason.map(|it| it.as_str().into())),
                    step: "snoozed",
                },
                Ending::Bury { reason } => self.bury(reason.as_str().into()),
                Ending::HandedOver => return None,
            },
        )
    }

    /// Returns the job as it came, due at `due`; this attempt does not count.
    pub(crate) fn give_back(&self, due: UnixMs) -> Verb {
        Verb::Later {
            when: When::At(due),
            header: self.uncounted(None),
            step: "returned",
        }
    }

    /// Returns an occurrence of a recurring job with the due time that the process before could not
    /// compute; this attempt does not count. `None` if the rule has ended.
    pub(crate) fn give_back_resolved(&self, recurring: Option<Recurring>) -> Verb {
        let Some(recurring) = recurring else {
            return Verb::Done;
        };
        let header = self.not_counted();
        Verb::Later {
            when: When::At(recurring.due()),
            header: header.with_recur(Some(recurring)).to_line().into_owned(),
            step: "returned",
        }
    }

    /// The settlement of an attempt that does not take place, because it is too late; `None` if it
    /// takes place all the same. `why` says how late. `random`, from 0 up to 1, is for a spread.
    pub(crate) fn too_late(&self, then: Late, why: String, random: f64) -> Option<Verb> {
        Some(match then {
            Late::Run => return None,
            Late::Skip => Verb::Skip { note: why },
            Late::Bury => {
                let mut header = self.not_counted();
                header.error = Some(why);
                Verb::Bury {
                    header: header.to_line().into_owned(),
                }
            }
            Late::Spread(time) => Verb::Later {
                when: When::After(time.mul_f64(random)),
                header: self.uncounted(Some(why)),
                step: "snoozed",
            },
        })
    }

    /// The settlement of an attempt that does not take place now, because the hours are quiet;
    /// `None` if they are not.
    pub(crate) fn quieted(&self, start: Quieted) -> Option<Verb> {
        Some(match start {
            Quieted::Same => return None,
            Quieted::Out(note) => Verb::Skip { note },
            Quieted::Moved(shift) => Verb::Later {
                when: When::At(UnixMs(shift.to)),
                header: self.uncounted(Some(shift.why)),
                step: "snoozed",
            },
        })
    }

    /// Makes the job a dead letter for this reason.
    pub(crate) fn bury(&self, reason: String) -> Verb {
        Verb::Bury {
            header: self.counted(Some(reason)),
        }
    }

    /// The header after this attempt, which counts, as a line.
    fn counted(&self, error: Option<String>) -> String {
        let mut header = self.next();
        header.attempts = self.attempt;
        header.error = error;
        header.to_line().into_owned()
    }

    /// The header without this attempt, but with the attempts that lapsed before it, as a line.
    /// `put_off` is the reason of a snooze.
    fn uncounted(&self, put_off: Option<String>) -> String {
        let mut header = self.not_counted();
        header.put_off = put_off;
        header.to_line().into_owned()
    }

    fn not_counted(&self) -> Header {
        let mut header = self.next();
        header.attempts = self.attempt.saturating_sub(1);
        header
    }

    /// The header as it was claimed, with the span of this attempt and without the reason of an
    /// earlier snooze.
    fn next(&self) -> Header {
        let mut header = self.header.clone();
        header.put_off = None;
        if let Some((span, _)) = traces::current() {
            header.before = Some(span);
        }
        header
    }
}

/// The occurrence that follows, if the job of this header recurs and its run ends like this.
pub(crate) fn next(header: &Header, verb: &Verb, end: RunEnd) -> Next {
    let Some(recurring) = header.recur() else {
        return Next::Unknown;
    };
    let is_over = match verb {
        Verb::Done | Verb::Skip { .. } | Verb::Bury { .. } => true,
        Verb::Later {
            step: "returned", ..
        } => false,
        // A rule may say that no retry goes beyond its next time.
        Verb::Later { when, .. } => {
            let retry = match when {
                When::At(due) => *due,
                When::After(delay) | When::By(delay) => end.now.plus(*delay),
            };
            let limit = recurring.replaced_at(end.now);
            limit.is_some_and(|limit| retry >= limit)
        }
    };
    if !is_over {
        return Next::Unknown;
    }
    match recurring.next(end) {
        Some(next) => Next::At(next.due(), header.followed_by(next)),
        None => Next::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn verb(outcome: Outcome, attempt: u32) -> Verb {
        let policy = RetryPolicy::ladder([Duration::from_secs(1), Duration::from_secs(5)]).unwrap();
        let mut header = Header::default();
        header.error = Some("before".into());
        let ended = Ended {
            header: &header,
            attempt,
            policy: &policy,
        };
        ended.verb(outcome, 0.5).unwrap()
    }

    fn later(verb: Verb) -> (When, String, &'static str) {
        match verb {
            Verb::Later { when, header, step } => (when, header, step),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_failure_is_recorded_and_the_last_one_buries_the_job() {
        let (when, header, step) = later(verb(Outcome::retry("no"), 2));
        assert_eq!(when, When::After(Duration::from_secs(5)));
        assert_eq!(header, r#"{"v":1,"attempts":2,"error":"no"}"#);
        assert_eq!(step, "failed");
        let Verb::Bury { header } = verb(Outcome::retry("no"), 3) else {
            panic!("attempt 3 of 3 is the last");
        };
        assert_eq!(header, r#"{"v":1,"attempts":3,"error":"no"}"#);
    }

    #[test]
    fn again_counts_an_attempt_and_records_no_failure() {
        let (when, header, step) = later(verb(Outcome::again(), 1));
        assert_eq!(when, When::After(Duration::from_secs(1)));
        assert_eq!(header, r#"{"v":1,"attempts":1}"#);
        assert_eq!(step, "again");
    }

    #[test]
    fn a_snooze_leaves_the_header_as_it_was() {
        let (when, header, step) = later(verb(Outcome::snooze(Duration::from_secs(9)), 300));
        assert_eq!(when, When::After(Duration::from_secs(9)));
        assert_eq!(header, r#"{"v":1,"attempts":299,"error":"before"}"#);
        assert_eq!(step, "snoozed");
        let because = Outcome::snooze_because(Duration::from_secs(9), "h is down");
        let (_, header, step) = later(verb(because, 300));
        let told = r#"{"v":1,"attempts":299,"error":"before","put_off":"h is down"}"#;
        assert_eq!((&*header, step), (told, "snoozed"));
    }
}
