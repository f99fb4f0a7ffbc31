//! `share.lua`, and limits that several ledgers share.

use std::time::Duration;

use super::limit::said;
use super::support::{Bench, Ears, HOUR, MOMENT, at, ids, soon};
use crate::embedded::Embedded;
use crate::limit::{Holder, Limit, Share, Whole};
use crate::store::ledger::limiting::{LimitPart, Look, ShareReply};
use crate::store::{Held, Lane, LimitRule, Verb};
use crate::time::UnixMs;

const SECOND: Duration = Duration::from_secs(1);

/// When the limit was set.
const SET: UnixMs = UnixMs(1000);

/// The number of the first look: it comes after the ledgers have begun.
pub(super) const FIRST: u64 = 5_000_000_000_000_000;

fn share(units: u64, leases: u64) -> Share {
    Share { units, leases }
}

fn part(limit: &Limit, share: Share) -> LimitPart {
    LimitPart::Shared {
        whole: limit.terms().unwrap(),
        share,
        rule: SET,
    }
}

impl Bench {
    async fn join(&self, limit: &Limit, share: Share) {
        let rule = LimitRule {
            limit: Some(limit.clone()),
            set: SET,
            by: "anna".into(),
        };
        let part = part(limit, share);
        let lane = &mut Lane::new();
        let set = self.ledger.limit(lane, &part, &rule, soon());
        assert!(set.await.unwrap());
    }

    async fn asked(&self, epoch: u64, change: Option<(Share, u64)>) -> ShareReply {
        let look = Look {
            epoch: FIRST + epoch,
            by: "me",
            rule: SET,
        };
        self.ledger.share(&look, change, soon()).await.unwrap()
    }

    async fn look(&self, epoch: u64) -> Holder {
        self.give(epoch, None).await.0
    }

