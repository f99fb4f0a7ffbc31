//! `limit.lua` and `admit.lua`, and the effect of a limit on claims.

use std::time::Duration;

use super::support::{
    Bench, Ears, HOUR, MOMENT, after, at, ids, later, same_when_repeated, soon, words,
};
use crate::error::Result;
use crate::limit::{GroupBy, Limit, Terms};
use crate::store::ledger::limiting::LimitPart;
use crate::store::{
    Admission, Answered, ClaimOrder, ClaimReply, ClaimRequest, Held, Lane, LimitRule, Verb, Word,
};
use crate::time::{UnixMs, UnixUs};

/// A limit of so many starts in an hour, and that many at once.
fn in_an_hour(jobs: u32, burst: u32) -> Limit {
    Limit::new().rate(jobs, HOUR).burst(burst)
}

impl Bench {
    pub(super) async fn try_limit(
        &self,
        lane: &mut Lane,
        limit: Option<Limit>,
        set: u64,
    ) -> Result<bool> {
        let terms = limit.as_ref().map_or(Terms::NONE, |it| it.terms().unwrap());
        let part = LimitPart::Own(terms);
        let rule = LimitRule {
            limit,
            set: UnixMs(set),
            by: "anna".into(),
        };
        self.ledger.limit(lane, &part, &rule, soon()).await
    }

    pub(super) async fn set_limit(&self, limit: Option<Limit>, set: u64) -> bool {
        self.try_limit(&mut Lane::new(), limit, set).await.unwrap()
    }

    pub(super) async fn limit(&self, limit: Limit) {
        let now = self.now().await;
        assert!(self.set_limit(Some(limit), now).await);
    }

    /// How far ahead this time is, by the clock of Redis.
    async fn ahead(&self, time: UnixUs) -> Duration {
        Duration::from_micros(time.0.saturating_sub(self.now_us().await))
    }

    pub(super) async fn admission(&self, announces: bool) -> Option<Admission> {
        self.ledger.admit(announces, soon()).await.unwrap()
    }

    /// Due jobs in the order of their names.
    pub(super) async fn all_due(&self, ids: &[&str]) {
        for (place, id) in ids.iter().enumerate() {
            let when = at(1 + place as u64);
            let items = [self.placement(id, when)];
            self.place(&items).await;
        }
    }

    pub(super) async fn claim_named(&self, ids: &[&str]) -> ClaimReply {
        let found = "e".repeat(ids.len());
        let lane = &mut Lane::new();
        let claim = self.ledger.claim(
            lane,
            ClaimRequest {
                ids,
                found: &found,
                fill: 0,
                order: ClaimOrder::Named,
            },
            HOUR,
            soon(),
        );
        claim.await.unwrap()
    }

    pub(super) async fn end(&self, reply: &ClaimReply, verb: Verb) {
        for job in &reply.jobs {
            self.settle(&job.id, &job.token, verb.clone()).await;
        }
    }
}

pub(super) fn said(reply: &ClaimReply) -> Vec<&'static str> {
    words(&reply.answers)
}

#[tokio::test]
async fn a_claim_takes_the_oldest_jobs_that_a_rate_allows() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c", "d", "e"]).await;
    bench.limit(in_an_hour(1, 3)).await;
    let mut ears = Ears::of(&bench).await;
    // Two of the three oldest are not named, and are claimed all the same.
    let reply = bench.claim(&["e", "b", "d"], 1).await;
    assert_eq!(ids(&reply), ["a", "b", "c"]);
    assert_eq!(said(&reply), ["held", "claimed", "held"]);
    let heard = ears.heard(&bench).await;
    let next = heard[0].strip_prefix(&format!("held {} ", bench.ledger.subject()));
    let next: u64 = next.unwrap().parse().unwrap();
    assert_eq!(heard.len(), 1);
    let ahead = bench.ahead(UnixUs(next)).await;
    assert!(ahead > HOUR.mul_f64(0.9) && ahead <= HOUR, "{ahead:?}");
    // An attempt is not counted, and nothing was changed.
    let reply = bench.claim(&["d"], 7).await;
    assert!(reply.jobs.is_empty());
    assert_eq!(said(&reply), ["held"]);
    assert_eq!(bench.balanced().await.held, 2);
}

