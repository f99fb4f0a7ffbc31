//! Groups of a limit: their own limits, their turns, and what is left behind when they change.

mod random;
mod together;

use std::collections::BTreeMap;
use std::time::Duration;

use super::support::{
    Bench, Ears, HOUR, KEPT, MOMENT, NEVER, after, at, ids, later, soon, suspect, words,
};
use crate::key::JobKey;
use crate::limit::{GroupBy, Limit};
use crate::store::{
    Answered, ClaimReply, Claimed, Found, Lane, Placement, Settlement, Sought, Verb, Word,
};
use crate::time::UnixMs;

/// Groups by the part of the id before the first slash.
pub(super) fn by_id() -> Limit {
    Limit::new().per(GroupBy::id_part(1))
}

pub(super) fn by_tenant() -> Limit {
    Limit::new().per(GroupBy::header("tenant"))
}

impl Bench {
    /// The keys of groups that exist.
    pub(super) async fn keys_of_groups(&self) -> Vec<String> {
        let mut there = Vec::new();
        for key in self.names().of_groups() {
            if self.ask::<u64>(&["EXISTS", &key]).await > 0 {
                there.push(key);
            }
        }
        there
    }

    /// How many jobs wait for the turn of their group.
    async fn aside(&self) -> u64 {
        let due = self.names().due.clone();
        self.ask(&["ZCOUNT", &due, "4000000000000000", "(inf"])
            .await
    }

    /// Jobs that have come due one after the other, a millisecond apart. Returns the first time.
    async fn due_in_turn(&self, ids: impl IntoIterator<Item = String>) -> u64 {
        let ids: Vec<String> = ids.into_iter().collect();
        let mut ahead = 50;
        loop {
            let first = self.now().await + ahead;
            let placed = ids.iter().zip(first..);
            let items: Vec<Placement> = placed
                .map(|(id, due)| self.placement(id, at(due)))
                .collect();
            for items in items.chunks(100) {
                self.place(items).await;
            }
            if self.now().await < first {
                self.past(first + items.len() as u64).await;
                return first;
            }
            // A due time in the past becomes the present, and the jobs would be due at once.
            ahead *= 2;
        }
    }

    fn of_tenant(&self, id: &str, due: u64, tenant: &str) -> Placement {
        let header = serde_json::json!({"v": 1, "headers": {"tenant": tenant}});
        Placement {
            header: header.to_string().into(),
            ..self.placement(id, at(due))
        }
    }

    pub(super) async fn finish(&self, jobs: &[Claimed]) {
        let items: Vec<Settlement> = jobs
            .iter()
            .map(|job| self.settlement(&job.id, &job.token, Verb::Done))
            .collect();
        for items in items.chunks(100) {
            let answers: Vec<Answered> = self.settle_all(items).await;
            assert!(answers.iter().all(|one| one.answer == Word::Done));
        }
    }

    /// Claims and ends jobs, as workers do: also what the reconciler finds. Returns their ids when
    /// none starts any more.
    async fn drain(&self, at_once: usize) -> Vec<String> {
        let (mut all, mut idle) = (Vec::new(), 0);
        while idle < 3 {
            let found = self.ledger.sweep(Duration::ZERO, (0, 0), 1, soon());
            let found = found.await.unwrap().overdue;
            let named: Vec<&str> = found.iter().map(String::as_str).collect();
            let reply = self.claim(&named, at_once).await;
            idle = if reply.jobs.is_empty() { idle + 1 } else { 0 };
            all.extend(reply.jobs.iter().map(|job| job.id.clone()));
            self.finish(&reply.jobs).await;
        }
        all
    }

    /// The last check: nothing is left of groups, and the ledger balances.
    pub(super) async fn nothing_left(&self) {
        let left = self.keys_of_groups().await;
        let lasts = |key: &String| key.ends_with("rates") || key.ends_with("shares");
        assert!(left.iter().all(lasts), "{left:?}");
        assert_eq!(self.aside().await, 0);
        assert_eq!(self.balanced().await.leased, 0);
    }
}

