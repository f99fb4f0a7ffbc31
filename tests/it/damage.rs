//! Damage to stored data while a worker runs: a damaged job stops no other job; it is reported and,
//! if possible, buried with its reason.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{Handler, JobState, NewJob, Outcome, Router};

use crate::log::Log;
use crate::runs::{Gate, Recorder, eventually, ids, recorder};
use crate::site::{HOUR, Running, Site, fails_slowly, ms};
use crate::workers::{SECOND, STEADY};

impl Site {
    /// A key of the ledger of this site's kind.
    fn ledger_key(&self, part: &str) -> String {
        format!("keyfall:{{{}/0}}:{part}", self.kind())
    }

    /// A kind without damage.
    fn other_kind(&self) -> String {
        format!("{}:it:other", self.app)
    }

    /// A worker with both kinds.
    fn serves_both(&self, note: &Recorder, gate: &Gate, lease: Duration) -> Running {
        let (inner, gate) = (note.clone(), gate.clone());
        let handler = async move |job: keyfall::Job| {
            inner.note(&job);
            match job.key().id().split('-').next().unwrap() {
                "runs" => gate.passed().await,
                "fails" if job.attempt() == 1 => return Outcome::retry("not yet"),
                "dies" => return Outcome::bury("no"),
                _ => {}
            }
            Outcome::Done
        };
        let router = Router::new()
            .route(&self.pattern(), handler.retry(fails_slowly()))
            .route(&format!("{}:{{id}}", self.other_kind()), note.done());
        Running::start(self.worker(router).lease(lease))
    }
}

/// Makes jobs in every state, deletes a key of the ledger, and checks that all jobs go on that are
/// not lost with the key.
async fn loses(part: &str) {
    let site = Site::new(&format!("damage-{part}")).await;
    let (note, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serves_both(&note, &gate, 2 * SECOND);
    let client = &site.client;
    for id in ["runs-1", "runs-2", "fails-1", "dies-1"] {
        client.schedule(site.key(id), id).await.unwrap();
    }
    runs.take(4).await;
    site.reaches(&site.key("dies-1"), JobState::Dead).await;
    eventually("it waits", async || {
        let view = client.get(site.key("fails-1")).await.unwrap()?;
        (view.state() == JobState::Retrying).then_some(())
    })
    .await;
    client.schedule(site.key("runs-2"), "next").await.unwrap();
    for n in 0..20 {
        let later = client.schedule(site.key(format_args!("waits-{n}")), "");
        later.after(ms(500)).await.unwrap();
        let other = client.schedule(format!("{}:{n}", site.other_kind()), "");
        other.after(ms(600)).await.unwrap();
    }
    let removed: u32 = site.command(&["DEL", &site.ledger_key(part)]).await;
    assert_eq!(removed, 1, "{part}");

    // The damage hinders neither another kind nor new jobs.
    for n in 0..10 {
        let new = client.schedule(site.key(format_args!("new-{n}")), "");
        new.after(ms(100)).await.unwrap();
    }
    let mut ran = Vec::new();
    eventually("the others and the new ones run", async || {
        ran.extend(ids(&runs.rest()));
        let count = |of: &dyn Fn(&str) -> bool| ran.iter().filter(|id| of(id)).count();
        let new = count(&|id| id.starts_with("new-"));
        let others = count(&|id| id.parse::<u32>().is_ok());
        (new == 10 && others == 20).then_some(())
    })
    .await;
    gate.open();
    // An audit reports a missing part, and repairs the damage.
    eventually("the rest is buried or has ended", async || {
        let report = client.audit(&site.kind()).repair().await.unwrap();
        let stats = report.stats;
        // The failed job waits for an hour.
        (stats.leased + stats.successors == 0 && stats.overdue == 0 && stats.pending <= 1)
            .then_some(())
    })
    .await;
    ran.extend(ids(&runs.rest()));
    // Each job has run, or is stored with the reason why it has not.
    for n in 0..20 {
        let id = format!("waits-{n}");
        if !ran.contains(&id) {
            let letter = site.view(&site.key(&id)).await;
            assert_eq!(letter.state(), JobState::Dead, "{part}: {letter:?}");
            let reason = letter.last_error().unwrap();
            assert!(
                reason.contains("an audit found") || reason.contains("holds no record"),
                "{reason}"
            );
        }
    }
    let report = client.audit(&site.kind()).await.unwrap();
    assert_eq!(report.flawed.len(), 0, "{part}: {report:?}");
    // A job that left no trace is missing from the books, and the audit reports that, too.
    let balances = !matches!(part, "next" | "stats");
    assert_eq!(report.is_clean(), balances, "{part}: {report:?}");
    client
        .prefix(&format!("{}:", site.app))
        .cancel()
        .await
        .unwrap();
    worker.stop().await;
    if balances {
        site.assert_balanced().await;
    }
}

macro_rules! loses {
    ($($test:ident: $part:literal;)*) => {$(
        #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $test() {
            loses($part).await;
        }
    )*};
}

