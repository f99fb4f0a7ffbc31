//! Limits over several ledgers: which ledgers share one, and how shares move between them.
//!
//! Each ledger stores its share, and the claim enforces it. A look at all of them moves shares to
//! where jobs wait: first some ledgers give up a part, then others get no more than that. So what
//! the ledgers have together never exceeds the limit, wherever a look is cut off. Looks have
//! numbers, and each ledger obeys the highest that it has seen: of two looks at the same time, one
//! moves nothing more.
//!
//! What a cut-off look has taken away, and what a dropped kind or shard had, belongs to nobody. A
//! look that sees all ledgers gives it out again. It may have been used just before; so
//! `limit-moved app:` in `keyfall:meta` has the time until which something was taken away, and until
//! its units are free again by then, they count as used. The shares of groups move without that; for
//! them `limit-left app:` has when a ledger has left.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use crate::error::Result;
use crate::key::Kind;
use crate::limit::{Holder, LimitScope, Share, Whole};
#[cfg(feature = "worker")]
use crate::shards::Layout;
use crate::store::kinds::group_shares::GroupsWait;
use crate::store::ledger::limiting::{LimitPart, Look, ShareReply};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Lane, Ledger, LimitRule, Store, from_value};
use crate::time::UnixUs;

/// The beginning of the fields that hold when something was last taken away from a ledger.
const MOVED: &str = "limit-moved ";

/// The beginning of the fields that hold when a ledger last left a limit.
const LEFT: &str = "limit-left ";

/// How much later than noted something may be taken away, and how much the clocks of servers may
/// differ.
const NOTED: Duration = Duration::from_secs(10);

/// How often a limit is set again in a ledger that has a newer one.
const TRIES: usize = 3;

/// What a look at the shares of a limit has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Balance {
    /// Nothing is shared: the scope has no limit, or one ledger has all of it.
    Alone,
    /// Another look was faster, with this number.
    Overtaken(u64),
    /// Each ledger has its share.
    Shared {
        /// How many ledgers there are.
        ledgers: usize,
        /// The kinds of which jobs wait.
        waiting: BTreeSet<Kind>,
        /// Whether some ledger has less than it should have, until others have given it up.
        owes: bool,
        /// Whether groups wait for a share of their limit.
        groups: GroupsWait,
    },
}

/// A ledger and what it has answered.
struct Seen {
    ledger: Arc<Ledger>,
    holder: Holder,
}

/// What can be given to ledgers.
pub(super) struct Free {
    pub(super) units: u64,
    pub(super) leases: u64,
    /// The millionths of a start that the units have used.
    pub(super) owed: u64,
}

impl Free {
    /// Takes what one ledger needs, as far as it is there, and the part of the debts of its units.
    pub(super) fn take(&mut self, had: &Holder, wanted: Share) -> (Share, u64) {
        let units = wanted.units.saturating_sub(had.share.units).min(self.units);
        // Leases above the present share, but not above its bound, are in use by it already.
        let above = wanted.leases.max(had.bound) - had.bound;
        let leases = wanted.leases - above.saturating_sub(self.leases);
        let owed = match units {
            0 => 0,
            units => (self.owed * units).div_ceil(self.units),
        };
        self.units -= units;
        self.owed -= owed;
        self.leases -= above.min(self.leases);
        let share = Share {
            units: had.share.units + units,
            leases: leases.max(had.share.leases),
        };
        (share, owed)
    }
}

impl Store {
    /// The ledgers that share the limit of a scope, and whether these are all: not if a server is
    /// away that may know more kinds.
    pub(crate) async fn limited_ledgers(
        self: &Arc<Self>,
        scope: &LimitScope,
        until: Instant,
    ) -> Result<(Vec<Arc<Ledger>>, bool)> {
        let (kinds, is_all) = match scope.kind() {
            Some(kind) => {
                let kinds = match self.knows(&kind, until).await? {
                    true => vec![kind],
                    false => Vec::new(),
                };
                for kind in &kinds {
                    self.look_up(kind, until).await?;
                }
                (kinds, true)
            }
            None => {
                let scopes = self.limit_scopes(until).await?;
                let (mut kinds, away) = self.kinds_seen(until).await?;
                kinds.retain(|kind| {
                    let mut all = LimitScope::all_of(kind).into_iter();
                    all.find(|one| scopes.contains(one)).as_ref() == Some(scope)
                });
                (kinds, away.is_empty())
            }
        };
        let ledgers = kinds.iter().flat_map(|kind| {
            let layout = self.layout_of(kind.as_str());
            (0..layout.ledgers()).map(move |shard| self.ledger(kind, layout.place(shard)))
        });
        Ok((ledgers.collect(), is_all))
    }

