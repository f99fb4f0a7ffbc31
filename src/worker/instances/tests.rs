//! Tests of the ranking: all live instances agree on the first.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::handler::{Handler, MissingKey};
use crate::instance::Pacers;
use crate::router::Router;
use crate::worker::description::describe;
use crate::worker::served::ServedLedgers;

const KIND: &str = "app1:trans:notice";

async fn done() {}

/// Instances that all know of each other.
struct Fleet {
    all: Vec<PeerTable>,
    takes: HashMap<String, Arc<Takes>>,
    served: Arc<ServedLedger>,
}

impl Fleet {
    fn new(patterns: &[&str]) -> Self {
        Fleet::of(patterns.iter().map(|pattern| (*pattern, false)))
    }

    /// Instances with a route for this pattern, and whether it adopts plain keys; `*` is a fallback.
    fn of<'a>(routes: impl Iterator<Item = (&'a str, bool)>) -> Self {
        let all: Vec<(PeerTable, Description)> = routes
            .map(|(pattern, adopts)| {
                let router: Router = match (pattern, adopts) {
                    ("*", _) => Router::new().fallback(done),
                    (_, true) => Router::new().route(pattern, done.adopt(MissingKey::Run)),
                    (_, false) => Router::new().route(pattern, done),
                };
                let description = describe(&router.finish().unwrap(), 256);
                (PeerTable::new(&description, 1).unwrap(), description)
            })
            .collect();
        let takes = all
            .iter()
            .map(|(one, description)| (one.id.clone(), Arc::new(description.takes().unwrap())))
            .collect();
        let fleet = Fleet {
            all: all.into_iter().map(|(one, _)| one).collect(),
            takes,
            served: ServedLedger::sample(KIND),
        };
        fleet.see(|_| "1h".into());
        fleet
    }

    /// Every instance sees every other, with this room; an instance whose room is empty is not
    /// seen.
    fn see(&self, room: impl Fn(usize) -> String) {
        let seen: Vec<Alive> = self
            .all
            .iter()
            .enumerate()
            .filter(|(number, _)| !room(*number).is_empty())
            .map(|(number, one)| Alive {
                id: one.id.clone(),
                age: Duration::ZERO,
                room: room(number),
            })
            .collect();
        for one in &self.all {
            one.meet(0, &seen, &self.takes);
        }
    }

    /// How each instance ranks itself for a job.
    fn ranks(&self, id: &str) -> Vec<ClaimRank> {
        self.all
            .iter()
            .map(|one| one.rank(&self.served, id))
            .collect()
    }

    /// For how many of a thousand jobs each instance comes first, and second.
    fn shares(&self) -> (Vec<usize>, Vec<usize>) {
        let mut shares = (vec![0; self.all.len()], vec![0; self.all.len()]);
        for job in 0..1000 {
            for (number, rank) in self.ranks(&format!("{job:06}")).into_iter().enumerate() {
                match rank {
                    ClaimRank::Only | ClaimRank::First => shares.0[number] += 1,
                    ClaimRank::Second => shares.1[number] += 1,
                    ClaimRank::Other => {}
                }
            }
        }
        shares
    }

    fn pacers(&self) -> Vec<usize> {
        let paces = |number: &usize| self.all[*number].paces(&self.served);
        (0..self.all.len()).filter(paces).collect()
    }
}

#[tokio::test]
async fn each_job_has_a_first_and_a_second_instance_and_all_get_their_share() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 4]);
    let (first, second) = fleet.shares();
    assert_eq!(first.iter().sum::<usize>(), 1000);
    assert_eq!(second.iter().sum::<usize>(), 1000);
    for share in first.into_iter().chain(second) {
        assert!((150..350).contains(&share), "{share} of 1000 among four");
    }
    assert_eq!(fleet.pacers().len(), 1);
}

#[tokio::test]
async fn an_instance_that_goes_leaves_its_jobs_to_others_that_keep_their_own() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 3]);
    let jobs: Vec<String> = (0..300).map(|job| job.to_string()).collect();
    let before: Vec<Vec<ClaimRank>> = jobs.iter().map(|id| fleet.ranks(id)).collect();
    fleet.see(|number| {
        if number == 0 {
            String::new()
        } else {
            "1h".into()
        }
    });
    for (id, before) in jobs.iter().zip(before) {
        let after = fleet.ranks(id);
        for number in 1..3 {
            if before[number].claims() {
                assert!(after[number].claims(), "{id}");
            }
            // The second takes the place of the first.
            if before[0].claims() && before[number] == ClaimRank::Second {
                assert!(after[number].claims(), "{id}");
            }
        }
    }
    assert!(matches!(fleet.pacers()[..], [1 | 2]));
}

