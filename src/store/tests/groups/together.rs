//! `allot.lua`, and limits of groups that several ledgers share.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::timeout;

use super::super::shares::FIRST;
use super::super::support::{Bench, Ears, HOUR, MOMENT, at, ids, soon};
use super::random::{Rate, group_of};
use super::{by_id, numbered, said};
use crate::embedded::Embedded;
use crate::limit::{Holder, Limit, LimitScope, Share, Whole};
use crate::store::kinds::group_shares::GroupsWait;
use crate::store::ledger::limiting::{AllotReply, GroupCall, LimitPart, Look};
use crate::store::{Lane, Ledger, LimitRule, Placement, Verb, Word};
use crate::time::UnixMs;

/// When the limit was set.
const SET: UnixMs = UnixMs(1000);

fn share(units: u64, leases: u64) -> Share {
    Share { units, leases }
}

fn a_look(epoch: u64) -> Look<'static> {
    Look {
        epoch: FIRST + epoch,
        by: "me",
        rule: SET,
    }
}

impl Bench {
    /// Gives the ledger a share of this limit, with none of that of a group.
    async fn join_groups(&self, limit: &Limit, rule: UnixMs) {
        let terms = limit.terms().unwrap();
        let share = share(terms.burst, terms.most);
        let part = LimitPart::Shared {
            whole: terms,
            share,
            rule,
        };
        let rule = LimitRule {
            limit: Some(limit.clone()),
            set: rule,
            by: "anna".into(),
        };
        let lane = &mut Lane::new();
        let set = self.ledger.limit(lane, &part, &rule, soon());
        assert!(set.await.unwrap());
    }

    async fn waiting(&self, epoch: u64) -> Vec<String> {
        match self.ledger.allot(&a_look(epoch), 9, &[], soon()).await {
            Ok(AllotReply::Shared { waiting, .. }) => waiting,
            other => panic!("{other:?}"),
        }
    }

    async fn allot(&self, epoch: u64, call: GroupCall<'_>) -> (Holder, u64) {
        let look = a_look(epoch);
        match self.ledger.allot(&look, 0, &[call], soon()).await {
            Ok(AllotReply::Shared { mut groups, .. }) => groups.remove(0),
            other => panic!("{other:?}"),
        }
    }

    async fn look_at_a(&self, epoch: u64) -> (Holder, u64) {
        self.allot(epoch, of_a(None)).await
    }

    async fn give_a(&self, epoch: u64, share: Share, owed: u64) -> (Holder, u64) {
        self.allot(epoch, of_a(Some((share, owed)))).await
    }
}

fn of_a(change: Option<(Share, u64)>) -> GroupCall<'static> {
    of("a", change)
}

fn of(name: &str, change: Option<(Share, u64)>) -> GroupCall<'_> {
    GroupCall {
        name,
        change,
        forgets: false,
    }
}

#[tokio::test]
async fn a_group_without_a_share_starts_nothing_and_says_so() {
    let bench = Bench::new().await;
    let limit = by_id().rate(1, HOUR).burst(4).concurrency(5);
    bench.join_groups(&limit, SET).await;
    bench.due_in_turn(numbered("a", 4)).await;
    let mut ears = Ears::of(&bench).await;
    assert_eq!(said(&bench.claim(&["a/0000"], 1).await), ["held"]);
    let subject = bench.ledger.subject();
    assert_eq!(
        ears.heard(&bench).await,
        [format!("held {subject} 0 shared")]
    );
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    assert_eq!(
        ears.heard(&bench).await,
        [format!("held {subject} 0")],
        "the balancer knows"
    );
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 9, soon()).await;
    let sweep = sweep.unwrap();
    assert!(sweep.overdue.is_empty() && sweep.held.unwrap().is_shared);
    assert_eq!(bench.waiting(1).await, ["a"]);
    let (holder, _) = bench.look_at_a(1).await;
    assert_eq!((holder.share, holder.waiting), (share(0, 0), 4));
    // Units without leases are of no use.
    bench.give_a(2, share(2, 0), 0).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    ears.heard(&bench).await;
    let (holder, _) = bench.give_a(3, share(2, 5), 0).await;
    assert_eq!((holder.share, holder.bound), (share(2, 5), 5));
    assert_eq!(
        ears.heard(&bench).await,
        [format!("now {subject} a/0000 a/0001")]
    );
    let reply = bench.claim(&[], 9).await;
    assert_eq!(ids(&reply), ["a/0000", "a/0001"]);
    let (holder, _) = bench.look_at_a(4).await;
    assert_eq!((holder.running, holder.used, holder.waiting), (2, 2, 2));
    assert_eq!(bench.waiting(4).await, ["a"], "others have two units");
    bench.give_a(5, share(4, 5), 0).await;
    assert!(bench.waiting(5).await.is_empty(), "it has all");
    assert_eq!(bench.claim(&[], 9).await.jobs.len(), 2);
    bench.balanced().await;
}

