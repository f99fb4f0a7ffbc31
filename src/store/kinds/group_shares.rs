//! Limits of groups over several ledgers: how the shares of groups move between them.
//!
//! A group begins without a share in each ledger. Where its jobs wait, a look at all ledgers divides
//! its limit among those that have jobs of it, in the same way and by the same numbers as the limit
//! of the kinds in [`shares`](super::shares). What was used of the units that one gives up is owed
//! by it until another one has them, so nothing has to be noted elsewhere, wherever the look is cut
//! off.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::join_all;

use super::shares::{Free, lower};
use crate::error::Result;
use crate::limit::{Holder, LimitScope, Share, Whole};
use crate::store::ledger::limiting::{AllotReply, GroupCall, Look};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::{Ledger, Store};
use crate::time::UnixUs;

/// The most groups of one look: it takes a ledger some hundred µs.
const MOST: usize = 128;

/// What a look at the shares of groups has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupsWait {
    /// No group waits for a share.
    None,
    /// Some wait, and have their part.
    Some,
    /// Some wait, and have less than their part until runs end elsewhere.
    Owed,
    /// More wait than one look serves.
    More,
    /// Another look was faster, with this number.
    Overtaken(u64),
}

/// A group, and what each ledger has of its limit.
struct Group {
    name: String,
    /// By ledger; with the millionths of a start that it owes.
    holders: Vec<(Holder, u64)>,
    wanted: Vec<Share>,
}

/// A look at the groups of a limit.
struct GroupLook<'a> {
    whole: &'a Whole,
    look: &'a Look<'a>,
    ledgers: Vec<Arc<Ledger>>,
    /// Whether these are all ledgers of the limit, and all their leases are counted.
    is_all: bool,
    until: Instant,
}

/// A ledger has refused a call: another look was faster.
struct Faster(u64);

impl Store {
    /// Gives groups whose jobs wait their shares of the limit of a group.
    pub(in crate::store) async fn balance_groups(
        &self,
        scope: &LimitScope,
        whole: &Whole,
        look: &Look<'_>,
        (ledgers, is_all): (Vec<Arc<Ledger>>, bool),
        until: Instant,
    ) -> Result<GroupsWait> {
        let mut it = GroupLook {
            whole,
            look,
            ledgers,
            is_all,
            until,
        };
        let (waiting, is_cut) = match it.who_waits().await {
            Ok((waiting, _)) if waiting.is_empty() => return Ok(GroupsWait::None),
            Ok(waits) => waits,
            Err(Faster(epoch)) => return Ok(GroupsWait::Overtaken(epoch)),
        };
        let left = match whole.units {
            Some(_) => self.left_debt(scope, whole, until).await?,
            None => 0,
        };
        match it.serve(waiting, left).await {
            Ok(_) if is_cut => Ok(GroupsWait::More),
            Ok(true) => Ok(GroupsWait::Some),
            Ok(false) => Ok(GroupsWait::Owed),
            Err(Faster(epoch)) => Ok(GroupsWait::Overtaken(epoch)),
        }
    }
}

