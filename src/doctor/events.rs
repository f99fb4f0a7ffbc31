//! Checks of keyspace events: the notification flags, and the output buffer of subscribers.

use super::checks::{NOTIFY_FLAGS, PUBSUB_BUFFER};
use super::finding::Finding;
use crate::phrase::Phrase;
use crate::store::{LOST, ServerReport, WantedEvents};

/// The limits at which Redis disconnects a subscriber that reads too slowly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OutputLimits {
    /// Bytes that are too many at once; 0 for no limit.
    hard: u64,
    /// Bytes that are too many for longer than `seconds`; 0 for no limit.
    soft: u64,
    seconds: u64,
}

/// The limits in the `redis.conf` of Keyfall.
const ENOUGH: OutputLimits = OutputLimits {
    hard: 256 << 20,
    soft: 128 << 20,
    seconds: 60,
};

/// Adds the findings. Missing flags are an error if workers need to hear of changes: keys are then
/// lost; otherwise jobs are only late.
pub(super) fn look(vitals: &ServerReport, wanted: WantedEvents, found: &mut Vec<Finding>) {
    let flags = vitals.setting("notify-keyspace-events");
    found.push(Finding::of(&NOTIFY_FLAGS, flags, |check, flags| {
        let shown = format!("notify-keyspace-events \"{flags}\"");
        if wanted.is_announced_by(flags) {
            return Finding::fine(check, shown);
        }
        let merged = wanted.merged_into(flags);
        let remedy = format!("CONFIG SET notify-keyspace-events {merged}");
        match wanted {
            WantedEvents::Expiry => Finding::warning(check, shown, remedy),
            WantedEvents::Changes => {
                let shown = Phrase::new("found.because", "{}: {}", [shown.into(), lost()]);
                Finding::error(check, shown, remedy)
            }
        }
    }));
    let limits = vitals.setting("client-output-buffer-limit");
    found.push(Finding::of(&PUBSUB_BUFFER, limits, |check, text| {
        let Some(limits) = OutputLimits::parse(text) else {
            let text = format!("{text:?}").into();
            let why = Phrase::new("found.no-pubsub", "{} has no limit for pubsub", [text]);
            return Finding::unseen(check, why);
        };
        let shown = format!("client-output-buffer-limit {limits}");
        match limits.raised() {
            enough if enough == limits => Finding::fine(check, shown),
            more => {
                let remedy = format!("CONFIG SET client-output-buffer-limit \"{more}\"");
                Finding::warning(check, shown, remedy)
            }
        }
    }));
}

/// The finding that live workers adopt keys and Redis does not announce changes of these keys. It
/// is for servers that do not show their flags: its remedy names the page on managed Redis instead
/// of a command. `why` says how the fact is known.
pub(super) fn unannounced(why: Phrase) -> Finding {
    let flags = WantedEvents::Changes.flags();
    Finding::error(
        &NOTIFY_FLAGS,
        Phrase::new("found.because", "{}: {}", [why, lost()]),
        Phrase::new(
            "remedy.flags",
            "set `notify-keyspace-events {}`; docs/managed-redis.md explains where",
            [flags.into()],
        ),
    )
}

/// The consequence of changes of keys that nobody hears.
fn lost() -> Phrase {
    Phrase::new("found.lost", LOST, [])
}

/// The value of `client-output-buffer-limit` that raises the limits of subscribers to the
/// recommended limits, and lowers none. It leaves the limits of other clients alone. `None` if
/// `text` has no limits of subscribers.
pub(super) fn raised(text: &str) -> Option<String> {
    OutputLimits::parse(text).map(|limits| limits.raised().to_string())
}

impl OutputLimits {
    /// Parses the whole setting, such as `normal 0 0 0 slave … pubsub 33554432 8388608 60`.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split_whitespace();
        words.find(|word| *word == "pubsub")?;
        let mut next = || words.next()?.parse().ok();
        Some(OutputLimits {
            hard: next()?,
            soft: next()?,
            seconds: next()?,
        })
    }

    /// These limits, each raised to the recommended limit if it is lower.
    fn raised(self) -> Self {
        let more = |limit, enough: u64| if limit == 0 { 0 } else { enough.max(limit) };
        OutputLimits {
            hard: more(self.hard, ENOUGH.hard),
            soft: more(self.soft, ENOUGH.soft),
            seconds: if self.soft == 0 {
                self.seconds
            } else {
                self.seconds.max(ENOUGH.seconds)
            },
        }
    }
}

impl std::fmt::Display for OutputLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "pubsub {} {} {}", self.hard, self.soft, self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_raised_and_never_lowered() {
        let raised = |text: &str| raised(text).unwrap();
        let stock = "normal 0 0 0 slave 268435456 67108864 60 pubsub 33554432 8388608 60";
        assert_eq!(raised(stock), "pubsub 268435456 134217728 60");
        assert_eq!(raised("pubsub 0 0 0"), "pubsub 0 0 0");
        assert_eq!(
            raised("pubsub 999999999 1 90 normal 0 0 0"),
            "pubsub 999999999 134217728 90"
        );
        assert_eq!(OutputLimits::parse("normal 0 0 0"), None);
    }
}
