//! The jobs of a ledger, page by page.

use std::time::Instant;

use crate::error::Result;
use crate::settings::BATCH;
use crate::store::ledger::call::Called;
use crate::store::ledger::script::LIST;
use crate::store::{Ledger, from_value};
use crate::time::{UnixMs, UnixUs};

/// How many members a page looks at for those that it is about. Looking takes a hundredth of
/// what handing out takes.
const LOOKS: usize = 4 * BATCH;

/// Where a page ended: score and member, as Redis writes them.
pub(crate) type Position = (String, String);

/// What to list.
#[derive(Debug, Clone)]
pub(crate) struct Sought {
    /// `pending`, `leased`, `running`, `lapsed` or `dead`.
    pub(crate) state: &'static str,
    /// What the ids begin with.
    pub(crate) of_id: String,
    /// The latest first.
    pub(crate) down: bool,
    pub(crate) limit: usize,
    /// Records and leases, too.
    pub(crate) records: bool,
    /// None with a later score.
    pub(crate) until: UnixMs,
    pub(crate) after: Option<Position>,
}

/// A page.
#[derive(Debug)]
pub(crate) struct Slice {
    pub(crate) now: UnixUs,
    /// How many were looked at for it.
    pub(crate) looked: u64,
    pub(crate) next: Option<Position>,
    pub(crate) items: Vec<Seen>,
}

/// One job of a page.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The id; of a dead letter, `id:number`.
    pub(crate) member: String,
    /// When it is due, when its lease ends, or when it died.
    pub(crate) score: UnixMs,
    /// `token claims fence due flag`, or nothing.
    pub(crate) lease: String,
    pub(crate) record: Vec<u8>,
    /// The due time of the successor, or nothing.
    pub(crate) successor: Vec<u8>,
}

impl Sought {
    /// The first page of the names of all in this state.
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
    /// How many are in this state, and the last score among them.
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
        // The last of all may be a placeholder.
        last.arg(set).arg(0).arg(1).arg("WITHSCORES");
        let last: Vec<(String, f64)> = from_value(self.server.command(&last, until).await?)?;
        let last = last.iter().find(|(_, score)| score.is_finite());
        let last = last.map_or(0, |(_, score)| *score as u64);
        Ok((size, UnixMs(last)))
    }

    /// A page of jobs; `lua/list.lua`.
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
            .arg(LOOKS)
            .arg(u8::from(sought.records))
            .arg(sought.until.0)
            .arg(&sought.of_id)
            .arg(score)
            .arg(member);
        let Called { mut reply, .. } = self.eval(&LIST, &cmd, until).await?;
        let looked = reply.number()?;
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