fn said(reply: &ClaimReply) -> Vec<&'static str> {
    words(&reply.answers)
}

fn numbered(group: &str, jobs: u32) -> Vec<String> {
    (0..jobs).map(|job| format!("{group}/{job:04}")).collect()
}

/// Jobs of these groups in turn: the first of each, the second of each, and so on.
fn in_turn(groups: &[&str], jobs: u32) -> Vec<String> {
    let each = (0..jobs).flat_map(|job| groups.iter().map(move |group| format!("{group}/{job}")));
    each.collect()
}

#[tokio::test]
async fn a_group_at_its_limit_does_not_hold_up_the_others() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(2)).await;
    let due = bench
        .due_in_turn(["a/0", "a/1", "a/2", "a/3", "b/0"].map(String::from))
        .await;
    let first = bench.claim(&[], 9).await;
    assert_eq!(ids(&first), ["a/0", "b/0", "a/1"]);
    assert_eq!(bench.aside().await, 2);
    assert_eq!(bench.balanced().await.held, 2);
    let extent = bench.ledger.extent("pending", soon()).await.unwrap();
    assert_eq!(extent, (2, UnixMs(due + 3)), "the due time of a/3");
    let admission = bench.admission(false).await.unwrap();
    assert_eq!((admission.room, admission.leases, admission.due), (0, 3, 2));
    assert_eq!(said(&bench.claim(&["a/2"], 5).await), ["held"]);
    let found = bench.ledger.get("a/2", soon()).await.unwrap();
    assert!(matches!(found, Found::Pending { due: then, .. } if then.0 == due + 2));
    // The end of a run announces the next job of the group, and any claim takes it.
    let mut ears = Ears::of(&bench).await;
    bench.finish(&first.jobs[..1]).await;
    assert_eq!(
        ears.heard(&bench).await,
        [format!("now {} a/2", bench.ledger.subject())]
    );
    let second = bench.claim(&["none", "a/3"], 5).await;
    assert_eq!(ids(&second), ["a/2"]);
    assert_eq!(said(&second), ["absent", "held"]);
    bench.finish(&first.jobs[1..]).await;
    bench.finish(&second.jobs).await;
    assert_eq!(bench.drain(9).await, ["a/3"]);
    bench.nothing_left().await;
}