    /// Looks at the shares of a limit, and moves some to the ledgers where jobs wait. `by` is a unique
    /// name; the number of the look is the time, and higher than `after`.
    ///
    /// # Errors
    ///
    /// If the rules or the kinds cannot be read. Nothing is lost: the next look goes on.
    pub(crate) async fn balance_limit(
        self: &Arc<Self>,
        scope: &LimitScope,
        by: &str,
        after: u64,
        until: Instant,
    ) -> Result<Balance> {
        let Some(rule) = self.limit_rule(scope, until).await? else {
            return Ok(Balance::Alone);
        };
        let Some(limit) = &rule.limit else {
            return Ok(Balance::Alone);
        };
        let terms = limit.terms()?;
        let whole = Whole::of(&terms);
        let now = self.time(until).await?;
        let look = Look {
            epoch: now.0.max(after + 1),
            by,
            rule: rule.set,
        };
        let (ledgers, mut is_all) = self.limited_ledgers(scope, until).await?;
        let are_several = scope.is_prefix() || ledgers.len() > 1;
        let answers = ledgers
            .iter()
            .map(|it| it.share(&look, None, it.patience(until)));
        let answers = join_all(answers).await;
        let mut seen = Vec::new();
        for (ledger, answer) in ledgers.into_iter().zip(answers) {
            match answer {
                Ok(ShareReply::Shared { holder, .. }) => seen.push(Seen { ledger, holder }),
                Ok(ShareReply::Newer(epoch)) => return Ok(Balance::Overtaken(epoch)),
                Ok(ShareReply::Absent) if are_several => {
                    // It missed the rule. The next look sees what it has.
                    is_all = false;
                    let layout = self.layout_of(ledger.kind().as_str());
                    let part = rule.part(scope, layout)?;
                    if let Err(error) = self.insist_on_limit(&ledger, &part, &rule, until).await {
                        tracing::warn!(?ledger, %error, "a ledger could not be limited");
                    }
                }
                Ok(ShareReply::Absent) => {}
                Err(error) => {
                    is_all = false;
                    if !is_of_absence(&error) {
                        tracing::warn!(?ledger, %error, "its share of a limit cannot be read");
                    }
                }
            }
        }
        if seen.is_empty() {
            return Ok(Balance::Alone);
        }
        let sharing: Vec<_> = seen.iter().map(|it| it.ledger.clone()).collect();
        let balance = self.move_shares(scope, &whole, &look, (seen, is_all), until);
        let mut balance = balance.await?;
        if let Balance::Shared { groups, .. } = &mut balance
            && let Some(whole) = terms.groups.as_ref().and_then(Whole::of_group)
        {
            let look = self.balance_groups(scope, &whole, &look, (sharing, is_all), until);
            match look.await? {
                GroupsWait::Overtaken(epoch) => return Ok(Balance::Overtaken(epoch)),
                wait => *groups = wait,
            }
        }
        Ok(balance)
    }

    /// Limits a ledger by the rule that covers it, also if it has a newer one: the clocks of those
    /// who set them may differ.
    pub(crate) async fn insist_on_limit(
        &self,
        ledger: &Ledger,
        part: &LimitPart,
        rule: &LimitRule,
        until: Instant,
    ) -> Result<()> {
        let mut rule = rule.clone();
        for _ in 0..TRIES {
            if ledger.limit(&mut Lane::new(), part, &rule, until).await? {
                return Ok(());
            }
            rule.set = rule.set.max(ledger.limited_since(until).await?);
        }
        Ok(())
    }

