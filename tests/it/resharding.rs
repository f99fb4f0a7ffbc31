//! Kinds with several shards, and reshards under load. Simultaneous changes of the same jobs during
//! a reshard are tested in [`race`](crate::race).

use std::collections::BTreeSet;
use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, ErrorKind, JobState, NewJob, Outcome, Placed, Requeued, Rescheduled,
    RetryPolicy, Router, Updated, Worker, shard_of,
};
use keyfall_testing::proxies::FreezingProxy;

use crate::runs::{Gate, eventually, recorder};
use crate::site::{Running, Site, ms, patient};

const HOUR: Duration = Duration::from_secs(3600);

/// In the year 2100, Unix ms.
pub(crate) const FAR: u64 = 4_102_444_800_000;

impl Site {
    async fn reshard(&self, shards: u16) {
        let resharded = self.client.reshard(&self.kind(), shards).await.unwrap();
        assert_eq!(resharded.to, shards);
        assert_eq!(
            self.client.shards(&self.kind()).await.unwrap(),
            (shards, None)
        );
    }

    /// The number of pending jobs in each ledger of the kind.
    async fn pending_by_ledger(&self) -> Vec<u64> {
        let pattern = format!("keyfall:{{{}/*}}:due", self.kind());
        let mut names: Vec<String> = self.command(&["KEYS", &pattern]).await;
        names.sort();
        let mut counts = Vec::new();
        for name in names {
            counts.push(self.command(&["ZCARD", &name]).await);
        }
        counts
    }

    /// Takes a job with this due time out of the first ledger, as a client does that dies before it
    /// puts the job elsewhere.
    pub(crate) async fn is_taken_along(&self, id: &str, due: u64) {
        let part = |part: &str| format!("keyfall:{{{}/0}}:{part}", self.kind());
        let record: String = self.command(&["HGET", &part("shadow"), id]).await;
        let _: u64 = self.command(&["ZREM", &part("due"), id]).await;
        let _: u64 = self.command(&["HDEL", &part("shadow"), id]).await;
        let out = ["HINCRBY", &part("stats"), "moved_out", "1"];
        let _: u64 = self.command(&out).await;
        let _: u64 = self
            .command(&["HINCRBY", &part("calls"), "batch", "1"])
            .await;
        let kept = format!("{due} {record}");
        let _: u64 = self.command(&["HSET", &part("leaving"), id, &kept]).await;
    }

    /// Begins to reshard, and stops as soon as some jobs were moved.
    pub(crate) async fn begin_to_reshard(&self, shards: u16) {
        let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
        let kind = self.kind();
        let reshard = self.client.reshard(&kind, shards);
        let reshard = reshard.on_progress(move |it| {
            let _ = tell.send(it.moved);
        });
        tokio::select! {
            done = reshard => panic!("it has come to its end: {done:?}"),
            () = async { while told.recv().await.expect("it goes on") == 0 {} } => {}
        }
        let (to, from) = self.client.shards(&kind).await.unwrap();
        assert_eq!(to, shards);
        assert!(from.is_some());
    }
}

