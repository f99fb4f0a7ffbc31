//! The records of ended jobs that wait in a ledger for an archive.

use std::time::Instant;

use bytes::Bytes;
use futures_util::future::try_join_all;

use crate::error::Result;
use crate::keeping::ArchiveTerms;
use crate::store::ledger::script::{ARCHIVED, ENDED};
use crate::store::{Ledger, TermsRule, from_value};

/// About how many bytes of records are read from each list.
const READ_BYTES: usize = 1024 * 1024;

/// How many records are read first, and with one command at the most: they may be large.
const FIRST_READ: usize = 16;
const MOST_READ: usize = 256;

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
    /// `lua/ended.lua`. It changes nothing. If somebody removes records meanwhile, the numbers do not
    /// fit what was read: then [`archived`](Self::archived) finds another record at the end, and
    /// removes nothing.
    pub(crate) async fn ended(&self, limit: usize, until: Instant) -> Result<EndedPage> {
        let cmd = self.call(&ENDED, &[&self.names.calls], [].into_iter());
        let mut reply = self.eval(&ENDED, &cmd, until).await?.reply;
        let rule = TermsRule::<ArchiveTerms>::parse(&reply.text()?);
        let [first, waiting, bytes] = [reply.number()?, reply.number()?, reply.number()?];
        let [first_died, died, died_bytes] = [reply.number()?, reply.number()?, reply.number()?];
        let [ended_key, died_key, _] = self.names.of_waiting();
        let read = [
            self.first_records(&ended_key, limit.min(waiting as usize), until),
            self.first_records(&died_key, limit.min(died as usize), until),
        ];
        let mut records = try_join_all(read).await?.into_iter();
        let lists = [first, first_died].map(|first| EndsList {
            first,
            records: records.next().unwrap_or_default(),
        });
        Ok(EndedPage {
            is_archived: rule.is_some_and(|rule| rule.terms.is_some()),
            waiting: waiting + died,
            waiting_bytes: bytes + died_bytes,
            dropped: reply.number()?,
            lists,
        })
    }

    /// The first records of a list, up to `limit` and about [`READ_BYTES`].
    async fn first_records(&self, key: &str, limit: usize, until: Instant) -> Result<Vec<Bytes>> {
        let mut records = Vec::with_capacity(limit);
        let (mut bytes, mut wanted) = (0, FIRST_READ);
        while records.len() < limit && bytes < READ_BYTES {
            let last = limit.min(records.len() + wanted) - 1;
            let mut range = redis::cmd("LRANGE");
            range.arg(key).arg(records.len()).arg(last);
            let found: Vec<Vec<u8>> = from_value(self.server.command(&range, until).await?)?;
            let is_end = records.len() + found.len() <= last;
            bytes += found.iter().map(Vec::len).sum::<usize>();
            records.extend(found.into_iter().map(Bytes::from));
            if is_end {
                break;
            }
            wanted = MOST_READ.min(4 * wanted);
        }
        Ok(records)
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
