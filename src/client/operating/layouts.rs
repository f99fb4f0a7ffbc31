//! The layouts of kinds: how many shards each kind has, where they are, and who paces them.

use std::sync::Arc;

use futures_util::stream::{self, StreamExt, TryStreamExt};

use super::partial::PartialView;
use crate::client::{Client, Stats, Unseen};
use crate::error::Result;
use crate::instance::Pacers;
use crate::key::Kind;
use crate::settings::SILENCE;
use crate::store::{Alive, Ledger, Tally};

/// How many ledgers are read at the same time.
const AT_ONCE: usize = 32;

/// The number of shards of a kind; from [`Client::layouts`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KindLayout {
    /// The kind.
    pub kind: Kind,
    /// The number of its shards.
    pub shards: u16,
    /// The number of its shards before, while it is being [resharded](Client::reshard).
    pub from: Option<u16>,
}

/// The layouts of all kinds; from [`Client::layouts`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Layouts {
    /// The kinds, in order.
    pub kinds: Vec<KindLayout>,
    /// The servers that were away.
    pub unseen: Vec<Unseen>,
}

/// One shard of a kind; from [`Client::shard_places`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardPlace {
    /// The kind.
    pub kind: Kind,
    /// The number of the shard, from 0.
    pub shard: u16,
    /// The name of its ledger, which is the hash tag of its Redis keys: `app1:trans:notice/3.17`.
    pub ledger: String,
    /// The address of the server that has it, without credentials; on a cluster, of the node.
    pub server: String,
    /// Whether the kind is being resharded to fewer shards, and this one is being emptied.
    pub is_emptied: bool,
    /// The numbers of its jobs; `None` if its server is away.
    pub stats: Option<Stats>,
    /// The [id](crate::Instance::id) of the live instance that paces it. `None` if no live instance
    /// takes jobs of the kind.
    pub pacer: Option<String>,
    /// The id of the live instance that paces it when the pacer is gone.
    pub standby: Option<String>,
}

/// Shards of some kinds; from [`Client::shard_places`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardPlaces {
    /// The shards, in the order of the named kinds, and then of their numbers.
    pub shards: Vec<ShardPlace>,
    /// The shards that were not read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

impl Client {
    /// The number of shards of each kind that was ever used, in the order of the kinds. It takes
    /// one call to each server, as [`kinds`](Client::kinds) does.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn layouts(&self) -> Result<Layouts> {
        let known = self.kinds().await?;
        let layout = |kind: Kind| {
            // The list of kinds has the layouts.
            let layout = self.store().layout_of(kind.as_str());
            KindLayout {
                kind,
                shards: layout.shards,
                from: layout.from,
            }
        };
        Ok(Layouts {
            kinds: known.kinds.into_iter().map(layout).collect(),
            unseen: known.unseen,
        })
    }

    /// The shards of these kinds: their ledgers, servers, numbers of jobs and pacers. It takes one
    /// call for each shard. Kinds that were never used have one empty shard.
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn shard_places(&self, kinds: &[Kind]) -> Result<ShardPlaces> {
        let until = self.deadline();
        let live = self.store().instances(SILENCE, until).await?;
        let pacers = Pacers::new(live.iter().map(Alive::row));
        let mut ledgers: Vec<Arc<Ledger>> = Vec::new();
        for kind in kinds {
            let shards = self.kind_shards_to_look(kind.as_str())?;
            ledgers.extend(shards.all().map(|it| it.ledger.clone()));
        }
        let mut view = PartialView::now(self.store());
        let known: Vec<(Arc<Ledger>, bool)> = ledgers
            .into_iter()
            .map(|ledger| {
                let is_away = view.misses(&ledger);
                (ledger, is_away)
            })
            .collect();
        let asked = stream::iter(known).map(async |(ledger, is_away)| {
            let tally = match is_away {
                true => None,
                false => Some(ledger.tally(until).await),
            };
            Ok::<_, crate::Error>((ledger, tally))
        });
        let answers: Vec<(Arc<Ledger>, Option<Result<Tally>>)> =
            asked.buffered(AT_ONCE).try_collect().await?;
        let mut shards = Vec::new();
        for (ledger, tally) in answers {
            let tally = match tally {
                Some(tally) => view.take(&ledger, tally)?,
                None => None,
            };
            let of_kind = pacers.of_kind(ledger.kind().as_str());
            let [pacer, standby] = of_kind.first_two(ledger.subject());
            shards.push(ShardPlace {
                kind: ledger.kind().clone(),
                shard: ledger.place().shard,
                ledger: ledger.subject().to_owned(),
                server: self.store().address_of_ledger(&ledger),
                is_emptied: ledger.place().is_old,
                stats: tally.map(Stats::from),
                pacer: pacer.map(ToOwned::to_owned),
                standby: standby.map(ToOwned::to_owned),
            });
        }
        Ok(ShardPlaces {
            shards,
            unseen: view.unseen(),
        })
    }
}