    async fn give(&self, epoch: u64, change: Option<(Share, u64)>) -> (Holder, u64) {
        match self.asked(epoch, change).await {
            ShareReply::Shared { holder, owed } => (holder, owed),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_ledger_without_a_share_starts_nothing_and_says_so() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c"]).await;
    let limit = Limit::new().rate(1, HOUR).burst(4).concurrency(5);
    bench.join(&limit, share(0, 0)).await;
    let mut ears = Ears::of(&bench).await;
    assert_eq!(said(&bench.claim(&["a"], 1).await), ["held"]);
    let subject = bench.ledger.subject();
    assert_eq!(
        ears.heard(&bench).await,
        [format!("held {subject} 0 shared")]
    );
    let sweep = bench.ledger.sweep(Duration::ZERO, (0, 0), 10, soon()).await;
    let held = sweep.unwrap().held;
    assert_eq!(held, Held::parse("0 shared"));
    assert!(held.unwrap().is_shared);
    let admission = bench.admission(true).await.unwrap();
    assert_eq!(
        (admission.room, admission.due, admission.next),
        (0, 3, None)
    );
    assert_eq!(bench.look(1).await.waiting, 3);
    // Units without leases are of no use.
    bench.give(2, Some((share(2, 0), 0))).await;
    assert_eq!(said(&bench.claim(&["a"], 1).await), ["held"]);
    ears.heard(&bench).await;
    let (holder, _) = bench.give(3, Some((share(2, 5), 0))).await;
    assert_eq!((holder.share, holder.bound), (share(2, 5), 5));
    assert_eq!(ears.heard(&bench).await, [format!("now {subject} a b")]);
    assert_eq!(ids(&bench.claim(&[], 9).await), ["a", "b"]);
    let holder = bench.look(4).await;
    assert_eq!((holder.running, holder.used, holder.waiting), (2, 2, 1));
    bench.balanced().await;
}

#[tokio::test]
async fn an_older_look_changes_nothing() {
    let bench = Bench::new().await;
    let limit = Limit::new().concurrency(5);
    assert!(matches!(bench.asked(1, None).await, ShareReply::Absent));
    bench.join(&limit, share(0, 2)).await;
    bench.look(7).await;
    let older = bench.asked(6, Some((share(0, 5), 0))).await;
    assert!(
        matches!(older, ShareReply::Newer(it) if it == FIRST + 7),
        "{older:?}"
    );
    let look = |by, rule| Look {
        epoch: FIRST + 7,
        by,
        rule,
    };
    let ask = async |look| bench.ledger.share(&look, None, soon()).await.unwrap();
    assert!(matches!(
        ask(look("other", SET)).await,
        ShareReply::Newer(it) if it == FIRST + 7
    ));
    assert!(matches!(
        ask(look("me", UnixMs(999))).await,
        ShareReply::Absent
    ));
    assert_eq!(bench.look(7).await.share, share(0, 2));
    bench.balanced().await;
}

#[tokio::test]
async fn a_unit_takes_along_what_was_used_of_it() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c", "d"]).await;
    let limit = Limit::new().rate(1, HOUR).burst(4);
    bench.join(&limit, share(4, 0)).await;
    assert_eq!(ids(&bench.claim(&[], 1).await), ["a"]);
    // The free ones go first.
    let (holder, owed) = bench.give(1, Some((share(2, 0), 0))).await;
    assert_eq!((holder.used, owed), (1, 0));
    let (holder, owed) = bench.give(2, Some((share(1, 0), 0))).await;
    assert_eq!((holder.used, owed), (1, 0));
    let (holder, owed) = bench.give(3, Some((share(0, 0), 0))).await;
    assert_eq!(holder.used, 0);
    assert!(owed > 990_000 && owed <= 1_000_000, "{owed}");
    // Two units come back, of which one was used.
    // The answer was lost, and the call is repeated.
    assert_eq!(bench.give(3, Some((share(0, 0), 0))).await.1, owed);
    bench.give(4, Some((share(2, 0), owed))).await;
    assert_eq!(ids(&bench.claim(&[], 9).await), ["b"]);
    // What has started counts on, whatever the share is meanwhile.
    let (_, owed) = bench.give(5, Some((share(0, 0), 0))).await;
    assert!(owed > 1_990_000, "{owed}");
    bench.give(6, Some((share(2, 0), owed))).await;
    assert!(bench.claim(&[], 9).await.jobs.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn leases_are_free_when_their_runs_have_ended() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c", "d"]).await;
    let limit = Limit::new().concurrency(5);
    bench.join(&limit, share(0, 3)).await;
    let reply = bench.claim(&[], 9).await;
    assert_eq!(ids(&reply), ["a", "b", "c"]);
    let (holder, _) = bench.give(1, Some((share(0, 1), 0))).await;
    assert_eq!((holder.bound, holder.running), (3, 3));
    for (left, job) in [(2, &reply.jobs[0]), (1, &reply.jobs[1])] {
        bench.settle(&job.id, &job.token, Verb::Done).await;
        assert!(bench.claim(&[], 9).await.jobs.is_empty());
        assert_eq!(bench.look(2).await.bound, left);
    }
    let job = &reply.jobs[2];
    bench.settle(&job.id, &job.token, Verb::Done).await;
    assert_eq!(ids(&bench.claim(&[], 9).await), ["d"]);
    assert_eq!(bench.look(3).await.bound, 1, "its share");
    bench.balanced().await;
}

#[tokio::test]
async fn a_lapsed_lease_waits_for_a_share_too() {
    let bench = Bench::new().await;
    let limit = Limit::new().rate(1, HOUR).burst(4);
    bench.join(&limit, share(2, 0)).await;
    bench.run("a", MOMENT).await;
    bench.give(1, Some((share(0, 0), 0))).await;
    bench.past(bench.now().await + 2).await;
    let mut ears = Ears::of(&bench).await;
    assert_eq!(said(&bench.reclaim(&["a"]).await), ["held"]);
    let subject = bench.ledger.subject();
    assert_eq!(
        ears.heard(&bench).await,
        [format!("held {subject} 0 shared")]
    );
    let sweep = bench.ledger.sweep(HOUR, (0, 0), 10, soon()).await.unwrap();
    assert_eq!(sweep.held, Held::parse("0 shared"), "no due job waits");
    assert_eq!(bench.look(2).await.waiting, 1);
    bench.give(3, Some((share(1, 0), 0))).await;
    assert_eq!(ids(&bench.reclaim(&["a"]).await), ["a"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_paused_ledger_and_one_on_hold_want_no_share() {
    let bench = Bench::new().await;
    bench.all_due(&["a"]).await;
    let limit = Limit::new().concurrency(5);
    bench.join(&limit, share(0, 0)).await;
    assert_eq!(bench.look(1).await.waiting, 1);
    let lane = &mut Lane::new();
    bench.ledger.pause(lane, None, soon()).await.unwrap();
    assert_eq!(bench.look(2).await.waiting, 0);
    bench.ledger.resume(lane, None, soon()).await.unwrap();
    assert_eq!(bench.look(3).await.waiting, 1);
    assert!(bench.ledger.hold(HOUR, soon()).await.unwrap());
    assert_eq!(bench.look(4).await.waiting, 0);
    bench.balanced().await;
}

#[tokio::test]
async fn a_share_that_nobody_uses_is_not_wanted() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c"]).await;
    let limit = Limit::new().concurrency(5);
    bench.join(&limit, share(0, 2)).await;
    assert_eq!(bench.look(1).await.waiting, 0, "nobody claims");
    bench.claim(&[], 1).await;
    assert_eq!(bench.look(2).await.waiting, 1);
    bench.balanced().await;
}

#[tokio::test]
async fn setting_the_same_limit_again_keeps_the_share() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c", "d"]).await;
    let limit = Limit::new().rate(1, HOUR).burst(9).concurrency(5);
    bench.join(&limit, share(3, 2)).await;
    let since = bench.look(5).await.since;
    // As a client does that uses the kind for the first time.
    bench.join(&limit, share(0, 0)).await;
    let holder = bench.look(5).await;
    assert_eq!((holder.share, holder.since), (share(3, 2), since));
    // A client that has not heard of the other ledgers leaves it as well.
    let rule = LimitRule {
        limit: Some(limit.clone()),
        set: SET,
        by: "anna".into(),
    };
    let alone = LimitPart::Own(limit.terms().unwrap());
    let lane = &mut Lane::new();
    let set = bench.ledger.limit(lane, &alone, &rule, soon());
    assert!(set.await.unwrap());
    assert_eq!(bench.look(5).await.share, share(3, 2));
    assert_eq!(ids(&bench.claim(&[], 9).await), ["a", "b"]);
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_that_had_the_whole_limit_shares_it() {
    let bench = Bench::new().await;
    bench.all_due(&["a", "b", "c"]).await;
    let limit = Limit::new().rate(1, HOUR).burst(3).concurrency(5);
    assert!(bench.set_limit(Some(limit.clone()), SET.0).await);
    assert_eq!(ids(&bench.claim(&[], 1).await), ["a"]);
    bench.join(&limit, share(0, 0)).await;
    let holder = bench.look(1).await;
    assert_eq!((holder.share, holder.used), (share(3, 5), 1));
    assert_eq!(ids(&bench.claim(&[], 9).await), ["b", "c"]);
    // Removing the limit removes the share.
    assert!(bench.set_limit(None, SET.0 + 1).await);
    assert!(matches!(bench.asked(2, None).await, ShareReply::Absent));
    bench.balanced().await;
}

#[tokio::test]
async fn starts_before_another_limit_count_when_its_shares_are_given_out() {
    for limit in [None, Some(share(3, 0))] {
        let bench = Bench::new().await;
        bench.all_due(&["a", "b", "c", "d"]).await;
        let first = Limit::new().rate(1, HOUR).burst(3);
        match limit {
            None => assert!(bench.set_limit(Some(first), SET.0 - 1).await),
            Some(all) => bench.join(&first, all).await,
        }
        assert_eq!(ids(&bench.claim(&[], 2).await), ["a", "b"]);
        // Another limit, of which the ledger has no share yet.
        let rule = LimitRule {
            limit: Some(Limit::new().rate(2, HOUR).burst(4)),
            set: UnixMs(SET.0 + 1),
            by: "anna".into(),
        };
        let part = LimitPart::Shared {
            whole: rule.limit.as_ref().unwrap().terms().unwrap(),
            share: share(0, 0),
            rule: rule.set,
        };
        let lane = &mut Lane::new();
        assert!(
            bench
                .ledger
                .limit(lane, &part, &rule, soon())
                .await
                .unwrap()
        );
        let look = Look {
            epoch: FIRST + 9,
            by: "me",
            rule: rule.set,
        };
        let ask = async |change| match bench.ledger.share(&look, change, soon()).await {
            Ok(ShareReply::Shared { holder, owed }) => (holder, owed),
            other => panic!("{other:?}"),
        };
        assert_eq!(ask(None).await.0.used, 2);
        let (holder, owed) = ask(Some((share(0, 0), 0))).await;
        assert_eq!(holder.used, 0);
        assert!(owed > 1_990_000 && owed <= 2_000_000, "{owed}");
        ask(Some((share(4, 0), owed))).await;
        assert_eq!(ids(&bench.claim(&[], 9).await), ["c", "d"]);
        bench.balanced().await;
    }
}

#[tokio::test]
async fn after_a_hold_a_ledger_without_a_share_says_that_jobs_wait() {
    let bench = Bench::new().await;
    bench.all_due(&["a"]).await;
    bench.join(&Limit::new().concurrency(5), share(0, 0)).await;
    let mut ears = Ears::of(&bench).await;
    // As the pacer does when a hold is over.
    bench.admission(true).await.unwrap();
    let subject = bench.ledger.subject();
    assert_eq!(
        ears.heard(&bench).await,
        [format!("held {subject} 0 shared")]
    );
    bench.admission(false).await.unwrap();
    assert!(ears.heard(&bench).await.is_empty());
    bench.balanced().await;
}

#[tokio::test]
async fn a_ledger_that_is_razed_has_no_share_any_more() {
    let bench = Bench::new().await;
    let limit = Limit::new().concurrency(5);
    bench.join(&limit, share(0, 5)).await;
    bench.ledger.raze(soon()).await.unwrap();
    assert!(matches!(bench.asked(1, None).await, ShareReply::Absent));
    bench.join(&limit, share(0, 0)).await;
    assert_eq!(bench.look(2).await.share, share(0, 0));
    bench.balanced().await;
}

/// Random claims, ends and moves of shares over three ledgers of one server: no span of time has more
/// starts than the rate allows, and no moment more leases.
#[tokio::test]
async fn together_ledgers_never_exceed_their_limit() {
    let server = Embedded::options().start().await.unwrap();
    for (seed, burst, leases, gap_us) in [(1, 1, 9, 3000), (2, 4, 3, 2000), (3, 7, 5, 900)] {
        let limit = Limit::new().concurrency(leases).burst(burst);
        let limit = limit.rate(1_000_000 / gap_us, SECOND);
        let whole = Whole::of(&limit.terms().unwrap());
        let gap = limit.terms().unwrap().gap;
        let mut benches = Vec::new();
        for _ in 0..3 {
            let bench = Bench::on(&server).await;
            let names: Vec<String> = (0..300).map(|number| format!("{number:03}")).collect();
            let items: Vec<_> = names.iter().map(|id| bench.placement(id, at(1))).collect();
            bench.place(&items).await;
            benches.push(bench);
        }
        let nobody = Holder {
            share: share(0, 0),
            bound: 0,
            running: 0,
            used: 0,
            waiting: 0,
            since: UnixMs(0),
        };
        let shares = whole.divide(&vec![nobody; 3], UnixMs(1));
        for (bench, share) in benches.iter().zip(shares) {
            bench.join(&limit, share).await;
        }
        let mut state: u64 = seed;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % below
        };
        let mut starts: Vec<u64> = Vec::new();
        let mut running: Vec<(usize, String, std::sync::Arc<str>)> = Vec::new();
        for step in 1..5000 {
            // The rate goes by the clock: a fast machine needs more steps for as many starts.
            if step > 700 && starts.len() > 20 {
                break;
            }
            let at = random(3) as usize;
            let bench = &benches[at];
            match random(9) {
                0..4 => {
                    let reply = bench.claim(&[], 1 + random(3) as usize).await;
                    for job in reply.jobs {
                        starts.push(reply.now.0);
                        running.push((at, job.id, job.token));
                    }
                    assert!(running.len() <= leases as usize, "{} leases", running.len());
                }
                4..8 if !running.is_empty() => {
                    let (at, id, token) =
                        running.swap_remove(random(running.len() as u64) as usize);
                    benches[at].settle(&id, &token, Verb::Done).await;
                }
                _ => {
                    // A part of what one has is given to another.
                    let to = &benches[(at + 1 + random(2) as usize) % 3];
                    let had = bench.look(step).await;
                    let kept = share(random(had.share.units + 1), random(had.share.leases + 1));
                    let (left, owed) = bench.give(step, Some((kept, 0))).await;
                    // Leases that end above a share belong to nobody until a look gives them out.
                    let mut free = u64::from(leases) - left.bound;
                    for other in benches.iter().filter(|it| !std::ptr::eq(*it, bench)) {
                        free -= other.look(step).await.bound;
                    }
                    let other = to.look(step).await;
                    let more = share(
                        other.share.units + had.share.units - kept.units,
                        other.bound + free,
                    );
                    to.give(step, Some((more, owed))).await;
                }
            }
        }
        for (first, begin) in starts.iter().enumerate() {
            for (last, end) in starts.iter().enumerate().skip(first) {
                let most = u64::from(burst) + (end - begin) / gap;
                let started = (last - first + 1) as u64;
                assert!(started <= most, "{started} starts in {} µs", end - begin);
            }
        }
        assert!(starts.len() > 20, "{}", starts.len());
        for bench in benches {
            bench.balanced().await;
        }
    }
}
