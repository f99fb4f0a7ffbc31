//! Lists of the jobs of a ledger in one state, page by page, in the order of their times.

use std::time::Instant;

use crate::error::Result;
use crate::settings::BATCH;
use crate::store::ledger::aside::{ASIDE, due_of};
use crate::store::ledger::call::Called;
use crate::store::ledger::script::LIST;
use crate::store::{Ledger, from_value};
use crate::time::{UnixMs, UnixUs};

/// How many members one call looks at to fill a page if not every member fits.
const LOOKS: usize = 4 * BATCH;

/// The end of a page: score and member, as Redis writes them.
pub(crate) type Position = (String, String);

/// The request of a page.
#[derive(Debug, Clone)]
pub(crate) struct Sought {
    /// The state: `pending`, `leased`, `running`, `lapsed` or `dead`.
    pub(crate) state: &'static str,
    /// The beginning of the ids; empty for all.
    pub(crate) of_id: String,
    /// Whether the latest job comes first.
    pub(crate) down: bool,
    /// The most jobs of a page.
    pub(crate) limit: usize,
    /// Whether records, leases and successors are read, too.
    pub(crate) records: bool,
    /// The latest time of a job on the page.
    pub(crate) until: UnixMs,
    /// The end of the page before; `None` for the first page.
    pub(crate) after: Option<Position>,
}

/// A page. It can be short or even empty and still have a next one.
#[derive(Debug)]
pub(crate) struct Slice {
    /// The time of the server.
    pub(crate) now: UnixUs,
    /// How many members were looked at for the page.
    pub(crate) looked: u64,
    /// The position at which the next page begins; `None` at the end.
    pub(crate) next: Option<Position>,
    /// The jobs, in the requested order.
    pub(crate) items: Vec<Seen>,
}

/// One job of a page.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The id of the job, or the `id:number` of a dead letter.
    pub(crate) member: String,
    /// The due time, the end of the lease, or the time of death.
    pub(crate) score: UnixMs,
    /// The lease, `token claims fence due flag`; empty if there is none or it was not requested.
    pub(crate) lease: String,
    /// The record; empty if it was not requested.
    pub(crate) record: Vec<u8>,
    /// The due time of the successor; empty if there is none or it was not requested.
    pub(crate) successor: Vec<u8>,
}

impl Seen {
    /// Its place in the list.
    pub(crate) fn position(&self) -> Position {
        (self.score.to_string(), self.member.clone())
    }
}

impl Sought {
    /// How many members one call looks at. If every member fits, it looks at one more than it
    /// returns, to know whether there is a next page.
    fn looks(&self) -> usize {
        let is_every = self.of_id.is_empty() && matches!(self.state, "pending" | "dead");
        if is_every { self.limit + 1 } else { LOOKS }
    }

    /// The request of the first page of the names of all jobs in this state whose ids begin with
    /// `of_id`, 256 at the most, without records.
    pub(crate) fn all_of(state: &'static str, of_id: &str) -> Self {
        Sought {
            state,
            of_id: of_id.to_owned(),
            down: false,
            limit: BATCH,
            records: false,
            until: UnixMs(u64::MAX),
            after: None,
        }
    }
}

impl Ledger {
    /// The number of jobs in this state, and their latest time; 0 if there is none. For `running`
    /// and `lapsed` it counts all leased jobs.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`](crate::ErrorKind::Damaged) if the due times are lost.
    pub(crate) async fn extent(
        &self,
        state: &'static str,
        until: Instant,
    ) -> Result<(u64, UnixMs)> {
        let set = match state {
            "pending" => &self.names.due,
            "dead" => &self.names.dead,
            _ => &self.names.leased,
        };
        let mut count = redis::cmd("ZCOUNT");
        count.arg(set).arg("-inf").arg("(inf");
        let size = from_value(self.server.command(&count, until).await?)?;
        let mut last = redis::cmd("ZREVRANGE");
        // The last member may be a placeholder.
        last.arg(set).arg(0).arg(1).arg("WITHSCORES");
        let last: Vec<(String, f64)> = from_value(self.server.command(&last, until).await?)?;
        let last = last.iter().find(|(_, score)| score.is_finite());
        let mut last = last.map_or(0, |(_, score)| *score as u64);
        if state == "pending" && last >= ASIDE {
            // Jobs that wait for the turn of their group stand behind all others.
            let mut below = redis::cmd("ZREVRANGEBYSCORE");
            below.arg(set).arg(format!("({ASIDE}")).arg("-inf");
            below.arg("WITHSCORES").arg("LIMIT").arg(0).arg(1);
            let below: Vec<(String, f64)> = from_value(self.server.command(&below, until).await?)?;
            let below = below.first().map_or(0, |(_, score)| *score as u64);
            last = due_of(last).0.max(below);
        }
        if state == "pending" && size == 0 {
            self.tally_due(until).await?;
        }
        Ok((size, UnixMs(last)))
    }

    /// A page of jobs; `lua/list.lua`. It only reads, and returns about 4 MiB of records at the
    /// most.
    pub(crate) async fn list(&self, sought: &Sought, until: Instant) -> Result<Slice> {
        let keys = self.names.of_jobs();
        let (score, member) = match &sought.after {
            Some((score, member)) => (score.as_str(), member.as_str()),
            None => ("", ""),
        };
        let mut cmd = self.call(&LIST, &keys, [].into_iter());
        cmd.arg(sought.state)
            .arg(if sought.down { "down" } else { "up" })
            .arg(sought.limit)
            .arg(sought.looks())
            .arg(u8::from(sought.records))
            .arg(sought.until.0)
            .arg(&sought.of_id)
            .arg(score)
            .arg(member);
        let Called { mut reply, .. } = self.eval(&LIST, &cmd, until).await?;
        let looked = reply.number()?;
        if sought.state == "pending" && sought.after.is_none() && looked == 0 {
            self.tally_due(until).await?;
        }
        let (score, member) = (reply.text()?, reply.text()?);
        let mut items = Vec::new();
        while !reply.is_exhausted() {
            let mut seen = Seen {
                member: reply.text()?,
                score: reply.score()?,
                lease: String::new(),
                record: Vec::new(),
                successor: Vec::new(),
            };
            if sought.records {
                seen.lease = reply.text()?;
                seen.record = reply.bytes()?;
                seen.successor = reply.bytes()?;
            }
            items.push(seen);
        }
        Ok(Slice {
            now: reply.now,
            looked,
            next: (!score.is_empty()).then_some((score, member)),
            items,
        })
    }
}