#[tokio::test]
async fn each_group_has_a_rate_of_its_own() {
    let bench = Bench::new().await;
    bench.limit(by_id().rate(2, HOUR).burst(2)).await;
    bench.due_in_turn(in_turn(&["a", "b"], 3)).await;
    let reply = bench.claim(&[], 9).await;
    assert_eq!(ids(&reply), ["a/0", "b/0", "a/1", "b/1"]);
    let mut ears = Ears::of(&bench).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    let heard = ears.heard(&bench).await;
    let next: u64 = heard[0].rsplit_once(' ').unwrap().1.parse().unwrap();
    assert!(heard[0].starts_with("held "), "{heard:?}");
    let admission = bench.admission(false).await.unwrap();
    assert_eq!(admission.next.map(|next| next.0), Some(next));
    assert!(next > bench.now_us().await + 1_000_000_000);
    let sweep = bench
        .ledger
        .sweep(Duration::ZERO, (0, 0), 9, soon())
        .await
        .unwrap();
    assert_eq!(sweep.held.map(|held| held.next), Some(admission.next));
    assert!(sweep.overdue.is_empty());
    bench.finish(&reply.jobs).await;
    assert!(
        bench.claim(&[], 9).await.jobs.is_empty(),
        "an end frees no start"
    );
    bench.limit(Limit::new().concurrency(9)).await;
    assert_eq!(bench.drain(9).await, ["a/2", "b/2"]);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_rate_of_groups_lets_the_next_job_start_in_time() {
    let bench = Bench::new().await;
    bench.limit(by_id().rate(50, Duration::from_secs(1))).await;
    bench.due_in_turn(in_turn(&["a", "b"], 3)).await;
    let mut starts: BTreeMap<String, Vec<u64>> = BTreeMap::new();
    while starts.values().map(Vec::len).sum::<usize>() < 6 {
        let reply = bench.claim(&[], 9).await;
        for job in &reply.jobs {
            starts
                .entry(job.id[..1].into())
                .or_default()
                .push(reply.now.0);
        }
        bench.finish(&reply.jobs).await;
    }
    for times in starts.values() {
        assert!(
            times.windows(2).all(|two| two[1] - two[0] >= 20_000),
            "{times:?}"
        );
    }
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_holds_a_group_for_one_burst_at_most() {
    let bench = Bench::new().await;
    let second = Duration::from_secs(1);
    bench.limit(by_id().rate(1000, second).burst(20)).await;
    bench.due_in_turn(numbered("a", 3)).await;
    let far = (bench.now_us().await + 3_600_000_000).to_string();
    let rates = &bench.names().of_groups()[2];
    // A claim.
    bench.ask::<u64>(&["ZADD", rates, &far, "a"]).await;
    assert!(bench.claim(&[], 1).await.jobs.is_empty());
    bench.past(bench.now().await + 21).await;
    assert_eq!(bench.claim(&[], 1).await.jobs.len(), 1);
    // A takeover.
    bench.run("b/9", MOMENT).await;
    bench.past(bench.now().await + 2).await;
    bench.ask::<u64>(&["ZADD", rates, &far, "b"]).await;
    assert_eq!(words(&bench.reclaim(&["b/9"]).await.answers), ["held"]);
    bench.past(bench.now().await + 21).await;
    assert_eq!(ids(&bench.reclaim(&["b/9"]).await), ["b/9"]);
    bench.balanced().await;
}

/// Without jobs that are due no claim comes that would count the leases.
#[tokio::test]
async fn takeovers_count_the_leases_of_groups_themselves() {
    let bench = Bench::new().await;
    for number in 0..1600 {
        bench.run(&format!("a/{number}"), HOUR).await;
    }
    bench.run("b/1", MOMENT).await;
    bench.past(bench.now().await + 2).await;
    bench.limit(by_id().concurrency(2000)).await;
    let mut calls = 0;
    while words(&bench.reclaim(&["b/1"]).await.answers) == ["held"] {
        calls += 1;
        assert!(calls < 10, "some leases with each call");
    }
    assert!(calls > 0, "one call counts not all");
    bench.balanced().await;
}

#[tokio::test]
async fn groups_take_turns_by_their_weights() {
    let bench = Bench::new().await;
    bench
        .limit(by_id().total_concurrency(1).weight("a", 3.0))
        .await;
    bench.due_in_turn(numbered("a", 60)).await;
    bench.due_in_turn(numbered("b", 60)).await;
    let mut started = Vec::new();
    for _ in 0..40 {
        let reply = bench.claim(&[], 5).await;
        started.extend(reply.jobs.iter().map(|job| job.id.clone()));
        assert!(bench.claim(&[], 3).await.jobs.is_empty());
        bench.finish(&reply.jobs).await;
    }
    let of_a = started.iter().filter(|id| id.starts_with('a')).count();
    assert!((29..=31).contains(&of_a), "{of_a} of 40: {started:?}");
    for group in ["a", "b"] {
        let own: Vec<_> = started.iter().filter(|id| id.starts_with(group)).collect();
        assert!(own.is_sorted(), "the oldest first: {own:?}");
    }
    assert_eq!(bench.drain(9).await.len(), 80);
    bench.nothing_left().await;
}

/// A backlog delays a new group by its share alone, and a new group does not go first for long.
#[tokio::test]
async fn a_new_group_takes_turns_with_a_backlog() {
    let bench = Bench::new().await;
    bench.limit(by_id().total_concurrency(1)).await;
    bench.due_in_turn(numbered("big", 300)).await;
    for _ in 0..60 {
        bench.finish(&bench.claim(&[], 1).await.jobs).await;
    }
    bench.due_in_turn(numbered("new", 20)).await;
    let mut of_new = 0;
    for _ in 0..20 {
        let reply = bench.claim(&[], 1).await;
        of_new += usize::from(reply.jobs[0].id.starts_with("new"));
        bench.finish(&reply.jobs).await;
    }
    assert!((9..=11).contains(&of_new), "{of_new} of 20");
    assert_eq!(bench.drain(9).await.len(), 240);
    bench.nothing_left().await;
}

/// Jobs of many groups need not be set aside: none of the groups gets more than its turn.
#[tokio::test]
async fn a_burst_of_different_groups_starts_in_the_order_of_its_due_times() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(2)).await;
    let mut jobs: Vec<String> = (0..200).map(|group| format!("g{group:03}/1")).collect();
    jobs[170] = "g100/2".into();
    jobs[180] = "g175/2".into();
    bench.due_in_turn(jobs.clone()).await;
    let first = bench.claim(&[], 90).await;
    assert_eq!(ids(&first), jobs[..90]);
    let second = bench.claim(&[], 90).await;
    assert_eq!(
        ids(&second),
        jobs[90..170],
        "up to the second job of a group"
    );
    assert_eq!(bench.aside().await, 0);
    // A group has two jobs among the oldest, so that its turn is over.
    let third = bench.claim(&[], 9).await;
    assert_eq!(ids(&third), jobs[170..179]);
    assert_eq!(bench.aside().await, 21);
    for reply in [first, second, third] {
        bench.finish(&reply.jobs).await;
    }
    assert_eq!(bench.drain(90).await.len(), 21);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_large_backlog_of_different_groups_starts_in_the_order_of_its_due_times() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(2)).await;
    let jobs: Vec<String> = (0..2500).map(|group| format!("g{group:04}/1")).collect();
    bench.due_in_turn(jobs.clone()).await;
    for oldest in jobs.chunks(250).take(2) {
        let reply = bench.claim(&[], 250).await;
        assert_eq!(ids(&reply), oldest);
        bench.finish(&reply.jobs).await;
    }
    assert_eq!(bench.aside().await, 0);
    bench.balanced().await;
}