#[tokio::test]
async fn jobs_are_spread_and_every_call_finds_them() {
    let site = Site::new("shards-calls").await;
    for key in site.keys(40) {
        site.client.schedule(&key, &1).after(HOUR).await.unwrap();
    }
    for shards in [4, 3, 8, 1] {
        site.reshard(shards).await;
        let counts = site.pending_by_ledger().await;
        assert_eq!(counts.iter().sum::<u64>(), 40, "{counts:?}");
        assert_eq!(counts.len(), usize::from(shards), "{counts:?}");
        // A client that does not know of the reshard yet, and one that does.
        let other = Client::connect(&site.url).await.unwrap();
        for client in [&site.client, &other] {
            let listed = client.list(&site.kind(), JobState::Pending).await.unwrap();
            let keys: Vec<&str> = listed.jobs.iter().map(|job| job.key().as_str()).collect();
            let all: Vec<String> = site.keys(40).collect();
            assert_eq!(
                keys, all,
                "{shards} shards, in the order in which they are due"
            );
            for key in &all {
                assert!(client.get(key).await.unwrap().is_some(), "{key}");
                let updated = client.update_payload(key, &2).await.unwrap();
                assert!(matches!(updated, Updated::Updated(_)), "{key}: {updated:?}");
                let moved = client.reschedule(key).after(HOUR).await.unwrap();
                assert!(matches!(moved, Rescheduled::Moved(_)), "{key}: {moved:?}");
                let again = client.schedule(key, &3).after(HOUR).await.unwrap();
                assert_eq!(again.placed, Placed::Replaced, "{key}");
            }
            assert_eq!(client.count(&site.kind()).await.unwrap().pending, 40);
        }
    }
    site.reshard(4).await;
    for key in site.keys(40).take(10) {
        assert_eq!(
            site.client.cancel(&key).await.unwrap(),
            Cancelled::Cancelled
        );
    }
    let rest = site.client.prefix(&site.kind()).cancel().await.unwrap();
    assert_eq!(rest.done, 30);
    assert!(site.client.audit(&site.kind()).await.unwrap().is_clean());
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_list_of_several_shards_is_one_list() {
    let site = Site::new("shards-list").await;
    let jobs = site.keys(300).enumerate().map(|(number, key)| {
        // Some of the jobs have the same due time.
        let delay = HOUR + Duration::from_secs(number as u64 / 7);
        NewJob::new(key, &number).after(delay)
    });
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    site.reshard(5).await;
    for limit in [1, 7, 100] {
        let mut seen = Vec::new();
        let mut next = None;
        loop {
            let list = site
                .client
                .list(&site.kind(), JobState::Pending)
                .limit(limit);
            let page = match next.take() {
                Some(cursor) => list.after(cursor).await.unwrap(),
                None => list.await.unwrap(),
            };
            assert!(page.jobs.len() <= limit);
            seen.extend(
                page.jobs
                    .iter()
                    .map(|job| (job.due(), job.key().to_string())),
            );
            next = page.next;
            if next.is_none() {
                break;
            }
        }
        assert!(seen.is_sorted(), "{limit}");
        let keys: BTreeSet<String> = seen.iter().map(|(_, key)| key.clone()).collect();
        assert_eq!((seen.len(), keys.len()), (300, 300), "{limit}");
    }
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_of_all_shards_run_when_they_are_due() {
    let site = Site::new("shards-run").await;
    let (recorder, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), recorder.done()));
    worker.ready().await;
    site.client.schedule(site.key("first"), &0).await.unwrap();
    runs.next().await;
    site.reshard(4).await;
    let jobs = site
        .keys(100)
        .map(|key| NewJob::new(key, &0).after(ms(500)));
    for answer in site.client.schedule_many(jobs).await {
        assert!(answer.unwrap().unwrap().armed);
    }
    let keys: BTreeSet<String> = runs
        .take(100)
        .await
        .iter()
        .map(|job| job.key().to_string())
        .collect();
    assert_eq!(keys.len(), 100);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.lapsed), (101, 0));
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_stays_where_it_is_until_it_is_settled() {
    let site = Site::new("shards-runs").await;
    let (recorder, mut runs) = recorder();
    let gate = Gate::closed();
    let router = Router::new().route(&site.pattern(), recorder.behind(&gate));
    let worker = site.serve(router);
    let ids: Vec<String> = (0..12).map(|number| format!("run-{number}")).collect();
    for id in &ids {
        site.client.schedule(site.key(id), &0).await.unwrap();
    }
    runs.take(ids.len()).await;
    let client = site.client.clone();
    let kind = site.kind();
    let (tell, mut told) = tokio::sync::mpsc::unbounded_channel();
    let reshard = tokio::spawn(async move {
        let told = move |it: keyfall::Resharding| {
            let _ = tell.send(it.running);
        };
        client.reshard(&kind, 4).on_progress(told).await
    });
    let away = ids.iter().filter(|id| shard_of(id, 4) != 0).count();
    while told.recv().await.expect("it waits") < away as u64 {}
    for (number, id) in ids.iter().enumerate() {
        let key = site.key(id);
        let view = site.view(&key).await;
        assert_eq!(view.state(), JobState::Running);
        match number % 3 {
            0 => {
                let next = site.client.schedule(&key, &1).after(HOUR).await.unwrap();
                assert_eq!(next.placed, Placed::Succeeds);
            }
            1 => {
                let cancelled = site.client.cancel(&key).await.unwrap();
                assert_eq!(cancelled, Cancelled::Running);
            }
            _ => {}
        }
    }
    gate.open();
    assert_eq!(reshard.await.unwrap().unwrap().to, 4);
    eventually("only what follows is there", async || {
        let stats = site.stats().await;
        (stats.leased == 0 && stats.successors == 0).then_some(())
    })
    .await;
    assert_eq!(site.stats().await.pending, 4);
    let report = site.client.audit(&site.kind()).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupted_reshard_hides_no_job_and_can_be_continued() {
    let site = Site::new("shards-half").await;
    let keys: Vec<String> = site.keys(600).collect();
    let jobs = keys.iter().map(|key| NewJob::new(key, &0).after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    // A client that uses a kind with one shard follows it to its new shards.
    site.reshard(2).await;
    site.begin_to_reshard(4).await;
    let other = Client::connect(&site.url).await.unwrap();
    for key in keys.iter().step_by(7) {
        assert!(other.get(key).await.unwrap().is_some(), "{key}");
    }
    let replaced = keys.iter().map(|key| NewJob::new(key, &1).after(HOUR));
    for answer in other.schedule_many(replaced).await {
        assert_eq!(answer.unwrap().unwrap().placed, Placed::Replaced);
    }
    let error = other.reshard(&site.kind(), 5).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    assert!(
        error.to_string().contains("being resharded to 4 shards"),
        "{error}"
    );
    // A call on a whole kind meets each job once.
    let half = format!("{}:000", site.kind());
    let cancelled = other.prefix(&half).cancel().await.unwrap();
    assert_eq!(cancelled.done, 100);
    let postponed = other
        .prefix(&site.kind())
        .postpone()
        .by(HOUR)
        .await
        .unwrap();
    assert_eq!((postponed.matched, postponed.done), (500, 500));
    site.reshard(4).await;
    assert_eq!(site.stats().await.pending, 500);
    assert!(site.client.audit(&site.kind()).await.unwrap().is_clean());
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letters_are_moved_with_their_numbers() {
    let site = Site::new("shards-dead").await;
    let (recorder, mut runs) = recorder();
    let once = RetryPolicy::none();
    let handler = recorder.then(|_| Outcome::bury("no"));
    let worker =
        site.serve(Router::new().route(&site.pattern(), keyfall::Handler::retry(handler, once)));
    let keys: Vec<String> = site.keys(20).collect();
    for round in 0..3 {
        for key in &keys {
            site.client.schedule(key, &round).await.unwrap();
        }
        runs.take(keys.len()).await;
        site.all_ended().await;
    }
    worker.stop().await;
    let numbers = async |key: &str| -> Vec<u64> {
        let letters = site.client.dead_letters(key).await.unwrap();
        letters
            .iter()
            .filter_map(|letter| letter.letter())
            .collect()
    };
    let mut before = Vec::new();
    for key in &keys {
        before.push(numbers(key).await);
    }
    site.reshard(4).await;
    for (key, before) in keys.iter().zip(&before) {
        assert_eq!(numbers(key).await, *before, "{key}");
    }
    assert_eq!(site.stats().await.dead, 60);
    // The job is requeued, moved again, and dies once more: its letter has a new number.
    let requeued = site.client.requeue(&keys[0]).after(HOUR).await.unwrap();
    assert!(matches!(requeued, Requeued::Requeued(_)));
    assert!(site.client.delete_dead_letter(&keys[1]).await.unwrap());
    site.reshard(2).await;
    assert_eq!(numbers(&keys[0]).await, before[0][1..]);
    assert_eq!(numbers(&keys[1]).await, before[1][1..]);
    let worker =
        site.serve(Router::new().route(&site.pattern(), recorder.then(|_| Outcome::bury("again"))));
    site.client.fire_now(&keys[0]).await.unwrap();
    site.all_ended().await;
    let after = numbers(&keys[0]).await;
    assert_eq!(after[1..], before[0][1..]);
    assert!(!before[0].contains(&after[0]), "{after:?}");
    assert!(site.client.audit(&site.kind()).await.unwrap().is_clean());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pause_and_a_resume_cover_all_shards_and_new_ones() {
    let site = Site::new("shards-pause").await;
    let (recorder, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), recorder.done()));
    site.client.schedule(site.key("first"), &0).await.unwrap();
    runs.next().await;
    site.client.prefix(&site.kind()).pause().await.unwrap();
    site.reshard(4).await;
    for key in site.keys(20) {
        site.client.schedule(&key, &0).await.unwrap();
    }
    let stats = site.stats().await;
    assert_eq!((stats.pending, stats.paused), (20, true));
    site.client.prefix(&site.kind()).resume().await.unwrap();
    runs.take(20).await;
    assert_eq!(site.all_ended().await.done, 21);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_invalid_reshard_is_refused_with_the_remedy() {
    let site = Site::new("shards-refused").await;
    let refused = async |kind: &str, shards, part: &str| {
        let error = site.client.reshard(kind, shards).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    };
    refused("no kind", 2, "is not a kind").await;
    refused(&site.kind(), 2, "was never used").await;
    site.client
        .schedule(site.key("job"), &0)
        .after(HOUR)
        .await
        .unwrap();
    refused(&site.kind(), 0, "from 1 to 256 shards").await;
    refused(&site.kind(), 257, "from 1 to 256 shards").await;
    let _: u64 = site
        .command(&["HSET", "keyfall:kinds", &site.kind(), "many"])
        .await;
    refused(&site.kind(), 2, "has the layout \"many\"").await;
    let _: u64 = site
        .command(&["HSET", "keyfall:kinds", &site.kind(), "1"])
        .await;
    site.reshard(1).await;
    site.client.cancel(site.key("job")).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_command_shows_and_changes_the_number_of_shards() {
    let site = Site::new("shards-cli").await;
    for key in site.keys(20) {
        site.client.schedule(&key, &0).after(HOUR).await.unwrap();
    }
    let kind = site.kind();
    let told = site.run(&format!("reshard {kind} --json")).await.value();
    assert_eq!(told, serde_json::json!({ "kind": kind, "shards": 1 }));
    let ran = site.run(&format!("reshard {kind} --to 4")).await;
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("has 4 shards"), "{ran:?}");
    let away = site.keys(20).filter(|key| {
        let id = key.rsplit(':').next().unwrap();
        shard_of(id, 4) != 0
    });
    assert!(
        ran.out.contains(&format!("{} moved", away.count())),
        "{ran:?}"
    );
    let told = site.run(&format!("reshard {kind}")).await;
    assert_eq!(told.out, format!("{kind} has 4 shards\n"));
    let other = format!("{}:it:other", site.app);
    let ran = site.run(&format!("reshard {other} --to 2")).await;
    ran.fails(2, "was never used");
    let ran = site.run(&format!("reshard {kind} --to 0")).await;
    ran.fails(2, "1..=256");
    site.client.prefix(&kind).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_on_the_way_in_a_killed_reshard_run() {
    let site = Site::new("shards-killed").await;
    let jobs = site.keys(2000).map(|key| NewJob::new(key, &0).after(HOUR));
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let part = |part: &str| format!("keyfall:{{{}/0}}:{part}", site.kind());
    site.begin_to_reshard(2).await;
    // One job was taken out of its ledger, fell due, and no client put it where it belongs.
    let rest: Vec<String> = site.command(&["ZRANGE", &part("due"), "0", "-1"]).await;
    let mut rest = rest.into_iter();
    let id = rest.find(|id| shard_of(id, 2) == 1).expect("not all moved");
    site.is_taken_along(&id, 1).await;
    let (recorder, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), recorder.done()));
    assert_eq!(runs.next().await.key().id(), id);
    worker.stop().await;
    site.reshard(2).await;
    site.client.prefix(&site.kind()).cancel().await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bulk_call_reaches_the_jobs_of_a_reshard_that_begins_during_the_call() {
    // Before it scans the only shard, and between a page and the call for its jobs.
    for (moment, app) in [(":leased", "shards-bulk"), ("job-17", "shards-page")] {
        let server = Embedded::start().await.unwrap();
        let proxy = FreezingProxy::to(&server).await;
        let site = Site::at(&server.url(), app).await;
        for n in 0..40 {
            let call = site.client.schedule(site.key(format!("job-{n}")), "");
            call.after(HOUR).await.unwrap();
        }
        let (client, kind) = (patient(&proxy.url).await, site.kind());
        proxy.freeze_before(moment);
        let cancelling = tokio::spawn(async move { client.prefix(&kind).cancel().await });
        eventually("it looks", async || proxy.is_frozen().then_some(())).await;
        site.reshard(4).await;
        proxy.thaw();
        let report = cancelling.await.unwrap().unwrap();
        assert_eq!((report.done, report.skipped), (40, 0), "{moment}");
        assert_eq!(site.pending_by_ledger().await.iter().sum::<u64>(), 0);
        site.assert_balanced().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_durable_call_with_a_stale_layout_finds_its_ledger_at_once() {
    let site = Site::new("shards-durable").await;
    // The call fails if it keeps asking the wrong ledger.
    let client = Client::connect(&site.url).await.unwrap();
    let (known, other) = (site.key("known"), site.key("other"));
    for (key, shards) in [(&known, 4), (&other, 2)] {
        let call = client.schedule(key, "").after(HOUR);
        assert!(call.durable(0).await.unwrap().reached.unwrap().is_met);
        site.reshard(shards).await;
        let cancelled = client.cancel(key).durable(0).await.unwrap();
        assert_eq!(cancelled.0, Cancelled::Cancelled, "{shards}");
    }
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_that_moves_during_a_lookup_is_found() {
    let server = Embedded::start().await.unwrap();
    let proxy = FreezingProxy::to(&server).await;
    let site = Site::at(&server.url(), "shards-taken").await;
    let mut ids = (0..).map(|id| id.to_string());
    let id = ids.find(|id| shard_of(id, 2) == 1).unwrap();
    site.client
        .schedule(site.key(&id), "")
        .after(HOUR)
        .await
        .unwrap();
    let (client, kind) = (patient(&proxy.url).await, site.kind());
    proxy.freeze_before("HSCAN");
    let resharding = tokio::spawn(async move { client.reshard(&kind, 2).await });
    eventually("it looks", async || proxy.is_frozen().then_some(())).await;
    site.is_taken_along(&id, FAR).await;
    proxy.thaw();
    resharding.await.unwrap().unwrap();
    assert_eq!(site.client.shards(&site.kind()).await.unwrap(), (2, None));
    let found = site.client.get(site.key(&id)).await.unwrap();
    assert!(found.is_some(), "nobody else would look for it");
    site.client.cancel(site.key(&id)).await.unwrap();
    site.assert_balanced().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_serves_shards_that_it_learns_of_by_a_refusal() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "shards-learned").await;
    let mut ids = (0..).map(|id| id.to_string());
    let id = ids.find(|id| shard_of(id, 2) == 1).unwrap();
    site.client
        .schedule(site.key(&id), "")
        .after(HOUR)
        .await
        .unwrap();
    site.reshard(2).await;
    // No client can read the list of kinds, so it does not help to find ledgers.
    let _: u64 = site.command(&["DEL", "keyfall:kinds"]).await;
    let _: String = site.command(&["SET", "keyfall:kinds", "damaged"]).await;
    let client = patient(&server.url()).await;
    let (recorder, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), recorder.done());
    let worker = Running::start(Worker::new(client.clone(), router));
    worker.ready().await;
    // The first ledger tells the client of the second one.
    client.cancel(site.key("none")).await.unwrap_err();
    site.client.fire_now(site.key(&id)).await.unwrap();
    assert_eq!(runs.next().await.key().id(), id);
    worker.stop().await;
}
