//! Checks of replication: a primary that is cut off from its replicas must stop to take writes, or
//! a failover loses them.

use super::checks::{MIN_REPLICAS, REPLICA_LAG};
use super::finding::{Finding, Thing, things};
use crate::phrase::Phrase;
use crate::store::{Info, ServerReport};

/// The longest time that an isolated primary may go on, in seconds.
const LAG: u64 = 10;

/// Adds two findings:
///
/// - `min-replicas-to-write`: a warning if it is 0 although there are replicas or sentinels; an
///   error if fewer replicas are near than it asks for, since writes are refused then.
/// - `min-replicas-max-lag`: a warning outside of 1 to [`LAG`] seconds, unless no write needs a
///   replica.
pub(super) fn look(info: &Info, vitals: &ServerReport, found: &mut Vec<Finding>) {
    let attached = info.text("connected_slaves").parse().unwrap_or(0_u64);
    let number = |name| {
        let text = vitals.setting(name)?;
        text.parse::<u64>().map_err(|_| format!("{name} {text}"))
    };
    let (least, lag) = (
        number("min-replicas-to-write"),
        number("min-replicas-max-lag"),
    );
    // INFO has this field only if both settings are set; so it tells where the settings are hidden.
    let near = info.text("min_slaves_good_slaves").parse::<u64>().ok();
    let shown = Phrase::new(
        "found.attached",
        "{} attached",
        [things(attached, Thing::Replica)],
    );
    let set = "CONFIG SET min-replicas-to-write 1";
    found.push(match (least.clone(), near) {
        (Ok(least), Some(near)) if near < least => Finding::error(
            &MIN_REPLICAS,
            Phrase::new(
                "found.few-replicas",
                "{} replicas are good, and writes need {}: Redis refuses writes",
                [near.into(), least.into()],
            ),
            Phrase::new(
                "remedy.attach",
                "attach replicas, or CONFIG SET min-replicas-to-write 0",
                [],
            ),
        ),
        (Ok(0), _) | (Err(_), None) if attached > 0 || vitals.is_watched => Finding::warning(
            &MIN_REPLICAS,
            match vitals.is_watched {
                true => Phrase::new(
                    "found.unguarded-watched",
                    "{}, sentinels may promote another primary, and writes need no replica",
                    [shown],
                ),
                false => Phrase::new("found.unguarded", "{}, and writes need no replica", [shown]),
            },
            set,
        ),
        (Ok(least), _) => Finding::fine(
            &MIN_REPLICAS,
            Phrase::new("found.guarded", "{}, writes need {}", [shown, least.into()]),
        ),
        (Err(_), _) => Finding::fine(&MIN_REPLICAS, shown),
    });
    found.push(match (least, lag) {
        (Ok(0), _) => Finding::fine(
            &REPLICA_LAG,
            Phrase::new("found.needs-none", "writes need no replica", []),
        ),
        (_, Err(why)) => Finding::unseen(&REPLICA_LAG, why),
        (_, Ok(lag)) => {
            let shown = format!("min-replicas-max-lag {lag}");
            if (1..=LAG).contains(&lag) {
                Finding::fine(&REPLICA_LAG, shown)
            } else {
                Finding::warning(&REPLICA_LAG, shown, "CONFIG SET min-replicas-max-lag 10")
            }
        }
    });
}
