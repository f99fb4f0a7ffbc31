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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EndsRead {
    ended: u64,
    died: u64,
    /// The first line of the last record that was read of each list; it names the job and the time.
    last_ended: Vec<u8>,
    last_died: Vec<u8>,
}

impl Ledger {
    /// Reads the oldest records, up to `limit` of dead letters and of other ends each;
    /// `lua/ended.lua`. It changes nothing.
    pub(crate) async fn ended(&self, limit: usize, until: Instant) -> Result<EndedPage> {
        let mut cmd = self.call(&ENDED, &[&self.names.calls], [].into_iter());
        cmd.arg(limit).arg(READ_BYTES);
        let mut reply = self.eval(&ENDED, &cmd, until).await?.reply;
        let rule = ArchiveRule::parse(&reply.text()?);
        let is_archived = rule.is_some_and(|rule| rule.terms.is_some());
        let [first, waiting, bytes] = [reply.number()?, reply.number()?, reply.number()?];
        let [first_died, died, died_bytes] = [reply.number()?, reply.number()?, reply.number()?];
        let mut page = EndedPage {
            is_archived,
            waiting: waiting + died,
            waiting_bytes: bytes + died_bytes,
            dropped: reply.number()?,
            ..EndedPage::default()
        };
        let mut read = [(0, Vec::new()), (0, Vec::new())];
        for (count, last) in &mut read {
            *count = reply.number()?;
            for _ in 0..*count {
                page.records.push(reply.bytes()?);
            }
            if let Some(record) = page.records.last().filter(|_| *count > 0) {
                *last = first_line(record).to_vec();
            }
        }
        let [(ended, last_ended), (died, last_died)] = read;
        page.read = EndsRead {
            ended: first + ended,
            died: first_died + died,
            last_ended,
            last_died,
        };
        Ok(page)
    }

    /// Removes the records that were read so far; `lua/archived.lua`. May be repeated. Returns how
    /// many were removed. It works while Redis is full.
    pub(crate) async fn archived(&self, read: &EndsRead, until: Instant) -> Result<u64> {
        let mut cmd = self.call(&ARCHIVED, &[&self.names.calls], [].into_iter());
        cmd.arg(read.ended).arg(read.died);
        cmd.arg(&read.last_ended).arg(&read.last_died);
        self.eval(&ARCHIVED, &cmd, until).await?.reply.number()
    }
}

fn first_line(record: &[u8]) -> &[u8] {
    let end = record.iter().position(|byte| *byte == b'\n');
    &record[..end.unwrap_or(record.len())]
}
