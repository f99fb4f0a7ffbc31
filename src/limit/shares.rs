//! How a limit is divided among the ledgers that share it: by where jobs wait.
//!
//! A limit has as many units of its rate as its burst has jobs, and as many leases as its
//! concurrency; a ledger starts jobs while it has both. Jobs that wait get what others do not use,
//! and equal parts of the rest. If more ledgers have waiting jobs than there are units, they take
//! turns.

use std::time::Duration;

use super::{GroupTerms, Terms};
use crate::time::UnixMs;

/// How long a ledger keeps a share, while others without one have waiting jobs. Slightly less than
/// a second, the time between two looks.
const SLICE: Duration = Duration::from_millis(900);

/// With so many units for each ledger, those without jobs keep one, so that their next job need not
/// wait for a share.
const PLENTY: u64 = 4;

/// A share of a limit: units of its rate, and leases.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Share {
    /// The units; 0 if the limit has no rate.
    pub(crate) units: u64,
    /// The leases; 0 if the limit has no concurrency.
    pub(crate) leases: u64,
}

/// A ledger that shares a limit, as it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Holder {
    /// Its share.
    pub(crate) share: Share,
    /// Of how many leases it makes use: its share, or more until leases above it have ended.
    pub(crate) bound: u64,
    /// How many leases there are.
    pub(crate) running: u64,
    /// How many of its units are in use.
    pub(crate) used: u64,
    /// How many jobs wait for a share.
    pub(crate) waiting: u64,
    /// When it got its share, or lost it.
    pub(crate) since: UnixMs,
}

/// What a limit has to share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Whole {
    /// The units of the rate; `None` without a rate.
    pub(crate) units: Option<u64>,
    /// The leases; `None` without a concurrency.
    pub(crate) leases: Option<u64>,
    /// The µs in which a unit allows one start.
    pub(crate) unit_gap: u64,
    /// How long a ledger keeps a share while others wait for one.
    slice: Duration,
}

/// How urgently a ledger wants a share, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Want {
    /// Its jobs wait, and it has had its share for a short time.
    Turn,
    /// Its jobs wait.
    Waits,
    /// Its jobs run.
    Uses,
    /// It has a share, and no jobs.
    Has,
    /// It has neither.
    Nothing,
}

impl Whole {
    pub(crate) fn of(terms: &Terms) -> Self {
        Whole::new(terms.gap, terms.burst, terms.most)
    }

    /// What the limit of a group has to share; `None` if groups only take turns.
    pub(crate) fn of_group(terms: &GroupTerms) -> Option<Self> {
        (terms.gap + terms.most > 0).then(|| Whole::new(terms.gap, terms.burst, terms.most))
    }

    fn new(gap: u64, burst: u64, most: u64) -> Self {
        Whole {
            units: (gap > 0).then_some(burst),
            leases: (most > 0).then_some(most),
            unit_gap: gap * burst,
            slice: SLICE.max(Duration::from_micros(gap)),
        }
    }

    /// The most ledgers that can have a share at the same time.
    fn slots(&self) -> u64 {
        let units = self.units.unwrap_or(u64::MAX);
        units.min(self.leases.unwrap_or(u64::MAX))
    }

    fn has_share(&self, share: Share) -> bool {
        (self.units.is_none() || share.units > 0) && (self.leases.is_none() || share.leases > 0)
    }

    fn want(&self, holder: &Holder, now: UnixMs) -> Want {
        let has_share = self.has_share(holder.share);
        if holder.waiting > 0 {
            let is_new = has_share && now.since(holder.since) < self.slice;
            return if is_new { Want::Turn } else { Want::Waits };
        }
        match (holder.running > 0 || holder.used > 0, has_share) {
            (true, _) => Want::Uses,
            (false, true) => Want::Has,
            (false, false) => Want::Nothing,
        }
    }

    /// The same limit, of which other ledgers have a part: this is what is left.
    pub(crate) fn without_others(self, left: Share) -> Self {
        Whole {
            units: self.units.map(|_| left.units),
            leases: self.leases.map(|_| left.leases),
            ..self
        }
    }

