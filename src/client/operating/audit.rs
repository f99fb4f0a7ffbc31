//! Whether the books of a kind balance, and what is wrong if they do not.

use std::collections::HashSet;
use std::future::IntoFuture;
use std::sync::Arc;

use super::sight::Sight;
use crate::client::{Client, Pending, Stats, Unseen};
use crate::error::Result;
use crate::flaw::Flaw;
use crate::headers::Headers;
use crate::key::Kind;
use crate::record::{Header, Record, Terms};
use crate::store::{Ledger, PARTS};

/// How many flaws an audit reports, and repairs, at the most.
const MOST: usize = 1000;

/// How often a name is looked at again after it was repaired: a second flaw may show.
const ROUNDS: usize = 4;

/// How many names go into one call. Repairing reads their records, which may be large.
const NAMES: usize = 16;

/// A call to [`Client::audit`]; sent when it is awaited.
#[must_use = "nothing is audited until it is awaited"]
pub struct Audit<'a> {
    client: &'a Client,
    kind: Result<Kind>,
    repair: bool,
}

/// What an audit found.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct AuditReport {
    /// The counts and counters at the end of the audit, of one instant. Whether they balance,
    /// and by how much they fail to, is told by [`Stats::difference`] and
    /// [`Stats::letters_difference`].
    pub stats: Stats,
    /// Whether as many records and leases are stored as there are jobs that need one.
    pub is_consistent: bool,
    /// Whether the kind was ever used, for all that the list of kinds says. One that is spelt
    /// wrong was not. If it was all the same, its entry in the list is lost: workers with
    /// wildcards do not find its jobs.
    pub is_known: bool,
    /// What is wrong, and with which names: the first thousand flaws.
    pub flawed: Vec<Flawed>,
    /// Whether all was looked at. If not, there were more flaws than are reported: repair
    /// these, and audit again.
    pub is_complete: bool,
    /// How many names were looked at. A job is stored in several parts, and is met in each.
    pub scanned: u64,
    /// What was not looked at, because one of several servers was away.
    pub unseen: Vec<Unseen>,
}

/// A name with which something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flawed {
    /// Its kind and its id; of a dead letter, its number as well.
    pub name: String,
    /// What is wrong.
    pub flaw: Flaw,
    /// Whether it was repaired.
    pub repaired: bool,
}

impl Client {
    /// Audits a kind, `app:module:biz`: looks whether its counters balance and its parts fit
    /// together, and goes through all of them for jobs of which some part is missing. Work goes
    /// on meanwhile; what is reported was so at one instant.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// let report = client.audit("app1:trans:notice").await?;
    /// if !report.is_clean() {
    ///     println!("{report:?}");
    ///     client.audit("app1:trans:notice").repair().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn audit(&self, kind: &str) -> Audit<'_> {
        Audit {
            client: self,
            kind: Kind::parse(kind),
            repair: false,
        }
    }
}

impl Audit<'_> {
    /// Repairs what is found, as each [`Flaw`] says; each is looked at again in the same step.
    ///
    /// A kind that is used and was not known is made known.
    ///
    /// Nothing disappears, and no counter is put right for its own sake: a difference that no
    /// flaw explains stays, and is reported. A job that comes to light fills the gap, if by the
    /// counters one is missing; if none is, it is counted as accepted.
    pub fn repair(mut self) -> Self {
        self.repair = true;
        self
    }
}

impl AuditReport {
    /// Of two shards of the kind.
    fn and(mut self, other: Self) -> Self {
        self.stats = self.stats.plus(&other.stats);
        self.is_consistent &= other.is_consistent;
        self.is_known &= other.is_known;
        self.flawed.extend(other.flawed);
        self.is_complete &= other.is_complete;
        self.scanned += other.scanned;
        self
    }

    /// Of a kind of which nothing was seen.
    fn of_nothing() -> Self {
        AuditReport {
            stats: Stats::default(),
            is_consistent: true,
            is_known: true,
            flawed: Vec::new(),
            is_complete: true,
            scanned: 0,
            unseen: Vec::new(),
        }
    }

    /// Whether everything is as it should be: known, balanced, consistent, without a flaw, and seen.
    pub fn is_clean(&self) -> bool {
        self.is_known
            && self.stats.is_balanced()
            && self.is_consistent
            && self.is_complete
            && self.flawed.is_empty()
            && self.unseen.is_empty()
    }
}

/// An audit under way.
struct Auditor<'a> {
    client: &'a Client,
    ledger: Arc<Ledger>,
    repair: bool,
    seen: HashSet<String>,
    flawed: Vec<Flawed>,
    scanned: u64,
}