#[tokio::test]
async fn a_saturated_or_deaf_instance_comes_last() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 3]);
    // Newer versions also say how many jobs can start.
    fleet.see(|number| ["0/0h", "1/3d", "1h"][number].into());
    let (first, _) = fleet.shares();
    assert_eq!(first, [0, 0, 1000]);
    // Without room on any instance, the jobs are still shared.
    fleet.see(|_| "0h".into());
    let (first, _) = fleet.shares();
    assert!(first.iter().all(|share| *share > 200), "{first:?}");
    // Deaf instances pace only if all are deaf.
    fleet.see(|number| ["1d", "1h", "1d"][number].into());
    assert_eq!(fleet.pacers(), [1]);
    fleet.see(|_| "1d".into());
    assert_eq!(fleet.pacers().len(), 1);
}

#[tokio::test]
async fn only_instances_with_a_route_are_ranked() {
    let fleet = Fleet::new(&["app1:trans:notice:*", "app1:trans:other:*", "app1:*:*:*"]);
    let (first, second) = fleet.shares();
    assert_eq!((first[1], second[1]), (0, 0));
    assert_eq!(first[0] + first[2], 1000);
    // If the routes depend on the id, instances are ranked job by job.
    let fleet = Fleet::new(&[
        r"app1:trans:notice:{id:\d+}",
        "app1:trans:notice:{id:[a-z]+}",
    ]);
    assert_eq!(fleet.ranks("42"), [ClaimRank::Only, ClaimRank::Other]);
    assert_eq!(fleet.ranks("forty"), [ClaimRank::Other, ClaimRank::Only]);
    assert_eq!(fleet.ranks("4ty"), [ClaimRank::Other, ClaimRank::Other]);
    assert_eq!(fleet.pacers().len(), 1);
}

#[tokio::test]
async fn only_instances_that_adopt_keys_look_at_them() {
    // As a daemon is that hands out jobs of all kinds, beside workers that adopt.
    let routes = ["app1:*:*:*", "app1:trans:notice:*", "app1:trans:notice:*"];
    let fleet = Fleet::of(routes.into_iter().zip([false, true, true]));
    for job in 0..100 {
        let id = job.to_string();
        let looks = fleet
            .all
            .iter()
            .map(|one| one.rank_to_look(&fleet.served, &id));
        let looks: Vec<ClaimRank> = looks.collect();
        assert_eq!(looks[0], ClaimRank::Other, "{id}");
        assert!(looks.contains(&ClaimRank::First), "{id}: {looks:?}");
        assert!(looks.contains(&ClaimRank::Second), "{id}: {looks:?}");
    }
}

#[tokio::test]
async fn the_instance_that_looks_at_a_key_does_not_depend_on_room() {
    let fleet = Fleet::of([("app1:trans:notice:*", true); 3].into_iter());
    let looks = |fleet: &Fleet, id: &str| -> Vec<ClaimRank> {
        let all = fleet.all.iter();
        all.map(|one| one.rank_to_look(&fleet.served, id)).collect()
    };
    let jobs: Vec<String> = (0..300).map(|job| job.to_string()).collect();
    let before: Vec<Vec<ClaimRank>> = jobs.iter().map(|id| looks(&fleet, id)).collect();
    let first: Vec<Vec<ClaimRank>> = jobs.iter().map(|id| fleet.ranks(id)).collect();
    assert_eq!(before, first);
    fleet.see(|number| {
        if number == 0 {
            "0d".into()
        } else {
            "1h".into()
        }
    });
    let after: Vec<Vec<ClaimRank>> = jobs.iter().map(|id| looks(&fleet, id)).collect();
    assert_eq!(before, after);
    let claims: Vec<Vec<ClaimRank>> = jobs.iter().map(|id| fleet.ranks(id)).collect();
    assert_ne!(claims, after);
}