    /// The share that each of these ledgers should have. Together they never exceed the limit.
    pub(crate) fn divide(&self, holders: &[Holder], now: UnixMs) -> Vec<Share> {
        let slots = usize::try_from(self.slots()).unwrap_or(usize::MAX);
        let mut order: Vec<usize> = (0..holders.len()).collect();
        order.sort_by_key(|at| {
            let holder = &holders[*at];
            let has_share = self.has_share(holder.share);
            (self.want(holder, now), has_share, holder.since, *at)
        });
        let is_plenty = slots as u64 / PLENTY >= holders.len() as u64;
        let wants = |at: &&usize| is_plenty || self.want(&holders[**at], now) <= Want::Uses;
        let chosen: Vec<usize> = order.iter().filter(wants).take(slots).copied().collect();
        // What the chosen ones do not need stays where it is.
        let others = order.iter().filter(|at| !chosen.contains(at));
        let others: Vec<usize> = others.take(slots - chosen.len()).copied().collect();
        let part = |whole, has: fn(&Share) -> u64, need: &dyn Fn(&Holder) -> u64| {
            let needs = |at: &usize| (*at, need(&holders[*at]), has(&holders[*at].share));
            let chosen = chosen.iter().map(needs).collect();
            let others = others.iter().map(needs).collect();
            divided(whole, chosen, others, holders.len())
        };
        let none = || vec![0; holders.len()];
        let units = self.units.map_or_else(none, |units| {
            part(units, |share| share.units, &|it| match it.waiting {
                0 => it.used,
                _ => units,
            })
        });
        let leases = self.leases.map_or_else(none, |leases| {
            part(leases, |share| share.leases, &|it| it.running + it.waiting)
        });
        let shares = units.into_iter().zip(leases);
        shares
            .map(|(units, leases)| Share { units, leases })
            .collect()
    }
}

