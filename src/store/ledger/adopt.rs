//! Adoption: brings jobs into line with the changes that plain commands made to their keys.

use std::time::Instant;

use super::counted;
use crate::error::{ErrorKind, Result};
use crate::key::JobKey;
use crate::names::MARKER;
use crate::store::Ledger;
use crate::store::ledger::reply::{Answered, ReplyWord};
use crate::store::ledger::script::ADOPT;
use crate::store::ledger::who;

/// The reason to look at a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was changed, or found by the search.
    Seen,
    /// It was deleted.
    Gone,
    /// It expired; the event was heard at this instant.
    Over(Instant),
    /// The search found it missing, and no event has said why.
    Missed,
    /// Its job is leased and about to run.
    Begun,
    /// As `Begun`; the answer says if the key is missing without a note that it expired.
    Asked,
    /// As `Begun`, and an event has said that the key expired.
    Heard,
    /// As `Begun`; if the key is missing without a note that it expired, its job is cancelled.
    Lost,
}

impl Why {
    /// The word in `lua/adopt.lua`.
    fn to_arg(self) -> &'static str {
        match self {
            Why::Seen => "seen",
            Why::Gone => "gone",
            Why::Over(_) => "over",
            Why::Missed => "missed",
            Why::Begun => "begun",
            Why::Asked => "asked",
            Why::Heard => "heard",
            Why::Lost => "lost",
        }
    }

    /// How long ago the expiry was heard, in ms; 0 for other reasons.
    fn age(self) -> u128 {
        match self {
            Why::Over(heard) => heard.elapsed().as_millis(),
            _ => 0,
        }
    }
}

impl Ledger {
    /// Brings the jobs of this ledger into line with their keys; `lua/adopt.lua`. A value of more
    /// than `most` bytes becomes a dead letter. Only the present state of a key counts, so a call
    /// may be repeated, be late, or be made by several workers at once. The answers:
    ///
    /// - `Created`, `Replaced`, `Succeeds`: as in [`schedule`](Self::schedule).
    /// - `Moved`, `SuccessorMoved`: the same value, with another expiry.
    /// - `Cancelled`: the key was deleted or no longer expires; the job must not start.
    /// - `Absent`: there is nothing to adopt, and no adopted job to cancel.
    /// - `Same`: the key is adopted already, or is a trigger of ours.
    /// - `Missing`: the key is missing without a note that it expired.
    /// - `Unread`: not looked at, because the values before it were many bytes, or the server is
    ///   full.
    /// - `Elsewhere`, `Stale`: another ledger has the job now.
    ///
    /// If a full server refuses the call, the items are tried one by one.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Full`] if the server refuses every item.
    pub(crate) async fn adopt(
        &self,
        items: &[(JobKey, Why)],
        most: impl Fn(&JobKey) -> usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let refused = match self.adopt_all(items, &most, until).await {
            // One new value is enough for a refusal; the others may need no room.
            Err(error) if error.kind() == ErrorKind::Full && items.len() > 1 => error,
            answers => return answers,
        };
        let mut answers = Vec::with_capacity(items.len());
        for item in items.chunks(1) {
            match self.adopt_all(item, &most, until).await {
                Err(error) if error.kind() == ErrorKind::Full => {
                    answers.push(Answered::of(ReplyWord::Unread))
                }
                alone => answers.extend(alone?),
            }
        }
        let is_unread = |it: &Answered| it.answer == ReplyWord::Unread;
        match answers.iter().all(is_unread) {
            true => Err(refused),
            false => Ok(answers),
        }
    }

    /// One call for all items, which are carried out together or not at all.
    async fn adopt_all(
        &self,
        items: &[(JobKey, Why)],
        most: &impl Fn(&JobKey) -> usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let n = &self.names;
        let layout = self.store.layout_of(self.kind().as_str());
        let place = layout.place(self.place().shard);
        let keys: [&str; 8] = [
            &n.due, &n.shadow, &n.lease, &n.next, &n.stats, &n.calls, &n.adopted, &n.history,
        ];
        // The job keys themselves, even if the triggers of this ledger have other names.
        let mut cmd = ADOPT.call(keys.len() + items.len());
        cmd.arg(&keys[..]);
        for (key, _) in items {
            cmd.arg(key.as_str());
        }
        cmd.arg(who()).arg(place.to_string());
        cmd.arg(&self.wake).arg(&n.subject).arg(MARKER);
        for (key, why) in items {
            let is_old = layout.place_of(key.id()) != place;
            cmd.arg(key.id()).arg(u8::from(is_old));
            cmd.arg(most(key)).arg(why.to_arg());
            cmd.arg(why.age().to_string());
        }
        let answers = self.eval_items(&ADOPT, &cmd, items.len(), until).await?;
        self.meter().adopted(counted::adopted(&answers));
        Ok(answers)
    }
}