#[tokio::test]
async fn a_claim_for_other_routes_takes_only_named_jobs() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c", "d"]).await;
    bench.limit(in_an_hour(1, 2)).await;
    let reply = bench.claim_named(&["d", "b", "d", "c"]).await;
    assert_eq!(ids(&reply), ["d", "b"]);
    assert_eq!(said(&reply), ["claimed", "claimed", "claimed", "held"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_claim_within_the_limit_is_as_without_one() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c"]).await;
    bench.limit(in_an_hour(10, 4)).await;
    let mut ears = Ears::of(&bench).await;
    let reply = bench.claim(&["c", "none"], 1).await;
    assert_eq!(ids(&reply), ["c", "a"]);
    assert_eq!(said(&reply), ["claimed", "absent"]);
    assert!(ears.heard(&bench).await.is_empty());
    // The end of the backlog holds nothing back either.
    assert_eq!(ids(&bench.claim(&[], 9).await), ["b"]);
    assert!(ears.heard(&bench).await.is_empty());
    let admission = bench.admission(false).await.unwrap();
    assert_eq!((admission.room, admission.leases, admission.due), (0, 3, 0));
    assert_eq!(admission.next, None);
    bench.balanced().await;
}

#[tokio::test]
async fn a_hold_keeps_jobs_from_starting_until_it_is_over() {
    let groups = Limit::new().per(GroupBy::id_part(1)).concurrency(9);
    for limit in [in_an_hour(1, 9), Limit::new().concurrency(9), groups] {
        let bench = Bench::new().await;
        bench.all_due(&["a", "b"]).await;
        let hold = async |time: Duration| bench.ledger.hold(time, soon()).await.unwrap();
        assert!(!hold(HOUR).await, "it has no limit");
        bench.limit(limit.clone()).await;
        assert!(hold(HOUR).await);
        bench.set_limit(None, bench.now().await + 1).await;
        assert!(!hold(HOUR).await, "it has none any more");
        bench.past(bench.now().await + 2).await;
        bench.limit(limit.clone()).await;
        assert!(hold(HOUR / 2).await && hold(HOUR / 4).await);
        let mut ears = Ears::of(&bench).await;
        let reply = bench.claim(&["a"], 1).await;
        assert_eq!((said(&reply), reply.jobs.len()), (vec!["held"], 0));
        let told = ears.heard(&bench).await.pop().unwrap();
        let next = told.rsplit_once(' ').unwrap().1.parse().unwrap();
        let ahead = bench.ahead(UnixUs(next)).await;
        assert!(ahead > HOUR.mul_f64(0.4) && ahead <= HOUR / 2, "{ahead:?}");
        let admission = bench.admission(false).await.unwrap();
        assert_eq!((admission.room, admission.next), (0, Some(UnixUs(next))));
        assert_eq!(bench.balanced().await.held, 2);
        // A new limit ends it.
        bench.limit(limit).await;
        assert_eq!(ids(&bench.claim(&["a"], 1).await), ["a", "b"]);
        // It ends by itself, too.
        assert!(hold(Duration::from_millis(1)).await);
        bench.all_due(&["c"]).await;
        while bench.claim(&["c"], 0).await.jobs.is_empty() {}
        bench.balanced().await;
    }
}

/// A hold of hours is from before the clock was set back.
#[tokio::test]
async fn a_hold_is_an_hour_at_the_most() {
    let bench = Bench::new().await;
    bench.all_due(&["a"]).await;
    bench.limit(Limit::new().concurrency(9)).await;
    assert!(bench.ledger.hold(9 * HOUR, soon()).await.unwrap());
    let next = bench.admission(false).await.unwrap().next.unwrap();
    assert!(bench.ahead(next).await <= HOUR);
    let two_hours = (bench.now().await + 2 * 3_600_000) * 1000;
    let text = format!("0 0 1 9 {two_hours} 7 0 0 0 9 anna");
    let calls = bench.names().calls.clone();
    bench.ask::<()>(&["HSET", &calls, "limit", &text]).await;
    assert_eq!(ids(&bench.claim(&[], 1).await), ["a"]);
    bench.balanced().await;
}

#[tokio::test]
async fn the_end_of_a_run_announces_the_next_job() {
    for verb in [
        Verb::Done,
        later(after(HOUR), "failed"),
        Verb::Skip {
            note: String::new(),
        },
    ] {
        let bench = Bench::new().await;
        bench.all_due(&["a", "b", "c", "d"]).await;
        bench.limit(Limit::new().concurrency(2)).await;
        let reply = bench.claim(&[], 9).await;
        assert_eq!(ids(&reply), ["a", "b"]);
        let mut ears = Ears::of(&bench).await;
        assert!(bench.claim(&["c"], 0).await.jobs.is_empty());
        let subject = bench.ledger.subject();
        assert_eq!(ears.heard(&bench).await, [format!("held {subject} 0")]);
        bench.end(&reply, verb).await;
        let mut heard = ears.heard(&bench).await;
        heard.retain(|message| !message.starts_with("due "));
        assert_eq!(heard[0], format!("now {subject} c"));
        assert_eq!(heard[1], format!("now {subject} c d"));
        assert_eq!(ids(&bench.claim(&["c", "d"], 0).await), ["c", "d"]);
        bench.balanced().await;
    }
}

#[tokio::test]
async fn ends_of_runs_without_a_limit_of_leases_announce_nothing() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b"]).await;
    bench.limit(in_an_hour(1, 1)).await;
    let reply = bench.claim(&[], 1).await;
    let mut ears = Ears::of(&bench).await;
    bench.end(&reply, Verb::Done).await;
    assert!(ears.heard(&bench).await.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn jobs_that_wait_for_rate_and_leases_are_announced_by_whichever_comes_last() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b"]).await;
    bench.limit(in_an_hour(1, 1).concurrency(1)).await;
    let reply = bench.claim(&[], 2).await;
    let mut ears = Ears::of(&bench).await;
    bench.end(&reply, Verb::Done).await;
    let heard = ears.heard(&bench).await;
    assert!(
        heard[0].starts_with("held ") && !heard[0].ends_with(" 0"),
        "{heard:?}"
    );
    bench.balanced().await;
}

#[tokio::test]
async fn a_takeover_is_a_start_too_and_comes_first() {
    let bench = Bench::new().await;
    bench.limit(in_an_hour(1, 4)).await;
    for id in ["a", "b"] {
        bench.run(id, MOMENT).await;
    }
    bench.all_due(&["c", "d"]).await;
    bench.past(bench.now().await + 2).await;
    // Two starts are left, for the two jobs whose worker is gone.
    assert_eq!(said(&bench.claim(&["c"], 0).await), ["held"]);
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 10, soon()).await;
    let sweep = sweep.unwrap();
    assert_eq!((sweep.overdue.len(), sweep.lapsed.len()), (0, 2));
    assert!(sweep.held.is_some());
    assert_eq!(ids(&bench.reclaim(&["a"]).await), ["a"]);
    assert_eq!(said(&bench.claim(&["c"], 0).await), ["held"]);
    assert_eq!(ids(&bench.reclaim(&["b"]).await), ["b"]);
    bench.end(&bench.claim(&[], 1).await, Verb::Done).await;
    assert_eq!(bench.counted("done").await, 0, "no start is left");
    bench.balanced().await;
}

