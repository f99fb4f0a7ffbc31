//! Keys that are not what they should be.

use crate::client::Client;
use crate::error::Result;
use crate::store::Wrong;

/// A key, or one of its fields, that is not what Keyfall keeps there; from
/// [`Client::audit`](crate::Client::audit) and [`Selection::audit`](crate::Selection::audit).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Damage {
    /// Which key.
    pub key: String,
    /// Which of its fields, if it is not the key as a whole.
    pub field: Option<String>,
    /// What is wrong with it.
    pub what: String,
    /// Whether it was repaired.
    pub repaired: bool,
    /// What was done about it; or else what does it, with the command where a person has to.
    pub remedy: String,
}

impl Damage {
    /// What is wrong, repaired if asked for. Who is not allowed to, or fails, is told how it is done
    /// by hand.
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

    /// The same, of several.
    pub(super) async fn all(client: &Client, wrong: Vec<Wrong>, repair: bool) -> Result<Vec<Self>> {
        let mut damaged = Vec::with_capacity(wrong.len());
        for one in wrong {
            damaged.push(Damage::of(client, one, repair).await?);
        }
        Ok(damaged)
    }
}
