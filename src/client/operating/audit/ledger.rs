//! The audit of one ledger: keys first, then every job through all parts in which it is stored,
//! then the counters.

use std::collections::HashSet;
use std::sync::Arc;

use super::damage::Damage;
use super::{AuditReport, Flawed};
use crate::client::{Client, Stats};
use crate::error::Result;
use crate::flaw::Flaw;
use crate::headers::Headers;
use crate::record::{Header, Record, Terms};
use crate::shards::Layout;
use crate::store::{Judged, Ledger, PARTS, Suspect, Tally, Wrong};

/// The most flaws that an audit reports and repairs.
const MOST: usize = 1000;

/// The most checks of one name: a repair can reveal a second flaw.
const ROUNDS: usize = 4;

/// The number of names in one call. A repair reads their records, which may be large.
const NAMES: usize = 16;

/// Facts about the kind as a whole.
#[derive(Clone, Copy)]
pub(super) struct OfKind {
    pub(super) is_listed: bool,
    pub(super) layout: Layout,
}

/// An audit of one ledger in progress.
pub(super) struct Auditor<'a> {
    client: &'a Client,
    ledger: Arc<Ledger>,
    repair: bool,
    seen: HashSet<Suspect>,
    flawed: Vec<Flawed>,
    damaged: Vec<Damage>,
    scanned: u64,
    /// The largest number of a dead letter so far.
    highest: u64,
}

impl<'a> Auditor<'a> {
    /// An audit that has not begun; with `repair`, it repairs the flaws that it finds.
    pub(super) fn new(client: &'a Client, ledger: Arc<Ledger>, repair: bool) -> Self {
        Auditor {
            client,
            ledger,
            repair,
            seen: HashSet::new(),
            flawed: Vec::new(),
            damaged: Vec::new(),
            scanned: 0,
            highest: 0,
        }
    }

    /// Runs the audit. Keys first: all later steps read them. If a key is unusable and not
    /// repaired, the rest of the ledger is not read.
    pub(super) async fn run(mut self, of_kind: OfKind) -> Result<AuditReport> {
        let client = self.client;
        let wrong = self.ledger.wrong_keys(client.deadline()).await?;
        self.take_in(wrong).await?;
        if let Some(cluster) = client.store().cluster()
            && self.damaged.iter().any(|it| it.repaired)
        {
            let (kind, ledgers) = (self.ledger.kind(), of_kind.layout.ledgers());
            cluster.found(kind, ledgers, client.deadline()).await?;
        }
        let is_in_the_way = |it: &Damage| !it.repaired && self.ledger.needs(&it.key);
        if self.damaged.iter().any(is_in_the_way) {
            return Ok(self.report(Stats::default(), false, false, of_kind.is_listed));
        }
        let wrong = self.ledger.wrong_marks(client.deadline()).await?;
        self.take_in(wrong).await?;
        let tally = self.ledger.tally(client.deadline()).await?;
        let largest = tally.pending + tally.leased + tally.successors + tally.dead + tally.records;
        let mut is_complete = true;
        for part in PARTS {
            is_complete &= self.look_through(part, largest).await?;
            if part == "grave" {
                // After the scan: it has met letters that came meanwhile.
                let tally = self.ledger.tally(client.deadline()).await?;
                self.see_to_numbers(&tally).await?;
            }
        }
        // The repair removed a wrong entry of a name. The letters of that name cannot be found by
        // it until another scan adds them to it.
        let is_cut = |it: &Flawed| it.repaired && it.flaw == Flaw::LetterMisfiled;
        if self.flawed.iter().any(is_cut) {
            self.seen.clear();
            is_complete &= self.look_through("dead", largest).await?;
        }
        let tally = self.ledger.tally(client.deadline()).await?;
        self.see_to_counters(&tally).await?;
        let is_used = tally.is_used();
        let is_known = self.is_known(of_kind.is_listed, is_used).await?;
        if is_known || is_used {
            let untold = self.ledger.untold(of_kind.layout, client.deadline());
            let untold = untold.await?;
            self.take_in(untold).await?;
        }
        let is_consistent = tally.records == tally.pending + tally.leased
            && tally.leases == tally.leased
            && tally.successors <= tally.leases;
        Ok(self.report(tally.into(), is_consistent, is_complete, is_known))
    }

    /// Finishes the report.
    fn report(
        self,
        stats: Stats,
        is_consistent: bool,
        is_complete: bool,
        is_known: bool,
    ) -> AuditReport {
        AuditReport {
            stats,
            is_consistent,
            is_known,
            damaged: self.damaged,
            flawed: self.flawed,
            is_complete,
            scanned: self.scanned,
            unseen: Vec::new(),
        }
    }

    /// Reports these damages, and repairs them if asked.
    async fn take_in(&mut self, wrong: Vec<Wrong>) -> Result<()> {
        let damaged = Damage::all(self.client, wrong, self.repair).await?;
        self.damaged.extend(damaged);
        Ok(())
    }

    /// Whether the kind is listed now. A repair lists a kind that was used.
    async fn is_known(&self, is_listed: bool, is_used: bool) -> Result<bool> {
        if is_listed || !self.repair || !is_used {
            return Ok(is_listed);
        }
        let (store, kind) = (self.client.store(), self.ledger.kind());
        let shards = self.client.settings().default_shards;
        store.register(kind, shards, self.client.deadline()).await
    }

