//! The records of ended jobs that wait in a ledger for an archive.

use std::time::Instant;

use bytes::Bytes;

use crate::error::Result;
use crate::keeping::ArchiveTerms;
use crate::store::ledger::script::{ARCHIVED, ENDED};
use crate::store::{Ledger, TermsRule};

/// About how many bytes of records one call reads from each list.
const READ_BYTES: usize = 1024 * 1024;

/// The records that wait in one ledger, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct EndedPage {
    /// Whether the ledger has a rule: more will come.
    pub(crate) is_archived: bool,
    /// How many records wait, those that were read included.
    pub(crate) waiting: u64,
    /// Their bytes.
    pub(crate) waiting_bytes: u64,
    /// How many records were dropped because too many waited.
    pub(crate) dropped: u64,
    /// The records of `ended` and of `died`.
    pub(crate) lists: [EndsList; 2],
}

/// The oldest records of a list.
#[derive(Debug, Default)]
pub(crate) struct EndsList {
    /// The number of the first one.
    pub(crate) first: u64,
    /// The records.
    pub(crate) records: Vec<Bytes>,
}

/// How far a list was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct EndsRead {
    /// The number of the first record.
    first: u64,
    /// The number behind the last record that was read.
    next: u64,
    /// The bytes of all that were read.
    bytes: usize,
    /// The first line of that record; it names the job and the time.
    last: Bytes,
}

impl EndsList {
    /// The list up to its first `count` records.
    pub(crate) fn read(&self, count: usize) -> EndsRead {
        let last = count
            .checked_sub(1)
            .map(|last| first_line(&self.records[last]));
        EndsRead {
            first: self.first,
            next: self.first + count as u64,
            bytes: self.records[..count].iter().map(Bytes::len).sum(),
            last: last.unwrap_or_default(),
        }
    }
}

impl Ledger {
    /// Reads the oldest records, up to `limit` of dead letters and of other ends each;
    /// `lua/ended.lua`. It changes nothing.
    pub(crate) async fn ended(&self, limit: usize, until: Instant) -> Result<EndedPage> {
        let mut cmd = self.call(&ENDED, &[&self.names.calls], [].into_iter());
        cmd.arg(limit).arg(READ_BYTES);
        let mut reply = self.eval(&ENDED, &cmd, until).await?.reply;
        let rule = TermsRule::<ArchiveTerms>::parse(&reply.text()?);
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
        for (list, first) in page.lists.iter_mut().zip([first, first_died]) {
            list.first = first;
            for _ in 0..reply.number()? {
                list.records.push(reply.bytes()?.into());
            }
        }
        Ok(page)
    }

    /// Removes the records that were read so far; `lua/archived.lua`. May be repeated. Returns how
    /// many were removed. It works while Redis is full.
    pub(crate) async fn archived(&self, read: &[EndsRead; 2], until: Instant) -> Result<u64> {
        let mut cmd = self.call(&ARCHIVED, &[&self.names.calls], [].into_iter());
        let [ended, died] = read;
        cmd.arg(ended.next).arg(died.next);
        cmd.arg(&*ended.last).arg(&*died.last);
        cmd.arg(ended.first).arg(died.first);
        cmd.arg(ended.bytes).arg(died.bytes);
        self.eval(&ARCHIVED, &cmd, until).await?.reply.number()
    }
}

fn first_line(record: &Bytes) -> Bytes {
    let end = record.iter().position(|byte| *byte == b'\n');
    record.slice(..end.unwrap_or(record.len()))
}