/// What was used of the new unit allows the next start much later. A claim of some other group does
/// not change that.
#[tokio::test]
async fn a_share_that_is_used_up_starts_the_group_when_its_rate_allows() {
    let bench = Bench::new().await;
    bench
        .join_groups(&by_id().rate(1, HOUR).burst(4), SET)
        .await;
    let jobs = [numbered("a", 2), numbered("b", 1)].concat();
    bench.due_in_turn(jobs).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    let mut ears = Ears::of(&bench).await;
    bench.give_a(1, share(1, 0), 500_000).await;
    let subject = bench.ledger.subject();
    let heard = ears.heard(&bench).await;
    let start = heard[0].strip_prefix(&format!("held {subject} ")).unwrap();
    let start: u64 = start.parse().unwrap();
    assert!(start > bench.now().await * 1000, "{start}");
    bench.allot(2, of("b", Some((share(1, 0), 0)))).await;
    assert_eq!(ids(&bench.claim(&["b/0000"], 0).await), ["b/0000"]);
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 9, soon()).await;
    let held = sweep.unwrap().held.unwrap();
    assert_eq!(held.next.unwrap().0, start);
    bench.balanced().await;
}

/// No worker claims the announced jobs, and the share goes to another ledger. A sweep names one of
/// the jobs, and its claim makes the group ask again.
#[tokio::test]
async fn a_group_that_loses_its_share_before_a_claim_asks_again() {
    let bench = Bench::new().await;
    let limit = by_id().rate(1, HOUR).burst(4).concurrency(4);
    bench.join_groups(&limit, SET).await;
    bench.due_in_turn(numbered("a", 2)).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    bench.give_a(1, share(2, 2), 0).await;
    let (holder, _) = bench.look_at_a(2).await;
    assert_eq!(holder.waiting, 0, "it has not used what it has");
    bench.give_a(2, share(0, 0), 0).await;
    assert!(bench.waiting(2).await.is_empty());
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 9, soon()).await;
    let overdue = sweep.unwrap().overdue;
    assert_eq!(overdue, ["a/0000"]);
    assert_eq!(said(&bench.claim(&["a/0000"], 0).await), ["held"]);
    assert_eq!(bench.waiting(3).await, ["a"]);
    bench.balanced().await;
}

/// While its kind is paused a group needs no share. Afterwards it asks again.
#[tokio::test]
async fn a_group_asks_for_a_share_again_after_a_pause() {
    let bench = Bench::new().await;
    bench.join_groups(&by_id().concurrency(4), SET).await;
    bench.due_in_turn(numbered("a", 2)).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    let lane = &mut Lane::new();
    bench.ledger.pause(lane, None, soon()).await.unwrap();
    assert_eq!(bench.look_at_a(1).await.0.waiting, 0);
    assert!(bench.waiting(1).await.is_empty());
    bench.ledger.resume(lane, None, soon()).await.unwrap();
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 9, soon()).await;
    assert_eq!(sweep.unwrap().overdue, ["a/0000", "a/0001"]);
    assert_eq!(said(&bench.claim(&["a/0000"], 0).await), ["held"]);
    assert_eq!(bench.waiting(2).await, ["a"]);
    bench.balanced().await;
}

#[tokio::test]
async fn units_that_are_taken_away_are_owed_until_another_ledger_has_them() {
    let bench = Bench::new().await;
    bench
        .join_groups(&by_id().rate(1, HOUR).burst(4), SET)
        .await;
    bench.give_a(1, share(4, 0), 0).await;
    bench.due_in_turn(numbered("a", 6)).await;
    assert_eq!(bench.claim(&[], 3).await.jobs.len(), 3);
    let (holder, owed) = bench.give_a(2, share(3, 0), 0).await;
    assert_eq!((holder.used, owed), (3, 0), "the free one goes first");
    for _ in 0..2 {
        // Also when the call is repeated.
        let (holder, owed) = bench.give_a(3, share(1, 0), 0).await;
        assert_eq!(holder.used, 3);
        assert!(owed > 1_990_000 && owed <= 2_000_000, "{owed}");
    }
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    let forgets = GroupCall {
        forgets: true,
        ..of_a(None)
    };
    let (holder, owed) = bench.allot(4, forgets).await;
    assert_eq!((holder.used, owed), (1, 0), "its own unit is in use");
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    // Three units come, of which two are in use.
    for _ in 0..2 {
        bench.give_a(5, share(4, 0), 2_000_000).await;
    }
    assert_eq!(bench.claim(&[], 9).await.jobs.len(), 1);
    bench.balanced().await;
}

