//! Calls for operators: kinds, counts, lists, and calls on many jobs at once.

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use futures_util::future::try_join_all;
use keyfall::embedded::Embedded;
use keyfall::{Cursor, ErrorKind, Handler, JobState, NewJob, Outcome, Page, Router};

use crate::runs::{Gate, eventually, recorder};
use crate::site::{HOUR, Site, fails_slowly, ms};

impl Site {
    /// Schedules all these jobs, due in an hour.
    async fn crowd(&self, keys: impl Iterator<Item = String>) {
        let jobs = keys.map(|key| NewJob::new(key, "").after(HOUR));
        for answer in self.client.schedule_many(jobs).await {
            answer.unwrap();
        }
    }

    /// The selection of all keys with this beginning in the app of the site.
    fn begin(&self, rest: &str) -> String {
        format!("{}:{rest}", self.app)
    }

    /// The keys of all pages.
    async fn listed(&self, prefix: &str, state: JobState, limit: usize) -> Vec<String> {
        let mut all = Vec::new();
        let mut list = self.client.list(prefix, state).limit(limit);
        loop {
            let page = list.await.unwrap();
            assert!(page.jobs.len() <= limit && page.damaged.is_empty());
            all.extend(page.jobs.iter().map(|job| {
                assert_eq!(job.state(), state);
                job.key().to_string()
            }));
            let Some(next) = page.next else {
                return all;
            };
            // The cursor travels as a text, as over HTTP.
            let next: Cursor = next.to_string().parse().unwrap();
            list = self.client.list(prefix, state).limit(limit).after(next);
        }
    }

    /// Buries this number of jobs of a kind, one after the other.
    async fn bury(&self, keys: &[String]) {
        let (log, mut runs) = recorder();
        let router =
            Router::new().route(&self.begin("*:*:{id}"), log.then(|_| Outcome::bury("no")));
        let worker = self.serve(router);
        for key in keys {
            self.client.schedule(key, key).await.unwrap();
            runs.next().await;
            eventually("buried", async || {
                let view = self.client.get(key).await.unwrap()?;
                (view.state() == JobState::Dead).then_some(())
            })
            .await;
        }
        worker.stop().await;
    }
}

