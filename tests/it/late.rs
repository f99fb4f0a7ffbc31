//! Limits of lateness: jobs that could start only later are skipped, buried or spread.

use std::time::{Duration, SystemTime};

use keyfall::{Handler, Instead, JobState, KeptJob, Late, Occurrence, QuietHours, Router, Rule};

use crate::runs::{Gate, eventually, recorder};
use crate::site::{Running, Site};
use crate::workers::SECOND;

const HOUR: Duration = Duration::from_secs(3600);

/// A job that has been overdue for an hour, as after an outage.
fn overdue(site: &Site, id: &str) -> KeptJob {
    KeptJob::pending(site.key(id), SystemTime::now() - HOUR, "\"x\"")
}

/// The last change of a job, in words.
async fn last_change(site: &Site, key: &str) -> String {
    let history = site.client.happenings(key).await.unwrap();
    let last = history.last().expect("it has a history");
    last.sentence(|_| String::new()).to_string()
}

#[tokio::test]
async fn a_job_beyond_its_limit_ends_as_the_limit_says() {
    let site = Site::new("late-ends").await;
    let (log, mut runs) = recorder();
    let half = HOUR / 2;
    for (id, then) in [
        ("run", Late::Run),
        ("skip", Late::Skip),
        ("bury", Late::Bury),
        ("spread", Late::Spread(24 * HOUR)),
    ] {
        let job = overdue(&site, id).max_lateness(half, then);
        site.client.restore(job).await.unwrap();
    }
    let in_time = overdue(&site, "in-time").max_lateness(2 * HOUR, Late::Skip);
    site.client.restore(in_time).await.unwrap();
    // The limit of the route is for jobs without their own.
    site.client.restore(overdue(&site, "route")).await.unwrap();
    let limited = log.done().max_lateness(half, Late::Skip);
    let worker = site.serve(Router::new().route(&site.pattern(), limited));
    let mut ran: Vec<String> = Vec::new();
    for job in runs.take(2).await {
        ran.push(job.key().id().to_owned());
    }
    ran.sort();
    assert_eq!(ran, ["in-time", "run"]);
    eventually("all have ended but the one that is put off", async || {
        let stats = site.stats().await;
        (stats.skipped == 2 && stats.dead == 1 && stats.done == 2).then_some(())
    })
    .await;
    let put_off = site.reaches(&site.key("spread"), JobState::Pending).await;
    assert!(put_off.due() > SystemTime::now(), "a day is long");
    assert_eq!(put_off.attempts(), 0, "it did not run");
    let letters = site.client.dead_letters(&site.key("bury")).await.unwrap();
    assert_eq!(letters[0].attempts(), 0);
    let error = letters[0].last_error().unwrap();
    assert!(error.contains("late, and the limit is 30m"), "{error}");
    let told = last_change(&site, &site.key("skip")).await;
    assert!(told.contains("skipped without a run: 1h"), "{told}");
    let told = last_change(&site, &site.key("spread")).await;
    assert!(told.contains(": 1h"), "{told}");
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_run_that_is_taken_over_is_not_late() {
    let site = Site::new("late-lapsed").await;
    let (log, mut runs) = recorder();
    let gate = Gate::closed();
    site.client.restore(overdue(&site, "a")).await.unwrap();
    // With one slot, which the run has, the first worker cannot take it over itself.
    let one = log.behind(&gate).concurrency(1);
    let router = Router::new().route(&site.pattern(), one);
    // Its next renewal is far away: it would take back the lease that the test ends.
    let first = Running::start(site.worker(router).lease(HOUR));
    runs.next().await;
    site.lapse("a").await;
    // A worker looks for lapsed leases when it starts.
    let limited = log.done().max_lateness(SECOND, Late::Skip);
    let second = site.serve(Router::new().route(&site.pattern(), limited));
    assert_eq!(runs.next().await.attempt(), 2);
    let stats = site.all_ended().await;
    assert_eq!((stats.done, stats.skipped), (1, 0));
    gate.open();
    first.stop().await;
    second.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_rule_makes_up_for_missed_times_as_it_says() {
    let site = Site::new("late-missed").await;
    let (log, mut runs) = recorder();
    // The next time of the rule is half an hour away.
    let now = SystemTime::now();
    let rule = Rule::every(HOUR)
        .unwrap()
        .starting(now - 10 * HOUR - HOUR / 2)
        .unwrap();
    let last = rule.upcoming(now - HOUR, 1)[0];
    let table = |missed: &str| {
        let rule = rule.clone().when_missed(missed.parse().unwrap()).unwrap();
        serde_json::to_value(rule).unwrap()
    };
    for missed in ["one", "skip", "all 2"] {
        let id = missed.replace(' ', "-");
        // The times of three hours were missed.
        let at = last - 2 * HOUR;
        let occurrence = Occurrence::new(table(missed), 5, at).unwrap();
        let job = KeptJob::pending(site.key(&id), at, "\"x\"").occurrence(occurrence);
        site.client.restore(job).await.unwrap();
    }
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let mut ran: Vec<_> = runs.take(4).await;
    ran.sort_by_key(|job| (job.key().id().to_owned(), job.occurrence().unwrap().number));
    let times: Vec<_> = ran
        .iter()
        .map(|job| {
            let occurrence = job.occurrence().unwrap();
            let late = last.duration_since(occurrence.scheduled_for).unwrap();
            (
                job.key().id().to_owned(),
                occurrence.number,
                late.as_secs() / 3600,
            )
        })
        .collect();
    let all = |number, late| ("all-2".to_owned(), number, late);
    assert_eq!(
        times,
        [all(5, 2), all(6, 1), all(7, 0), ("one".to_owned(), 5, 2)]
    );
    for (id, number, left_out) in [("one", 6, 2), ("skip", 6, 2), ("all-2", 8, 0)] {
        let key = site.key(id);
        let is_next = async || {
            let view = site.client.get(&key).await.unwrap()?;
            let is_ahead = view.state() == JobState::Pending && view.due() > now;
            is_ahead.then(|| view.occurrence().unwrap())
        };
        let next = eventually("the next time of the rule", is_next).await;
        assert_eq!((next.number, next.skipped), (number, left_out), "{id}");
        assert_eq!(next.scheduled_for, last + HOUR, "{id}");
    }
    let stats = site.stats().await;
    assert_eq!((stats.skipped, stats.done), (1, 4));
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

/// Hours of the day, in UTC, that have begun an hour ago and end in an hour.
fn quiet_now(instead: Instead) -> (QuietHours, SystemTime) {
    let now = jiff::Timestamp::now();
    let [begin, end] = [-1, 1].map(|hours| now + jiff::SignedDuration::from_hours(hours));
    let minute = |time: jiff::Timestamp| time.strftime("%H:%M").to_string();
    let hours = QuietHours::hours(&format!("{}-{}", minute(begin), minute(end))).unwrap();
    let end = end.as_second() / 60 * 60;
    let end = SystemTime::UNIX_EPOCH + Duration::from_secs(end.unsigned_abs());
    (hours.instead(instead), end)
}

#[tokio::test]
async fn no_run_of_a_route_begins_in_its_quiet_hours() {
    let site = Site::new("late-quiet").await;
    let (log, mut runs) = recorder();
    let (later, end) = quiet_now(Instead::Later);
    let worker = site.serve(Router::new().route(&site.pattern(), log.done().quiet(later)));
    site.client.schedule(site.key("a"), "").await.unwrap();
    eventually("it is put off", async || {
        (site.view(&site.key("a")).await.due() == end).then_some(())
    })
    .await;
    let told = last_change(&site, &site.key("a")).await;
    assert!(told.contains("quiet hours "), "{told}");
    worker.stop().await;
    let (skip, _) = quiet_now(Instead::Skip);
    let worker = site.serve(Router::new().route(&site.pattern(), log.done().quiet(skip)));
    site.client.fire_now(site.key("a")).await.unwrap();
    assert_eq!(site.all_ended().await.skipped, 1);
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;

    let (earlier, _) = quiet_now(Instead::Earlier);
    let route = log.done().quiet(earlier);
    let refused = Router::<()>::new().try_route(&site.pattern(), route);
    let refused = refused.unwrap_err().to_string();
    assert!(
        refused.contains("cannot start a job before it is due"),
        "{refused}"
    );
}