/// A new group would wait behind all jobs of the backlog, instead of one of each group.
#[tokio::test]
async fn the_groups_of_a_large_backlog_take_turns_if_they_have_several_jobs_each() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(9)).await;
    let jobs: Vec<String> = (0..2500)
        .map(|job| format!("g{:02}/{job}", job % 100))
        .collect();
    bench.due_in_turn(jobs).await;
    let mut claims = 0;
    while bench.aside().await == 0 {
        claims += 1;
        assert!(
            claims < 30,
            "the oldest 64 jobs are of different groups, the others are not"
        );
        bench.finish(&bench.claim(&[], 8).await.jobs).await;
    }
    assert!(bench.drain(250).await.len() > 2000);
    bench.nothing_left().await;
}

/// A claim sets aside only some of a backlog.
#[tokio::test]
async fn a_job_of_a_new_group_does_not_wait_until_a_backlog_is_set_aside() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(2)).await;
    bench.due_in_turn(numbered("big", 600)).await;
    let big = bench.claim(&[], 4).await;
    assert_eq!(ids(&big), ["big/0000", "big/0001"]);
    bench
        .due_in_turn(["new/0", "new/1"].map(String::from))
        .await;
    let new = bench.claim(&["new/1"], 0).await;
    assert_eq!((ids(&new), said(&new)), (vec!["new/1"], vec!["claimed"]));
    assert!(bench.aside().await < 300);
    bench.finish(&big.jobs).await;
    bench.finish(&new.jobs).await;
    assert_eq!(bench.drain(4).await.len(), 599);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_header_names_the_group_as_it_is_now() {
    let bench = Bench::new().await;
    bench.limit(by_tenant().concurrency(1)).await;
    let tenants = ["acme", "Ünal & Söhne", "", &"long".repeat(40)];
    for (place, tenant) in tenants.iter().enumerate() {
        let pair = [0, 1].map(|job| bench.of_tenant(&format!("{place}-{job}"), 1 + job, tenant));
        bench.place(&pair).await;
    }
    bench.place(&[bench.placement("none", at(9))]).await;
    let reply = bench.claim(&[], 9).await;
    let mut started = ids(&reply);
    started.sort_unstable();
    assert_eq!(
        started,
        ["0-0", "1-0", "2-0", "3-0"],
        "no header is the empty one"
    );
    // It is scheduled again for another tenant, due at the same time.
    bench.place(&[bench.of_tenant("0-1", 2, "other")]).await;
    let moved = bench.claim(&[], 9).await;
    assert_eq!(ids(&moved), ["0-1"]);
    bench.finish(&reply.jobs).await;
    bench.finish(&moved.jobs).await;
    assert_eq!(bench.drain(9).await.len(), 4);
    bench.nothing_left().await;
}

