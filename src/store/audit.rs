//! Looking for what is wrong in a ledger, and mending it.

use std::time::{Duration, Instant};

use super::ledger::who;
use super::reply::{Answer, unexpected};
use super::script::{AUDIT, SCAN};
use super::{Ledger, from_value};
use crate::error::Result;
use crate::flaw::Flaw;

/// The parts of a ledger that are looked through, by the names that `lua/scan.lua` has for them.
pub(crate) const PARTS: [&str; 7] = ["due", "shadow", "leased", "lease", "next", "dead", "grave"];

/// About how many names one call looks at. Redis reads their values too, which may be large.
const COUNT: usize = 64;

/// How long a lease lasts whose deadline was lost: long enough for its holder to renew it.
const LEASE: Duration = Duration::from_secs(15);

/// A page of one part.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Where the next page begins; `0` at the end.
    pub(crate) cursor: String,
    pub(crate) looked: u64,
    /// Names with which something is wrong.
    pub(crate) suspects: Vec<String>,
}

impl Ledger {
    /// Looks through a page of one part; `lua/scan.lua`.
    pub(crate) async fn scan(
        &self,
        part: &'static str,
        cursor: &str,
        until: Instant,
    ) -> Result<Scanned> {
        let keys = self.names.of_jobs();
        let mut cmd = self.call(&SCAN, &keys, [].into_iter());
        cmd.arg(part).arg(cursor).arg(COUNT);
        let mut reply = self.eval(&SCAN, &cmd, until).await?.reply;
        Ok(Scanned {
            cursor: reply.text()?,
            looked: reply.number()?,
            suspects: reply.words()?,
        })
    }

    /// What is wrong with each of these names, if anything; mended, if asked for, with the
    /// header for the letter that comes of it; `lua/audit.lua`.
    pub(crate) async fn audit(
        &self,
        items: &[(String, String)],
        repair: bool,
        until: Instant,
    ) -> Result<Vec<Option<Flaw>>> {
        let n = &self.names;
        let keys: [&str; 10] = [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.next, &n.dead, &n.grave, &n.stats, &n.calls,
            &n.history,
        ];
        let mut cmd = self.call(&AUDIT, &keys, [].into_iter());
        cmd.arg(u8::from(repair))
            .arg(LEASE.as_millis())
            .arg(&self.wake)
            .arg(&n.subject)
            .arg(who());
        for (name, header) in items {
            cmd.arg(name).arg(header);
        }
        let answers = self.eval_items(&AUDIT, &cmd, items.len(), until).await?;
        answers
            .into_iter()
            .map(|answered| match answered.answer {
                Answer::Sound => Ok(None),
                Answer::Flawed(flaw) => Ok(Some(flaw)),
                other => Err(unexpected(format!("{other:?}"))),
            })
            .collect()
    }

    /// What is stored under this id, whatever state it is in.
    pub(crate) async fn stored(&self, id: &str, until: Instant) -> Result<Vec<u8>> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.shadow).arg(id);
        let record: Option<Vec<u8>> = from_value(self.store.command(&get, until).await?)?;
        Ok(record.unwrap_or_default())
    }
}
