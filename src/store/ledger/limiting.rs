//! The limit of a ledger: set, shared with other ledgers, held, and what waits for it.

use std::time::{Duration, Instant};

use redis::Cmd;

use crate::error::Result;
#[cfg(feature = "worker")]
use crate::error::{Error, ErrorKind};
#[cfg(feature = "worker")]
use crate::limit::GroupBy;
use crate::limit::{Holder, Share, Terms};
#[cfg(feature = "worker")]
use crate::shards::Layout;
use crate::store::ledger::reply::unexpected;
use crate::store::ledger::script::{ADMIT, ALLOT, HOLD, LIMIT, SHARE};
use crate::store::ledger::{number, who};
use crate::store::{Answered, Lane, Ledger, LimitRule, Word, from_value};
use crate::time::{UnixMs, UnixUs};

/// What a ledger has of a limit.
#[derive(Debug, Clone)]
pub(crate) enum LimitPart {
    /// A limit of its own.
    Own(Terms),
    /// A share of a limit over several ledgers. A ledger that has one of the same limit already
    /// keeps it.
    Shared {
        /// The whole limit.
        whole: Terms,
        /// The share.
        share: Share,
        /// When the limit was set: all shares of one limit have the same time.
        rule: UnixMs,
    },
}

/// The limit of a ledger, and the jobs that wait for it.
#[derive(Debug)]
pub(crate) struct Admission {
    /// The rule of which the ledger has a part.
    pub(crate) rule: LimitRule,
    /// How many due jobs may start now.
    pub(crate) room: u64,
    /// How many leases there are.
    pub(crate) leases: u64,
    /// How many jobs are due.
    pub(crate) due: u64,
    /// When the rate allows one more start than were announced; `None` if it stops none.
    pub(crate) next: Option<UnixUs>,
}

#[cfg(feature = "worker")]
impl Admission {
    /// Where the group of a job is found, if the limit has groups.
    pub(crate) fn group_by(&self) -> Option<&GroupBy> {
        self.rule.limit.as_ref()?.get_per()
    }
}

/// Who looks at the shares of a limit, and the number of the look: of two at the same time, the one
/// with the lower number changes nothing more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Look<'a> {
    /// The number.
    pub(crate) epoch: u64,
    /// A unique name.
    pub(crate) by: &'a str,
    /// When the limit was set.
    pub(crate) rule: UnixMs,
}

/// The answer of a ledger about its share.
#[derive(Debug)]
pub(crate) enum ShareReply {
    /// The share, from now on; and the millionths of a start that were used of the units which this
    /// look has removed.
    Shared { holder: Holder, owed: u64 },
    /// A look with this higher number was faster.
    Newer(u64),
    /// The ledger has no share of this limit.
    Absent,
}

/// A group in a look at its shares: what changes, if anything.
#[derive(Debug, Clone)]
pub(crate) struct GroupCall<'a> {
    /// Its name, as scripts write it.
    pub(crate) name: &'a str,
    /// The new share, and the millionths of a start that added units have used.
    pub(crate) change: Option<(Share, u64)>,
    /// Whether what is used of removed units is forgotten: other ledgers owe it by now.
    pub(crate) forgets: bool,
}

/// The answer of a ledger about its shares of the limits of groups.
#[derive(Debug)]
pub(crate) enum AllotReply {
    /// What it has from now on.
    Shared {
        /// Whether some leases are not counted yet.
        is_counting: bool,
        /// Groups that wait for a share, those that were looked at longest ago first.
        waiting: Vec<String>,
        /// The share of each group of the call; and the millionths of a start that are used of
        /// units which were removed.
        groups: Vec<(Holder, u64)>,
    },
    /// A look with this higher number was faster.
    Newer(u64),
    /// The ledger has no share of this limit, or no groups.
    Absent,
}