#[tokio::test]
async fn other_calls_see_jobs_that_wait_for_their_turn_as_any_due_job() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    let due = bench.due_in_turn(numbered("a", 7)).await;
    bench.schedule("a/later", after(HOUR)).await;
    let reply = bench.claim(&[], 1).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    assert_eq!(bench.aside().await, 6);
    let stats = bench.balanced().await;
    assert_eq!((stats.pending, stats.overdue, stats.held), (7, 6, 6));
    // A call that changes a job takes it out of its turn.
    assert_eq!(bench.cancel("a/0001").await, Word::Cancelled);
    assert!(matches!(
        bench.reschedule("a/0002", after(HOUR)).await,
        Word::Moved(_)
    ));
    let update = [bench.update("a/0004", b"new")];
    let updated = bench
        .ledger
        .update(&mut Lane::new(), &update, soon())
        .await
        .unwrap();
    assert!(matches!(updated[0].answer, Word::Updated(then) if then.0 == due + 4));
    bench.finish(&reply.jobs).await;
    assert_eq!(
        bench.drain(9).await,
        ["a/0003", "a/0004", "a/0005", "a/0006"]
    );
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_list_has_waiting_jobs_in_their_order() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    bench.due_in_turn(numbered("a", 9)).await;
    bench.schedule("a/later", after(HOUR)).await;
    let reply = bench.claim_named(&["a/0000"]).await;
    // Those that a claim has named are aside, between the others.
    assert!(
        bench
            .claim_named(&["a/0002", "a/0003", "a/0006"])
            .await
            .jobs
            .is_empty()
    );
    assert_eq!(bench.aside().await, 3);
    let mut expected = numbered("a", 9);
    expected.remove(0);
    expected.push("a/later".into());
    for (down, limit) in [(false, 1), (false, 3), (false, 99), (true, 1), (true, 4)] {
        let sought = Sought {
            down,
            limit,
            ..Sought::all_of("pending", "")
        };
        let mut all = bench.pages(sought, async |_| {}).await;
        if down {
            all.reverse();
        }
        assert_eq!(all, expected, "down: {down}, {limit} a page");
    }
    bench.finish(&reply.jobs).await;
    assert_eq!(bench.drain(9).await.len(), 8);
    bench.cancel("a/later").await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_claim_of_named_jobs_takes_no_others() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    bench.due_in_turn(in_turn(&["a", "b"], 3)).await;
    let reply = bench.claim_named(&["b/2", "b/1", "a/1"]).await;
    let mut started = ids(&reply);
    started.sort_unstable();
    assert_eq!(started, ["a/1", "b/1"]);
    assert_eq!(said(&reply), ["held", "claimed", "claimed"]);
    bench.finish(&reply.jobs).await;
    assert_eq!(bench.drain(9).await.len(), 4);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_takeover_needs_a_start_of_its_group_and_comes_first() {
    let bench = Bench::new().await;
    bench.limit(by_id().rate(1, HOUR).burst(3)).await;
    bench.due_in_turn(numbered("a", 4)).await;
    let reply = bench
        .try_claim(&mut Lane::new(), &[], 2, MOMENT)
        .await
        .unwrap();
    assert_eq!(reply.jobs.len(), 2);
    bench.past(bench.now().await + 1).await;
    assert!(
        bench.claim(&[], 9).await.jobs.is_empty(),
        "the third start is kept for a takeover"
    );
    let taken = bench.reclaim(&["a/0000", "a/0001"]).await;
    assert_eq!(said(&taken), ["claimed", "held"], "the last start of three");
    assert_eq!(taken.jobs[0].claims, 2);
    // The old holder is refused, the new one is not.
    assert_eq!(
        bench
            .settle("a/0000", &reply.jobs[0].token, Verb::Done)
            .await,
        Word::Foreign
    );
    assert_eq!(
        bench.settle("a/0000", NEVER, Verb::Done).await,
        Word::Foreign
    );
    bench.finish(&taken.jobs).await;
    bench.finish(&reply.jobs[1..]).await;
    bench.limit(by_id()).await;
    assert_eq!(bench.drain(9).await, ["a/0002", "a/0003"]);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_retry_waits_for_its_turn_and_a_repeated_claim_counts_once() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    bench.due_in_turn(numbered("a", 2)).await;
    let mut lane = Lane::new();
    let reply = bench.try_claim(&mut lane, &[], 9, HOUR).await.unwrap();
    let again = bench
        .try_claim(&mut lane.rewound(1), &[], 9, HOUR)
        .await
        .unwrap();
    assert_eq!((ids(&reply), ids(&again)), (vec!["a/0000"], vec!["a/0000"]));
    assert_eq!(reply.jobs[0].token, again.jobs[0].token);
    let verb = later(after(Duration::ZERO), "failed");
    bench.settle("a/0000", &reply.jobs[0].token, verb).await;
    assert_eq!(bench.drain(9).await, ["a/0001", "a/0000"]);
    bench.nothing_left().await;
}

