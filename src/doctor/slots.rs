//! The check of a cluster's slots: each key must be on the node that serves its slot. A node that
//! dies while a slot moves away from it leaves ledgers in two parts, and calls on them wait.

use std::collections::HashSet;
use std::time::Instant;

use super::checks::SLOTS_WHOLE;
use super::diagnose::PATIENCE;
use super::finding::{Finding, Thing, things};
use super::ledgers::unseen;
use crate::error::Result;
use crate::phrase::Phrase;
use crate::store::{MissingPart, Observed, Server, Spares, Store, Stray};

/// The most slots, and the most ledgers of each, that a finding names.
const NAMED: usize = 3;

/// Adds the finding about slots. Without a cluster it is fine.
///
/// Returns the kinds with an incomplete ledger: calls on them fail, so other checks leave them out.
///
/// # Errors
/// If a node does not answer in time. A refused command is no error, but an unseen fact.
pub(super) async fn look(store: &Store, found: &mut Vec<Finding>) -> Result<HashSet<String>> {
    let Some(cluster) = store.cluster() else {
        found.push(Finding::fine(
            &SLOTS_WHOLE,
            Phrase::new(
                "found.no-cluster",
                "this server is not part of a cluster",
                [],
            ),
        ));
        return Ok(HashSet::new());
    };
    let until = Instant::now() + PATIENCE;
    let gaps = cluster.torn_ledgers(until).await?;
    let strays: Observed<Vec<Stray>> = match cluster.strays(until).await {
        Ok(strays) => Ok(strays),
        Err(error) => unseen(error)?,
    };
    let aside = cluster.left_over(false, Spares::Leave, until).await?;
    found.push(judge(cluster, &gaps, strays, aside));
    let kinds = gaps.iter().filter_map(|gap| gap.ledger.rsplit_once('/'));
    Ok(kinds.map(|(kind, _)| kind.to_owned()).collect())
}

/// The finding from incomplete ledgers (`gaps`), keys on wrong nodes (`strays`), and keys that an
/// earlier repair put `aside`. Any of them is an error; slots that move at this moment are only
/// information.
fn judge(
    cluster: &Server,
    gaps: &[MissingPart],
    strays: Observed<Vec<Stray>>,
    aside: Vec<String>,
) -> Finding {
    let strays = match strays {
        Err(why) if gaps.is_empty() && aside.is_empty() => {
            return Finding::unseen(&SLOTS_WHOLE, why);
        }
        strays => strays.unwrap_or_default(),
    };
    let torn = gaps.iter().map(|gap| {
        Phrase::new(
            "found.torn-ledger",
            "the ledger {} lacks {} on the node that serves its slot {}",
            [
                (&gap.ledger).into(),
                gap.missing.to_string().into(),
                gap.slot.into(),
            ],
        )
    });
    let (moving, strays): (Vec<&Stray>, Vec<&Stray>) =
        strays.iter().partition(|stray| stray.is_under_way());
    let astray = strays.iter().map(|stray| {
        let owner = stray.owner.as_ref();
        let nobody = || Phrase::new("found.owner-none", "nobody", []);
        let owner = owner.map_or_else(nobody, |owner| owner.to_string().into());
        let ledgers = cluster.ledgers_among(&stray.keys);
        let ledgers = ledgers.iter().take(NAMED).map(|name| format!(" {name}"));
        Phrase::new(
            "found.stray",
            "{} has {} of the slot {}, which {} serves:{}",
            [
                stray.holder.to_string().into(),
                things(stray.keys.len() as u64, Thing::Key),
                stray.slot.into(),
                owner,
                ledgers.collect::<String>().into(),
            ],
        )
    });
    let is_found = !strays.is_empty() || !aside.is_empty();
    if is_found || !gaps.is_empty() {
        let aside = aside.into_iter().take(NAMED).map(Phrase::from);
        let told = Phrase::joined(aside.chain(astray).chain(torn).take(2 * NAMED));
        let remedy = match is_found {
            false => Phrase::new(
                "remedy.torn",
                "restart the node that had this part; if the part is lost, `keyfall cluster mend \
                 --yes --give-up LEDGER`",
                [],
            ),
            true => "keyfall cluster mend --yes".into(),
        };
        return Finding::error(&SLOTS_WHOLE, told.expect("at least one"), remedy);
    }
    match moving.len() as u64 {
        0 => {
            let whole = "every key is on the node of its slot";
            Finding::fine(&SLOTS_WHOLE, Phrase::new("found.whole", whole, []))
        }
        count => Finding::info(
            &SLOTS_WHOLE,
            Phrase::new("found.moving", "{} moving", [things(count, Thing::Slot)]),
        ),
    }
}
