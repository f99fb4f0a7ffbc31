//! Random calls on a ledger with groups, judged by what was answered: no window has more starts
//! than the limits allow, no group has more leases, the oldest job of a group starts first, and no
//! job is lost or stuck.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use tokio::time::sleep;

use super::super::support::{Bench, after, bury, later, soon, suspect};
use super::{by_id, by_tenant};
use crate::limit::Limit;
use crate::store::{
    ClaimOrder, ClaimReply, ClaimRequest, Found, Lane, Placement, Settlement, Verb, Word,
};

/// How many calls a ledger gets.
const CALLS: usize = 700;

const ROUNDS: u64 = 4;

const GROUPS: u32 = 6;

/// A rate as the claim has to keep it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rate {
    pub(super) gap: u64,
    pub(super) burst: u64,
}

/// The limit in force.
#[derive(Debug, Clone, Copy, Default)]
struct Rules {
    kind: Rate,
    kind_most: usize,
    has_groups: bool,
    group: Rate,
    group_most: usize,
}

struct Game {
    bench: Bench,
    random: StdRng,
    rules: Rules,
    /// The due time of each job; `None` while a successor waits.
    jobs: BTreeMap<String, Option<u64>>,
    /// The token of each lease.
    leases: BTreeMap<String, String>,
    /// The starts since the rules changed, Unix µs: of the kind, and of each group.
    starts: BTreeMap<Option<String>, Vec<u64>>,
    /// The number of the last job.
    last: u32,
}

pub(super) fn group_of(id: &str) -> String {
    id.split('/').next().unwrap().to_owned()
}

impl Rate {
    pub(super) fn draw(random: &mut StdRng, gaps: &[u64]) -> Self {
        Rate {
            gap: *gaps.choose(random).unwrap(),
            burst: *[1, 3, 8].choose(random).unwrap(),
        }
    }

    /// The jobs and the time of a limit.
    pub(super) fn per(self) -> (u32, Duration) {
        (1, Duration::from_micros(self.gap))
    }

    /// No span has more than `burst` starts, and one more for each gap.
    pub(super) fn judge(self, starts: &[u64], what: &Option<String>) {
        let mut full = 0;
        for at in starts.iter().filter(|_| self.gap > 0) {
            let ahead = (self.burst - 1) * self.gap;
            assert!(
                full <= at + ahead,
                "{what:?} has started too often: {self:?} {starts:?}"
            );
            full = full.max(*at) + self.gap;
        }
    }
}

impl Game {
    /// Draws new rules. Starts before count for the ledger; windows are judged from here on.
    async fn change_rules(&mut self) {
        let random = &mut self.random;
        let mut rules = Rules {
            kind: Rate::draw(random, &[0, 0, 1000, 2000]),
            kind_most: *[0, 0, 3, 10].choose(random).unwrap(),
            has_groups: random.random_bool(0.85),
            ..Rules::default()
        };
        let mut limit = Limit::new();
        if rules.has_groups {
            rules.group = Rate::draw(random, &[0, 1000, 4000]);
            rules.group_most = *[0, 1, 3, 20].choose(random).unwrap();
            limit = if random.random_bool(0.75) {
                by_id()
            } else {
                by_tenant()
            };
            if random.random_bool(0.5) {
                limit = limit.weight("g0", 5.0).weight("g1", 2.5);
            }
        }
        let ((jobs, per), burst) = (rules.kind.per(), rules.kind.burst as u32);
        let most = rules.kind_most as u32;
        limit = match (rules.kind.gap > 0, rules.has_groups) {
            (false, _) => limit,
            (true, true) => limit.total_rate(jobs, per).total_burst(burst),
            (true, false) => limit.rate(jobs, per).burst(burst),
        };
        limit = match (most > 0, rules.has_groups) {
            (false, _) => limit,
            (true, true) => limit.total_concurrency(most),
            (true, false) => limit.concurrency(most),
        };
        if rules.group.gap > 0 {
            let (jobs, per) = rules.group.per();
            limit = limit.rate(jobs, per).burst(rules.group.burst as u32);
        }
        if rules.group_most > 0 {
            limit = limit.concurrency(rules.group_most as u32);
        }
        let set = self.bench.now().await;
        let limit = Some(limit).filter(|limit| *limit != Limit::new());
        if self.bench.set_limit(limit, set).await {
            (self.rules, self.starts) = (rules, BTreeMap::new());
        }
    }