#[tokio::test]
async fn jobs_come_back_when_the_groups_are_removed() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    bench.due_in_turn(numbered("a", 1500)).await;
    let first = bench.claim(&[], 1).await;
    for _ in 0..12 {
        assert!(bench.claim(&[], 3).await.jobs.is_empty());
    }
    assert!(bench.aside().await > 1200);
    let now = bench.now().await + 1;
    assert!(bench.set_limit(None, now).await);
    let mut expected = numbered("a", 1500);
    expected.remove(0);
    assert_eq!(bench.drain(50).await, expected);
    bench.finish(&first.jobs).await;
    assert!(bench.admission(false).await.is_none());
    bench.nothing_left().await;
}

#[tokio::test]
async fn leases_and_waiting_jobs_change_their_groups_with_the_limit() {
    let bench = Bench::new().await;
    bench
        .due_in_turn(["old1/z", "old2/z", "old3/z"].map(String::from))
        .await;
    let before = bench.claim(&[], 9).await;
    bench
        .limit(Limit::new().per(GroupBy::id_part(2)).concurrency(3))
        .await;
    let of = |number: u32| format!("a/{}/{number:04}", ["y", "z"][number as usize % 2]);
    bench.due_in_turn((0..400).map(of)).await;
    let mut of_y = Vec::new();
    while of_y.len() < 3 {
        of_y.extend(bench.claim(&[], 10).await.jobs);
    }
    assert!(
        of_y.iter().all(|job| job.id.contains("/y/")),
        "three of z run already"
    );
    for _ in 0..4 {
        assert!(bench.claim(&[], 9).await.jobs.is_empty());
    }
    // All that wait are of group a now, of which three run.
    bench.limit(by_id().concurrency(4)).await;
    let mut one = Vec::new();
    while one.is_empty() {
        one = bench.claim(&[], 10).await.jobs;
    }
    assert_eq!((one.len(), &*one[0].id), (1, "a/z/0001"));
    bench.finish(&before.jobs).await;
    bench.finish(&of_y).await;
    bench.finish(&one).await;
    let rest: Vec<String> = bench.drain(9).await;
    let numbers: Vec<&str> = rest.iter().map(|id| &id[4..]).collect();
    assert!(rest.len() == 396 && numbers.is_sorted(), "{numbers:?}");
    bench.nothing_left().await;
}