/// Adds the arguments of `lua/limit.lua`. Without a lane, a repeat is a new call, which does nothing
/// while the limit holds.
pub(in crate::store) fn describe(
    cmd: &mut Cmd,
    lane: Option<&mut Lane>,
    (wake, subject): (&str, &str),
    part: &LimitPart,
    rule: &LimitRule,
) {
    let (terms, share) = match part {
        LimitPart::Own(terms) => (terms, None),
        LimitPart::Shared { whole, share, rule } => (whole, Some((share, rule))),
    };
    match lane {
        Some(lane) => number(cmd, lane),
        // A call without a lane is not remembered.
        None => drop(cmd.arg("").arg(0).arg(who())),
    }
    cmd.arg(wake).arg(subject);
    cmd.arg(terms.gap).arg(terms.burst).arg(terms.most);
    cmd.arg(rule.text());
    match &terms.groups {
        Some(groups) => cmd
            .arg(&groups.by)
            .arg(groups.gap)
            .arg(groups.burst)
            .arg(groups.most)
            .arg(&groups.weights),
        None => cmd.arg("").arg(0).arg(0).arg(0).arg(""),
    };
    match share {
        Some((share, rule)) => cmd.arg(share.units).arg(share.leases).arg(rule.0),
        None => cmd.arg("").arg("").arg(""),
    };
}

