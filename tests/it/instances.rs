//! Many workers: they share claims and pacing, and report unrouted jobs.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use keyfall::embedded::Embedded;
use keyfall::{Job, JobState, Limit, NewJob, Notice, Router, Worker};
use keyfall_testing::process::TalkingProcess;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::monitor::{Monitor, asked_by_hearers, beats_until_the_last_claim, left_unchecked};
use crate::runs::{Gate, PATIENCE, eventually, recorder};
use crate::site::{Running, Site, command, ms};

/// Waits until this number of instances live and hear events.
async fn so_many_live(site: &Site, count: usize) {
    eventually("so many instances", async || {
        let live = site.client.instances().await.unwrap();
        let hear = live.iter().filter(|one| one.hears_events).count();
        (live.len() == count && hear == count).then_some(())
    })
    .await;
}

/// The number of different jobs.
fn different(jobs: Vec<Job>) -> usize {
    let keys: HashSet<&str> = jobs.iter().map(|job| job.key().as_str()).collect();
    keys.len()
}

/// Waits for proof that one of the workers that hear of a job claims it. `round` runs jobs with
/// these numbers.
async fn one_asks(site: &Site, instances: usize, mut round: impl AsyncFnMut(Range<usize>)) {
    const JOBS: usize = 200;
    let mut commands = Monitor::of(&site.url).await;
    let (mut scheduled, mut judged) = (0, 0);
    eventually("a time in which nobody counts as gone", async || {
        let mut company = commands.company(instances).await;
        round(scheduled..scheduled + JOBS).await;
        scheduled += JOBS;
        let all = commands.so_far(site).await;
        let asked = asked_by_hearers(company.undisturbed(&all));
        let several = asked.iter().find(|(_, calls)| calls.len() > 1);
        assert!(several.is_none(), "{several:?}");
        judged += asked.len();
        (judged > JOBS / 2).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_instances_claims_a_job_that_all_hear_of() {
    const WORKERS: usize = 5;
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-share").await;
    let (recorder, mut runs) = recorder();
    let done: Arc<Mutex<Vec<usize>>> = Arc::default();
    let start = |number: usize| {
        let (recorder, done) = (recorder.clone(), done.clone());
        site.serve(
            Router::new().route(&site.pattern(), async move |job: keyfall::Job| {
                done.lock().unwrap().push(number);
                recorder.note(&job);
            }),
        )
    };
    let workers: Vec<Running> = (0..WORKERS).map(start).collect();
    so_many_live(&site, WORKERS).await;
    one_asks(&site, WORKERS, async |numbers| {
        let count = numbers.len();
        for (place, number) in numbers.enumerate() {
            let delay = ms(300 + 5 * place as u64);
            let key = site.key(number);
            site.client.schedule(&key, &()).after(delay).await.unwrap();
        }
        assert_eq!(different(runs.take(count).await), count);
        site.all_ended().await;
    })
    .await;
    runs.assert_no_more();
    let done: HashSet<usize> = done.lock().unwrap().drain(..).collect();
    assert_eq!(done.len(), WORKERS, "all have their share");
    for worker in workers {
        worker.stop().await;
    }
    assert!(site.client.instances().await.unwrap().is_empty());
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_due_at_once_are_shared_too() {
    const WORKERS: usize = 4;
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-now").await;
    let (recorder, mut runs) = recorder();
    let start = |_| site.serve(Router::new().route(&site.pattern(), recorder.done()));
    let workers: Vec<Running> = (0..WORKERS).map(start).collect();
    so_many_live(&site, WORKERS).await;
    one_asks(&site, WORKERS, async |numbers| {
        let count = numbers.len();
        for number in numbers {
            site.client.schedule(site.key(number), &()).await.unwrap();
        }
        assert_eq!(different(runs.take(count).await), count);
        site.all_ended().await;
    })
    .await;
    runs.assert_no_more();
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_instance_leaves_its_share_and_its_pacing_to_others() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-kill").await;
    let kind = format!("{}:work:sleep", site.app);
    let mut processes: Vec<TalkingProcess> = (0..3)
        .map(|_| TalkingProcess::worker(&site.url, &site.app))
        .collect();
    so_many_live(&site, 3).await;
    let all_done = async |count: u64| {
        eventually("all done", async || {
            let stats = site.client.stats(&kind).await.unwrap();
            (stats.done == count).then_some(())
        })
        .await;
    };
    let mut scheduled = 0;
    while processes.len() > 1 {
        processes.pop().unwrap().kill();
        let mut commands = Monitor::of(&site.url).await;
        // The dead instance would have claimed a third or half of the jobs.
        for number in 0..100 {
            let key = format!("{kind}:{scheduled}-{number}");
            let delay = ms(10 * number);
            site.client.schedule(&key, &0).after(delay).await.unwrap();
        }
        scheduled += 100;
        commands.so_far(&site).await;
        all_done(scheduled).await;
        let meanwhile = commands.so_far(&site).await;
        // Far fewer beats than a lease lasts, or than the next sweep of an idle ledger takes.
        let beats = beats_until_the_last_claim(&meanwhile);
        assert!(beats < 10, "{beats} beats");
        let key = format!("{kind}:paced-{scheduled}");
        site.client
            .schedule(&key, &0)
            .after(ms(2500))
            .await
            .unwrap();
        scheduled += 1;
        // A live instance paces now.
        let touched = async {
            loop {
                let words = commands.next().await.words;
                if words[0] == "EXISTS" && words.contains(&key) {
                    return;
                }
            }
        };
        timeout(PATIENCE, touched).await.expect("somebody paces");
        // Otherwise the next instance would be killed with a job.
        all_done(scheduled).await;
    }
    so_many_live(&site, 1).await;
    let stats = site.client.stats(&kind).await.unwrap();
    assert_eq!(stats.lapsed, 0);
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_instance_without_room_leaves_its_share_to_another() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-room").await;
    let (busy, mut busy_runs) = recorder();
    let gate = Gate::closed();
    let router = Router::new().route(&site.pattern(), busy.behind(&gate));
    let saturated = Running::start(site.worker(router).concurrency(1));
    site.client.schedule(site.key("holds"), &()).await.unwrap();
    busy_runs.next().await;
    let (free, mut runs) = recorder();
    let idle = site.serve(Router::new().route(&site.pattern(), free.done()));
    so_many_live(&site, 2).await;
    for (number, key) in site.keys(60).enumerate() {
        let delay = ms(10 * number as u64);
        site.client.schedule(&key, &()).after(delay).await.unwrap();
    }
    assert_eq!(runs.take(60).await.len(), 60);
    let live = eventually("said so", async || {
        let live = site.client.instances().await.unwrap();
        // The idle one has all its slots again.
        let is_said = live.len() == 2 && !live[0].saturated.is_empty();
        (is_said && live[1].free == live[1].slots).then_some(live)
    })
    .await;
    assert_eq!(live[0].saturated, [site.pattern()]);
    assert!(live[1].saturated.is_empty());
    assert_eq!((live[0].free[0], live[1].free[0] > 0), (0, true));
    gate.open();
    saturated.stop().await;
    idle.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_a_slot_in_the_instance_whose_turn_it_is_are_left_to_others_at_once() {
    const SLOTS: usize = 16;
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-left").await;
    let round = async |number: usize| {
        let (busy, mut busy_runs) = recorder();
        let gate = Gate::closed();
        let router = Router::new().route(&site.pattern(), busy.behind(&gate));
        let full = Running::start(site.worker(router).concurrency(SLOTS));
        so_many_live(&site, 1).await;
        let id = site.client.instances().await.unwrap()[0].id.clone();
        for place in 0..SLOTS {
            let key = site.key(format_args!("holds-{number}-{place}"));
            site.client.schedule(&key, &()).await.unwrap();
        }
        busy_runs.take(SLOTS).await;
        let (free, mut runs) = recorder();
        let other = site.serve(Router::new().route(&site.pattern(), free.done()));
        so_many_live(&site, 2).await;
        let mut commands = Monitor::of(&site.url).await;
        commands.looks(2).await;
        let turn = format!("turn {}/0 {id}", site.kind());
        let _: u32 = site.command(&["PUBLISH", "keyfall:wake:0", &turn]).await;
        for place in 0..20 {
            let key = site.key(format_args!("left-{number}-{place}"));
            site.client.schedule(&key, &()).await.unwrap();
            assert_eq!(runs.next().await.key().as_str(), key);
        }
        let all = commands.so_far(&site).await;
        gate.open();
        site.all_ended().await;
        full.stop().await;
        other.stop().await;
        left_unchecked(&all)
    };
    let mut number = 0;
    // The pacer leaves jobs to others, too, if the instance is slow; but it checks them first.
    eventually("a job that its claimer leaves", async || {
        number += 1;
        round(number).await.then_some(())
    })
    .await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn instances_that_do_not_see_each_other_run_each_job_once() {
    const JOBS: usize = 300;
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-blind").await;
    let (recorder, mut runs) = recorder();
    let start = |_| site.serve(Router::new().route(&site.pattern(), recorder.done()));
    let workers: Vec<Running> = (0..3).map(start).collect();
    so_many_live(&site, 3).await;
    // Each instance believes to be alone, claims all jobs that it hears of, and paces.
    let mut redis = site.redis();
    let blinding = tokio::spawn(async move {
        loop {
            let _: u64 = command(&mut redis, &["DEL", "keyfall:instances"]).await;
            tokio::task::yield_now().await;
        }
    });
    let mut commands = Monitor::of(&site.url).await;
    for (number, key) in site.keys(JOBS).enumerate() {
        let delay = ms(1500 + 5 * number as u64);
        site.client.schedule(&key, &()).after(delay).await.unwrap();
    }
    assert_eq!(different(runs.take(JOBS).await), JOBS);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (JOBS as u64, 0));
    blinding.abort();
    // Otherwise the test proves nothing.
    let all = commands.so_far(&site).await;
    let asked = asked_by_hearers(&all);
    assert!(asked.values().any(|calls| calls.len() > 1), "all see all");
    for worker in workers {
        worker.stop().await;
    }
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unrouted_kind_waits_and_is_reported_until_it_has_a_route() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-routes").await;
    let (recorder, mut runs) = recorder();
    let kind = |biz: &str| format!("{}:it:{biz}", site.app);
    let route = |biz: &str| Router::new().route(&format!("{}:*", kind(biz)), recorder.done());
    let (tell, mut notices) = mpsc::unbounded_channel();
    let hook = move |notice: &Notice| drop(tell.send(notice.clone()));
    let first = Running::start(site.worker(route("first")).on_notice(hook));
    let second = site.serve(route("second"));
    so_many_live(&site, 2).await;
    for biz in ["first", "second", "third"] {
        let key = format!("{}:1", kind(biz));
        site.client.schedule(&key, &()).await.unwrap();
    }
    let ran: HashSet<String> = runs
        .take(2)
        .await
        .iter()
        .map(|job| job.key().to_string())
        .collect();
    assert_eq!(
        ran,
        ["first", "second"]
            .map(|biz| format!("{}:1", kind(biz)))
            .into()
    );
    let unrouted = site.client.unrouted().await.unwrap();
    let [third] = &unrouted[..] else {
        panic!("{unrouted:?}")
    };
    assert_eq!((third.kind.as_str(), third.jobs), (&*kind("third"), 1));
    let key = format!("{}:1", kind("third"));
    assert_eq!(site.view(&key).await.state(), JobState::Pending);
    // One of the two reports the jobs; if it was the other instance, that one stops and ours
    // reports them.
    second.stop().await;
    let told = loop {
        match notices.recv().await.unwrap() {
            // To a worker that was held up for seconds, Redis seems to have been away.
            Notice::Away { .. } | Notice::Back { .. } => {}
            told => break told,
        }
    };
    assert_eq!(
        told,
        Notice::Unrouted {
            kind: third.kind.clone(),
            jobs: 1
        }
    );

    let late = site.serve(route("third"));
    assert_eq!(runs.next().await.key().as_str(), key);
    assert!(site.client.unrouted().await.unwrap().is_empty());
    first.stop().await;
    late.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_a_route_are_buried_at_the_configured_age() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-age").await;
    let (recorder, _runs) = recorder();
    let by_id = format!(r"{}:{{id:\d+}}", site.kind());
    let refused = Worker::new(site.client.clone(), Router::new())
        .bury_unrouted_after(ms(10))
        .run()
        .await;
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("bury_unrouted_after")
    );
    let router = Router::new().route(&by_id, recorder.stuck());
    let worker = site.worker(router).concurrency(1);
    let worker = Running::start(worker.bury_unrouted_after(Duration::from_secs(1)));
    let other = format!("{}:it:other:1", site.app);
    site.client.schedule(&other, &"kept").await.unwrap();
    let later = format!("{}:it:other:2", site.app);
    site.client
        .schedule(&later, &())
        .after(crate::site::HOUR)
        .await
        .unwrap();
    // Patterns with ids: one job runs, one has a route without a free slot, and one has no route.
    for id in ["1", "2", "none"] {
        site.client.schedule(site.key(id), &()).await.unwrap();
    }
    for key in [&other, &site.key("none")] {
        let letter = site.reaches(key, JobState::Dead).await;
        assert!(
            letter.last_error().unwrap().contains("no live instance"),
            "{letter:?}"
        );
    }
    // A job of a newer version is left to it.
    let ledger_key = |part: &str| format!("keyfall:{{{}/0}}:{part}", site.kind());
    let record = "{\"v\":99}\n1763712345678\npayload";
    let call = site.client.schedule(site.key("newer"), "").after(ms(200));
    let due = call.await.unwrap().due;
    let _: u32 = site
        .command(&["HSET", &ledger_key("shadow"), "newer", record])
        .await;
    eventually("it is given back", async || {
        let at: Option<f64> = site.command(&["ZSCORE", &ledger_key("due"), "newer"]).await;
        let at = UNIX_EPOCH + Duration::from_millis(at? as u64);
        (at > due + Duration::from_secs(20)).then_some(())
    })
    .await;
    let stored: String = site
        .command(&["HGET", &ledger_key("shadow"), "newer"])
        .await;
    // With the time at which it was given back.
    assert!(
        stored.starts_with("{\"v\":99}\n1763712345678 returned@") && stored.ends_with("\npayload"),
        "{stored}"
    );
    assert_eq!(site.view(&other).await.json::<String>().unwrap(), "kept");
    assert_eq!(site.view(&later).await.state(), JobState::Pending);
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.leased), (2, 1));
    worker.drop_it().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_without_a_route_are_buried_when_a_limit_holds_them_back_no_more() {
    // More than one round takes.
    const HELD: usize = 300;
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-stuck").await;
    let (recorder, mut runs) = recorder();
    let limit = Limit::new().concurrency(1);
    site.client.limit(&site.kind(), limit).await.unwrap();
    let by_id = format!(r"{}:{{id:\d+}}", site.kind());
    let router = Router::new().route(&by_id, recorder.stuck());
    let worker = site.worker(router).concurrency(1);
    let worker = Running::start(worker.bury_unrouted_after(Duration::from_secs(1)));
    site.client.schedule(site.key("1"), &()).await.unwrap();
    runs.next().await;
    let held = (0..HELD).map(|n| NewJob::new(site.key(format!("none-{n}")), &()));
    for placed in site.client.schedule_many(held).await {
        placed.unwrap();
    }
    // The next kind.
    let other = format!("{}:it:other:1", site.app);
    site.client.schedule(&other, &()).await.unwrap();
    site.reaches(&other, JobState::Dead).await;
    assert_eq!(site.stats().await.dead, 0, "the limit holds them back");
    site.client.unlimit(&site.kind()).await.unwrap();
    eventually("they are buried, too", async || {
        (site.stats().await.dead == HELD as u64).then_some(())
    })
    .await;
    worker.drop_it().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fallback_takes_only_jobs_without_a_route_on_any_instance() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-rest").await;
    let (own, mut own_runs) = recorder();
    let (rest, mut rest_runs) = recorder();
    let (other, mut other_runs) = recorder();
    let kind = |biz: &str| format!("{}:it:{biz}", site.app);
    let digits = format!(r"{}:{{id:\d+}}", kind("own"));
    let letters = format!("{}:{{id:[a-z]+}}", kind("own"));
    let router = Router::new().route(&digits, own.done());
    let first = site.serve(router.fallback(rest.done()));
    let router = Router::new().route(&letters, other.done());
    let second = site.serve(router.route(&format!("{}:*", kind("other")), other.done()));
    so_many_live(&site, 2).await;
    let keys = |jobs: Vec<keyfall::Job>| -> HashSet<String> {
        jobs.iter().map(|job| job.key().to_string()).collect()
    };
    let schedule = async |name: &str, delay: Duration| {
        let (biz, id) = name.split_once(':').unwrap();
        let key = format!("{}:{id}", kind(biz));
        site.client.schedule(&key, &()).after(delay).await.unwrap();
        key
    };
    let mut expected: [HashSet<String>; 3] = Default::default();
    for (number, name) in ["own:1", "own:A1", "own:abc", "other:1", "stray:1"]
        .iter()
        .enumerate()
    {
        let to = [0, 1, 2, 2, 1][number];
        for delay in [0, 50, 700] {
            let id = match *name {
                "own:abc" => format!("{name}{}", "z".repeat(delay / 50)),
                _ => format!("{name}{delay}"),
            };
            expected[to].insert(schedule(&id, ms(delay as u64)).await);
        }
    }
    assert_eq!(keys(own_runs.take(3).await), expected[0]);
    assert_eq!(keys(rest_runs.take(6).await), expected[1]);
    assert_eq!(keys(other_runs.take(6).await), expected[2]);
    // A fallback is no route: its jobs are reported as unrouted.
    let pending = schedule("stray:9", crate::site::HOUR).await;
    let unrouted = site.client.unrouted().await.unwrap();
    assert_eq!(unrouted[0].kind.as_str(), kind("stray"), "{unrouted:?}");
    site.client.cancel(&pending).await.unwrap();

    // After the other instance is gone, its jobs go to the fallback.
    second.stop().await;
    let orphan = schedule("other:2", ms(0)).await;
    assert_eq!(rest_runs.next().await.key().as_str(), orphan);
    first.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_fallback_takes_no_job_of_existing_routes() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-comer").await;
    let (own, mut own_runs) = recorder();
    let (rest, mut rest_runs) = recorder();
    let gate = Gate::closed();
    let router = Router::new().route(&site.pattern(), own.behind(&gate));
    let owner = Running::start(site.worker(router).concurrency(1));
    so_many_live(&site, 1).await;
    // A new instance finds the backlog with its first look.
    for key in site.keys(200) {
        site.client.schedule(&key, &()).await.unwrap();
    }
    own_runs.next().await;
    for _ in 0..3 {
        let comer = site.serve(Router::new().fallback(rest.done()));
        so_many_live(&site, 2).await;
        comer.stop().await;
    }
    gate.open();
    assert_eq!(own_runs.take(199).await.len(), 199);
    site.all_ended().await;
    rest_runs.assert_no_more();
    owner.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_ledger_does_not_hide_reports_of_others() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "inst-broken").await;
    let kind = |number: usize| format!("{}:it:k{number}", site.app);
    let due = |number: usize| format!("keyfall:{{{}/0}}:due", kind(number));
    for number in 0..6 {
        let key = format!("{}:1", kind(number));
        let call = site.client.schedule(&key, &()).after(crate::site::HOUR);
        call.await.unwrap();
    }
    // Every second ledger is damaged, so some come before the others in any order.
    for number in [0, 2, 4] {
        let aside = format!("aside{number}");
        let () = site.command(&["RENAME", &due(number), &aside]).await;
        let () = site.command(&["SET", &due(number), "not ours"]).await;
    }
    let (tell, mut notices) = mpsc::unbounded_channel();
    let (recorder, _runs) = recorder();
    let worker = site.worker(Router::new().route(&site.pattern(), recorder.done()));
    let worker = Running::start(worker.on_notice(move |notice| drop(tell.send(notice.clone()))));
    let mut told = HashSet::new();
    while told.len() < 3 {
        if let Notice::Unrouted { kind, jobs } = notices.recv().await.unwrap() {
            assert_eq!(jobs, 1);
            told.insert(kind.to_string());
        }
    }
    assert_eq!(told, [1, 3, 5].map(kind).into());
    worker.stop().await;
    for number in [0, 2, 4] {
        let aside = format!("aside{number}");
        let () = site.command(&["RENAME", &aside, &due(number)]).await;
    }
    site.assert_balanced().await;
}