#[tokio::test]
async fn kinds_are_listed_in_order() {
    let site = Site::new("op-kinds").await;
    for kind in ["b:x", "a:y", "a:x"] {
        let key = site.begin(&format!("{kind}:1"));
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    let kinds = site.client.kinds().await.unwrap();
    let ours = kinds.iter().map(|kind| kind.as_str());
    let ours: Vec<&str> = ours.filter(|kind| kind.starts_with("op-kinds:")).collect();
    assert_eq!(ours, ["op-kinds:a:x", "op-kinds:a:y", "op-kinds:b:x"]);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_list_goes_through_all_kinds_and_states_in_pages_of_any_size() {
    let site = Site::new("op-list").await;
    let mut keys = Vec::new();
    for kind in ["a:a", "a:b", "b:a"] {
        keys.extend((0..25).map(|id| site.begin(&format!("{kind}:{id:02}"))));
    }
    site.crowd(keys.iter().cloned()).await;
    for limit in [1, 7, 25, 1000] {
        let all = site.listed("op-list:", JobState::Pending, limit).await;
        let mut sorted = all.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, keys, "{limit}");
        let module = site.listed("op-list:a:", JobState::Pending, limit).await;
        assert_eq!(module, all[..50]);
        let ids = site.listed("op-list:b:a:1", JobState::Pending, limit).await;
        assert_eq!(ids.len(), 10, "{ids:?}");
    }
    assert!(
        site.listed("op-list:c", JobState::Pending, 9)
            .await
            .is_empty()
    );
    assert!(site.listed("op-list:", JobState::Dead, 9).await.is_empty());

    let key = &keys[40];
    site.client
        .reschedule(key)
        .after(Duration::from_secs(60))
        .await
        .unwrap();
    let kind = site.listed("op-list:a:b:", JobState::Pending, 3).await;
    assert_eq!(kind[0], *key, "the soonest first");
    site.assert_balanced().await;
}

#[tokio::test]
async fn each_state_is_listed_and_counted() {
    let site = Site::new("op-states").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let waits = gate.clone();
    let handler = async move |job: keyfall::Job| {
        log.note(&job);
        match job.key().id() {
            "fails" => Outcome::retry("no"),
            "dies" => Outcome::bury("no"),
            _ => {
                waits.passed().await;
                Outcome::Done
            }
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    site.client
        .schedule(site.key("waits"), "")
        .after(HOUR)
        .await
        .unwrap();
    for id in ["fails", "dies", "runs"] {
        site.client.schedule(site.key(id), "").await.unwrap();
        runs.next().await;
    }
    site.reaches(&site.key("fails"), JobState::Retrying).await;
    site.reaches(&site.key("dies"), JobState::Dead).await;

    let page = site
        .client
        .list("op-states:", JobState::Pending)
        .await
        .unwrap();
    let both: Vec<_> = page
        .jobs
        .iter()
        .map(|job| (job.key().id(), job.state()))
        .collect();
    assert_eq!(both.len(), 2, "those that wait to be retried included");
    assert!(both.contains(&("waits", JobState::Pending)));
    for (id, state) in [
        ("fails", JobState::Retrying),
        ("runs", JobState::Running),
        ("dies", JobState::Dead),
    ] {
        assert_eq!(site.listed("op-states:", state, 5).await, [site.key(id)]);
    }
    assert!(
        site.listed("op-states:", JobState::Lapsed, 5)
            .await
            .is_empty()
    );
    for prefix in ["op-states:", &site.kind()] {
        let counts = site.client.count(prefix).await.unwrap();
        assert_eq!((counts.pending, counts.overdue), (2, 0));
        assert_eq!((counts.running, counts.lapsed, counts.dead), (1, 0, 1));
    }
    // The same with one id at a time.
    for (id, expected) in [
        ("waits", [1, 0, 0]),
        ("runs", [0, 1, 0]),
        ("dies", [0, 0, 1]),
    ] {
        let counts = site.client.count(&site.key(id)).await.unwrap();
        assert_eq!(
            [counts.pending, counts.running, counts.dead],
            expected,
            "{id}"
        );
    }
    gate.open();
    eventually("done", async || {
        (site.stats().await.done == 1).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_damaged_record_leaves_the_page_readable() {
    let site = Site::new("op-damaged").await;
    site.crowd(site.keys(5)).await;
    let shadow = format!("keyfall:{{{}/0}}:shadow", site.kind());
    let bad = site.key("00002");
    let _: u64 = site
        .command(&["HSET", &shadow, "00002", "what is this"])
        .await;
    let page = site
        .client
        .list("op-damaged:", JobState::Pending)
        .await
        .unwrap();
    let Page { jobs, damaged, .. } = page;
    assert_eq!((jobs.len(), damaged.len()), (4, 1));
    assert_eq!(damaged[0].name, bad);
    assert_eq!(damaged[0].error.kind(), ErrorKind::Damaged);
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_list_is_refused() {
    let site = Site::new("op-refused").await;
    for id in 0..3 {
        site.client
            .schedule(site.key(id), "")
            .after(HOUR)
            .await
            .unwrap();
    }
    let list = || site.client.list("op-refused:", JobState::Pending);
    for limit in [0, 1001] {
        let error = list().limit(limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    }
    let next = list().limit(1).await.unwrap().next.unwrap();
    let elsewhere = site
        .client
        .list("op-other:", JobState::Pending)
        .after(next.clone());
    assert_eq!(
        elsewhere.await.unwrap_err().kind(),
        ErrorKind::InvalidSetting
    );
    let otherwise = site.client.list("op-refused:", JobState::Dead).after(next);
    assert_eq!(
        otherwise.await.unwrap_err().kind(),
        ErrorKind::InvalidSetting
    );
    for text in ["", "op refused", "op-refused:it:job:1:2"] {
        let list = site.client.list(text, JobState::Pending).await.unwrap_err();
        let count = site.client.count(text).await.unwrap_err();
        let cancel = site.client.prefix(text).cancel().await.unwrap_err();
        for error in [list, count, cancel] {
            assert_eq!(error.kind(), ErrorKind::InvalidKey, "{text}");
        }
    }
    assert_eq!(site.stats().await.pending, 3);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_bulk_cancel_takes_only_jobs_with_its_prefix() {
    let site = Site::new("op-cancel").await;
    let (log, mut runs) = recorder();
    let router = Router::new().route(
        &site.pattern(),
        log.until_stopped(|| Outcome::retry("told to stop")),
    );
    let worker = site.serve(router);
    let running = site.key("1-runs");
    site.client.schedule(&running, "").await.unwrap();
    runs.next().await;
    // Its successor is cancelled with it.
    site.client
        .schedule(&running, "")
        .after(HOUR)
        .await
        .unwrap();
    site.crowd((0..700).map(|id| site.key(format_args!("1-{id}"))))
        .await;
    let kept = [
        site.key("2-stays"),
        site.begin("it:job2:1"),
        site.begin("it:jo:1"),
    ];
    site.crowd(kept.iter().cloned()).await;

    let prefix = site.key("1");
    let dry = site
        .client
        .prefix(&prefix)
        .cancel()
        .dry_run()
        .await
        .unwrap();
    assert_eq!(
        (dry.matched, dry.done, dry.running, dry.skipped),
        (701, 0, 0, 0)
    );
    assert_eq!(site.stats().await.pending, 701);

    let done = site.client.prefix(&prefix).cancel().await.unwrap();
    assert_eq!(
        (done.matched, done.done, done.running, done.skipped),
        (701, 700, 1, 0)
    );
    let stats = eventually("the run has ended", async || {
        let stats = site.stats().await;
        (stats.leased == 0).then_some(stats)
    })
    .await;
    assert_eq!(
        (stats.pending, stats.successors, stats.cancelled),
        (1, 0, 702)
    );
    let again = site.client.prefix(&prefix).cancel().await.unwrap();
    assert_eq!(again.matched, 0);
    for key in &kept {
        assert_eq!(site.view(key).await.state(), JobState::Pending);
        assert_eq!(site.command::<u64>(&["EXISTS", key]).await, 1);
    }
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn jobs_are_postponed_to_a_time_or_by_a_duration_once_each() {
    let site = Site::new("op-postpone").await;
    // The due times are spread over an hour, so the moved jobs land among the others.
    let keys: Vec<String> = site.keys(900).collect();
    let spread = |n: usize| HOUR + Duration::from_secs(4 * n as u64);
    let jobs = keys.iter().enumerate();
    let jobs = jobs.map(|(n, key)| NewJob::new(key, "").after(spread(n)));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let due = async || -> Vec<SystemTime> {
        let views = keys.iter().map(|key| site.client.get(key));
        let views = try_join_all(views).await.unwrap();
        views
            .into_iter()
            .enumerate()
            .map(|(n, view)| {
                let view = view.unwrap();
                assert!(view.steps().len() <= 2, "{n}: {:?}", view.steps());
                view.due()
            })
            .collect()
    };
    let begun = due().await;
    let all = || site.client.prefix("op-postpone:").postpone();
    let dry = all().by(HOUR).dry_run().await.unwrap();
    assert_eq!((dry.matched, due().await), (900, begun.clone()));

    let half = Duration::from_secs(1800);
    let report = all().by(half).await.unwrap();
    assert_eq!((report.matched, report.done), (900, 900));
    let moved = due().await;
    for (before, after) in begun.iter().zip(&moved) {
        assert_eq!(*before + half, *after);
    }

    // All jobs move to the middle of the old due times.
    let middle = moved[450];
    let report = all().at(middle).await.unwrap();
    assert_eq!((report.matched, report.done), (899, 899));
    assert!(due().await.iter().all(|due| *due == middle));
    let report = all().at(middle).await.unwrap();
    assert_eq!(report.matched, 0, "they are there already");
    site.client.prefix("op-postpone:").cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn fire_now_starts_waiting_jobs() {
    let site = Site::new("op-fire").await;
    let (log, mut runs) = recorder();
    site.crowd(site.keys(600)).await;
    let fire = || site.client.prefix(&site.kind()).fire_now();
    assert_eq!(fire().dry_run().await.unwrap().matched, 600);
    let report = fire().await.unwrap();
    assert_eq!((report.matched, report.done), (600, 600));
    assert_eq!(fire().await.unwrap().matched, 0, "all are due");
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let jobs = runs.take(600).await;
    assert_eq!(crate::runs::ids(&jobs).len(), 600);
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn dead_letters_are_requeued_and_deleted_by_prefix() {
    let site = Site::new("op-dead").await;
    let twice = site.key("twice");
    let keys = [
        twice.clone(),
        site.key("once"),
        twice.clone(),
        site.key("other"),
        site.begin("it:job2:1"),
    ];
    site.bury(&keys).await;
    assert_eq!(site.client.count("op-dead:").await.unwrap().dead, 5);
    let dry = site
        .client
        .prefix("op-dead:")
        .requeue()
        .dry_run()
        .await
        .unwrap();
    // The later of two letters of one name is requeued.
    assert_eq!(dry.matched, 4);

    let prefix = site.kind() + ":";
    let report = site.client.prefix(&prefix).requeue().await.unwrap();
    assert_eq!((report.matched, report.done, report.skipped), (3, 3, 0));
    for id in ["twice", "once", "other"] {
        let view = site.view(&site.key(id)).await;
        assert_eq!((view.state(), view.attempts()), (JobState::Pending, 0));
    }
    let left = site.client.dead_letters(&twice).await.unwrap();
    assert_eq!(
        left.iter()
            .map(|letter| letter.letter())
            .collect::<Vec<_>>(),
        [Some(1)]
    );

    let delete = || site.client.prefix("op-dead:").delete_dead_letters();
    assert_eq!(delete().dry_run().await.unwrap().matched, 2);
    let report = delete().await.unwrap();
    assert_eq!((report.matched, report.done), (2, 2));
    let stats = site.stats().await;
    assert_eq!((stats.dead, stats.deleted, stats.pending), (0, 1, 3));
    site.client.prefix("op-dead:").cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_call_ends_though_jobs_keep_coming() {
    let site = Site::new("op-endless").await;
    site.crowd(site.keys(300)).await;
    let (client, kind) = (site.client.clone(), site.kind());
    let stop = Gate::closed();
    let stopped = stop.clone();
    let coming = tokio::spawn(async move {
        let mut count = 0;
        let stop = stopped.passed();
        tokio::pin!(stop);
        loop {
            let jobs = (0..64).map(|n| {
                count += 1;
                // These jobs are due later than the position of any walk.
                NewJob::new(format!("{kind}:late-{count}"), "").after(HOUR + ms(n * 50))
            });
            let jobs: Vec<NewJob> = jobs.collect();
            tokio::select! {
                answers = client.schedule_many(jobs) => answers.into_iter().for_each(|answer| { answer.unwrap(); }),
                () = &mut stop => return,
            }
        }
    });
    eventually("more come", async || {
        (site.stats().await.pending > 400).then_some(())
    })
    .await;
    let report = site
        .client
        .prefix("op-endless:")
        .postpone()
        .by(HOUR)
        .await
        .unwrap();
    assert!(report.done >= 300, "{report:?}");
    let report = site.client.prefix("op-endless:").cancel().await.unwrap();
    assert!(report.done >= 300, "{report:?}");
    stop.open();
    coming.await.unwrap();
    site.client.prefix("op-endless:").cancel().await.unwrap();
    // Jobs of the last call, whose answer was not awaited, may have arrived since.
    site.client.prefix("op-endless:").cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_dropped_bulk_call_keeps_its_changes() {
    let site = Site::new("op-dropped").await;
    site.crowd(site.keys(2000)).await;
    let prefix = "op-dropped:";
    let cancel = site.client.prefix(prefix).cancel();
    let some_gone = eventually("some are gone", async || {
        (site.stats().await.cancelled > 0).then_some(())
    });
    tokio::select! {
        _ = std::future::IntoFuture::into_future(cancel) => {}
        () = some_gone => {}
    }
    site.assert_balanced().await;
    let before = site.stats().await;
    let report = site.client.prefix(prefix).cancel().await.unwrap();
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.cancelled), (0, 2000));
    assert!(report.done <= before.pending);
    site.assert_balanced().await;
}

#[tokio::test]
async fn everything_covers_every_job_of_the_server() {
    let server = keyfall::embedded::Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "op-all").await;
    for key in ["op-all:a:a:1", "other:b:b:1"] {
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    let client = &site.client;
    assert_eq!(client.everything().count().await.unwrap().pending, 2);
    let page = client.everything().list(JobState::Pending).await.unwrap();
    assert_eq!(page.jobs.len(), 2);
    client.everything().pause().await.unwrap();
    assert_eq!(client.paused().await.unwrap().kinds.len(), 2);
    client.schedule("third:c:c:1", "").await.unwrap();
    assert_eq!(client.paused().await.unwrap().kinds.len(), 3);
    client.everything().resume().await.unwrap();
    let paused = client.paused().await.unwrap();
    assert!(paused.kinds.is_empty() && paused.rules.is_empty());
    let report = client.everything().cancel().await.unwrap();
    assert_eq!((report.matched, report.done), (3, 3));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_bulk_requeue_takes_the_latest_letter_of_each_name() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "op-latest").await;
    let burier = site.serve(Router::new().route(&site.pattern(), async || Outcome::bury("no")));
    let name = site.key("name");
    let dead = async |count: u64| {
        eventually("so many are dead", async || {
            (site.stats().await.dead == count).then_some(())
        })
        .await;
    };
    site.client.schedule(&name, &1).await.unwrap();
    dead(1).await;
    // Several pages of letters lie in between.
    let between = site.keys(700).map(|key| NewJob::new(key, &0));
    site.client.schedule_many(between).await;
    dead(701).await;
    site.client.schedule(&name, &2).await.unwrap();
    dead(702).await;
    burier.stop().await;

    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let prefix = format!("{}:", site.kind());
    let all = || site.client.prefix(&prefix).requeue();
    assert_eq!(all().dry_run().await.unwrap().matched, 701);
    let report = all().await.unwrap();
    assert_eq!((report.matched, report.done), (701, 701));
    let ran = runs.take(701).await;
    let of_name = ran.iter().filter(|job| job.key().as_str() == name);
    let payloads: Vec<_> = of_name.map(|job| job.payload().clone()).collect();
    assert_eq!(payloads, ["2"]);
    let stats = site.all_ended().await;
    assert_eq!((stats.dead, stats.requeued), (1, 701));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_fails_during_a_bulk_cancel_is_cancelled_too() {
    let site = Site::new("op-slip").await;
    let (note, mut runs) = recorder();
    let gate = Gate::closed();
    let handler = {
        let gate = gate.clone();
        async move |job: keyfall::Job| {
            note.note(&job);
            gate.passed().await;
            Outcome::retry("not yet")
        }
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler.retry(fails_slowly())));
    site.client.schedule(site.key("runs"), "").await.unwrap();
    runs.next().await;
    // Enough jobs for the run to end during the walk. Its retry is due after all of them.
    let jobs = site
        .keys(10_000)
        .map(|key| NewJob::new(key, "").after(HOUR / 2));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let first = site.key("00000");
    let prefix = format!("{}:", site.kind());
    let (report, ()) = tokio::join!(site.client.prefix(&prefix).cancel().into_future(), async {
        eventually("it has begun", async || {
            let view = site.client.get(&first).await.unwrap();
            view.is_none().then_some(())
        })
        .await;
        gate.open();
    });
    let report = report.unwrap();
    let counts = (report.matched, report.done, report.running);
    assert_eq!(counts, (10_001, 10_000, 1), "{report:?}");
    let stats = site.all_ended().await;
    assert_eq!((stats.cancelled, stats.failed), (10_001, 0), "{stats:?}");
    worker.stop().await;
    site.assert_balanced().await;
}