#[tokio::test]
async fn leases_above_a_share_count_until_they_end() {
    let bench = Bench::new().await;
    bench.join_groups(&by_id().concurrency(3), SET).await;
    bench.give_a(1, share(0, 3), 0).await;
    bench.due_in_turn(numbered("a", 6)).await;
    let reply = bench.claim(&[], 9).await;
    assert_eq!(reply.jobs.len(), 3);
    let (holder, _) = bench.give_a(2, share(0, 1), 0).await;
    assert_eq!((holder.bound, holder.running), (3, 3));
    bench.finish(&reply.jobs[..2]).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    assert_eq!(bench.look_at_a(3).await.0.bound, 1);
    // A share that is lost leaves the lease.
    bench
        .ask::<u64>(&["DEL", &bench.names().of_groups()[3]])
        .await;
    assert_eq!(bench.look_at_a(3).await.0.bound, 1);
    bench.finish(&reply.jobs[2..]).await;
    bench.balanced().await;
}

#[tokio::test]
async fn a_takeover_waits_for_a_share_of_its_group() {
    let bench = Bench::new().await;
    bench
        .join_groups(&by_id().rate(1, HOUR).burst(4), SET)
        .await;
    bench.give_a(1, share(1, 0), 0).await;
    bench.run("a/0", MOMENT).await;
    bench.past(bench.now().await + 2).await;
    let mut ears = Ears::of(&bench).await;
    assert_eq!(said(&bench.reclaim(&["a/0"]).await), ["held"]);
    assert!(ears.heard(&bench).await[0].ends_with(" shared"));
    assert_eq!(bench.waiting(2).await, ["a"]);
    assert_eq!(bench.look_at_a(2).await.0.waiting, 1);
    bench.give_a(3, share(2, 0), 0).await;
    assert_eq!(ids(&bench.reclaim(&["a/0"]).await), ["a/0"]);
    bench.balanced().await;
}

#[tokio::test]
async fn an_older_look_changes_no_share_of_a_group() {
    let bench = Bench::new().await;
    let asked = async |look: Look<'_>| {
        let call = of_a(Some((share(0, 9), 0)));
        bench.ledger.allot(&look, 0, &[call], soon()).await.unwrap()
    };
    assert!(matches!(asked(a_look(1)).await, AllotReply::Absent));
    bench.join_groups(&by_id().concurrency(9), SET).await;
    bench.look_at_a(7).await;
    let newer = |reply| matches!(reply, AllotReply::Newer(it) if it == FIRST + 7);
    assert!(newer(asked(a_look(6)).await));
    let other = Look {
        by: "other",
        ..a_look(7)
    };
    assert!(newer(asked(other).await));
    let rule = UnixMs(999);
    let older = Look { rule, ..a_look(8) };
    assert!(matches!(asked(older).await, AllotReply::Absent));
    assert_eq!(bench.look_at_a(7).await.0.share, share(0, 0));
    bench.balanced().await;
}

#[tokio::test]
async fn shares_of_groups_outlive_the_same_limit_and_not_another() {
    let bench = Bench::new().await;
    let limit = by_id().rate(1, HOUR).burst(4);
    bench.join_groups(&limit, SET).await;
    bench.give_a(1, share(2, 0), 0).await;
    bench.due_in_turn(numbered("a", 6)).await;
    assert_eq!(bench.claim(&[], 9).await.jobs.len(), 2);
    bench.join_groups(&limit, SET).await;
    assert_eq!(bench.look_at_a(2).await.0.share, share(2, 0));
    bench.join_groups(&limit, UnixMs(SET.0 + 1)).await;
    let look = Look {
        rule: UnixMs(SET.0 + 1),
        ..a_look(3)
    };
    let call = [of_a(None)];
    let told = bench.ledger.allot(&look, 0, &call, soon()).await.unwrap();
    let AllotReply::Shared { groups, .. } = told else {
        panic!("{told:?}")
    };
    let (holder, _) = &groups[0];
    assert_eq!(holder.share, share(0, 0));
    assert!(holder.used >= 2, "what has started counts");
    bench.balanced().await;
}

