//! The jobs of a ledger that have changed, for a copy.

use std::time::Instant;

use bytes::Bytes;

use crate::error::Result;
use crate::keeping::CopyTerms;
use crate::shards::Layout;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{CHANGES, COPIED, COPY};
use crate::store::{Ledger, TermsRule};
use crate::time::{UnixMs, UnixUs};

/// About how many bytes of records one call reads.
const READ_BYTES: usize = 1024 * 1024;

/// Whether a ledger notes which jobs change, and how far it was copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Noted {
    /// Whether it still notes them; it stops when too many wait.
    pub(crate) is_on: bool,
    /// The version of the last change.
    pub(crate) version: u64,
    /// How many batches were copied.
    pub(crate) number: u64,
}

/// The changed jobs of a ledger, those first that changed longest ago.
#[derive(Debug)]
pub(crate) struct ChangesPage {
    /// The time of the look, by Redis' clock.
    pub(crate) at: UnixUs,
    /// The terms by which the ledger is copied; `None` if it is not.
    pub(crate) terms: Option<CopyTerms>,
    /// Whether somebody has removed the terms.
    pub(crate) is_off: bool,
    /// What the ledger knows of its copy; `None` before the copy begins.
    pub(crate) noted: Option<Noted>,
    /// The epoch of its layout.
    pub(crate) epoch: u64,
    /// The largest fencing value that was given out.
    pub(crate) fence: u64,
    /// How many changed jobs wait.
    pub(crate) waiting: u64,
    /// The jobs.
    pub(crate) jobs: Vec<JobAsIs>,
}

/// A job as it is, or would be after its lease has lapsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JobAsIs {
    pub(crate) id: String,
    /// The version of its last change; 0 if no change waits.
    pub(crate) version: u64,
    /// Its due time and its record; `None` if it has ended.
    pub(crate) job: Option<(UnixMs, Bytes)>,
}

/// A step of the beginning of a copy; see `lua/copy.lua`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CopyStep {
    /// Where the next step goes on; `None` at the end.
    pub(crate) cursor: Option<String>,
    /// The version of the changes that this step has noted.
    pub(crate) version: u64,
    /// How many these are.
    pub(crate) noted: u64,
}

impl Noted {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let most = words.next()?;
        Some(Noted {
            is_on: most != "over",
            version: words.next()?.parse().ok()?,
            number: words.next()?.parse().ok()?,
        })
    }
}

impl Ledger {
    /// Reads up to `limit` changed jobs, or these jobs if some are named; `lua/changes.lua`. It
    /// changes nothing.
    pub(crate) async fn changes(
        &self,
        limit: usize,
        ids: &[&str],
        until: Instant,
    ) -> Result<ChangesPage> {
        let names = &self.names;
        let keys = [
            &*names.due,
            &names.shadow,
            &names.lease,
            &names.next,
            &names.calls,
        ];
        let mut cmd = self.call(&CHANGES, &keys, [].into_iter());
        cmd.arg(limit).arg(READ_BYTES).arg(ids);
        let answer = self.eval(&CHANGES, &cmd, until).await?;
        let mut reply = answer.reply;
        let at = reply.now;
        let rule = TermsRule::<CopyTerms>::parse(&reply.text()?);
        let noted = Noted::parse(&reply.text()?);
        let layout = Layout::parse(&reply.text()?).unwrap_or(Layout::FIRST);
        let mut page = ChangesPage {
            at,
            is_off: rule.as_ref().is_some_and(|rule| rule.terms.is_none()),
            terms: rule.and_then(|rule| rule.terms),
            noted,
            epoch: layout.epoch,
            fence: reply.number()?,
            waiting: reply.number()?,
            jobs: Vec::new(),
        };
        while !reply.is_exhausted() {
            let id = reply.text()?;
            let (version, due, record) = (reply.number()?, reply.text()?, reply.bytes()?);
            let due = match &*due {
                "" => None,
                due => Some(UnixMs(due.parse().map_err(|_| unexpected(due.to_owned()))?)),
            };
            let job = due.map(|due| (due, Bytes::from(record)));
            page.jobs.push(JobAsIs { id, version, job });
        }
        Ok(page)
    }

    /// Removes changes that are in the copy, and notes the number of their batch; `lua/copied.lua`.
    /// May be repeated. Works while Redis is full.
    pub(crate) async fn copied<'a>(
        &self,
        number: u64,
        jobs: impl Iterator<Item = (&'a str, u64)>,
        until: Instant,
    ) -> Result<()> {
        let mut cmd = self.call(&COPIED, &[&self.names.calls], [].into_iter());
        cmd.arg(number);
        for (id, version) in jobs {
            cmd.arg(id).arg(version);
        }
        self.eval(&COPIED, &cmd, until).await.map(drop)
    }

    /// Has the ledger note its changes from now on, and notes some of the jobs that are there;
    /// `lua/copy.lua`. The first step has no cursor. `last` is what the copy knows of the ledger, and
    /// later fencing values are higher than `fence`.
    pub(crate) async fn copy(
        &self,
        terms: CopyTerms,
        last: (u64, u64),
        fence: u64,
        cursor: Option<&str>,
        until: Instant,
    ) -> Result<CopyStep> {
        /// About how many jobs one call notes, and into how many parts it divides the bound: what it
        /// notes must leave room for changes.
        const STEP: u64 = 1_000;
        const PARTS: u64 = 4;
        let names = &self.names;
        let keys = [&*names.due, &names.lease, &names.calls, &names.lanes];
        let mut cmd = self.call(&COPY, &keys, [].into_iter());
        let (version, number) = last;
        cmd.arg(terms.get_waiting()).arg(version).arg(number);
        let step = STEP.min(terms.get_waiting() / PARTS);
        cmd.arg(fence).arg(cursor.unwrap_or("due 0")).arg(step);
        let mut reply = self.eval(&COPY, &cmd, until).await?.reply;
        let cursor = reply.text()?;
        Ok(CopyStep {
            cursor: (!cursor.is_empty()).then_some(cursor),
            version: reply.number()?,
            noted: reply.number()?,
        })
    }
}