/// Divides `whole` among ledgers, each with its place, what it needs and what it has. Each of the
/// `chosen` gets one, then what it needs, equal parts if that is too much; then all keep what they
/// have, and the rest is spread evenly.
fn divided(
    whole: u64,
    chosen: Vec<(usize, u64, u64)>,
    others: Vec<(usize, u64, u64)>,
    ledgers: usize,
) -> Vec<u64> {
    let mut parts = vec![0; ledgers];
    let mut rest = whole;
    let give = |parts: &mut Vec<u64>, rest: &mut u64, at: usize, count: u64| {
        let given = count.min(*rest);
        parts[at] += given;
        *rest -= given;
    };
    for (at, ..) in &chosen {
        give(&mut parts, &mut rest, *at, 1);
    }
    // The smallest needs first: what they leave is for the others.
    let mut by_need = chosen.clone();
    by_need.sort_by_key(|(_, need, _)| *need);
    for (place, (at, need, _)) in by_need.iter().enumerate() {
        let fair = rest.div_ceil((by_need.len() - place) as u64);
        give(&mut parts, &mut rest, *at, need.saturating_sub(1).min(fair));
    }
    let all = || chosen.iter().chain(&others);
    for (at, _, has) in all() {
        let missing = has.saturating_sub(parts[*at]);
        give(&mut parts, &mut rest, *at, missing);
    }
    for (place, (at, ..)) in all().enumerate() {
        let even = rest.div_ceil((chosen.len() + others.len() - place) as u64);
        give(&mut parts, &mut rest, *at, even);
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Limit;

    const NOW: UnixMs = UnixMs(1_800_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn whole(limit: Limit) -> Whole {
        Whole::of(&limit.terms().unwrap())
    }

    /// A ledger that has had its share for long.
    fn holder(units: u64, leases: u64) -> Holder {
        Holder {
            share: Share { units, leases },
            bound: leases,
            running: 0,
            used: 0,
            waiting: 0,
            since: UnixMs(1),
        }
    }

    fn waits(units: u64, leases: u64) -> Holder {
        Holder {
            waiting: 1000,
            ..holder(units, leases)
        }
    }

    fn units(shares: &[Share]) -> Vec<u64> {
        shares.iter().map(|share| share.units).collect()
    }

    fn leases(shares: &[Share]) -> Vec<u64> {
        shares.iter().map(|share| share.leases).collect()
    }

    #[test]
    fn a_new_limit_is_divided_evenly() {
        let begin = |limit: Limit, ledgers| whole(limit).divide(&vec![holder(0, 0); ledgers], NOW);
        let five = Limit::new().concurrency(5);
        assert_eq!(leases(&begin(five.clone(), 3)), [2, 2, 1]);
        assert_eq!(leases(&begin(five, 7)), [1, 1, 1, 1, 1, 0, 0]);
        let both = Limit::new().rate(10, SECOND).burst(2).concurrency(5);
        let shares = begin(both, 3);
        assert_eq!(units(&shares), [1, 1, 0]);
        assert_eq!(leases(&shares), [3, 2, 0], "one cannot start any");
    }

    #[test]
    fn what_others_do_not_use_goes_to_the_ledger_whose_jobs_wait() {
        let ten = whole(Limit::new().rate(10, SECOND).burst(10));
        let mut used = holder(5, 0);
        used.used = 2;
        let shares = ten.divide(&[used, waits(5, 0)], NOW);
        assert_eq!(units(&shares), [2, 8]);
        let shares = ten.divide(&[holder(5, 0), waits(5, 0), holder(0, 0)], NOW);
        assert_eq!(units(&shares), [0, 10, 0]);
    }

    #[test]
    fn ledgers_without_jobs_keep_a_unit_if_there_are_plenty() {
        let ten = whole(Limit::new().rate(10, SECOND).burst(10));
        let shares = ten.divide(&[holder(5, 0), waits(5, 0)], NOW);
        assert_eq!(units(&shares), [1, 9]);
    }

    #[test]
    fn ledgers_with_backlogs_have_equal_parts() {
        let five = whole(Limit::new().concurrency(5));
        let mut runs = waits(0, 5);
        runs.running = 5;
        let mut few = holder(0, 0);
        few.waiting = 1;
        let shares = five.divide(&[runs.clone(), waits(0, 0), few], NOW);
        assert_eq!(leases(&shares), [2, 2, 1]);
        let shares = five.divide(&[runs, waits(0, 0)], NOW);
        assert_eq!(leases(&shares).iter().sum::<u64>(), 5);
        assert!(leases(&shares).iter().all(|part| *part >= 2), "{shares:?}");
    }

    #[test]
    fn without_a_unit_for_each_the_ledgers_take_turns() {
        let one = whole(Limit::new().rate(10, SECOND));
        let at = |since: u64, units| Holder {
            since: UnixMs(NOW.0 - since),
            ..waits(units, 0)
        };
        let shares = one.divide(&[at(100, 1), at(5000, 0), at(2000, 0)], NOW);
        assert_eq!(units(&shares), [1, 0, 0], "it has just got its unit");
        let shares = one.divide(&[at(1000, 1), at(5000, 0), at(2000, 0)], NOW);
        assert_eq!(units(&shares), [0, 1, 0], "it was without for the longest");
        // Both got and lost it in the same millisecond, or by clocks that differ.
        for since in [1000, 900] {
            let shares = one.divide(&[at(1000, 1), at(since, 0)], NOW);
            assert_eq!(units(&shares), [0, 1]);
        }
        let slow = whole(Limit::new().rate(1, 60 * SECOND));
        let shares = slow.divide(&[at(50_000, 1), at(90_000, 0)], NOW);
        assert_eq!(units(&shares), [1, 0], "a start takes a minute");
    }

    #[test]
    fn nothing_moves_while_no_job_waits() {
        let both = whole(Limit::new().rate(10, SECOND).burst(6).concurrency(9));
        let holders = [holder(4, 2), holder(0, 0), holder(2, 7)];
        let shares = both.divide(&holders, NOW);
        let had: Vec<_> = holders.iter().map(|it| it.share).collect();
        assert_eq!(shares, had);
    }

    #[test]
    fn what_nobody_has_is_given_out() {
        let both = whole(Limit::new().rate(10, SECOND).burst(6).concurrency(9));
        let shares = both.divide(&[holder(0, 0), holder(1, 2)], NOW);
        assert_eq!(units(&shares).iter().sum::<u64>(), 6);
        assert_eq!(leases(&shares).iter().sum::<u64>(), 9);
    }

    #[test]
    fn what_others_have_is_not_given_out() {
        let four = whole(Limit::new().concurrency(4));
        let left = four.without_others(Share {
            units: 0,
            leases: 2,
        });
        let shares = left.divide(&[waits(0, 2), waits(0, 0)], NOW);
        assert_eq!(leases(&shares), [1, 1]);
        let none = four.without_others(Share::default());
        assert_eq!(leases(&none.divide(&[waits(0, 0)], NOW)), [0]);
    }

    #[test]
    fn whatever_they_have_the_parts_never_exceed_the_limit() {
        // A small generator of our own: the cases are the same in each run.
        let mut seed: u64 = 7;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..3000 {
            let mut limit = Limit::new().concurrency(1 + random(9) as u32);
            if random(2) == 0 {
                limit = limit.rate(10, SECOND).burst(1 + random(9) as u32);
            }
            let whole = whole(limit);
            let holders: Vec<Holder> = (0..1 + random(6))
                .map(|_| Holder {
                    running: random(4),
                    used: random(4),
                    waiting: random(3) * random(9),
                    since: UnixMs(NOW.0 - random(3000)),
                    ..holder(random(5), random(5))
                })
                .collect();
            let shares = whole.divide(&holders, NOW);
            let sum = |part: fn(&Share) -> u64| shares.iter().map(part).sum::<u64>();
            let case = || format!("{whole:?} {holders:?} {shares:?}");
            assert_eq!(
                sum(|share| share.units),
                whole.units.unwrap_or(0),
                "{}",
                case()
            );
            assert_eq!(
                sum(|share| share.leases),
                whole.leases.unwrap_or(0),
                "{}",
                case()
            );
            // Somebody whose jobs wait can start one.
            let can_start =
                |(it, share): (&Holder, &Share)| it.waiting > 0 && whole.has_share(*share);
            assert!(
                holders.iter().all(|it| it.waiting == 0)
                    || holders.iter().zip(&shares).any(can_start),
                "{}",
                case()
            );
        }
    }
}
