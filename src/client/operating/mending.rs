//! Repair of torn ledgers on a cluster: an interrupted move of a slot leaves a part of its ledgers
//! on each of two nodes.

use std::future::IntoFuture;
use std::pin::Pin;

use crate::client::Client;
use crate::error::Result;
use crate::store::{SlotOutcome, Spares};

/// A call to [`Client::mend_slots`]; carried out when it is awaited. Answers [`MendedSlots`].
/// Without [`confirmed`](Self::confirmed), nothing is moved.
#[must_use = "nothing is looked at until it is awaited"]
#[derive(Debug)]
pub struct MendSlots {
    client: Client,
    moves: bool,
    spares: Spares,
    given_up: Vec<String>,
}

/// The answer of [`Client::mend_slots`]. Empty if every key is on the node that serves its slot, and
/// without a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MendedSlots {
    /// The slots with keys on a node that does not serve them.
    pub slots: Vec<StraySlot>,
    /// The ledgers of known kinds that lack a part now.
    pub torn: Vec<TornLedger>,
    /// Keys that could not be joined, with the reason: as a rule two dead letters of one name. Also
    /// keys that an interrupted call set aside, until a [`confirmed`](MendSlots::confirmed) call
    /// joins them.
    pub left: Vec<String>,
}

/// A ledger that lacks a part on the node that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TornLedger {
    /// The ledger, as `app:module:biz/shard`.
    pub ledger: String,
    /// Its slot, from 0 to 16,383.
    pub slot: u16,
    /// The missing parts: the last words of their keys, separated by blanks.
    pub missing: String,
}

/// A slot with keys on a node that does not serve it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StraySlot {
    /// The slot, from 0 to 16,383.
    pub slot: u16,
    /// The node that has the keys, as `host:port`.
    pub holder: String,
    /// The node that serves the slot, if there is one.
    pub owner: Option<String>,
    /// The number of these keys; at most a million are counted.
    pub keys: usize,
    /// The ledgers that these keys belong to, as `app:module:biz/shard`.
    pub ledgers: Vec<String>,
    /// The result for these keys.
    pub state: StrayState,
}

/// The result for keys on a node that does not serve their slot.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StrayState {
    /// The keys were found and left, because the call was not confirmed.
    Found,
    /// The slot is being moved between these two nodes: the keys are left to that move.
    UnderWay,
    /// The keys are on the node that serves their slot.
    Together,
    /// Some keys could not be moved: [`left`](MendedSlots::left) tells why.
    Left,
}

impl Client {
    /// Finds keys on cluster nodes that do not serve their slots, and ledgers that lack a part;
    /// [`confirmed`](MendSlots::confirmed) joins them. The cause is a node that died while a slot
    /// was being moved away from it. Calls on such a ledger are refused, and its jobs wait.
    ///
    /// The call may be repeated, and then continues. Its user needs the rights of an administrator.
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
    /// When it is awaited: if a node does not answer in time, or this user lacks the rights.
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
    /// Moves the keys to the nodes that serve their slots. A ledger that lacks a part there has
    /// refused all calls since, so a moved part replaces the same part there. Parts of a ledger
    /// that is whole there are left in place and reported.
    pub fn confirmed(mut self) -> Self {
        self.moves = true;
        self
    }

    /// Also joins parts with a ledger that is whole on its serving node: right if the ledger began
    /// anew without them, by clients that did not notice. Missing entries are added; of an entry on
    /// both sides, the one on the serving node stays; counters are added up. Two dead letters of
    /// one name stay where they are, and are reported.
    pub fn joining(mut self) -> Self {
        self.spares = Spares::Join;
        self
    }

    /// Deletes parts of a ledger that is whole on its serving node: right if that node took over
    /// before the parts left, so that they are an outdated copy.
    pub fn dropping(mut self) -> Self {
        self.spares = Spares::Drop;
        self
    }

    /// Gives up the missing parts of this ledger, `app:module:biz/shard`, if no node has them: for
    /// a ledger whose node is lost for good. [`audit`](Client::audit) reports the loss.
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
    /// Whether every key is on the node that serves its slot, or being moved there, and no ledger
    /// lacks a part.
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