    async fn schedule(&mut self) {
        let groups = *[1, 1, 3, 40].choose(&mut self.random).unwrap();
        let is_one = self.random.random_bool(0.4);
        let one = self.random.random_range(0..GROUPS);
        for _ in 0..groups {
            let group = if is_one {
                one
            } else {
                self.random.random_range(0..GROUPS)
            };
            self.last += 1;
            let mut id = format!("g{group}/{}", self.last);
            if self.random.random_bool(0.2)
                && let Some(known) = self.some_jobs(1).pop()
            {
                id = known;
            }
            let header = serde_json::json!({"v": 1, "headers": {"tenant": group_of(&id)}});
            let delay = *[0, 0, 1, 5, self.random.random_range(0..60)]
                .choose(&mut self.random)
                .unwrap();
            let item = Placement {
                header: header.to_string().into(),
                ..self
                    .bench
                    .placement(&id, after(Duration::from_millis(delay)))
            };
            let due = match self.bench.place(&[item]).await[0].answer {
                Word::Created(due) | Word::Replaced(due) => Some(due.0),
                Word::Succeeds(_) => None,
                other => panic!("{id}: {other:?}"),
            };
            self.jobs.insert(id, due);
        }
    }

    fn some_jobs(&mut self, most: usize) -> Vec<String> {
        let ids: Vec<&String> = self.jobs.keys().collect();
        let some = ids.sample(&mut self.random, most);
        some.map(|id| (*id).clone()).collect()
    }

    fn some_leases(&mut self, most: usize) -> Vec<String> {
        let ids: Vec<&String> = self.leases.keys().collect();
        let some = ids.sample(&mut self.random, most);
        some.map(|id| (*id).clone()).collect()
    }

    /// Whether a claim may not know all jobs of a group: because some come back from the turns of
    /// older rules, or because more are due than one claim sets aside.
    async fn is_in_change(&self) -> (bool, String) {
        let calls = &self.bench.names().calls;
        let field: Option<String> = self.bench.ask(&["HGET", calls, "limit"]).await;
        let field = field.unwrap_or_default();
        let words: Vec<&str> = field
            .split_once('\n')
            .map_or("", |(_, groups)| groups)
            .split(' ')
            .collect();
        let plain: u64 = self
            .bench
            .ask(&[
                "ZCOUNT",
                &self.bench.names().due,
                "-inf",
                "4000000000000000",
            ])
            .await;
        let is_so = words.len() > 5 && (words[4] != "-" || words[5] != "-") || plain > 100;
        (is_so, field)
    }