/// Their groups are many, so that no claim meets all of them before the last job has gone.
#[tokio::test]
async fn entries_of_cancelled_jobs_do_not_stay_behind() {
    for limit in [by_id().concurrency(1), by_id().rate(1, HOUR)] {
        let bench = Bench::new().await;
        bench.limit(limit).await;
        let all: Vec<String> = (0..300).map(|group| format!("{group}/1")).collect();
        bench.due_in_turn(all.iter().cloned()).await;
        let mut first = Vec::new();
        while first.len() < 300 {
            first.extend(bench.claim(&[], 64).await.jobs);
        }
        let waiting: Vec<String> = (0..300).map(|group| format!("{group}/2")).collect();
        bench.due_in_turn(waiting.iter().cloned()).await;
        while bench.aside().await < 300 {
            assert!(bench.claim(&[], 1).await.jobs.is_empty());
        }
        for id in &waiting {
            assert_eq!(bench.cancel(id).await, Word::Cancelled);
        }
        bench.claim(&[], 1).await;
        // One lease is alive while the others end; it counts afterwards.
        bench.finish(&first[1..]).await;
        bench.claim(&[], 1).await;
        let own = format!("{}/3", first[0].id.split('/').next().unwrap());
        bench.due_in_turn([own]).await;
        for _ in 0..3 {
            assert!(bench.claim(&[], 1).await.jobs.is_empty());
        }
        bench.finish(&first[..1]).await;
        bench.limit(by_id()).await;
        assert_eq!(bench.drain(1).await.len(), 1);
        bench.nothing_left().await;
    }
}

/// Lua cannot unpack 8,000 values, and Redis must not stop for a claim.
#[tokio::test]
async fn claims_go_on_behind_thousands_of_cancelled_jobs() {
    const MANY: u32 = 9000;
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    let all = numbered("a", MANY);
    let now = at(bench.now().await);
    for ids in all.chunks(100) {
        let items: Vec<Placement> = ids.iter().map(|id| bench.placement(id, now)).collect();
        bench.place(&items).await;
    }
    let first = bench.claim(&[], 1).await;
    assert_eq!(ids(&first), ["a/0000"]);
    while bench.aside().await < u64::from(MANY) - 1 {
        assert!(bench.claim(&[], 1).await.jobs.is_empty());
    }
    for ids in all[1..all.len() - 1].chunks(100) {
        let items: Vec<JobKey> = ids.iter().map(|id| bench.key(id)).collect();
        let mut lane = Lane::new();
        bench
            .ledger
            .cancel(&mut lane, &items, soon())
            .await
            .unwrap();
    }
    bench.due_in_turn(["b/0".into(), "c/0".into()]).await;
    bench.finish(&first.jobs).await;
    // The group of the cancelled jobs is looked at first, and holds up no other group.
    let others = bench.claim(&[], 2).await;
    assert_eq!(ids(&others), ["b/0", "c/0"]);
    bench.finish(&others.jobs).await;
    let [entries, ..] = bench.names().of_groups();
    let mut before = bench.ask::<u64>(&["ZCARD", &entries]).await;
    let mut ears = Ears::of(&bench).await;
    let last = loop {
        let reply = bench.claim(&[], 2).await;
        if !reply.jobs.is_empty() {
            break reply;
        }
        let heard = ears.heard(&bench).await;
        assert!(
            heard[0].starts_with("held "),
            "the pacer asks again: {heard:?}"
        );
        let left = bench.ask::<u64>(&["ZCARD", &entries]).await;
        assert!(left < before, "{left} of {before} entries are left");
        before = left;
    };
    assert_eq!(ids(&last), [all.last().unwrap()]);
    bench.finish(&last.jobs).await;
    bench.nothing_left().await;
}

#[tokio::test]
async fn the_end_of_a_run_announces_the_job_behind_a_cancelled_one() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    bench.due_in_turn(numbered("a", 3)).await;
    let first = bench.claim(&[], 9).await;
    assert_eq!(bench.cancel("a/0001").await, Word::Cancelled);
    let mut ears = Ears::of(&bench).await;
    bench.finish(&first.jobs).await;
    let heard = ears.heard(&bench).await;
    assert_eq!(heard, [format!("now {} a/0002", bench.ledger.subject())]);
    let last = bench.claim(&["a/0002"], 0).await;
    assert_eq!(ids(&last), ["a/0002"]);
    bench.finish(&last.jobs).await;
    assert!(bench.claim(&[], 1).await.jobs.is_empty());
    bench.nothing_left().await;
}

