//! An operator who writes to the keys of Keyfall, while others work.

use std::time::{Duration, SystemTime};

use keyfall::{AuditAllReport, Client, KeptJob};
use keyfall_testing::sabotage::{self, Sabotage};
use rand::seq::SliceRandom;
use tokio::time::{Instant, sleep};

use super::{Punctual, Result, Scenario};
use crate::load::{FAR, KINDS};
use crate::setting::Setting;
use crate::stage::Stage;

/// The limit for repairs. A lease whose deadline was lost lapses in between.
const PATIENCE: Duration = Duration::from_secs(60);

/// The start of the kinds that suffer; no worker serves them.
pub(crate) const KINDS_THAT_SUFFER: &str = "chaos:sabotage:";

/// A time that no lease of this trial reaches.
const LATER: &str = "99999999999999";

pub(super) fn all() -> Vec<Scenario> {
    vec![Scenario {
        name: "keys are sabotaged",
        quick: true,
        setting: Setting::default,
        faults: |stage| Box::pin(sabotage(stage)),
        punctual: Punctual::Afterwards,
    }]
}

/// One damage after the other, in any order, all before any of them comes again: each to a kind of
/// its own, or to the keys that this kind shares with the busy ones. The table must name each key
/// that the workers, the producers and the program with plain keys have written.
async fn sabotage(stage: &mut Stage) -> Result {
    let mut rows: Vec<&Sabotage> = sabotage::all().collect();
    rows.shuffle(&mut stage.random);
    let keys: Vec<String> = stage.deployment.command(&["KEYS", "keyfall:*"]).await?;
    let spared = sabotage::spared(&keys);
    if !spared.is_empty() {
        return Err(format!("no sabotage is done to {spared:?}").into());
    }
    let (client, end) = (stage.client().await?, stage.until_the_end());
    for (number, row) in rows.iter().cycle().enumerate() {
        let victim = Victim {
            kind: format!("{KINDS_THAT_SUFFER}job{number}"),
            other: format!("{KINDS_THAT_SUFFER}other{number}"),
        };
        victim.prepare(stage, &client).await?;
        stage.strike("a key is sabotaged");
        let played = victim.suffer(stage, &client, row).await;
        played.map_err(|error| format!("{}: {:?}: {error}", row.key, row.does))?;
        if Instant::now() > end {
            break;
        }
    }
    Ok(())
}

struct Victim {
    kind: String,
    other: String,
}

impl Victim {
    /// Makes the initial state of the table. No worker has a route for it, so its run is written by
    /// hand.
    async fn prepare(&self, stage: &Stage, client: &Client) -> Result {
        let key = |id: &str| format!("{}:{id}", self.kind);
        let other = client.schedule(format!("{}:1", self.other), "");
        other.after(FAR).await?;
        for id in ["dies-1", "dies-2"] {
            let letter = KeptJob::dead(key(id), SystemTime::now(), id);
            client.restore(letter.error("no")).await?;
        }
        client.schedule(key("runs-1"), "").after(FAR).await?;
        let part = |part: &str| format!("keyfall:{{{}/0}}:{part}", self.kind);
        for words in [
            ["HSET", &part("lease"), "runs-1", "somebody 1 1 1 -"],
            ["ZADD", &part("leased"), LATER, "runs-1"],
            ["ZREM", &part("due"), "runs-1", "runs-1"],
        ] {
            let _: redis::Value = stage.deployment.command(&words).await?;
        }
        for id in ["runs-1", "waits-1", "waits-2"] {
            client.schedule(key(id), id).after(FAR).await?;
        }
        let found = self.findings(&self.audit(client, false).await?);
        match found.is_empty() {
            true => Ok(()),
            false => Err(format!("before anything was done: {found:?}").into()),
        }
    }

    async fn suffer(&self, stage: &Stage, client: &Client, row: &Sabotage) -> Result {
        for words in row.commands(&self.kind, &self.other) {
            let _: redis::Value = stage.deployment.command(&words).await?;
        }
        let report = self.audit(client, false).await?;
        let found = self.findings(&report);
        if !self.are(&found, row.says) {
            return Err(format!("an audit says {found:#?}").into());
        }
        let repaired = self.audit(client, true).await?;
        for words in sabotage::commands_told(&repaired) {
            let _: redis::Value = stage.deployment.command(&words).await?;
        }
        // No worker settles it.
        let leased = format!("keyfall:{{{}/0}}:leased", self.kind);
        let words = ["ZADD", &leased, "XX", "1", "runs-1"];
        let _: u64 = stage.deployment.command(&words).await?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.audit(client, true).await?;
            let found = self.findings(&self.audit(client, false).await?);
            if self.are(&found, row.leaves) {
                break;
            }
            if Instant::now() > deadline {
                return Err(format!("repairs leave {found:#?}").into());
            }
            sleep(Duration::from_millis(100)).await;
        }
        // The kind takes jobs as before.
        let key = format!("{}:new", self.kind);
        client.schedule(&key, "").after(FAR).await?;
        client.cancel(&key).await?;
        Ok(())
    }

    /// Audits all kinds, as an operator does. The busy kinds are clean all the while.
    async fn audit(&self, client: &Client, repair: bool) -> Result<AuditAllReport> {
        let audit = client.everything().audit();
        let report = if repair { audit.repair() } else { audit }.await?;
        for (kind, audited) in &report.kinds {
            let is_at_work = KINDS.contains(&kind.as_str());
            let is_sound = audited.as_ref().is_ok_and(|report| {
                let is_whole = report.is_consistent && report.stats.is_balanced();
                is_whole && report.flawed.is_empty() && report.damaged.is_empty()
            });
            if is_at_work && !is_sound {
                return Err(format!("the audit of {kind}: {audited:?}").into());
            }
        }
        Ok(report)
    }

    /// The findings about these kinds, and about the shared keys, except findings about other
    /// kinds.
    fn findings(&self, report: &AuditAllReport) -> Vec<String> {
        let is_ours = |kind: &str| kind == self.kind || kind == self.other;
        let mut found = sabotage::findings(report, is_ours);
        let is_of_others = |line: &str| match line.strip_prefix("kinds chaos:") {
            Some(_) => !line.contains(&self.kind) && !line.contains(&self.other),
            None => false,
        };
        found.retain(|line| !is_of_others(line));
        found
    }

    fn are(&self, found: &[String], expected: &[&str]) -> bool {
        sabotage::are(found, expected, &self.kind, &self.other)
    }
}
