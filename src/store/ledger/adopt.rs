//! What plain commands do to the keys of jobs, taken into a ledger.

use std::time::Instant;

use super::counted;
use crate::error::{ErrorKind, Result};
use crate::key::JobKey;
use crate::names::MARKER;
use crate::store::Ledger;
use crate::store::ledger::reply::{Answered, ReplyWord};
use crate::store::ledger::script::ADOPT;
use crate::store::ledger::who;

/// Why a key is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Why {
    /// It was changed, or found.
    Seen,
    /// It was taken away.
    Gone,
    /// It expired.
    Over,
    /// It was found missing, and nobody heard why.
    Missed,
    /// Its job is leased, and about to run.
    Begun,
    /// The same; and whether it is missing, and it is not noted that it expired.
    Asked,
    /// The same; and it was heard that it expired.
    Heard,
    /// The same; and if it is missing, and it is not noted that it expired, its job is cancelled.
    Lost,
}

impl Why {
    fn to_arg(self) -> &'static str {
        match self {
            Why::Seen => "seen",
            Why::Gone => "gone",
            Why::Over => "over",
            Why::Missed => "missed",
            Why::Begun => "begun",
            Why::Asked => "asked",
            Why::Heard => "heard",
            Why::Lost => "lost",
        }
    }
}

impl Ledger {
    /// Brings jobs that are in this ledger into line with their keys; `lua/adopt.lua`. Values of more than `most` bytes
    /// make dead letters. What a full server has no room for is answered with [`Answer::Unread`],
    /// unless it is all.
    pub(crate) async fn adopt(
        &self,
        items: &[(JobKey, Why)],
        most: impl Fn(&JobKey) -> usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let refused = match self.adopt_all(items, &most, until).await {
            // For that, one new value is enough; the others may need no room.
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
        // The keys themselves, whatever the triggers of this ledger are called.
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
        }
        let answers = self.eval_storing(&ADOPT, &cmd, items.len(), until).await?;
        self.meter().adopted(counted::adopted(&answers));
        Ok(answers)
    }
}