    /// After a loss of counters, letters may have numbers that would be given out again.
    async fn see_to_numbers(&mut self, tally: &Tally) -> Result<()> {
        let buried = tally.counters.get("buried").copied().unwrap_or(0);
        let skipped = tally.counters.get("skipped").copied();
        let is_told = ["buried", "skipped"]
            .iter()
            .any(|it| tally.broken.contains_key(*it));
        if is_told || self.highest <= buried + skipped.unwrap_or(0) {
            return Ok(());
        }
        let wrong = self.ledger.wrong_numbers(self.highest, buried, skipped);
        self.take_in(vec![wrong]).await
    }

    /// Reports broken counters. Counters are the proof that nothing was lost, so they are not
    /// repaired. The right value follows from the others only if a single counter is broken.
    async fn see_to_counters(&mut self, tally: &Tally) -> Result<()> {
        let stats = Stats::from(tally);
        let mut in_books = tally
            .broken
            .keys()
            .filter(|name| stats.balanced_by(name).is_some());
        let is_single = in_books.next().is_some() && in_books.next().is_none();
        let wrong = tally.broken.iter().map(|(name, found)| {
            let buried = tally.counters.get("buried").copied();
            let balances = match (&**name, stats.balanced_by(name)) {
                ("skipped", _) => Some(self.highest.saturating_sub(buried.unwrap_or(0))),
                (_, None) => Some(0),
                (_, Some(number)) => u64::try_from(number).ok().filter(|_| is_single),
            };
            self.ledger.wrong_counter(name, found, balances)
        });
        let wrong = wrong.collect();
        self.take_in(wrong).await
    }

    /// Scans one part of the ledger. Returns whether the scan came to the end: it stops at the
    /// limit of flaws, or if the part grows faster than it is read.
    async fn look_through(&mut self, part: &'static str, largest: u64) -> Result<bool> {
        let (mut cursor, mut looked) = ("0".to_owned(), 0);
        loop {
            let until = self.client.deadline();
            let page = self.ledger.scan(part, &cursor, until).await?;
            looked += page.looked;
            self.scanned += page.looked;
            self.highest = self.highest.max(page.highest);
            for suspects in page.suspects.chunks(NAMES) {
                if self.flawed.len() >= MOST {
                    return Ok(false);
                }
                self.examine(suspects).await?;
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

    /// Checks suspects, and repairs them if asked, until no flaw is left or [`ROUNDS`] are over.
    async fn examine(&mut self, suspects: &[Suspect]) -> Result<()> {
        let mut suspects: Vec<Suspect> = suspects
            .iter()
            .filter(|suspect| self.seen.insert((*suspect).clone()))
            .cloned()
            .collect();
        for _ in 0..ROUNDS {
            if suspects.is_empty() {
                return Ok(());
            }
            let items: Vec<_> = suspects.drain(..).map(|it| (it, String::new())).collect();
            let until = self.client.deadline();
            let found = self.ledger.audit(&items, false, until).await?;
            let mut headed = Vec::new();
            for ((suspect, _), found) in items.into_iter().zip(found) {
                let Some(found) = found else { continue };
                if self.repair {
                    let header = self.header(&suspect, found.flaw).await?;
                    headed.push((suspect, header));
                } else {
                    self.note(&suspect, found.flaw, false);
                }
            }
            if headed.is_empty() {
                return Ok(());
            }
            let mended = self.ledger.audit(&headed, true, until).await?;
            for ((suspect, _), found) in headed.into_iter().zip(mended) {
                let Some(found) = found else { continue };
                let repaired = found.flaw.is_repairable() && !found.is_left;
                self.note(&suspect, found.flaw, repaired);
                if repaired {
                    suspects.push(suspect);
                }
            }
        }
        Ok(())
    }

    /// The header of the dead letter that a repair makes: the header of the record, if one can be
    /// read, with the reason.
    async fn header(&self, suspect: &Suspect, flaw: Flaw) -> Result<String> {
        let mut header = Header::new(Headers::new(), Terms::default());
        if matches!(
            flaw,
            Flaw::RecordAlone | Flaw::DueAtNoTime | Flaw::NameOfNoJob
        ) {
            let until = self.client.deadline();
            let stored = self.ledger.stored(&suspect.name, until).await?;
            if let Ok(record) = Record::parse(stored) {
                header = record.header;
            }
        }
        header.error = Some(match (&suspect.judged, flaw) {
            (Judged::Unreadable { fault, .. }, _) => {
                format!("{}: {fault}", Flaw::RecordUnreadable.reason())
            }
            (_, Flaw::NameOfNoJob) => format!("{}: {:?}", flaw.reason(), shown(&suspect.name)),
            _ => flaw.reason().to_owned(),
        });
        Ok(header.to_line().into_owned())
    }

    /// Adds a flaw to the report.
    fn note(&mut self, suspect: &Suspect, flaw: Flaw, repaired: bool) {
        self.flawed.push(Flawed {
            name: format!("{}:{}", self.ledger.kind(), shown(&suspect.name)),
            flaw,
            repaired,
        });
    }
}

/// The name as text; invalid UTF-8 is replaced.
fn shown(name: &[u8]) -> std::borrow::Cow<'_, str> {
    String::from_utf8_lossy(name)
}