loses! {
    a_worker_survives_the_loss_of_its_due_times: "due";
    a_worker_survives_the_loss_of_its_records: "shadow";
    a_worker_survives_the_loss_of_its_deadlines: "leased";
    a_worker_survives_the_loss_of_its_leases: "lease";
    a_worker_survives_the_loss_of_its_successors: "next";
    a_worker_survives_the_loss_of_the_list_of_the_dead: "dead";
    a_worker_survives_the_loss_of_its_dead_letters: "grave";
    a_worker_survives_the_loss_of_its_counters: "stats";
    a_worker_survives_the_loss_of_what_calls_were_answered: "calls";
    a_worker_survives_the_loss_of_the_list_of_its_lanes: "lanes";
}

#[tokio::test]
async fn unreadable_records_are_buried_or_left_and_delay_no_other_job() {
    let log = Log::read();
    let site = Site::new("damage-records").await;
    let shadow = site.ledger_key("shadow");
    for n in 0..20 {
        let call = site.client.schedule(site.key(format_args!("good-{n}")), "");
        call.after(ms(400)).await.unwrap();
    }
    let mut zeros = vec![b'{'; 70_000];
    zeros.extend([0, 255]);
    let bad: [(&str, &[u8]); 7] = [
        ("empty", b""),
        ("text", b"not ours"),
        ("cut", b"{\"v\":1"),
        ("no-times", b"{\"v\":1}\n"),
        ("binary", b"\x00\xff\n\n\n"),
        ("deep", &zeros),
        ("newer", b"{\"v\":99}\n1763712345678\npayload"),
    ];
    for (id, record) in bad {
        let call = site.client.schedule(site.key(id), "").after(ms(300));
        call.await.unwrap();
        let mut put = redis::cmd("HSET");
        put.arg(&shadow).arg(id).arg(record);
        let _: u32 = put.query_async(&mut site.redis()).await.unwrap();
    }
    let (note, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), note.done()));
    runs.take(20).await;
    for (id, _) in bad {
        if id == "newer" {
            let pushed = eventually("it is left to others", async || {
                let listed = site
                    .client
                    .list(&site.key(id), JobState::Pending)
                    .await
                    .unwrap();
                listed.damaged.first().map(|found| found.error.to_string())
            })
            .await;
            assert!(pushed.contains("99"), "{pushed}");
            continue;
        }
        let letter = eventually("it is buried", async || {
            // Until then the job cannot be shown.
            let view = site.client.get(site.key(id)).await.ok()??;
            (view.state() == JobState::Dead).then_some(view)
        })
        .await;
        let reason = letter.last_error().unwrap();
        assert!(reason.contains("record"), "{id}: {reason}");
    }
    eventually("each is told", async || {
        (log.with("the job cannot run, and becomes a dead letter")
            .len()
            == bad.len() - 1
            && log.with("a newer version of Keyfall wrote this job").len() == 1)
            .then_some(())
    })
    .await;
    runs.assert_no_more();
    eventually("all that could be run is done", async || {
        let stats = site.stats().await;
        ((stats.done, stats.buried) == (20, 6)).then_some(())
    })
    .await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_worker_goes_on_when_its_database_is_emptied() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "damage-flushed").await;
    let (note, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serves_both(&note, &gate, STEADY);
    site.client.schedule(site.key("runs-1"), "").await.unwrap();
    runs.next().await;
    for key in site.keys(20) {
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    let () = site.command(&["FLUSHDB"]).await;
    // Old jobs are gone, running ones are told to stop, and new ones work like any other.
    for key in site.keys(20) {
        site.client.schedule(key, "").after(ms(200)).await.unwrap();
    }
    let mut ran = ids(&runs.take(20).await);
    ran.dedup();
    assert_eq!(ran.len(), 20);
    gate.open();
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (20, 20), "{stats:?}");
    eventually("it is known as an instance again", async || {
        let instances = site.client.instances().await.unwrap();
        (instances.len() == 1).then_some(())
    })
    .await;
    // A worker that starts now, and whose pattern does not name the kind, finds it.
    worker.stop().await;
    let wild = Router::new().route(&format!("{}:*:*:{{id}}", site.app), note.done());
    let worker = site.serve(wild);
    site.client.schedule(site.key("late"), "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "late");
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_wildcard_route_finds_a_job_scheduled_after_a_flush() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "damage-unknown").await;
    // The client takes the kind for known from now on.
    let call = site.client.schedule(site.key("before"), "").after(HOUR);
    call.await.unwrap();
    for way in ["alone", "among-many", "if-absent"] {
        let () = site.command(&["FLUSHDB"]).await;
        let key = site.key(way);
        match way {
            "alone" => drop(site.client.schedule(&key, "").await.unwrap()),
            "if-absent" => drop(site.client.schedule(&key, "").if_absent().await.unwrap()),
            _ => {
                let jobs = [NewJob::new(&key, "")];
                let answers = site.client.schedule_many(jobs).await;
                assert!(answers[0].is_ok(), "{answers:?}");
            }
        }
        // No further call informs a worker.
        let (note, mut runs) = recorder();
        let wild = Router::new().route(&format!("{}:*:*:{{id}}", site.app), note.done());
        let worker = site.serve(wild);
        assert_eq!(runs.next().await.key().id(), way);
        site.all_ended().await;
        worker.stop().await;
        site.assert_balanced().await;
    }
}