#[tokio::test]
async fn lost_keys_of_groups_lose_no_job() {
    for lost in [&[0, 1][..], &[1], &[0]] {
        let bench = Bench::new().await;
        bench.limit(by_id().concurrency(1)).await;
        bench.due_in_turn(numbered("a", 300)).await;
        let first = bench.claim(&[], 1).await;
        for _ in 0..2 {
            bench.claim(&[], 9).await;
        }
        for place in lost {
            let key = &bench.names().of_groups()[*place];
            assert_eq!(bench.ask::<u64>(&["DEL", key]).await, 1);
        }
        bench.finish(&first.jobs).await;
        // As workers do: they claim what the reconciler finds.
        let mut started = Vec::new();
        while started.len() < 299 {
            let found = bench
                .ledger
                .sweep(Duration::ZERO, (0, 0), 1, soon())
                .await
                .unwrap();
            let named: Vec<&str> = found.overdue.iter().map(String::as_str).collect();
            assert_eq!(named.len(), 1, "{lost:?}: stuck after {}", started.len());
            let reply = bench.claim(&named, 0).await;
            started.extend(reply.jobs.iter().map(|job| job.id.clone()));
            bench.finish(&reply.jobs).await;
        }
        bench.nothing_left().await;
    }
}

#[tokio::test]
async fn an_audit_finds_waiting_jobs_sound() {
    let bench = Bench::new().await;
    bench.limit(by_id().concurrency(1)).await;
    bench.due_in_turn(numbered("a", 3)).await;
    let reply = bench.claim(&[], 1).await;
    bench.claim(&[], 9).await;
    let suspects = ["a/0000", "a/0001"].map(|id| (suspect(id), String::new()));
    let found = bench.ledger.audit(&suspects, true, soon()).await.unwrap();
    assert!(found.iter().all(Option::is_none), "{found:?}");
    bench.finish(&reply.jobs).await;
    assert_eq!(bench.drain(9).await.len(), 2);
    bench.nothing_left().await;
}

#[tokio::test]
async fn a_key_of_groups_of_a_wrong_type_keeps_a_call_from_writing() {
    for place in 0..3 {
        let bench = Bench::new().await;
        bench
            .limit(by_id().rate(1, HOUR).burst(9).concurrency(2))
            .await;
        bench.due_in_turn(numbered("a", 3)).await;
        let reply = bench.claim(&["a/0000"], 0).await;
        let key = &bench.names().of_groups()[place];
        let _: Option<u64> = bench.ask(&["DEL", key]).await;
        bench.ask::<()>(&["SET", key, "a text"]).await;
        let before = bench.snapshot().await;
        let ids = ["a/0001", "a/0002"];
        bench
            .try_claim(&mut Lane::new(), &ids, 1, HOUR)
            .await
            .unwrap_err();
        let end = bench.settlement("a/0000", &reply.jobs[0].token, Verb::Done);
        let (mut lane, ends) = (Lane::new(), [end]);
        let settled = bench.ledger.settle(&mut lane, &ends, KEPT, soon());
        settled.await.unwrap_err();
        bench
            .try_reclaim(&mut Lane::new(), &["a/0000"])
            .await
            .unwrap_err();
        assert_eq!(bench.snapshot().await, before);
        // The audit finds it, and moves it out of the way.
        let wrong = bench.ledger.wrong_keys(soon()).await.unwrap();
        assert_eq!((wrong.len(), &wrong[0].key), (1, key));
        bench.ledger.store.mend(&wrong[0], soon()).await.unwrap();
        bench.finish(&reply.jobs).await;
        assert_eq!(bench.drain(9).await.len(), 2);
        bench.nothing_left().await;
    }
}