impl Ledger {
    /// Limits the claims of this ledger to `part`, what it has of `rule`; `lua/limit.lua`. Returns
    /// `false`, and changes nothing, if it has a newer limit.
    ///
    /// # Errors
    ///
    /// A full server refuses the call.
    pub(crate) async fn limit(
        &self,
        lane: &mut Lane,
        part: &LimitPart,
        rule: &LimitRule,
        until: Instant,
    ) -> Result<bool> {
        let mut cmd = self.call(&LIMIT, &self.names.of_limit(), [].into_iter());
        describe(
            &mut cmd,
            Some(lane),
            (&self.wake, &self.names.subject),
            part,
            rule,
        );
        let answers = self.eval_items(&LIMIT, &cmd, 1, until).await?;
        match answers[0].answer {
            Word::Limited => Ok(true),
            Word::Kept => Ok(false),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// Looks at the share that this ledger has of a limit, and changes it, if there is a new one;
    /// `lua/share.lua`. Units that are added come with the millionths of a start that they have used.
    pub(crate) async fn share(
        &self,
        look: &Look<'_>,
        change: Option<(Share, u64)>,
        until: Instant,
    ) -> Result<ShareReply> {
        let n = &self.names;
        let keys: [&str; 3] = [&n.calls, &n.due, &n.leased];
        let mut cmd = self.call(&SHARE, &keys, [].into_iter());
        cmd.arg(look.epoch).arg(look.by).arg(look.rule.0);
        cmd.arg(&*self.wake).arg(&n.subject);
        match change {
            Some((share, owed)) => cmd.arg(share.units).arg(share.leases).arg(owed),
            None => cmd.arg("").arg("").arg(0),
        };
        let mut reply = self.eval(&SHARE, &cmd, until).await?.reply;
        let answer = Answered::parse(&reply.text()?)?.answer;
        let share = Share {
            units: reply.number()?,
            leases: reply.number()?,
        };
        let holder = Holder {
            share,
            bound: reply.number()?,
            running: reply.number()?,
            used: reply.number()?,
            waiting: reply.number()?,
            since: UnixMs(reply.number()?),
        };
        let owed = reply.number()?;
        match answer {
            Word::Shared => Ok(ShareReply::Shared { holder, owed }),
            Word::Newer(epoch) => Ok(ShareReply::Newer(epoch)),
            Word::Absent => Ok(ShareReply::Absent),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// Looks at the shares that this ledger has of the limits of groups, and changes some;
    /// `lua/allot.lua`. Also names up to `most` groups that wait for a share.
    pub(crate) async fn allot(
        &self,
        look: &Look<'_>,
        most: usize,
        groups: &[GroupCall<'_>],
        until: Instant,
    ) -> Result<AllotReply> {
        let n = &self.names;
        let keys: [&str; 5] = [&n.calls, &n.due, &n.shadow, &n.lease, &n.leased];
        let mut cmd = self.call(&ALLOT, &keys, [].into_iter());
        cmd.arg(look.epoch).arg(look.by).arg(look.rule.0);
        cmd.arg(&*self.wake).arg(&n.subject).arg(most);
        for group in groups {
            cmd.arg(group.name);
            match group.change {
                Some((share, owed)) => cmd.arg(share.units).arg(share.leases).arg(owed),
                None => cmd.arg("").arg("").arg(0),
            };
            cmd.arg(if group.forgets { "0" } else { "" });
        }
        let mut reply = self.eval(&ALLOT, &cmd, until).await?.reply;
        match Answered::parse(&reply.text()?)?.answer {
            Word::Shared => {}
            Word::Newer(epoch) => return Ok(AllotReply::Newer(epoch)),
            Word::Absent => return Ok(AllotReply::Absent),
            other => return Err(unexpected(format!("{other:?}"))),
        }
        let is_counting = reply.number()? > 0;
        let waiting = reply.text()?.split_whitespace().map(Into::into).collect();
        let mut told = Vec::new();
        for _ in groups {
            let share = Share {
                units: reply.number()?,
                leases: reply.number()?,
            };
            let running = reply.number()?;
            let holder = Holder {
                share,
                bound: share.leases.max(running),
                running,
                used: reply.number()?,
                waiting: reply.number()?,
                since: UnixMs(reply.number()?),
            };
            told.push((holder, reply.number()?));
        }
        Ok(AllotReply::Shared {
            is_counting,
            waiting,
            groups: told,
        })
    }

    /// Removes whatever limit this ledger has stored: it has no jobs, and gets its limit anew before it
    /// does.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidSetting`] if another client has given the kind this ledger meanwhile, and
    /// it may have jobs: its layout is newer than `known`.
    #[cfg(feature = "worker")]
    pub(crate) async fn forget_limit(&self, known: Layout, until: Instant) -> Result<()> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.calls).arg("layout");
        let stored: Option<String> = from_value(self.server.command(&get, until).await?)?;
        let stored = stored.and_then(|layout| Layout::parse(&layout));
        if stored.is_some_and(|stored| stored.follows(known)) {
            let message = format!(
                "another client is resharding {}: wait until it has finished",
                self.kind
            );
            return Err(Error::new(ErrorKind::InvalidSetting, message));
        }
        let mut del = redis::cmd("HDEL");
        del.arg(&self.names.calls).arg("limit");
        self.server.command(&del, until).await.map(drop)
    }

    /// When the limit of this ledger was set, or removed.
    pub(crate) async fn limited_since(&self, until: Instant) -> Result<UnixMs> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.calls).arg("limit");
        let field: Option<String> = from_value(self.server.command(&get, until).await?)?;
        let set = field.as_deref().and_then(|field| field.split(' ').nth(5));
        Ok(UnixMs(set.and_then(|set| set.parse().ok()).unwrap_or(0)))
    }

    /// How long to wait for this ledger, among others: its server may be away.
    pub(crate) fn patience(&self, until: Instant) -> Instant {
        self.server.patience_for_one(until)
    }

    /// Lets no job of this ledger start for a while; `lua/hold.lua`. Returns `false`, and changes
    /// nothing, if it has no limit.
    ///
    /// # Errors
    ///
    /// A full server refuses the call.
    pub(crate) async fn hold(&self, time: Duration, until: Instant) -> Result<bool> {
        let keys: [&str; 1] = [&self.names.calls];
        let mut cmd = self.call(&HOLD, &keys, [].into_iter());
        cmd.arg(u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        let answers = self.eval_items(&HOLD, &cmd, 1, until).await?;
        match answers[0].answer {
            Word::Held => Ok(true),
            Word::Absent => Ok(false),
            other => Err(unexpected(format!("{other:?}"))),
        }
    }

    /// The limit of this ledger; `lua/admit.lua`. With `announces`, the due jobs that may start now
    /// are announced to all workers.
    pub(crate) async fn admit(&self, announces: bool, until: Instant) -> Result<Option<Admission>> {
        let n = &self.names;
        let keys: [&str; 3] = [&n.due, &n.leased, &n.calls];
        let mut cmd = self.call(&ADMIT, &keys, [].into_iter());
        cmd.arg(if announces { &*self.wake } else { "" })
            .arg(&n.subject);
        let mut reply = self.eval(&ADMIT, &cmd, until).await?.reply;
        let field = reply.text()?;
        // Behind the state of the ledger and its part of the limit; the state of the groups follows.
        let line = field.lines().next().unwrap_or_default();
        let rule = line.splitn(6, ' ').nth(5).and_then(LimitRule::parse);
        let (room, leases, due) = (reply.number()?, reply.number()?, reply.number()?);
        let next = reply.number()?;
        Ok(rule.map(|rule| Admission {
            rule,
            room,
            leases,
            due,
            next: (next > 0).then_some(UnixUs(next)),
        }))
    }
}
