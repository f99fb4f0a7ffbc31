//! Damaged keys: their description and repair.

use crate::client::Client;
use crate::error::Result;
use crate::store::Wrong;

/// A damaged key, or a damaged field of a key; from [`Client::audit`](crate::Client::audit) and
/// [`Selection::audit`](crate::Selection::audit).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// The Redis key.
    pub key: String,
    /// The damaged field; `None` if the key as a whole is damaged.
    pub field: Option<String>,
    /// The damage, in words.
    pub what: String,
    /// Whether it was repaired.
    pub repaired: bool,
    /// The repair that was made, or the remedy, with the command if a person has to run it.
    pub remedy: String,
}

impl Damage {
    /// A report of the damage, repaired if `repair` is set. If this user may not repair it, or the
    /// repair fails, the report tells how to do it by hand.
    pub(super) async fn of(client: &Client, wrong: Wrong, repair: bool) -> Result<Self> {
        let (repaired, remedy) = match repair && wrong.is_mendable() {
            false => (false, wrong.remedy()),
            true => match client.store().mend(&wrong, client.deadline()).await {
                Ok(done) => (true, done),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => (false, format!("{error}; by hand: {}", wrong.by_hand())),
            },
        };
        let field = wrong.field.as_deref().map(String::from_utf8_lossy);
        Ok(Damage {
            field: field.map(std::borrow::Cow::into_owned),
            key: wrong.key,
            what: wrong.what,
            repaired,
            remedy,
        })
    }

    /// Reports of several damages.
    pub(super) async fn all(client: &Client, wrong: Vec<Wrong>, repair: bool) -> Result<Vec<Self>> {
        let mut damaged = Vec::with_capacity(wrong.len());
        for one in wrong {
            damaged.push(Damage::of(client, one, repair).await?);
        }
        Ok(damaged)
    }
}