impl Auditor<'_> {
    async fn run(mut self) -> Result<AuditReport> {
        let tally = self.ledger.tally(self.client.deadline()).await?;
        let largest = tally.pending + tally.leased + tally.successors + tally.dead + tally.records;
        let mut is_complete = true;
        for part in PARTS {
            is_complete &= self.look_through(part, largest).await?;
        }
        let tally = self.ledger.tally(self.client.deadline()).await?;
        Ok(AuditReport {
            is_known: self
                .is_known(tally.counters.contains_key("accepted"))
                .await?,
            is_consistent: tally.records == tally.pending + tally.leased
                && tally.leases == tally.leased
                && tally.successors <= tally.leases,
            stats: tally.into(),
            flawed: self.flawed,
            is_complete,
            scanned: self.scanned,
            unseen: Vec::new(),
        })
    }

    /// Whether the kind is known by now. One that has accepted jobs ought to be, and can be made
    /// so.
    async fn is_known(&self, is_used: bool) -> Result<bool> {
        let (store, kind) = (&self.client.0.store, self.ledger.kind());
        let is_known = store.knows(kind, self.client.deadline()).await?;
        if is_known || !self.repair || !is_used {
            return Ok(is_known);
        }
        let shards = self.client.settings().default_shards;
        store.register(kind, shards, self.client.deadline()).await?;
        Ok(true)
    }

    /// Whether it came to the end. A part that grows faster than it is looked through has none.
    async fn look_through(&mut self, part: &'static str, largest: u64) -> Result<bool> {
        let (mut cursor, mut looked) = ("0".to_owned(), 0);
        loop {
            let until = self.client.deadline();
            let page = self.ledger.scan(part, &cursor, until).await?;
            looked += page.looked;
            self.scanned += page.looked;
            for names in page.suspects.chunks(NAMES) {
                if self.flawed.len() >= MOST {
                    return Ok(false);
                }
                self.examine(names).await?;
            }
            if page.cursor == "0" {
                return Ok(true);
            }
            if looked > 4 * largest + 10_000 {
                return Ok(false);
            }
            cursor = page.cursor;
        }
    }

    async fn examine(&mut self, names: &[String]) -> Result<()> {
        let mut names: Vec<String> = names
            .iter()
            .filter(|name| self.seen.insert((*name).clone()))
            .cloned()
            .collect();
        for _ in 0..ROUNDS {
            if names.is_empty() {
                return Ok(());
            }
            let items: Vec<_> = names.drain(..).map(|name| (name, String::new())).collect();
            let until = self.client.deadline();
            let found = self.ledger.audit(&items, false, until).await?;
            if !self.repair {
                self.report(&items, &found);
                return Ok(());
            }
            let mut headed = Vec::new();
            for ((name, _), flaw) in items.into_iter().zip(found) {
                if let Some(flaw) = flaw {
                    let header = self.header(&name, flaw).await?;
                    headed.push((name, header));
                }
            }
            if headed.is_empty() {
                return Ok(());
            }
            let mended = self.ledger.audit(&headed, true, until).await?;
            self.report(&headed, &mended);
            let again = headed.into_iter().zip(mended);
            names.extend(
                again
                    .filter(|(_, flaw)| flaw.is_some_and(Flaw::is_repairable))
                    .map(|((name, _), _)| name),
            );
        }
        Ok(())
    }

    /// The header of the letter that comes of it: that of its record, if there is one, with the
    /// reason.
    async fn header(&self, name: &str, flaw: Flaw) -> Result<String> {
        let mut header = Header::new(Headers::new(), Terms::default());
        if flaw == Flaw::RecordAlone {
            let stored = self.ledger.stored(name, self.client.deadline()).await?;
            if let Ok(record) = Record::parse(stored) {
                header = record.header;
            }
        }
        header.error = Some(flaw.reason().into());
        Ok(header.to_line().into_owned())
    }

    fn report(&mut self, items: &[(String, String)], found: &[Option<Flaw>]) {
        for ((name, _), flaw) in items.iter().zip(found) {
            if let Some(flaw) = *flaw {
                self.flawed.push(Flawed {
                    name: format!("{}:{name}", self.ledger.kind()),
                    flaw,
                    repaired: self.repair && flaw.is_repairable(),
                });
            }
        }
    }
}

impl<'a> IntoFuture for Audit<'a> {
    type Output = Result<AuditReport>;
    type IntoFuture = Pending<'a, AuditReport>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let kind = self.kind?;
            let shelf = self.client.shelf_now(&kind).await?;
            let mut sight = Sight::now(self.client.store());
            let mut reports = Vec::new();
            for book in shelf.all() {
                let auditor = Auditor {
                    client: self.client,
                    ledger: book.ledger.clone(),
                    repair: self.repair,
                    seen: HashSet::new(),
                    flawed: Vec::new(),
                    scanned: 0,
                };
                reports.extend(sight.see(&book.ledger, auditor.run()).await?);
            }
            let all = reports.into_iter().reduce(AuditReport::and);
            let mut report = all.unwrap_or_else(AuditReport::of_nothing);
            report.unseen = sight.unseen();
            Ok(report)
        })
    }
}