    /// Moves shares, if jobs wait or something belongs to nobody.
    async fn move_shares(
        &self,
        scope: &LimitScope,
        whole: &Whole,
        look: &Look<'_>,
        (mut seen, is_all): (Vec<Seen>, bool),
        until: Instant,
    ) -> Result<Balance> {
        let ledgers = seen.len();
        let waiting = seen.iter().filter(|it| it.holder.waiting > 0);
        let waiting: BTreeSet<Kind> = waiting.map(|it| it.ledger.kind().clone()).collect();
        let lost = unowned(whole, &seen, is_all);
        if waiting.is_empty() && lost.units == 0 && lost.leases == 0 {
            return Ok(Balance::Shared {
                ledgers,
                waiting,
                owes: false,
                groups: GroupsWait::None,
            });
        }
        let wanted = wanted(whole, &seen, is_all, look);
        let mut owed = match lost.units {
            0 => 0,
            units => units * self.still_used(scope, whole, until).await?,
        };
        // A ledger without units may have used some before the limit was changed.
        let gives = |it: &Seen, wanted: &Share| {
            lower(&it.holder, wanted) != it.holder.share || it.holder.used > it.holder.share.units
        };
        if seen
            .iter()
            .zip(&wanted)
            .any(|(it, wanted)| gives(it, wanted))
        {
            self.note_moved(scope, until).await?;
        }
        let before = sum(&seen);
        let mut owes = false;
        for (it, wanted) in seen.iter_mut().zip(&wanted) {
            if !gives(it, wanted) {
                continue;
            }
            let change = Some((lower(&it.holder, wanted), 0));
            match it
                .ledger
                .share(look, change, it.ledger.patience(until))
                .await
            {
                Ok(ShareReply::Shared { holder, owed: used }) => {
                    it.holder = holder;
                    owed += used;
                }
                Ok(ShareReply::Newer(epoch)) => return Ok(Balance::Overtaken(epoch)),
                // The limit was changed.
                Ok(ShareReply::Absent) => return Ok(Balance::Overtaken(look.epoch)),
                // What it has given up, if anything, is found by the next look.
                Err(error) => {
                    tracing::debug!(ledger = ?it.ledger, %error, "its share was not lowered");
                    owes = true;
                }
            }
        }
        let mut free = match is_all {
            true => unowned(whole, &seen, true),
            // What the others have is unknown, and so is what belongs to nobody.
            false => {
                let after = sum(&seen);
                Free {
                    units: before.units.saturating_sub(after.units),
                    leases: before.leases.saturating_sub(after.leases),
                    owed: 0,
                }
            }
        };
        free.owed = owed;
        for (it, wanted) in seen.iter().zip(&wanted) {
            let (share, owed) = free.take(&it.holder, *wanted);
            owes |= share != *wanted;
            if share == it.holder.share {
                continue;
            }
            let change = Some((share, owed));
            match it
                .ledger
                .share(look, change, it.ledger.patience(until))
                .await
            {
                Ok(ShareReply::Shared { .. }) => {}
                Ok(ShareReply::Newer(epoch)) => return Ok(Balance::Overtaken(epoch)),
                Ok(ShareReply::Absent) => return Ok(Balance::Overtaken(look.epoch)),
                Err(error) => {
                    tracing::debug!(ledger = ?it.ledger, %error, "its share was not raised");
                    owes = true;
                }
            }
        }
        Ok(Balance::Shared {
            ledgers,
            waiting,
            owes,
            groups: GroupsWait::None,
        })
    }

    /// The millionths of a start that a unit without an owner may have used.
    async fn still_used(&self, scope: &LimitScope, whole: &Whole, until: Instant) -> Result<u64> {
        self.used_since(&format!("{MOVED}{scope}"), whole, until)
            .await
    }

    /// The same of a unit that belonged to a ledger which has left the limit.
    pub(super) async fn left_debt(
        &self,
        scope: &LimitScope,
        whole: &Whole,
        until: Instant,
    ) -> Result<u64> {
        self.used_since(&format!("{LEFT}{scope}"), whole, until)
            .await
    }

    /// The millionths of a start that a unit may have used until the time in this field.
    async fn used_since(&self, field: &str, whole: &Whole, until: Instant) -> Result<u64> {
        let now = self.time(until).await?;
        let known = self.on_each(until, |it, until| {
            let mut get = redis::cmd("HGET");
            get.arg(it.names.meta()).arg(field);
            Box::pin(async move { from_value(it.command(&get, until).await?) })
        });
        let known: Vec<Option<u64>> = known.await.of_those_there()?;
        let moved = known.into_iter().flatten().max().map_or(UnixUs(0), UnixUs);
        let used = whole.unit_gap.saturating_sub(now.0.saturating_sub(moved.0));
        let gap = u128::from(whole.unit_gap.max(1));
        Ok((u128::from(used) * 1_000_000).div_ceil(gap) as u64)
    }