#[tokio::test]
async fn a_takeover_waits_for_the_rate() {
    let bench = Bench::new().await;
    bench.limit(in_an_hour(1, 3)).await;
    for id in ["a", "b"] {
        bench.run(id, MOMENT).await;
    }
    bench.past(bench.now().await + 2).await;
    let reply = bench.reclaim(&["a", "b"]).await;
    assert_eq!(said(&reply), ["claimed", "held"]);
    assert_eq!(bench.counted("lapsed").await, 1);
    assert_eq!(said(&bench.reclaim(&["b"]).await), ["held"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_job_that_nobody_takes_over_stops_the_others_for_a_minute_only() {
    let bench = Bench::new().await;
    bench.limit(in_an_hour(1, 2)).await;
    bench.run("lost", MOMENT).await;
    bench.all_due(&["next"]).await;
    bench.past(bench.now().await + 2).await;
    assert_eq!(said(&bench.claim(&["next"], 0).await), ["held"]);
    let long_ago = (bench.now().await - 61_000).to_string();
    let leased = &bench.names().leased;
    let _: u64 = bench.ask(&["ZADD", leased, "XX", &long_ago, "lost"]).await;
    assert_eq!(said(&bench.claim(&["next"], 0).await), ["claimed"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_sweep_names_no_job_that_waits_for_the_limit() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b"]).await;
    bench.limit(Limit::new().concurrency(1)).await;
    let sweep = async || {
        let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 10, soon()).await;
        sweep.unwrap()
    };
    assert_eq!(sweep().await.overdue, ["a", "b"]);
    let reply = bench.claim(&[], 1).await;
    let found = sweep().await;
    assert!(found.overdue.is_empty() && found.held == Held::parse("0"));
    bench.end(&reply, Verb::Done).await;
    let found = sweep().await;
    assert!(found.overdue == ["b"] && found.held.is_none());
    bench.balanced().await;
}

#[tokio::test]
async fn the_pacer_announces_what_a_rate_allows() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c"]).await;
    assert!(bench.admission(true).await.is_none(), "there is no limit");
    bench.limit(in_an_hour(1, 2)).await;
    let mut ears = Ears::of(&bench).await;
    let admission = bench.admission(false).await.unwrap();
    assert!(ears.heard(&bench).await.is_empty());
    assert_eq!((admission.room, admission.due), (2, 3));
    assert_eq!(admission.rule.by, "anna");
    let admission = bench.admission(true).await.unwrap();
    let subject = bench.ledger.subject();
    assert_eq!(ears.heard(&bench).await, [format!("now {subject} a b")]);
    let next = admission.next.unwrap().since(UnixMs(bench.now().await));
    assert!(
        next > HOUR.mul_f64(0.9),
        "two starts are announced: {next:?}"
    );
    // It has used no start.
    assert_eq!(ids(&bench.claim(&[], 9).await), ["a", "b"]);
    let admission = bench.admission(true).await.unwrap();
    assert_eq!((admission.room, admission.due), (0, 1));
    assert!(
        admission.next.is_some() && ears.heard(&bench).await.len() == 1,
        "held"
    );
    bench.balanced().await;
}

#[tokio::test]
async fn the_newest_limit_holds_and_starts_before_it_count() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c", "d"]).await;
    assert!(bench.set_limit(Some(in_an_hour(1, 2)), 100).await);
    assert_eq!(ids(&bench.claim(&[], 9).await), ["a", "b"]);
    assert!(!bench.set_limit(Some(in_an_hour(9, 9)), 99).await, "older");
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    let mut ears = Ears::of(&bench).await;
    assert!(bench.set_limit(Some(in_an_hour(1, 3)), 101).await);
    let subject = bench.ledger.subject();
    assert_eq!(ears.heard(&bench).await, [format!("flood {subject}")]);
    assert_eq!(ids(&bench.claim(&[], 9).await), ["c"], "two have started");
    assert!(bench.set_limit(None, 102).await);
    assert!(!bench.set_limit(Some(in_an_hour(1, 1)), 101).await);
    assert_eq!(ids(&bench.claim(&[], 9).await), ["d"]);
    assert!(bench.admission(false).await.is_none());
    bench.balanced().await;
}

#[tokio::test]
async fn a_repeated_claim_uses_no_start() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b"]).await;
    bench.limit(in_an_hour(1, 2)).await;
    let mut lane = Lane::new();
    let reply = bench.try_claim(&mut lane, &["a"], 0, HOUR).await.unwrap();
    let mut again = lane.rewound(1);
    let repeated = bench.try_claim(&mut again, &["a"], 0, HOUR).await.unwrap();
    assert_eq!(ids(&reply), ids(&repeated));
    assert_eq!(ids(&bench.claim(&[], 9).await), ["b"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_clock_that_is_set_back_holds_jobs_for_one_burst_at_most() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b"]).await;
    bench
        .limit(Limit::new().rate(1000, Duration::from_secs(1)).burst(20))
        .await;
    let calls = &bench.names().calls;
    let field: String = bench.ask(&["HGET", calls, "limit"]).await;
    let (_, rest) = field.split_once(' ').unwrap();
    let far = bench.now_us().await + 3_600_000_000;
    let _: u64 = bench
        .ask(&["HSET", calls, "limit", &format!("{far} {rest}")])
        .await;
    assert_eq!(said(&bench.claim(&["a"], 0).await), ["held"]);
    bench.past(bench.now().await + 21).await;
    assert_eq!(said(&bench.claim(&["a"], 0).await), ["claimed"]);
    bench.balanced().await;
}

#[tokio::test]
async fn no_span_of_time_has_more_starts_than_the_rate_allows() {
    let bench = Bench::new().await;
    let names: Vec<String> = (0..400).map(|number| format!("{number:03}")).collect();
    let items: Vec<_> = names.iter().map(|id| bench.placement(id, at(1))).collect();
    bench.place(&items).await;
    for (burst, gap_us) in [(1, 2000), (3, 1500), (10, 700)] {
        let second = Duration::from_secs(1);
        let limit = Limit::new().rate(1_000_000 / gap_us, second).burst(burst);
        let gap = limit.terms().unwrap().gap;
        bench.limit(limit).await;
        // Also the starts by the limit before, which count.
        let mut starts: Vec<u64> = Vec::new();
        for round in 0..60 {
            let mut left: Vec<&str> = names.iter().map(String::as_str).collect();
            left.rotate_left(round * 7 % 400);
            let reply = bench.claim(&left[..5], round % 3).await;
            starts.extend(reply.jobs.iter().map(|_| reply.now.0));
            if round % 5 == 0 {
                bench.past(bench.now().await + round as u64 % 4).await;
            }
        }
        for (first, begin) in starts.iter().enumerate() {
            for (last, end) in starts.iter().enumerate().skip(first) {
                let most = u64::from(burst) + (end - begin) / gap;
                let started = (last - first + 1) as u64;
                assert!(started <= most, "{started} starts in {} µs", end - begin);
            }
        }
        assert!(starts.len() > burst as usize, "{burst}: {}", starts.len());
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_limit_that_another_program_has_broken_limits_nothing() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b"]).await;
    let calls = &bench.names().calls;
    for broken in ["", "soon", "1 2 3", "1 1 x 0 0 0"] {
        let _: u64 = bench.ask(&["HSET", calls, "limit", broken]).await;
        assert!(bench.admission(true).await.is_none(), "{broken:?}");
        let reply = bench.claim(&[], 1).await;
        bench.end(&reply, later(at(1), "returned")).await;
        assert_eq!(reply.jobs.len(), 1);
    }
    bench.balanced().await;
}

#[tokio::test]
async fn a_limit_can_be_set_again_and_come_late() {
    let bench = Bench::new().await;
    same_when_repeated(&bench, async |lane| {
        let set = bench.try_limit(lane, Some(in_an_hour(1, 1)), 7).await?;
        let answer = if set { Word::Limited } else { Word::Kept };
        Ok(vec![Answered::of(answer)])
    })
    .await;
    bench.balanced().await;
}
