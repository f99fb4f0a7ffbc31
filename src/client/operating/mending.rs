//! Bringing the parts of ledgers together that a slot left on two nodes of a cluster.

use std::future::IntoFuture;
use std::pin::Pin;

use crate::client::Client;
use crate::error::Result;
use crate::store::{SlotOutcome, Spares};

/// A call to [`Client::mend_slots`]; carried out when it is awaited.
#[must_use = "nothing is looked at until it is awaited"]
#[derive(Debug)]
pub struct MendSlots {
    client: Client,
    moves: bool,
    spares: Spares,
    given_up: Vec<String>,
}

/// What a [`Client::mend_slots`] has found, and what became of it. Empty if all is where it belongs,
/// and where there is no cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MendedSlots {
    /// The slots of which a node has keys that does not serve them.
    pub slots: Vec<StraySlot>,
    /// The ledgers of known kinds of which a part is missing now.
    pub torn: Vec<TornLedger>,
    /// What could not be joined, and why: as a rule two dead letters of one name. Also what a call that
    /// was interrupted has kept aside, until one that is [`confirmed`](MendSlots::confirmed) joins it.
    pub left: Vec<String>,
}

/// A ledger of which a part is not where it is served.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TornLedger {
    /// As `app:module:biz/shard`.
    pub ledger: String,
    /// Its slot.
    pub slot: u16,
    /// Its parts that are missing, by the last word of their keys, with blanks between.
    pub missing: String,
}

/// A slot of which a node has keys that does not serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StraySlot {
    /// From 0 to 16,383.
    pub slot: u16,
    /// Which node has the keys, as `host:port`.
    pub holder: String,
    /// Which node serves the slot, if one does.
    pub owner: Option<String>,
    /// How many keys they are; of a million and more that many.
    pub keys: usize,
    /// The ledgers of which there are some, as `app:module:biz/shard`.
    pub ledgers: Vec<String>,
    /// What became of them.
    pub state: StrayState,
}

/// What became of keys on a node that does not serve their slot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrayState {
    /// They were looked at only.
    Found,
    /// The slot is on its way between these two nodes, and is left to whoever moves it.
    UnderWay,
    /// They are where the slot is served.
    Together,
    /// Some could not be moved: [`left`](MendedSlots::left) says why.
    Left,
}

impl Client {
    /// Looks for keys on nodes of a cluster that do not serve their slots, and for ledgers that lack
    /// a part; [`confirmed`](MendSlots::confirmed) brings them together. They are left so where a
    /// node died while a slot was on its way from it: calls on such a ledger are refused, and its
    /// jobs wait.
    ///
    /// It may be repeated, and goes on where it was. Its user needs the rights of an administrator.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// let mended = client.mend_slots().confirmed().await?;
    /// assert!(mended.is_whole());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// When it is awaited: if a node does not answer in time, or this user may not do what it takes.
    pub fn mend_slots(&self) -> MendSlots {
        MendSlots {
            client: self.clone(),
            moves: false,
            spares: Spares::Leave,
            given_up: Vec::new(),
        }
    }
}

impl MendSlots {
    /// Moves the keys to where their slots are served. A ledger that lacks a part there has refused
    /// all calls since, so what comes takes the place of what it has of the same part. What there is
    /// of one that is whole is left where it is, and told.
    pub fn confirmed(mut self) -> Self {
        self.moves = true;
        self
    }

    /// Also joins parts with a ledger that is whole where it is served: right if it began anew without
    /// them, by clients that did not notice. What is missing is added; of what both have the one
    /// counts where it is served, but counters are added up, and of two dead letters of one name both
    /// stay where they are, which is told.
    pub fn joining(mut self) -> Self {
        self.spares = Spares::Join;
        self
    }

    /// Deletes parts of a ledger that is whole where it is served: right if that node took over before
    /// they left, which makes them a copy that is out of date.
    pub fn dropping(mut self) -> Self {
        self.spares = Spares::Drop;
        self
    }

    /// Goes on without what is missing of this ledger, `app:module:biz/shard`, if no node has it: for
    /// one whose node is lost for good. [`audit`](Client::audit) tells what that has cost.
    pub fn give_up(mut self, ledger: impl Into<String>) -> Self {
        self.given_up.push(ledger.into());
        self
    }

    async fn run(self) -> Result<MendedSlots> {
        let MendSlots {
            client,
            moves,
            spares,
            given_up,
        } = self;
        let mut mended = MendedSlots::default();
        let Some(cluster) = client.store().cluster() else {
            return Ok(mended);
        };
        for stray in cluster.strays(client.deadline()).await? {
            let state = match moves {
                _ if stray.is_under_way() => StrayState::UnderWay,
                false => StrayState::Found,
                true => match cluster.bring_back(&stray, spares).await? {
                    SlotOutcome::Together => StrayState::Together,
                    SlotOutcome::Left(why) => {
                        mended.left.extend(why);
                        StrayState::Left
                    }
                },
            };
            mended.slots.push(StraySlot {
                slot: stray.slot,
                holder: stray.holder.to_string(),
                owner: stray.owner.as_ref().map(ToString::to_string),
                keys: stray.keys.len(),
                ledgers: cluster.ledgers_among(&stray.keys),
                state,
            });
        }
        let left = cluster.left_over(moves, spares, client.deadline());
        mended.left.extend(left.await?);
        for gap in cluster.torn_ledgers(client.deadline()).await? {
            let is_given_up = given_up.contains(&gap.ledger);
            if is_given_up && cluster.give_up(&gap, client.deadline()).await? {
                continue;
            }
            mended.torn.push(TornLedger {
                ledger: gap.ledger,
                slot: gap.slot,
                missing: gap.missing,
            });
        }
        Ok(mended)
    }
}

impl MendedSlots {
    /// Whether every key is where its slot is served, or on its way there, and no ledger lacks a part.
    pub fn is_whole(&self) -> bool {
        let is_mended =
            |it: &StraySlot| matches!(it.state, StrayState::Together | StrayState::UnderWay);
        self.slots.iter().all(is_mended) && self.torn.is_empty() && self.left.is_empty()
    }
}

impl IntoFuture for MendSlots {
    type Output = Result<MendedSlots>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