    /// Limits the ledgers that a kind gets by another layout: they begin without a share, and those
    /// that it has keep theirs.
    #[cfg(feature = "worker")]
    pub(crate) async fn limit_shards(
        self: &Arc<Self>,
        kind: &Kind,
        before: Layout,
        wanted: Layout,
        until: Instant,
    ) -> Result<()> {
        let Some((scope, rule)) = self.limit_of(kind, until).await? else {
            return Ok(());
        };
        let part = rule.part(&scope, wanted)?;
        for shard in 0..wanted.ledgers() {
            let ledger = self.ledger(kind, wanted.place(shard));
            if shard >= before.ledgers() {
                // A ledger that comes back may have a share, which others have by now.
                ledger.forget_limit(before, until).await?;
            }
            self.insist_on_limit(&ledger, &part, &rule, until).await?;
        }
        Ok(())
    }

    /// Notes that ledgers of this kind leave the limit that covers it, with what they have used of it.
    #[cfg(feature = "worker")]
    pub(crate) async fn note_leaving(&self, kind: &Kind, until: Instant) -> Result<()> {
        match self.limit_of(kind, until).await? {
            Some((scope, _)) => self.note_left(&scope, until).await,
            None => Ok(()),
        }
    }

    /// Notes that ledgers leave the limit of this scope.
    pub(crate) async fn note_left(&self, scope: &LimitScope, until: Instant) -> Result<()> {
        self.note(scope, &[MOVED, LEFT], until).await
    }

    /// Notes that something may be taken away from ledgers that share the limit of this scope.
    async fn note_moved(&self, scope: &LimitScope, until: Instant) -> Result<()> {
        self.note(scope, &[MOVED], until).await
    }

    async fn note(&self, scope: &LimitScope, what: &[&str], until: Instant) -> Result<()> {
        let latest = self.time(until).await?.plus(NOTED);
        let noted = self.on_each(until, |it, until| {
            let mut set = redis::cmd("HSET");
            set.arg(it.names.meta());
            for field in what {
                set.arg(format!("{field}{scope}")).arg(latest.0);
            }
            Box::pin(async move { it.command(&set, until).await })
        });
        noted.await.of_those_there().map(drop)
    }
}

/// What a ledger keeps if it is to have no more than this.
pub(super) fn lower(it: &Holder, wanted: &Share) -> Share {
    Share {
        units: wanted.units.min(it.share.units),
        leases: wanted.leases.min(it.share.leases),
    }
}

/// The share that each ledger should have of what these ledgers can have together.
fn wanted(whole: &Whole, seen: &[Seen], is_all: bool, look: &Look<'_>) -> Vec<Share> {
    let holders = seen.iter().map(|it| Holder {
        // What a ledger has used before the limit was changed does not count as a need.
        used: it.holder.used.min(it.holder.share.units),
        ..it.holder.clone()
    });
    let holders: Vec<Holder> = holders.collect();
    let now = UnixUs(look.epoch).floor_ms();
    if is_all {
        return whole.divide(&holders, now);
    }
    let left = Share {
        units: holders.iter().map(|it| it.share.units).sum(),
        leases: holders.iter().map(|it| it.share.leases).sum(),
    };
    whole.without_others(left).divide(&holders, now)
}

/// What belongs to no ledger; nothing if some could not be asked.
fn unowned(whole: &Whole, seen: &[Seen], is_all: bool) -> Free {
    let owned = sum(seen);
    let left = |all: Option<u64>, owned: u64| match all {
        Some(all) if is_all => all.saturating_sub(owned),
        _ => 0,
    };
    Free {
        units: left(whole.units, owned.units),
        leases: left(whole.leases, owned.leases),
        owed: 0,
    }
}

/// What these ledgers have together.
fn sum(seen: &[Seen]) -> Free {
    Free {
        units: seen.iter().map(|it| it.holder.share.units).sum(),
        leases: seen.iter().map(|it| it.holder.bound).sum(),
        owed: 0,
    }
}
