//! The records of ended jobs that wait in a ledger for an archive.

use std::time::Instant;

use crate::error::Result;
use crate::store::ledger::script::{ARCHIVED, ENDED};
use crate::store::{ArchiveRule, Ledger};

/// About how many bytes of records one call reads from each list.
const READ_BYTES: usize = 1024 * 1024;

/// The records that wait in one ledger, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedPage {
    /// Whether the ledger has a rule: more will come.
    pub(crate) is_archived: bool,
    /// The number behind the last record that was read; of dead letters, and of other ends.
    pub(crate) read: EndsRead,
    /// How many records wait, those that were read included.
    pub(crate) waiting: u64,
    /// Their bytes.
    pub(crate) waiting_bytes: u64,
    /// How many records were dropped because too many waited.
    pub(crate) dropped: u64,
    /// The records.
    pub(crate) records: Vec<Vec<u8>>,
}

/// How far the records of a ledger were read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct EndsRead {
    ended: u64,
    died: u64,
}

impl Ledger {
    /// Reads the oldest records, up to `limit` of dead letters and of other ends each;
    /// `lua/ended.lua`. It changes nothing.
    pub(crate) async fn ended(&self, limit: usize, until: Instant) -> Result<EndedPage> {
        let mut cmd = self.call(&ENDED, &[&self.names.calls], [].into_iter());
        cmd.arg(limit).arg(READ_BYTES);
        let mut reply = self.eval(&ENDED, &cmd, until).await?.reply;
        let is_archived = ArchiveRule::parse(&reply.text()?).is_some();
        let [first, waiting, bytes] = [reply.number()?, reply.number()?, reply.number()?];
        let [first_died, died, died_bytes] = [reply.number()?, reply.number()?, reply.number()?];
        let mut page = EndedPage {
            is_archived,
            waiting: waiting + died,
            waiting_bytes: bytes + died_bytes,
            dropped: reply.number()?,
            ..EndedPage::default()
        };
        let mut counts = [0, 0];
        for count in &mut counts {
            *count = reply.number()?;
            for _ in 0..*count {
                page.records.push(reply.bytes()?);
            }
        }
        page.read = EndsRead {
            ended: first + counts[0],
            died: first_died + counts[1],
        };
        Ok(page)
    }

    /// Removes the records that were read so far; `lua/archived.lua`. May be repeated. Returns how
    /// many were removed. It works while Redis is full.
    pub(crate) async fn archived(&self, read: EndsRead, until: Instant) -> Result<u64> {
        let mut cmd = self.call(&ARCHIVED, &[&self.names.calls], [].into_iter());
        cmd.arg(read.ended).arg(read.died);
        self.eval(&ARCHIVED, &cmd, until).await?.reply.number()
    }
}