#[tokio::test]
async fn an_instance_that_begins_relies_on_no_instance_that_may_be_dead() {
    let fleet = Fleet::of([("app1:trans:notice:*", true); 3].into_iter());
    // The first was there before the others died, and the third begins.
    let seen: Vec<Alive> = fleet
        .all
        .iter()
        .enumerate()
        .map(|(number, one)| Alive {
            id: one.id.clone(),
            age: Duration::from_secs(if number == 1 { 1000 } else { 0 }),
            room: "1h".into(),
        })
        .collect();
    fleet.all[2].meet(0, &seen, &fleet.takes);
    let ranks = (0..300).map(|job| fleet.all[2].rank_to_look(&fleet.served, &job.to_string()));
    let ranks: Vec<ClaimRank> = ranks.collect();
    assert!(ranks.contains(&ClaimRank::First), "{ranks:?}");
    // Only the instance that is proven comes before it.
    assert!(!ranks.contains(&ClaimRank::Other), "{ranks:?}");
    // By its rank for jobs, which another instance takes over, it may come third.
    let claims = (0..300).map(|job| fleet.all[2].rank(&fleet.served, &job.to_string()));
    assert!(claims.collect::<Vec<_>>().contains(&ClaimRank::Other));
}

#[tokio::test]
async fn instances_take_turns_in_looking_for_unannounced_jobs() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 4]);
    let turns = |fleet: &Fleet| -> Vec<usize> {
        let all = fleet.all.iter();
        all.map(|one| one.sweep_order(&fleet.served)).collect()
    };
    let first = fleet.pacers()[0];
    let mut sorted = turns(&fleet);
    assert_eq!(sorted[first], 0);
    sorted.sort_unstable();
    assert_eq!(sorted, [0, 1, 2, 3]);
    // An instance that is gone delays no other.
    fleet.see(|number| {
        if number == first {
            String::new()
        } else {
            "1h".into()
        }
    });
    let mut left = turns(&fleet);
    left.remove(first);
    left.sort_unstable();
    assert_eq!(left, [0, 1, 2]);
    // If an instance may not take a job, another has to look for it.
    let fleet = Fleet::new(&[
        r"app1:trans:notice:{id:\d+}",
        "app1:trans:notice:{id:[a-z]+}",
    ]);
    assert_eq!(turns(&fleet), [0, 0]);
}

#[tokio::test]
async fn the_route_of_an_instance_that_has_just_gone_still_counts() {
    let fleet = Fleet::new(&["app1:trans:notice:*", "app1:trans:other:*"]);
    let key = JobKey::parse("app1:trans:notice:1").unwrap();
    let other = &fleet.all[1];
    assert!(other.route(&key));
    // It may be about to be replaced, and no fallback takes its jobs meanwhile.
    fleet.see(|number| ["", "1h"][number].into());
    assert!(other.route(&key));
    fleet.see(|number| ["", "1h"][number].into());
    assert!(other.route(&key));
}

#[tokio::test]
async fn a_fallback_of_any_instance_is_known_to_all() {
    for (pattern, is_fallback) in [("*", true), ("app1:trans:other:*", false)] {
        let fleet = Fleet::new(&["app1:trans:notice:*", pattern]);
        for one in &fleet.all {
            assert_eq!(one.fallback(), is_fallback, "{pattern}");
        }
    }
}

#[tokio::test]
async fn the_instance_whose_turn_it_is_claims_all_jobs() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 4]);
    let pacer = &fleet.all[fleet.pacers()[0]];
    let claimers = |id: &str| -> Vec<usize> {
        let claims = |number: &usize| fleet.all[*number].claims(&fleet.served, id);
        (0..4).filter(claims).collect()
    };
    let mut holder = None;
    let mut had_it = Vec::new();
    for _ in 0..4 {
        let next = pacer.next_turn(&fleet.served, holder, |_| false).unwrap();
        pacer.turn_begins(&fleet.served, &next.id);
        let first = claimers("0");
        assert_eq!(first.len(), 1);
        assert_eq!(fleet.all[first[0]].id, next.id);
        for job in 1..100 {
            assert_eq!(claimers(&job.to_string()), first);
        }
        holder = Some(next.hash);
        had_it.extend(first);
    }
    had_it.sort_unstable();
    assert_eq!(had_it, [0, 1, 2, 3], "each has a turn");
    // Without a turn, the rank of each job decides.
    pacer.turn_begins(&fleet.served, NOBODY);
    let claimers: std::collections::BTreeSet<Vec<usize>> =
        (0..100).map(|job| claimers(&job.to_string())).collect();
    assert_eq!(claimers.len(), 4);
}

#[tokio::test]
async fn jobs_that_an_instance_leaves_go_to_the_others() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 3]);
    for job in 0..100 {
        let id = job.to_string();
        let claims = |one: &PeerTable| one.claims_after(&fleet.served, &id, &fleet.all[1].id);
        let claims: Vec<bool> = fleet.all.iter().map(claims).collect();
        assert!(!claims[1] && claims[0] != claims[2], "{claims:?}");
    }
}