#[tokio::test]
async fn leases_from_before_the_limit_are_counted_by_looks() {
    let bench = Bench::new().await;
    bench.due_in_turn(numbered("a", 600)).await;
    assert_eq!(bench.claim(&[], 600).await.jobs.len(), 600);
    bench.join_groups(&by_id().concurrency(3), SET).await;
    let mut looks = 0;
    let running = loop {
        looks += 1;
        let (look, call) = (a_look(looks), [of_a(None)]);
        let told = bench.ledger.allot(&look, 0, &call, soon());
        match told.await.unwrap() {
            AllotReply::Shared {
                is_counting: false,
                groups,
                ..
            } => break groups[0].0.bound,
            _ => assert!(looks < 100),
        }
    };
    assert_eq!(running, 600);
    bench.balanced().await;
}

/// A game over several ledgers of one server.
struct Game {
    benches: Vec<Bench>,
    random: StdRng,
    rate: Rate,
    most: usize,
    whole: Whole,
    /// By id, with its ledger: the jobs that have not ended, and the token of those that run.
    jobs: BTreeMap<String, (usize, Option<String>)>,
    /// The starts of each group, Unix µs.
    starts: BTreeMap<String, Vec<u64>>,
    epoch: u64,
    last: u32,
    ran: usize,
}

impl Game {
    async fn new(server: &Embedded, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let rate = Rate::draw(&mut random, &[0, 5000, 20_000]);
        let most = match rate.gap {
            0 => *[1, 4].choose(&mut random).unwrap(),
            _ => *[0, 1, 4].choose(&mut random).unwrap(),
        };
        let mut limit = by_id();
        if rate.gap > 0 {
            let (jobs, per) = rate.per();
            limit = limit.rate(jobs, per).burst(rate.burst as u32);
        }
        if most > 0 {
            limit = limit.concurrency(most as u32);
        }
        let mut benches = Vec::new();
        for _ in 0..3 {
            let bench = Bench::on(server).await;
            bench.join_groups(&limit, SET).await;
            benches.push(bench);
        }
        let terms = limit.terms().unwrap();
        Game {
            benches,
            random,
            rate,
            most,
            whole: Whole::of_group(&terms.groups.unwrap()).unwrap(),
            jobs: BTreeMap::new(),
            starts: BTreeMap::new(),
            epoch: FIRST,
            last: 0,
            ran: 0,
        }
    }

    fn at_random(&mut self) -> usize {
        self.random.random_range(0..self.benches.len())
    }

    async fn schedule(&mut self) {
        let ledger = self.at_random();
        let mut ids = Vec::new();
        for _ in 0..*[1, 1, 3, 30].choose(&mut self.random).unwrap() {
            self.last += 1;
            let group = self.random.random_range(0..4);
            ids.push(format!("g{group}/{}", self.last));
        }
        let bench = &self.benches[ledger];
        let items: Vec<Placement> = ids.iter().map(|id| bench.placement(id, at(1))).collect();
        for answered in bench.place(&items).await {
            assert!(matches!(answered.answer, Word::Created(_)), "{answered:?}");
        }
        for id in ids {
            self.jobs.insert(id, (ledger, None));
        }
    }

    fn leases(&self) -> Vec<(String, usize, String)> {
        let leases = self
            .jobs
            .iter()
            .filter_map(|(id, (ledger, token))| Some((id.clone(), *ledger, token.clone()?)));
        leases.collect()
    }

    /// Takes in the starts of a claim or a takeover, and judges them over all ledgers.
    fn started(&mut self, now: u64, jobs: &[crate::store::Claimed]) {
        let mut groups = BTreeSet::new();
        for job in jobs {
            self.jobs.get_mut(&job.id).unwrap().1 = Some(job.token.to_string());
            let group = group_of(&job.id);
            self.starts.entry(group.clone()).or_default().push(now);
            groups.insert(group);
        }
        self.ran += jobs.len();
        for group in groups {
            self.rate.judge(&self.starts[&group], &Some(group.clone()));
            let leases = self.leases();
            let own = leases.iter().filter(|(id, ..)| group_of(id) == group);
            let own = own.count();
            assert!(
                self.most == 0 || own <= self.most,
                "{group} has {own} leases of {}",
                self.most
            );
        }
    }

