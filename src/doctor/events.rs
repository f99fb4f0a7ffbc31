//! Whether those who listen hear what expires.

use super::checks::{NOTIFY_FLAGS, PUBSUB_BUFFER};
use super::finding::Finding;
use crate::store::{LOST, ServerReport, WantedEvents};

/// The limits at which a subscriber is cut off: bytes at once; bytes for as long as that many
/// seconds. The second is none where it is zero, and so is the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct OutputLimits {
    hard: u64,
    soft: u64,
    seconds: u64,
}

/// What redis.conf asks for.
const ENOUGH: OutputLimits = OutputLimits {
    hard: 256 << 20,
    soft: 128 << 20,
    seconds: 60,
};

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
            WantedEvents::Changes => Finding::error(check, format!("{shown}: {LOST}"), remedy),
        }
    }));
    let limits = vitals.setting("client-output-buffer-limit");
    found.push(Finding::of(&PUBSUB_BUFFER, limits, |check, text| {
        let Some(limits) = OutputLimits::parse(text) else {
            return Finding::unseen(check, format!("of {text:?} nothing is about pubsub"));
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

/// Live workers adopt keys, and for this reason it is known that it is not announced what is done to
/// them.
pub(super) fn unannounced(why: String) -> Finding {
    let flags = WantedEvents::Changes.flags();
    Finding::error(
        &NOTIFY_FLAGS,
        format!("{why}: {LOST}"),
        format!("set `notify-keyspace-events {flags}`; docs/managed-redis.md says where"),
    )
}

/// The limits of subscribers, raised to what is enough, if these settings are less: the value of
/// `client-output-buffer-limit`, which leaves those of others alone.
pub(super) fn raised(text: &str) -> Option<String> {
    OutputLimits::parse(text).map(|limits| limits.raised().to_string())
}

impl OutputLimits {
    /// From `normal 0 0 0 slave … pubsub 33554432 8388608 60`.
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
