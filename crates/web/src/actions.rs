//! The actions on one job.

use std::time::SystemTime;

use jiff::civil::DateTime;
use keyfall_daemon::duration;
use keyfall_daemon::shapes::{
    CancelledOut, ChangedOut, DeletedOut, LetterIn, PayloadIn, PostponeIn, RequeueIn, RequeuedOut,
    RuleOut, SeriesChangeOut, Span, Time,
};
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::recurs::Written;
use crate::serial;

/// An action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Act {
    Fire,
    Postpone,
    Payload,
    Rule,
    PauseRule,
    ResumeRule,
    MoveSeries,
    CancelSeries,
    Cancel,
    Requeue,
    Delete,
}

/// What was done, for the page that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Done {
    Fired,
    Postponed,
    Updated,
    RuleChanged,
    RulePaused,
    RuleResumed,
    SeriesMoved,
    SeriesCancelled,
    Cancelled,
    /// The job runs, and was told to stop.
    Stopping,
    Requeued,
    Deleted,
}

/// What an action needs beside the key. A field of a form that was left empty is an empty text.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Details {
    /// A duration from now, such as `15m`.
    after: String,
    /// A time in the zone of the page, as browsers write it: `2026-12-24T18:00`.
    at: String,
    /// The form of the new payload: `json` or `text`.
    form: String,
    payload: String,
    /// The new date of a series.
    anchor: String,
    /// The number of the dead letter.
    letter: String,
    #[serde(flatten)]
    rule: Written,
}

impl Act {
    /// # Errors
    /// If a detail is wrong, or the API refuses the call.
    pub(crate) async fn carry_out(
        self,
        cx: &Cx,
        key: &str,
        details: &Details,
    ) -> Result<Done, Fault> {
        let caller = &cx.caller;
        match self {
            Act::Fire => {
                let call = Call::post(&["jobs", key, "fire"]);
                caller.ask::<ChangedOut>(call).await?;
                Ok(Done::Fired)
            }
            Act::Postpone => {
                let call = Call::post(&["jobs", key, "postpone"]).with(&details.when(cx)?);
                caller.ask::<ChangedOut>(call).await?;
                Ok(Done::Postponed)
            }
            Act::Payload => {
                let call = Call::put(&["jobs", key, "payload"]).with(&details.payload()?);
                caller.ask::<Option<ChangedOut>>(call).await?;
                Ok(Done::Updated)
            }
            Act::Rule => {
                let call = Call::put(&["jobs", key, "rule"]).with(&details.rule.form()?);
                caller.ask::<RuleOut>(call).await?;
                Ok(Done::RuleChanged)
            }
            Act::PauseRule => {
                let call = Call::post(&["jobs", key, "rule", "pause"]);
                caller.ask::<RuleOut>(call).await?;
                Ok(Done::RulePaused)
            }
            Act::ResumeRule => {
                let call = Call::post(&["jobs", key, "rule", "resume"]);
                caller.ask::<RuleOut>(call).await?;
                Ok(Done::RuleResumed)
            }
            Act::MoveSeries => {
                let call = Call::put(&["series", key]).with(&serial::moved(&details.anchor)?);
                caller.ask::<SeriesChangeOut>(call).await?;
                Ok(Done::SeriesMoved)
            }
            Act::CancelSeries => {
                let call = Call::delete(&["series", key]);
                caller.ask::<SeriesChangeOut>(call).await?;
                Ok(Done::SeriesCancelled)
            }
            Act::Cancel => {
                let out = caller.ask::<CancelledOut>(Call::delete(&["jobs", key]));
                Ok(match out.await?.running {
                    true => Done::Stopping,
                    false => Done::Cancelled,
                })
            }
            Act::Requeue => {
                let wanted = RequeueIn {
                    letter: details.letter()?,
                    after: None,
                    at: None,
                };
                let call = Call::post(&["dead", key, "requeue"]).with(&wanted);
                caller.ask::<RequeuedOut>(call).await?;
                Ok(Done::Requeued)
            }
            Act::Delete => {
                let letter = details.letter()?;
                let call = Call::delete(&["dead", key]).asking(&LetterIn { letter });
                caller.ask::<DeletedOut>(call).await?;
                Ok(Done::Deleted)
            }
        }
    }
}

impl Details {
    /// The new due time, which has to be given.
    fn when(&self, cx: &Cx) -> Result<PostponeIn, Fault> {
        let (after, at) = self.due(cx)?;
        match (after, at) {
            (None, None) => Err(Fault::invalid("after", "fault.no_time", &[])),
            (after, at) => Ok(PostponeIn { after, at }),
        }
    }

    /// The due time, if one is given.
    pub(crate) fn due(&self, cx: &Cx) -> Result<(Option<Span>, Option<Time>), Fault> {
        let (after, at) = (self.after.trim(), self.at.trim());
        match (after, at) {
            ("", "") => Ok((None, None)),
            (after, "") => {
                let is_number = after.bytes().all(|byte| byte.is_ascii_digit());
                let after = duration::parse(after).map_err(|_| match is_number {
                    true => Fault::invalid("after", "fault.no_unit", &[&after]),
                    false => Fault::invalid("after", "fault.duration", &[&format!("{after:?}")]),
                })?;
                Ok((Some(Span(after)), None))
            }
            ("", at) => {
                let wrong =
                    |_: jiff::Error| Fault::invalid("at", "fault.time", &[&format!("{at:?}")]);
                let local: DateTime = at.parse().map_err(wrong)?;
                let zoned = local.to_zoned(cx.page.zone.clone()).map_err(wrong)?;
                Ok((None, Some(Time(SystemTime::from(zoned.timestamp())))))
            }
            _ => Err(Fault::invalid("at", "fault.two_times", &[])),
        }
    }

    /// The payload of a form, in which a browser ends lines by two characters.
    fn payload(&self) -> Result<PayloadIn, Fault> {
        use base64::Engine;
        use base64::prelude::BASE64_STANDARD;

        let text = self.payload.replace("\r\n", "\n");
        if self.form == "text" {
            return Ok(PayloadIn {
                payload: None,
                payload_base64: Some(BASE64_STANDARD.encode(text)),
            });
        }
        let json: Box<RawValue> = serde_json::from_str(&text).map_err(|error| {
            let place = [error.line(), error.column()];
            Fault::invalid("payload", "fault.payload", &[&place[0], &place[1]])
        })?;
        Ok(PayloadIn {
            payload: Some(json),
            payload_base64: None,
        })
    }

    fn letter(&self) -> Result<u64, Fault> {
        self.letter
            .parse()
            .map_err(|_| Fault::invalid("letter", "fault.no_letter", &[]))
    }
}

impl Done {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Done::Fired => "fired",
            Done::Postponed => "postponed",
            Done::Updated => "updated",
            Done::RuleChanged => "rule-changed",
            Done::RulePaused => "rule-paused",
            Done::RuleResumed => "rule-resumed",
            Done::SeriesMoved => "series-moved",
            Done::SeriesCancelled => "series-cancelled",
            Done::Cancelled => "cancelled",
            Done::Stopping => "stopping",
            Done::Requeued => "requeued",
            Done::Deleted => "deleted",
        }
    }
}