    async fn claim(&mut self, lease: Duration) {
        let at = self.at_random();
        let fill = *[1, 3, 30].choose(&mut self.random).unwrap();
        let lane = &mut Lane::new();
        let reply = self.benches[at].try_claim(lane, &[], fill, lease).await;
        let reply = reply.unwrap();
        self.started(reply.now.0, &reply.jobs);
    }

    async fn take_over(&mut self) {
        let leases = self.leases();
        let Some((id, at, _)) = leases.choose(&mut self.random) else {
            return;
        };
        let reply = self.benches[*at].reclaim(&[id]).await;
        self.started(reply.now.0, &reply.jobs);
    }

    async fn settle(&mut self, most: usize) {
        let leases = self.leases();
        let some: Vec<_> = leases.sample(&mut self.random, most).cloned().collect();
        for (id, at, token) in some {
            if self.benches[at].settle(&id, &token, Verb::Done).await == Word::Done {
                self.jobs.remove(&id);
            }
        }
    }

    async fn look_by(&self, by: &str, epoch: u64, most: Duration) -> Option<GroupsWait> {
        let store = &self.benches[0].ledger.store;
        let ledgers: Vec<Arc<Ledger>> = self.benches.iter().map(|it| it.ledger.clone()).collect();
        let scope = LimitScope::parse("test:").unwrap();
        let look = Look {
            epoch,
            by,
            rule: SET,
        };
        let look = store.balance_groups(&scope, &self.whole, &look, (ledgers, true), soon());
        timeout(most, look).await.ok().map(Result::unwrap)
    }

    /// A look; some are cut off, as if the worker had died; some meet another one.
    async fn look(&mut self) {
        let cut = match self.random.random_bool(0.4) {
            true => Duration::from_micros(self.random.random_range(0..3000)),
            false => HOUR,
        };
        self.epoch += 1;
        if self.random.random_bool(0.3) {
            let other = self.epoch + u64::from(self.random.random_bool(0.5));
            self.epoch += 1;
            let one = self.look_by("one", other - 1, cut);
            tokio::join!(one, self.look_by("other", other, HOUR));
        } else {
            self.look_by("one", self.epoch, cut).await;
        }
    }

    /// As when the shares that nobody uses expire.
    async fn forget_idle(&mut self) {
        const FORGET: &str = "
            local time = redis.call('TIME')
            local now = time[1] * 1000000 + time[2]
            for _, group in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', now)) do
              redis.call('HDEL', KEYS[2], group)
              redis.call('ZREM', KEYS[1], group)
            end
            return redis.status_reply('OK')";
        let bench = &self.benches[self.random.random_range(0..3)];
        let [_, _, rates, shares] = bench.names().of_groups();
        let _: String = bench.ask(&["EVAL", FORGET, "2", &rates, &shares]).await;
    }
}

/// Random claims, ends, takeovers and looks, some of them cut off or at the same time: no window of a
/// group has more starts than its rate allows, and no moment more leases, over all ledgers; and at the
/// end each job runs.
#[tokio::test]
async fn together_ledgers_never_exceed_the_limit_of_a_group() {
    let server = Embedded::options().start().await.unwrap();
    let seed: u64 = rand::random();
    for round in 0..4 {
        println!("seed {seed}, round {round}");
        let mut game = Game::new(&server, seed.wrapping_add(round)).await;
        for _ in 0..400 {
            match game.random.random_range(0..100) {
                0..15 => game.schedule().await,
                15..50 => {
                    let lease = *[3, 60_000, 60_000].choose(&mut game.random).unwrap();
                    game.claim(Duration::from_millis(lease)).await;
                }
                50..70 => game.settle(3).await,
                70..76 => game.take_over().await,
                76..79 => game.forget_idle().await,
                _ => game.look().await,
            }
        }
        let mut idle = 0;
        while !game.jobs.is_empty() {
            let before = game.jobs.len();
            game.settle(usize::MAX).await;
            game.claim(HOUR).await;
            game.take_over().await;
            game.epoch += 1;
            game.look_by("one", game.epoch, HOUR).await;
            idle = if game.jobs.len() < before {
                0
            } else {
                idle + 1
            };
            assert!(idle < 20_000, "stuck: {:?} {}", game.rate, game.most);
        }
        assert!(game.ran > 20, "{}", game.ran);
        for bench in &game.benches {
            bench.claim(&[], 1).await;
            bench.nothing_left().await;
        }
    }
}