impl GroupLook<'_> {
    /// The groups that wait, at most [`MOST`], of each ledger in turn; and whether there are more.
    async fn who_waits(&mut self) -> Result<(Vec<String>, bool), Faster> {
        let nothing = vec![Vec::new(); self.ledgers.len()];
        let (mut lists, mut there) = (Vec::new(), Vec::new());
        for (ledger, answer) in self.ledgers.iter().zip(self.ask(MOST, &nothing).await) {
            match answer {
                Ok(AllotReply::Shared {
                    is_counting,
                    waiting,
                    ..
                }) => {
                    self.is_all &= !is_counting;
                    lists.push(waiting.into_iter());
                    there.push(ledger.clone());
                }
                Ok(AllotReply::Newer(epoch)) => return Err(Faster(epoch)),
                Ok(AllotReply::Absent) => self.is_all = false,
                Err(error) => {
                    self.is_all = false;
                    if !is_of_absence(&error) {
                        tracing::warn!(?ledger, %error, "its groups cannot be read");
                    }
                }
            }
        }
        self.ledgers = there;
        let (mut known, mut names) = (BTreeSet::new(), Vec::new());
        loop {
            let round: Vec<String> = lists.iter_mut().filter_map(Iterator::next).collect();
            let is_over = round.is_empty();
            for name in round {
                if names.len() == MOST {
                    return Ok((names, true));
                }
                if known.insert(name.clone()) {
                    names.push(name);
                }
            }
            if is_over {
                return Ok((names, false));
            }
        }
    }

    /// Divides the limit of these groups anew. `left` is the debt of each unit that belonged to a
    /// ledger which has left. Returns whether each ledger has its part.
    async fn serve(&mut self, names: Vec<String>, left: u64) -> Result<bool, Faster> {
        let calls: Vec<GroupCall<'_>> = names.iter().map(|name| look_at(name)).collect();
        let asked = vec![calls; self.ledgers.len()];
        let (mut by_ledger, mut there) = (Vec::new(), Vec::new());
        for (ledger, answer) in self.ledgers.iter().zip(self.ask(0, &asked).await) {
            match answer {
                Ok(AllotReply::Shared { groups, .. }) => {
                    by_ledger.push(groups);
                    there.push(ledger.clone());
                }
                Ok(AllotReply::Newer(epoch)) => return Err(Faster(epoch)),
                Ok(AllotReply::Absent) | Err(_) => self.is_all = false,
            }
        }
        self.ledgers = there;
        let mut groups = Vec::new();
        for (at, name) in names.iter().enumerate() {
            let holders: Vec<_> = by_ledger.iter().map(|groups| groups[at].clone()).collect();
            groups.push(Group {
                name: name.clone(),
                wanted: self.wanted(&holders),
                holders,
            });
        }
        let before: Vec<Share> = groups.iter().map(Group::sum).collect();
        let mut is_served = self.take(&mut groups).await?;
        is_served &= self.give(&mut groups, &before, left).await?;
        Ok(is_served)
    }

    /// The share that each ledger should have of the limit of a group. Ledgers without jobs of it and
    /// without a share get none.
    fn wanted(&self, holders: &[(Holder, u64)]) -> Vec<Share> {
        let is_one =
            |it: &Holder| it.share != Share::default() || it.waiting + it.running + it.used > 0;
        let (places, some): (Vec<usize>, Vec<Holder>) = holders
            .iter()
            .enumerate()
            .filter(|(_, (it, _))| is_one(it))
            .map(|(at, (it, _))| {
                // What it owes for others is no need.
                let used = it.used.min(it.share.units);
                (at, Holder { used, ..it.clone() })
            })
            .unzip();
        let now = UnixUs(self.look.epoch).floor_ms();
        let whole = match self.is_all {
            true => *self.whole,
            false => self.whole.without_others(Share {
                units: some.iter().map(|it| it.share.units).sum(),
                leases: some.iter().map(|it| it.share.leases).sum(),
            }),
        };
        let mut wanted = vec![Share::default(); holders.len()];
        for (at, share) in places.into_iter().zip(whole.divide(&some, now)) {
            wanted[at] = share;
        }
        wanted
    }

    /// Lowers the shares that are too large.
    async fn take(&self, groups: &mut [Group]) -> Result<bool, Faster> {
        let mut is_done = true;
        let places: Vec<Vec<usize>> = self.places(groups, |group, at| {
            lower(&group.holders[at].0, &group.wanted[at]) != group.holders[at].0.share
        });
        let calls: Vec<Vec<GroupCall<'_>>> = places
            .iter()
            .enumerate()
            .map(|(at, places)| {
                let call = |group: &usize| {
                    let group = &groups[*group];
                    let share = lower(&group.holders[at].0, &group.wanted[at]);
                    GroupCall {
                        change: Some((share, 0)),
                        ..look_at(&group.name)
                    }
                };
                places.iter().map(call).collect()
            })
            .collect();
        let answers = self.ask(0, &calls).await;
        for ((at, places), answer) in places.iter().enumerate().zip(answers) {
            match answer {
                Ok(AllotReply::Shared { groups: told, .. }) => {
                    for (group, told) in places.iter().zip(told) {
                        groups[*group].holders[at] = told;
                    }
                }
                Ok(AllotReply::Newer(epoch)) => return Err(Faster(epoch)),
                Ok(AllotReply::Absent) => return Err(Faster(self.look.epoch)),
                // What it has given up, if anything, is found by the next look.
                Err(_) => is_done = false,
            }
        }
        Ok(is_done)
    }

    /// Raises the shares that are too small, by what is free; `before` is what the ledgers had of
    /// each group. Then those that owe something for others forget it.
    async fn give(
        &self,
        groups: &mut [Group],
        before: &[Share],
        left: u64,
    ) -> Result<bool, Faster> {
        let mut is_served = true;
        let mut calls = vec![Vec::new(); self.ledgers.len()];
        let mut debts = vec![Vec::new(); self.ledgers.len()];
        for (group, before) in groups.iter().zip(before) {
            let mut free = self.free(group, *before, left);
            for (at, (holder, _)) in group.holders.iter().enumerate() {
                let (share, owed) = free.take(holder, group.wanted[at]);
                is_served &= share == group.wanted[at];
                if share != holder.share {
                    calls[at].push(GroupCall {
                        change: Some((share, owed)),
                        ..look_at(&group.name)
                    });
                }
            }
            // Units that nobody has got are owed by those that had them.
            let owing = group
                .holders
                .iter()
                .enumerate()
                .filter(|(_, (_, owed))| *owed > 0);
            for (at, _) in owing.filter(|_| self.is_all && free.units == 0) {
                debts[at].push(GroupCall {
                    forgets: true,
                    ..look_at(&group.name)
                });
            }
        }
        for calls in [calls, debts] {
            for answer in self.ask(0, &calls).await {
                match answer {
                    Ok(AllotReply::Shared { .. }) => {}
                    Ok(AllotReply::Newer(epoch)) => return Err(Faster(epoch)),
                    Ok(AllotReply::Absent) => return Err(Faster(self.look.epoch)),
                    // Nobody forgets what this ledger may not have taken over.
                    Err(_) => return Ok(false),
                }
            }
        }
        Ok(is_served)
    }

    /// What can be given to ledgers of the limit of a group.
    fn free(&self, group: &Group, before: Share, left: u64) -> Free {
        let after = group.sum();
        let rest = |whole: Option<u64>, before: u64, after: u64| match whole {
            Some(whole) if self.is_all => whole.saturating_sub(after),
            _ => before.saturating_sub(after),
        };
        let units = rest(self.whole.units, before.units, after.units);
        let owed: u64 = group.holders.iter().map(|(_, owed)| owed).sum();
        let nobodys = units - before.units.saturating_sub(after.units).min(units);
        Free {
            units,
            leases: rest(self.whole.leases, before.leases, after.leases),
            owed: owed + nobodys * left,
        }
    }

    /// By ledger: the groups for which this holds.
    fn places(&self, groups: &[Group], is_one: impl Fn(&Group, usize) -> bool) -> Vec<Vec<usize>> {
        let of = |at| {
            (0..groups.len())
                .filter(|group| is_one(&groups[*group], at))
                .collect()
        };
        (0..self.ledgers.len()).map(of).collect()
    }

    /// Asks each ledger for groups that wait, `most` of them, or about some groups. One that is asked
    /// for nothing is not called.
    async fn ask(&self, most: usize, calls: &[Vec<GroupCall<'_>>]) -> Vec<Result<AllotReply>> {
        let asked = self
            .ledgers
            .iter()
            .zip(calls)
            .map(|(ledger, calls)| async move {
                if most == 0 && calls.is_empty() {
                    return Ok(AllotReply::Shared {
                        is_counting: false,
                        waiting: Vec::new(),
                        groups: Vec::new(),
                    });
                }
                ledger
                    .allot(self.look, most, calls, ledger.patience(self.until))
                    .await
            });
        join_all(asked).await
    }
}

impl Group {
    /// What the ledgers have together, with the leases that they make use of.
    fn sum(&self) -> Share {
        Share {
            units: self.holders.iter().map(|(it, _)| it.share.units).sum(),
            leases: self.holders.iter().map(|(it, _)| it.bound).sum(),
        }
    }
}

fn look_at(name: &str) -> GroupCall<'_> {
    GroupCall {
        name,
        change: None,
        forgets: false,
    }
}
