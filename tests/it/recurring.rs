//! Recurring jobs: the end of each run stores the next occurrence.

use std::time::{Duration, SystemTime};

use keyfall::target::Pull;
use keyfall::{
    Busy, Cancelled, Declared, ErrorKind, Job, JobState, KeptJob, NewJob, Outcome, RetryPolicy,
    Router, Rule, RuleChange, Settled,
};

use crate::runs::{Gate, PATIENCE, eventually, recorder};
use crate::site::{Site, ms};
use crate::workers::SECOND;

/// A rule whose times are far apart, so that only a test makes its job due.
fn hourly() -> Rule {
    Rule::every(Duration::from_secs(3600)).unwrap()
}

fn number(job: &Job) -> u64 {
    job.occurrence().expect("the job recurs").number
}

#[tokio::test]
async fn a_recurring_job_runs_at_each_time_of_its_rule_until_the_rule_ends() {
    let site = Site::new("recur-runs").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let rule = Rule::every(SECOND).unwrap().runs(3).unwrap();
    let scheduled = site.client.schedule(&key, "tick").recurring(rule);
    let first = scheduled.await.unwrap().due;
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let jobs = runs.take(3).await;
    let mut last = SystemTime::UNIX_EPOCH;
    for (job, expected) in jobs.iter().zip(1..) {
        let occurrence = job.occurrence().unwrap();
        assert_eq!(occurrence.number, expected);
        assert_eq!((job.attempt(), &job.payload()[..]), (1, &b"\"tick\""[..]));
        assert!(job.due() >= occurrence.scheduled_for);
        assert!(occurrence.scheduled_for > last, "no time has two runs");
        last = occurrence.scheduled_for;
    }
    // A job that reaches Redis after its time is due at once.
    assert_eq!(jobs[0].due(), first);
    let keys: Vec<_> = jobs.iter().map(Job::idempotency_key).collect();
    assert!(keys[0] != keys[1] && keys[1] != keys[2]);
    let stats = site.all_ended().await;
    assert_eq!((stats.accepted, stats.done), (3, 3));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_occurrence_that_dies_leaves_its_letter_and_the_next() {
    let site = Site::new("recur-dies").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let failing = log.then(|_| Outcome::retry("no"));
    let worker = site.serve(Router::new().route(&site.pattern(), failing));
    let job = site.client.schedule(&key, "").recurring(hourly());
    job.retry(RetryPolicy::fixed(ms(10)).unwrap().attempts(2))
        .await
        .unwrap();
    site.client.fire_now(&key).await.unwrap();
    let attempts: Vec<_> = runs.take(2).await.iter().map(Job::attempt).collect();
    assert_eq!(attempts, [1, 2], "the retries of an occurrence are its own");
    let has_died = async || (site.stats().await.dead == 1).then_some(());
    eventually("a dead letter", has_died).await;
    let next = site.view(&key).await;
    assert_eq!((next.state(), next.attempts()), (JobState::Pending, 0));
    assert_eq!(next.occurrence().unwrap().number, 2);
    assert_eq!(next.last_error(), None);
    let letters = site.client.dead_letters(&key).await.unwrap();
    assert_eq!(letters[0].occurrence().unwrap().number, 1);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_before_its_time_leaves_the_times_of_the_rule_as_they_are() {
    let site = Site::new("recur-fired").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let job = site.client.schedule(&key, "").recurring(hourly());
    let due = job.await.unwrap().due;
    for expected in 1..=3 {
        site.client.fire_now(&key).await.unwrap();
        assert_eq!(number(&runs.next().await), expected);
        let is_next = async || {
            let view = site.client.get(&key).await.unwrap();
            view.filter(|view| view.state() == JobState::Pending)
        };
        eventually("the next occurrence", is_next).await;
        assert_eq!(site.view(&key).await.due(), due);
    }
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_cancel_ends_the_rule_while_the_job_waits_and_while_it_runs() {
    let site = Site::new("recur-cancel").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let (waits, running) = (site.key("waits"), site.key("runs"));
    for key in [&waits, &running] {
        let job = site.client.schedule(key, "").recurring(hourly());
        job.await.unwrap();
    }
    let answer = site.client.cancel(&waits).await.unwrap();
    assert_eq!(answer, Cancelled::Cancelled);
    site.client.fire_now(&running).await.unwrap();
    runs.next().await;
    let answer = site.client.cancel(&running).await.unwrap();
    assert_eq!(answer, Cancelled::Running);
    gate.open();
    site.all_ended().await;
    assert!(site.client.get(&running).await.unwrap().is_none());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_schedule_during_a_run_replaces_the_rule() {
    let site = Site::new("recur-replace").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key("a");
    let job = site.client.schedule(&key, "").recurring(hourly());
    job.await.unwrap();
    site.client.fire_now(&key).await.unwrap();
    runs.next().await;
    let daily = Rule::cron("@daily").unwrap();
    let job = site.client.schedule(&key, "new").recurring(daily.clone());
    let due = job.await.unwrap().due;
    gate.open();
    let view = site.reaches(&key, JobState::Pending).await;
    assert_eq!((view.due(), &view.payload()[..]), (due, &b"\"new\""[..]));
    let rule = view.occurrence().unwrap().rule;
    assert_eq!(rule, serde_json::to_value(&daily).unwrap());
    // Without a rule it is a single job again.
    site.client.schedule(&key, "last").await.unwrap();
    assert_eq!(runs.next().await.occurrence(), None);
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_payload_that_is_changed_during_a_run_is_that_of_the_next_occurrence() {
    let site = Site::new("recur-update").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let key = site.key("a");
    let job = site.client.schedule(&key, "old").header("tenant", "7");
    job.recurring(hourly()).await.unwrap();
    site.client.fire_now(&key).await.unwrap();
    runs.next().await;
    site.client.update_payload(&key, "new").await.unwrap();
    gate.open();
    let view = site.reaches(&key, JobState::Pending).await;
    assert_eq!(&view.payload()[..], b"\"new\"");
    assert_eq!(view.headers().get("tenant"), Some("7"));
    worker.stop().await;
}

#[tokio::test]
async fn a_consumer_that_settles_by_the_lease_leaves_the_next_occurrence() {
    let site = Site::new("recur-pull").await;
    let pull = Pull::new();
    let worker = site.serve(Router::new().route(&site.pattern(), pull.clone()));
    let key = site.key("a");
    let job = site.client.schedule(&key, "").recurring(hourly());
    job.await.unwrap();
    for (outcome, settled) in [
        (Outcome::Done, Settled::Done),
        (Outcome::bury("no"), Settled::Buried(1)),
    ] {
        site.client.fire_now(&key).await.unwrap();
        let mut pulled = pull.pull(&[""; 0], 1, PATIENCE).await.unwrap();
        let (_, lease) = pulled.pop().unwrap().accept().unwrap();
        let answer = site.client.settle(&lease, outcome.clone()).await.unwrap();
        assert_eq!(answer, settled);
        assert_eq!(site.view(&key).await.state(), JobState::Pending);
        let again = site.client.settle(&lease, outcome).await.unwrap();
        assert_eq!(again, Settled::Gone);
    }
    assert_eq!(site.view(&key).await.occurrence().unwrap().number, 3);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_makes_room_for_the_next_time_if_its_rule_says_so() {
    let site = Site::new("recur-room").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let worker = site.serve(Router::new().route(&site.pattern(), log.stuck()));
    let rule = Rule::every(SECOND).unwrap().when_busy(Busy::Replace);
    let job = site.client.schedule(&key, "").recurring(rule);
    job.await.unwrap();
    let jobs = runs.take(2).await;
    assert_eq!((number(&jobs[0]), number(&jobs[1])), (1, 2));
    assert_eq!(jobs[1].attempt(), 1, "no retry goes beyond the next time");
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn another_rule_keeps_the_numbers_and_the_payload() {
    let site = Site::new("recur-change").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let job = site.client.schedule(&key, "seven").recurring(hourly());
    job.header("tenant", "t1").await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    site.client.fire_now(&key).await.unwrap();
    assert_eq!(number(&runs.next().await), 1);
    site.reaches(&key, JobState::Pending).await;
    let daily = Rule::every(24 * 3600 * SECOND).unwrap();
    let changed = site.client.change_rule(&key, &daily).await.unwrap();
    let job = site.view(&key).await;
    let occurrence = job.occurrence().unwrap();
    assert_eq!(changed, RuleChange::Changed(job.due()));
    assert_eq!(
        (occurrence.number, occurrence.scheduled_for),
        (2, job.due())
    );
    assert_eq!(occurrence.rule, serde_json::json!({"every": "24h"}));
    assert_eq!(job.headers().get("tenant"), Some("t1"));
    let again = site.client.change_rule(&key, &daily).await.unwrap();
    assert_eq!(again, RuleChange::Unchanged);
    site.client.fire_now(&key).await.unwrap();
    let run = runs.next().await;
    assert_eq!((number(&run), &run.payload()[..]), (2, &b"\"seven\""[..]));
    // A rule that allows fewer runs than there were is refused, and nothing changes.
    let few = Rule::every(SECOND).unwrap().runs(1).unwrap();
    let refused = site.client.change_rule(&key, &few).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidRule, "{refused}");
    let absent = site.client.change_rule(site.key("none"), &daily).await;
    assert_eq!(absent.unwrap(), RuleChange::Absent);
    let single = site.key("single");
    site.client
        .schedule(&single, "")
        .after(3600 * SECOND)
        .await
        .unwrap();
    let single = site.client.change_rule(&single, &daily).await.unwrap();
    assert_eq!(single, RuleChange::NotRecurring);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_rule_that_is_changed_or_paused_during_a_run_applies_from_its_end_on() {
    let site = Site::new("recur-change-run").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    site.client
        .schedule(&key, "")
        .recurring(hourly())
        .await
        .unwrap();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    site.client.fire_now(&key).await.unwrap();
    assert_eq!(number(&runs.next().await), 1);
    let daily = Rule::every(24 * 3600 * SECOND).unwrap();
    let changed = site.client.change_rule(&key, &daily).await.unwrap();
    assert!(matches!(changed, RuleChange::AfterRun(_)), "{changed:?}");
    let paused = site.client.pause_rule(&key).await.unwrap();
    assert!(matches!(paused, RuleChange::AfterRun(_)), "{paused:?}");
    gate.open();
    let occurrence = site
        .reaches(&key, JobState::Pending)
        .await
        .occurrence()
        .unwrap();
    assert_eq!(occurrence.number, 2);
    assert!(occurrence.paused_since.is_some());
    assert_eq!(occurrence.rule, serde_json::json!({"every": "24h"}));
    let resumed = site.client.resume_rule(&key).await.unwrap();
    let job = site.view(&key).await;
    assert_eq!(resumed, RuleChange::Changed(job.due()));
    let again = site.client.resume_rule(&key).await.unwrap();
    assert_eq!(again, RuleChange::Unchanged);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_paused_rule_runs_only_when_it_is_fired() {
    let site = Site::new("recur-pause").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let rule = Rule::every(SECOND).unwrap();
    site.client
        .schedule(&key, "")
        .recurring(rule)
        .await
        .unwrap();
    site.client.pause_rule(&key).await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let pending = site.view(&key).await;
    let far = SystemTime::now() + Duration::from_secs(100 * 365 * 24 * 3600);
    assert!(pending.due() > far, "{:?}", pending.due());
    site.client.fire_now(&key).await.unwrap();
    let first = number(&runs.next().await);
    eventually("the next occurrence, which waits", async || {
        let job = site.client.get(&key).await.unwrap()?;
        (job.state() == JobState::Pending && job.due() > far).then_some(())
    })
    .await;
    runs.assert_no_more();
    site.client.resume_rule(&key).await.unwrap();
    assert!(number(&runs.next().await) > first);
    site.client.cancel(&key).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_retry_keeps_its_time_when_the_rule_changes_and_waits_during_a_pause() {
    let site = Site::new("recur-change-retry").await;
    let (log, mut runs) = recorder();
    let key = site.key("a");
    let job = site.client.schedule(&key, "").recurring(hourly());
    let policy = RetryPolicy::fixed(3600 * SECOND).unwrap().attempts(3);
    job.retry(policy).await.unwrap();
    let failing = log.then(|_| Outcome::retry("no"));
    let worker = site.serve(Router::new().route(&site.pattern(), failing));
    site.client.fire_now(&key).await.unwrap();
    let run = runs.next().await;
    let retry = site.reaches(&key, JobState::Retrying).await;
    let daily = Rule::every(24 * 3600 * SECOND).unwrap();
    let changed = site.client.change_rule(&key, &daily).await.unwrap();
    assert_eq!(changed, RuleChange::Changed(retry.due()));
    site.client.pause_rule(&key).await.unwrap();
    site.client.resume_rule(&key).await.unwrap();
    let second = runs.next().await;
    assert_eq!((number(&second), second.attempt()), (1, 2));
    assert_eq!(second.idempotency_key(), run.idempotency_key());
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_backup_keeps_the_pause_of_a_rule() {
    let site = Site::new("recur-pause-kept").await;
    let key = site.key("a");
    site.client
        .schedule(&key, "")
        .recurring(hourly())
        .await
        .unwrap();
    site.client.pause_rule(&key).await.unwrap();
    let paused = site.view(&key).await;
    for kept in [
        KeptJob::from(&paused),
        // As it comes out of a file.
        KeptJob::pending(&key, paused.due(), "\"\"").occurrence(paused.occurrence().unwrap()),
    ] {
        site.client.cancel(&key).await.unwrap();
        site.client.restore(kept).await.unwrap();
        let restored = site.view(&key).await;
        assert_eq!(restored.due(), paused.due());
        assert_eq!(restored.occurrence(), paused.occurrence());
        let resumed = site.client.resume_rule(&key).await.unwrap();
        let RuleChange::Changed(due) = resumed else {
            panic!("{resumed:?}");
        };
        assert!(due < SystemTime::now() + 2 * 3600 * SECOND);
    }
    site.client.cancel(&key).await.unwrap();
    site.assert_balanced().await;
}

/// A declaration of jobs by name and rule.
async fn declare(site: &Site, name: &str, jobs: &[(&str, &Rule, &str)]) -> Declared {
    let new = |(id, rule, payload): &(&str, &Rule, &str)| {
        NewJob::new(site.key(id), payload).recurring((*rule).clone())
    };
    let declared = site.client.declare(name, jobs.iter().map(new)).await;
    declared.unwrap()
}

#[tokio::test]
async fn declared_jobs_become_what_the_declaration_says() {
    let site = Site::new("recur-declare").await;
    let key = |id: &str| keyfall::JobKey::parse(&site.key(id)).unwrap();
    let daily = Rule::every(24 * 3600 * SECOND).unwrap();
    let name = "declared-jobs";
    let first = declare(&site, name, &[("a", &hourly(), "1"), ("b", &daily, "1")]).await;
    assert_eq!(first.created, [key("a"), key("b")]);
    // Made by hand: the declaration leaves it alone.
    let by_hand = site.client.schedule(key("c"), "").recurring(hourly());
    by_hand.await.unwrap();
    let numbered = site.client.pause_rule(key("b")).await.unwrap();
    assert!(matches!(numbered, RuleChange::Changed(_)));
    let jobs = [
        ("a", &hourly(), "1"),
        ("b", &daily, "2"),
        ("c", &daily, "1"),
    ];
    let second = declare(&site, name, &jobs).await;
    assert_eq!(second.unchanged, [key("a")]);
    assert_eq!(second.changed, [key("b")]);
    assert_eq!(second.foreign, [key("c")]);
    let b = site.view(&site.key("b")).await;
    assert_eq!(&b.payload()[..], b"\"2\"");
    let occurrence = b.occurrence().unwrap();
    assert!(
        occurrence.paused_since.is_some(),
        "the pause of an operator stays"
    );
    assert_eq!(occurrence.declared_by.as_deref(), Some(name));
    // Calls at the same time agree.
    let jobs = [("a", &daily, "1"), ("b", &daily, "2"), ("d", &daily, "1")];
    let (one, other) = tokio::join!(declare(&site, name, &jobs), declare(&site, name, &jobs));
    for (id, list) in [
        ("a", [&one.changed, &other.changed]),
        ("d", [&one.created, &other.created]),
    ] {
        let done = list.iter().filter(|keys| keys.contains(&key(id))).count();
        assert_eq!(done, 1, "{id}: {one:?} {other:?}");
    }
    // What was cancelled by hand stays away, until its entry changes.
    site.client.cancel(key("d")).await.unwrap();
    let third = declare(&site, name, &jobs).await;
    assert_eq!(third.ended, [key("d")]);
    let jobs = [("d", &daily, "2")];
    let fourth = declare(&site, name, &jobs).await;
    assert_eq!(
        (fourth.created, fourth.removed),
        (vec![key("d")], vec![key("a"), key("b")])
    );
    assert!(site.client.get(key("c")).await.unwrap().is_some());
    // Another declaration has nothing to do with it.
    let other = declare(&site, "another-name", &[]).await;
    assert_eq!(other, Declared::default());
    let fifth = declare(&site, name, &[("e", &daily, "1")]).await;
    assert_eq!(
        (fifth.created, fifth.removed),
        (vec![key("e")], vec![key("d")])
    );
    // Somebody has put another job in the place of its own.
    site.client.cancel(key("e")).await.unwrap();
    let by_hand = site.client.schedule(key("e"), "").recurring(hourly());
    by_hand.await.unwrap();
    let last = declare(&site, name, &[]).await;
    assert_eq!(last, Declared::default());
    for id in ["c", "e"] {
        let cancelled = site.client.cancel(key(id)).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled, "{id}");
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_declaration_with_a_fault_changes_nothing() {
    let site = Site::new("recur-declare-fault").await;
    let job = |id: &str| NewJob::new(site.key(id), "");
    let twice = [job("a").recurring(hourly()), job("a").recurring(hourly())];
    let single = [job("a").recurring(hourly()), job("b")];
    for (jobs, name, fault) in [
        (twice, "faults", "is declared twice"),
        (single, "faults", "has no rule"),
        (
            [job("a").recurring(hourly()), job("b").recurring(hourly())],
            "a b",
            "no name of a declaration",
        ),
    ] {
        let error = site.client.declare(name, jobs).await.unwrap_err();
        assert!(error.to_string().contains(fault), "{error}");
    }
    assert!(site.client.get(site.key("a")).await.unwrap().is_none());
}

#[tokio::test]
async fn a_declared_job_that_runs_is_changed_from_the_end_of_its_run_on() {
    let site = Site::new("recur-declare-run").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let name = "declared-run";
    declare(&site, name, &[("a", &hourly(), "1")]).await;
    site.client.fire_now(site.key("a")).await.unwrap();
    runs.next().await;
    let changed = declare(&site, name, &[("a", &hourly(), "2")]).await;
    assert_eq!(changed.changed.len(), 1);
    gate.open();
    let next = site.reaches(&site.key("a"), JobState::Pending).await;
    assert_eq!(
        (&next.payload()[..], next.occurrence().unwrap().number),
        (&b"\"2\""[..], 2)
    );
    assert!(next.due() > SystemTime::now());
    declare(&site, name, &[]).await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_declared_job_whose_rule_is_used_up_ends_and_the_others_go_on() {
    let site = Site::new("recur-declare-over").await;
    let key = |id: &str| keyfall::JobKey::parse(&site.key(id)).unwrap();
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    let name = "declared-over";
    let jobs = |rule: &Rule| {
        let ids = ["pending", "running", "z"];
        ids.map(|id| NewJob::new(site.key(id), "").recurring(rule.clone()))
    };
    site.client.declare(name, jobs(&hourly())).await.unwrap();
    site.client.fire_now(key("running")).await.unwrap();
    runs.next().await;
    // Both are at their second occurrence: the first one of `pending` runs, too.
    gate.open();
    site.client.fire_now(key("pending")).await.unwrap();
    runs.next().await;
    for id in ["pending", "running"] {
        site.reaches(&site.key(id), JobState::Pending).await;
    }
    let gate = Gate::closed();
    worker.stop().await;
    let worker = site.serve(Router::new().route(&site.pattern(), log.behind(&gate)));
    site.client.fire_now(key("running")).await.unwrap();
    runs.next().await;
    let once = hourly().runs(1).unwrap();
    let second = site.client.declare(name, jobs(&once)).await.unwrap();
    assert_eq!(second.ended, [key("pending")]);
    assert_eq!(second.running, [key("running")]);
    assert_eq!(second.changed, [key("z")], "the first run is still to come");
    assert!(site.client.get(key("pending")).await.unwrap().is_none());
    gate.open();
    site.reaches(&site.key("running"), JobState::Pending).await;
    let third = site.client.declare(name, jobs(&once)).await.unwrap();
    assert_eq!(third.ended, [key("pending"), key("running")]);
    let last = site.client.declare(name, []).await.unwrap();
    assert_eq!(last.removed, [key("z")]);
    worker.stop().await;
    site.assert_balanced().await;
}