    async fn claim(&mut self) {
        let pending: Vec<String> = self
            .jobs
            .keys()
            .filter(|id| !self.leases.contains_key(*id))
            .cloned()
            .collect();
        let most = *[0, 1, 1, 4].choose(&mut self.random).unwrap();
        let named: Vec<&str> = pending
            .sample(&mut self.random, most)
            .map(String::as_str)
            .collect();
        let is_named = self.random.random_bool(0.2);
        let fill = *[0, 1, 3, 30].choose(&mut self.random).unwrap();
        let fill = if is_named { 0 } else { fill };
        let lease = *[3, 50, 60_000].choose(&mut self.random).unwrap();
        let (in_change, limit) = self.is_in_change().await;
        let mut lane = Lane::new();
        let found = "e".repeat(named.len());
        let request = ClaimRequest {
            ids: &named,
            found: &found,
            fill,
            order: if is_named {
                ClaimOrder::Named
            } else {
                ClaimOrder::Oldest
            },
        };
        let lease = Duration::from_millis(lease);
        let reply = self.bench.ledger.claim(&mut lane, request, lease, soon());
        let reply = reply.await.unwrap();
        let taken = reply.jobs.len();
        assert!(
            taken <= named.len() + fill,
            "{taken} of {}",
            named.len() + fill
        );
        let of_named = |id: &str| named.contains(&id);
        assert!(!is_named || reply.jobs.iter().all(|job| of_named(&job.id)));
        if self.rules.has_groups && !is_named && !in_change {
            self.judge_order(&reply, &limit);
        }
        let before = self.leases.len();
        self.started(&reply);
        let most = self.rules.kind_most;
        let leases = self.leases.len();
        assert!(
            most == 0 || taken == 0 || leases <= most.max(before),
            "{leases} of {most}"
        );
        let groups: BTreeSet<String> = reply.jobs.iter().map(|job| group_of(&job.id)).collect();
        for group in groups {
            let own = self
                .leases
                .keys()
                .filter(|id| group_of(id) == group)
                .count();
            let most = self.rules.group_most;
            assert!(
                most == 0 || own <= most,
                "{group} has {own} leases of {most}"
            );
        }
    }

    /// No job of a group that stays behind is older than one that was claimed.
    fn judge_order(&self, reply: &ClaimReply, limit: &str) {
        for job in &reply.jobs {
            let is_older = |(id, due): (&String, &Option<u64>)| {
                let is_claimed = reply.jobs.iter().any(|one| one.id == *id);
                let waits = !self.leases.contains_key(id) && !is_claimed;
                waits && group_of(id) == group_of(&job.id) && due.is_some_and(|due| due < job.due.0)
            };
            let older = self.jobs.iter().find(|one| is_older(*one));
            assert!(
                older.is_none(),
                "{} of {} before {older:?}; {limit:?} {:?}",
                job.id,
                job.due.0,
                self.rules
            );
        }
    }

    /// Takes in the starts of a claim or a takeover, and judges the rates.
    fn started(&mut self, reply: &ClaimReply) {
        for job in &reply.jobs {
            let due = self.jobs.get(&job.id);
            let due = due.unwrap_or_else(|| panic!("{} is unknown", job.id));
            assert!(
                due.is_none_or(|due| due == job.due.0),
                "{}: {due:?}",
                job.id
            );
            assert!(job.due.0 <= reply.now.0 / 1000, "{} is early", job.id);
            self.leases.insert(job.id.clone(), job.token.to_string());
            for what in [None, Some(group_of(&job.id))] {
                self.starts.entry(what).or_default().push(reply.now.0);
            }
        }
        for (what, starts) in &self.starts {
            match what {
                None => self.rules.kind.judge(starts, what),
                Some(_) => self.rules.group.judge(starts, what),
            }
        }
    }

    /// What has become of a job whose lease is gone.
    async fn look(&mut self, id: &str) {
        self.leases.remove(id);
        match self.bench.ledger.get(id, soon()).await.unwrap() {
            Found::Pending { due, .. } => self.jobs.insert(id.to_owned(), Some(due.0)),
            _ => self.jobs.remove(id),
        };
    }

    async fn settle(&mut self) {
        let most = *[1, 1, 2, 8].choose(&mut self.random).unwrap();
        let some = self.some_leases(most);
        let mut ends: Vec<Settlement> = Vec::new();
        for id in &some {
            let delay = Duration::from_millis(*[0, 2, 20].choose(&mut self.random).unwrap());
            let verb = match self.random.random_range(0..5) {
                0 => later(after(delay), "failed"),
                1 => bury(),
                _ => Verb::Done,
            };
            ends.push(self.bench.settlement(id, &self.leases[id], verb));
        }
        if ends.is_empty() {
            return;
        }
        let answers = self.bench.settle_all(&ends).await;
        for (id, answered) in some.iter().zip(answers) {
            assert!(
                !matches!(answered.answer, Word::Gone | Word::Foreign),
                "{id}: {answered:?}"
            );
            self.look(id).await;
        }
    }

