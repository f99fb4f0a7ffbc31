//! Reads what is shown, from Redis, bounded in each round.

use std::time::{Instant, SystemTime};

use futures_util::{StreamExt, stream};
use keyfall::{Client, JobState, Kind};
use tokio::time::sleep_until;

use super::board::{Looked, Seen};
use super::story::Story;

/// How many kinds are looked at in one round, beside those on the screen. Where there are more,
/// the next round goes on with the next.
const PAGE: usize = 256;

/// How many questions are asked at the same time.
const AT_ONCE: usize = 32;

pub(super) struct Watch {
    client: Client,
    prefix: String,
    story: Story,
    /// The kinds as they were in the round before.
    kinds: Vec<Kind>,
    /// Where the next page begins.
    page: usize,
}

impl Watch {
    /// # Errors
    /// If no key can begin so.
    pub(super) fn new(client: Client, prefix: &str) -> keyfall::Result<Self> {
        Ok(Watch {
            story: Story::new(&client, prefix)?,
            client,
            prefix: prefix.to_owned(),
            kinds: Vec::new(),
            page: 0,
        })
    }

    /// One round, not before this time. It may be dropped at any time.
    pub(super) async fn look(&mut self, at: tokio::time::Instant, shown: Vec<Kind>) -> Seen {
        sleep_until(at).await;
        match self.round(shown).await {
            Ok(seen) => seen,
            Err(error) => Seen {
                trouble: Some(error.to_string()),
                now: Some(SystemTime::now()),
                ..Seen::default()
            },
        }
    }

    async fn round(&mut self, shown: Vec<Kind>) -> keyfall::Result<Seen> {
        let known = self.client.kinds().await?;
        let mut unseen = known.unseen.first().cloned();
        let mut kinds = known.kinds;
        let is_wanted = |kind: &Kind| format!("{kind}:").starts_with(&self.prefix);
        kinds.retain(is_wanted);
        let instances = self.client.instances().await?.instances;
        let begin = if self.page < kinds.len() {
            self.page
        } else {
            0
        };
        let page = kinds.iter().skip(begin).take(PAGE);
        let mut wanted: Vec<Kind> = page.cloned().collect();
        let next = begin + wanted.len();
        for kind in shown {
            if kinds.binary_search(&kind).is_ok() && !wanted.contains(&kind) {
                wanted.push(kind);
            }
        }
        let (mut looked, mut next_due) = (Vec::new(), Vec::new());
        let looks = wanted.into_iter().map(|kind| look_at(&self.client, kind));
        let mut looks = stream::iter(looks).buffer_unordered(AT_ONCE);
        while let Some(one) = looks.next().await {
            let (one, due) = one?;
            unseen = unseen.or_else(|| one.stats.unseen.first().cloned());
            next_due.push((one.kind.clone(), due));
            looked.push(one);
        }
        drop(looks);
        let gone = self
            .kinds
            .iter()
            .filter(|kind| kinds.binary_search(kind).is_err());
        let gone = gone.cloned().collect();
        let told = self.story.told();
        self.page = next;
        let seen = Seen {
            kinds: kinds.len(),
            looked,
            gone,
            next_due,
            instances: instances.into_iter().map(Into::into).collect(),
            starts: told.starts,
            failures: told.failures,
            trouble: None,
            unseen: unseen.map(|it| format!("{} is not seen: {}", it.server, it.error)),
            now: Some(SystemTime::now()),
        };
        self.kinds = kinds;
        Ok(seen)
    }
}

/// How its jobs stand, and when the next one falls due if none is.
async fn look_at(client: &Client, kind: Kind) -> keyfall::Result<(Looked, Option<SystemTime>)> {
    let stats = client.stats(kind.as_str()).await?;
    let at = Instant::now();
    let mut due = None;
    if stats.pending > 0 && stats.overdue == 0 {
        let list = client.list(&format!("{kind}:"), JobState::Pending).limit(1);
        // The first is the next to fall due. One whose record is damaged is left to audits.
        due = list.await?.jobs.first().map(keyfall::JobView::due);
    }
    Ok((Looked { kind, stats, at }, due))
}