#[tokio::test]
async fn a_turn_goes_to_an_instance_with_room_that_is_not_avoided() {
    let fleet = Fleet::new(&["app1:trans:notice:*"; 3]);
    fleet.see(|number| ["0h", "1h", "1d"][number].into());
    let next = |avoided: Option<InstanceHash>| {
        let is_avoided = |it| Some(it) == avoided;
        fleet.all[0].next_turn(&fleet.served, None, is_avoided)
    };
    let only = next(None).unwrap();
    assert_eq!(only.id, fleet.all[1].id);
    assert!(fleet.all[0].is_ready(&fleet.served, only.hash));
    assert_eq!(next(Some(only.hash)), None);
}

#[tokio::test]
async fn an_instance_that_knows_no_turns_keeps_the_others_from_taking_them() {
    let mut fleet = Fleet::new(&["app1:trans:notice:*"; 3]);
    let turn = |fleet: &Fleet| fleet.all[0].next_turn(&fleet.served, None, |_| false);
    let holder = turn(&fleet).unwrap();
    fleet.all[0].turn_begins(&fleet.served, &holder.id);
    assert!(fleet.all[0].turn_holder(&fleet.served).is_some());
    let router: Router = Router::new().route("app1:trans:notice:*", done);
    let mut old = describe(&router.finish().unwrap(), 256);
    old.slots.clear();
    let id = fleet.all[2].id.clone();
    fleet.takes.insert(id, Arc::new(old.takes().unwrap()));
    fleet.see(|_| "1h".into());
    assert_eq!(turn(&fleet), None);
    assert_eq!(fleet.all[0].turn_holder(&fleet.served), None);
    let (first, _) = fleet.shares();
    assert!(first.iter().all(|share| *share > 200), "{first:?}");
}

#[tokio::test]
async fn on_a_cluster_the_rank_decides_and_nobody_takes_turns() {
    let mut fleet = Fleet::new(&["app1:trans:notice:*"; 3]);
    let cluster = ServedLedgers::sample_at("redis+cluster://127.0.0.1:1", &[&format!("{KIND}:*")]);
    fleet.served = cluster.shards(KIND)[0].clone();
    for one in &fleet.all {
        assert_eq!(one.next_turn(&fleet.served, None, |_| false), None);
        // Not even if another instance announces one.
        one.turn_begins(&fleet.served, &fleet.all[0].id);
        assert_eq!(one.turn_holder(&fleet.served), None);
    }
    let claimers = |id: &str| -> Vec<usize> {
        let claims = |number: &usize| fleet.all[*number].claims(&fleet.served, id);
        (0..3).filter(claims).collect()
    };
    let claimers: std::collections::BTreeSet<Vec<usize>> =
        (0..100).map(|job| claimers(&job.to_string())).collect();
    assert!(claimers.into_iter().eq([vec![0], vec![1], vec![2]]));
}

/// What clients show is what the instances do.
#[tokio::test]
async fn clients_rank_the_pacers_as_the_instances_do() {
    let patterns = ["app1:trans:notice:*", "app1:*:*:*", "app1:trans:other:*"];
    let fleet = Fleet::new(&patterns);
    // One of them is deaf.
    fleet.see(|number| if number == 1 { "1d" } else { "1h" }.into());
    let rows: Vec<(Alive, String)> = { fleet.all.iter().zip(patterns).enumerate() }
        .map(|(number, (one, pattern))| {
            let router: Router = Router::new().route(pattern, done);
            let description = describe(&router.finish().unwrap(), 256);
            let room = if number == 1 { "1d" } else { "1h" };
            let alive = Alive {
                id: one.id.clone(),
                age: Duration::ZERO,
                room: room.to_owned(),
            };
            (alive, description.to_line())
        })
        .collect();
    let pacers = Pacers::new(rows.iter().map(Alive::row));
    let served = &fleet.served;
    let [first, second] = pacers.of_kind(KIND).first_two(served.ledger.subject());
    let order = |one: &PeerTable| {
        let view = one.view(0);
        view.standing(served, &one.id).order
    };
    let at = |place: usize| fleet.all.iter().find(|one| order(one) == place);
    assert_eq!(first, at(0).map(|one| &*one.id));
    assert_eq!(second, at(1).map(|one| &*one.id));
    assert!(first.is_some() && second.is_some());
    // The third takes no job of the kind, and nobody one of this kind.
    assert!(order(&fleet.all[2]) > 1);
    assert_eq!(
        pacers.of_kind("app2:a:b").first_two("app2:a:b/0"),
        [None, None]
    );
}