    async fn take_over(&mut self) {
        if self.random.random_bool(0.5) {
            sleep(Duration::from_millis(4)).await;
        }
        let some = self.some_leases(4);
        if some.is_empty() {
            return;
        }
        let named: Vec<&str> = some.iter().map(String::as_str).collect();
        let reply = self.bench.reclaim(&named).await;
        // The lease of a job that was scheduled anew keeps the due time of its run.
        for id in &some {
            if let Some(due) = self.jobs.get_mut(id) {
                *due = None;
            }
        }
        self.started(&reply);
        for (id, answered) in some.iter().zip(&reply.answers) {
            if matches!(answered.answer, Word::Superseded | Word::Cancelled) {
                self.look(id).await;
            }
        }
    }

    async fn change_jobs(&mut self) {
        for id in self.some_jobs(3) {
            if self.random.random_bool(0.5) {
                if self.bench.cancel(&id).await == Word::Cancelled {
                    self.jobs.remove(&id);
                }
            } else {
                let delay = Duration::from_millis(*[0, 3, 9].choose(&mut self.random).unwrap());
                if let Word::Moved(due) = self.bench.reschedule(&id, after(delay)).await {
                    self.jobs.insert(id, Some(due.0));
                }
            }
        }
    }

    async fn look_around(&mut self) {
        let ledger = &self.bench.ledger;
        ledger
            .sweep(Duration::ZERO, (0, 0), 9, soon())
            .await
            .unwrap();
        ledger.admit(true, soon()).await.unwrap();
        self.bench.balanced().await;
        let suspects: Vec<_> = self
            .some_jobs(5)
            .iter()
            .map(|id| (suspect(id), String::new()))
            .collect();
        let found = self
            .bench
            .ledger
            .audit(&suspects, true, soon())
            .await
            .unwrap();
        assert!(found.iter().all(Option::is_none), "{found:?}");
    }

    /// Ends all leases, and claims what is announced until no job is left.
    async fn drain(&mut self) {
        for id in self.some_leases(usize::MAX) {
            let end = self.bench.settlement(&id, &self.leases[&id], Verb::Done);
            self.bench.settle_all(&[end]).await;
            self.look(&id).await;
        }
        let mut idle = 0;
        while !self.jobs.is_empty() {
            let ledger = &self.bench.ledger;
            let found = ledger
                .sweep(Duration::ZERO, (0, 0), 5, soon())
                .await
                .unwrap();
            let named: Vec<&str> = found.overdue.iter().map(String::as_str).collect();
            let reply = self.bench.claim(&named, 0).await;
            self.bench.finish(&reply.jobs).await;
            for job in &reply.jobs {
                assert!(self.jobs.remove(&job.id).is_some(), "{} ran twice", job.id);
            }
            idle = if reply.jobs.is_empty() { idle + 1 } else { 0 };
            assert!(idle < 20_000, "stuck: {:?} {:?}", self.rules, self.jobs);
        }
        // The last entries go with the next claim.
        self.bench.claim(&[], 1).await;
        self.bench.nothing_left().await;
    }
}

#[tokio::test]
async fn random_calls_keep_every_limit_and_lose_no_job() {
    let seed: u64 = rand::random();
    for round in 0..ROUNDS {
        println!("seed {seed}, round {round}");
        let mut game = Game {
            bench: Bench::new().await,
            random: StdRng::seed_from_u64(seed + round),
            rules: Rules::default(),
            jobs: BTreeMap::new(),
            leases: BTreeMap::new(),
            starts: BTreeMap::new(),
            last: 0,
        };
        game.change_rules().await;
        for _ in 0..CALLS {
            match game.random.random_range(0..100) {
                0..22 => game.schedule().await,
                22..62 => game.claim().await,
                62..85 => game.settle().await,
                85..91 => game.take_over().await,
                91..95 => game.change_jobs().await,
                95 => game.change_rules().await,
                _ => game.look_around().await,
            }
        }
        game.drain().await;
    }
}
