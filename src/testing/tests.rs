use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use super::*;
use crate::{
    CancelSignal, Cancelled, Clock, Handler, Headers, Job, Outcome, RetryPolicy, Router, Rule,
    Segments, State,
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3600);

async fn fail() -> Outcome {
    Outcome::retry("no")
}

async fn done() {}

/// The start times of runs, in seconds after `start`.
fn times(runs: &[Run], start: SystemTime) -> Vec<f64> {
    let since = |run: &Run| run.at.duration_since(start).unwrap().as_secs_f64();
    runs.iter().map(since).collect()
}

#[tokio::test]
async fn the_default_policy_is_played_to_its_end() {
    let mut rehearsal = Rehearsal::new(Router::new().route("a:b:c:*", fail));
    let start = rehearsal.now();
    rehearsal.schedule("a:b:c:1", "").after(SECOND);
    let runs = rehearsal.advance(48 * HOUR).await;
    let ladder = RetryPolicy::day_ladder();
    let mut at = 1.0;
    let mut expected = vec![at];
    for attempt in 1..10 {
        at += ladder.next(attempt, 0.0).unwrap().as_secs_f64();
        expected.push(at);
    }
    assert_eq!(times(&runs, start), expected);
    assert_eq!(rehearsal.now(), start + 48 * HOUR);
    let job = rehearsal.job("a:b:c:1").unwrap();
    assert_eq!((job.state(), job.attempts()), (JobState::Dead, 10));
    assert_eq!(job.last_error(), Some("no"));
}

#[tokio::test]
async fn jobs_run_in_the_order_of_their_due_times() {
    let app = Router::new().route("a:b:c:*", done);
    let mut rehearsal = Rehearsal::new(app);
    let start = rehearsal.now();
    rehearsal.schedule("a:b:c:3", "").at(start + SECOND);
    rehearsal.schedule("a:b:c:1", "").after(SECOND);
    rehearsal.schedule("a:b:c:2", "");
    rehearsal.schedule("a:b:c:4", "").at(start - HOUR);
    let runs = rehearsal.advance(HOUR).await;
    let order: Vec<_> = runs.iter().map(|run| run.key.as_str()).collect();
    assert_eq!(order, ["a:b:c:2", "a:b:c:4", "a:b:c:1", "a:b:c:3"]);
    assert_eq!(times(&runs, start), [0.0, 0.0, 1.0, 1.0]);
}

#[tokio::test]
async fn a_handler_sees_the_same_job_as_in_service() {
    static FENCE: AtomicU64 = AtomicU64::new(0);
    let check = async |job: Job, Segments(id): Segments<u8>, headers: Headers| {
        assert_eq!((id, headers.get("tenant")), (7, Some("acme")));
        assert_eq!(job.payload().as_ref(), b"\"x\"");
        assert!(FENCE.swap(job.fence(), Ordering::Relaxed) < job.fence());
        match job.attempt() {
            1 => {
                assert_eq!(job.due(), job.first_scheduled_at() + SECOND);
                Outcome::retry_after(Duration::ZERO, "no")
            }
            _ => Outcome::Done,
        }
    };
    let mut rehearsal = Rehearsal::new(Router::new().route("a:b:c:{id}", check));
    rehearsal
        .schedule("a:b:c:7", "x")
        .after(SECOND)
        .header("tenant", "acme");
    let runs = rehearsal.advance(SECOND).await;
    assert_eq!(runs.len(), 2);
    assert_eq!(runs[1].outcome, Outcome::Done);
}

#[tokio::test]
async fn a_snooze_does_not_count_and_again_does() {
    let app = Router::new()
        .route("a:b:snooze:*", async || Outcome::snooze(HOUR))
        .route("a:b:again:*", async || Outcome::again());
    let mut rehearsal = Rehearsal::new(app);
    rehearsal.schedule("a:b:snooze:1", "");
    rehearsal.schedule("a:b:again:1", "");
    let runs = rehearsal.advance(Duration::ZERO).await;
    assert_eq!(runs.len(), 2);
    let job = rehearsal.job("a:b:snooze:1").unwrap();
    assert_eq!((job.state(), job.attempts()), (JobState::Pending, 0));
    assert_eq!(job.due(), rehearsal.now() + HOUR);
    let job = rehearsal.job("a:b:again:1").unwrap();
    assert_eq!((job.state(), job.attempts()), (JobState::Retrying, 1));
    assert_eq!(
        (job.last_error(), job.due()),
        (None, rehearsal.now() + 15 * SECOND)
    );
}

#[tokio::test]
async fn jitter_has_the_given_value() {
    let policy = RetryPolicy::exponential(8 * SECOND, HOUR).unwrap();
    let app = Router::new().route("a:b:c:*", fail.retry(policy));
    for (jitter, delay) in [(0.0, 0), (0.5, 4), (1.0, 8)] {
        let mut rehearsal = Rehearsal::new(app.clone()).jitter(jitter);
        rehearsal.schedule("a:b:c:1", "");
        let end = rehearsal.now() + SECOND;
        if delay > 0 {
            rehearsal.advance(Duration::ZERO).await;
            let job = rehearsal.job("a:b:c:1").unwrap();
            assert_eq!(job.due() + SECOND, end + delay * SECOND);
        } else {
            assert_eq!(rehearsal.advance(Duration::ZERO).await.len(), 10);
        }
    }
}

#[tokio::test]
async fn a_panic_is_a_failure() {
    let app = Router::new().route("a:b:c:*", async || -> () { panic!("oh {}", 1) });
    let mut rehearsal = Rehearsal::new(app);
    rehearsal.schedule("a:b:c:1", "");
    let runs = rehearsal.advance(Duration::ZERO).await;
    assert_eq!(
        runs[0].outcome,
        Outcome::retry("the handler panicked: oh 1")
    );
    let job = rehearsal.job("a:b:c:1").unwrap();
    assert_eq!(job.last_error(), Some("the handler panicked: oh 1"));
}

#[tokio::test(start_paused = true)]
async fn a_long_run_is_warned_and_then_a_failure() {
    let hangs = async || std::future::pending::<()>().await;
    let heeds = async |stop: CancelSignal| {
        stop.raised().await;
        Outcome::bury("stopped")
    };
    let app = Router::new()
        .route("a:b:hangs:*", hangs.timeout(SECOND))
        .route("a:b:heeds:*", heeds);
    let mut rehearsal = Rehearsal::new(app);
    rehearsal.schedule("a:b:hangs:1", "");
    rehearsal.schedule("a:b:heeds:1", "");
    let runs = rehearsal.advance(Duration::ZERO).await;
    assert_eq!(runs[0].outcome, Outcome::retry("it took longer than 1s"));
    assert_eq!(runs[1].outcome, Outcome::bury("stopped"));
}

#[tokio::test]
async fn a_cancelled_or_replaced_job_does_not_run() {
    let mut rehearsal = Rehearsal::new(Router::new().route("a:b:c:*", fail));
    assert_eq!(rehearsal.cancel("a:b:c:1"), Cancelled::Absent);
    rehearsal.schedule("a:b:c:1", "").after(SECOND);
    assert_eq!(rehearsal.cancel("a:b:c:1"), Cancelled::Cancelled);
    assert_eq!(rehearsal.cancel("a:b:c:1"), Cancelled::Absent);
    assert!(rehearsal.advance(HOUR).await.is_empty());
    assert_eq!(
        rehearsal.job("a:b:c:1").unwrap().state(),
        JobState::Cancelled
    );
    // A new job of the same name begins anew.
    rehearsal.schedule("a:b:c:1", "");
    assert_eq!(rehearsal.advance(Duration::ZERO).await[0].attempt, 1);
    rehearsal.schedule("a:b:c:1", "").after(HOUR);
    let runs = rehearsal.advance(HOUR).await;
    assert_eq!((runs.len(), runs[0].attempt), (1, 1));
}

#[tokio::test]
async fn a_job_without_a_route_stays_pending_or_goes_to_the_fallback() {
    let app: Router = Router::new().route("a:b:c:*", done);
    let mut rehearsal = Rehearsal::new(app.clone());
    rehearsal.schedule("x:y:z:1", "");
    assert!(rehearsal.advance(HOUR).await.is_empty());
    assert_eq!(rehearsal.job("x:y:z:1").unwrap().state(), JobState::Pending);
    let mut rehearsal = Rehearsal::new(app.fallback(fail.retry(RetryPolicy::none())));
    rehearsal.schedule("x:y:z:1", "");
    assert_eq!(rehearsal.advance(HOUR).await.len(), 1);
    assert_eq!(rehearsal.job("x:y:z:1").unwrap().state(), JobState::Dead);
}

#[tokio::test]
async fn handlers_and_rehearsal_share_the_clock() {
    async fn note(job: Job, State(clock): State<Clock>) -> Outcome {
        Outcome::bury(format!("{:?}, {:?}", clock.now() == job.due(), job.lag()))
    }
    let time = ManualClock::new();
    let app = Router::new()
        .route("a:b:c:*", note)
        .with_state(time.clock());
    let mut rehearsal = Rehearsal::with_clock(app, &time);
    rehearsal.schedule("a:b:c:1", "").after(SECOND);
    rehearsal.schedule("a:b:c:2", "").after(HOUR);
    assert_eq!(
        rehearsal.advance(SECOND).await[0].outcome,
        Outcome::bury("true, 0ns")
    );
    // A clock that is moved by hand makes jobs late.
    time.advance(HOUR);
    assert_eq!(
        rehearsal.advance(Duration::ZERO).await[0].outcome,
        Outcome::bury("false, 1s")
    );
}

#[tokio::test]
#[should_panic(expected = "do their handlers snooze for zero time?")]
async fn a_job_that_never_waits_is_noticed() {
    let sleepless = async || Outcome::snooze(Duration::ZERO);
    let mut rehearsal = Rehearsal::new(Router::new().route("a:b:c:*", sleepless));
    rehearsal.schedule("a:b:c:1", "");
    rehearsal.advance(SECOND).await;
}

#[tokio::test]
async fn the_terms_of_a_job_override_its_route() {
    let app = Router::new().route("a:b:c:*", async || Outcome::retry("no"));
    let mut rehearsal = Rehearsal::new(app);
    let second = Duration::from_secs(1);
    rehearsal
        .schedule("a:b:c:1", &())
        .retry(RetryPolicy::fixed(second).unwrap())
        .attempts(3);
    let runs = rehearsal.advance(10 * second).await;
    let began = rehearsal.now() - 10 * second;
    let at: Vec<Duration> = runs
        .iter()
        .map(|run| run.at.duration_since(began).unwrap())
        .collect();
    assert_eq!(at, [0, 1, 2].map(Duration::from_secs));
    assert_eq!(rehearsal.job("a:b:c:1").unwrap().state(), JobState::Dead);
}

#[tokio::test(start_paused = true)]
async fn a_job_can_have_less_time_than_its_route_gives() {
    let app = Router::new().route("a:b:c:*", async || std::future::pending::<()>().await);
    let mut rehearsal = Rehearsal::new(app);
    let limit = Duration::from_millis(20);
    rehearsal.schedule("a:b:c:1", &()).timeout(limit);
    let began = tokio::time::Instant::now();
    let runs = rehearsal.advance(Duration::ZERO).await;
    assert_eq!(runs[0].outcome, Outcome::timed_out(limit));
    assert!(began.elapsed() < Duration::from_secs(60));
}

#[test]
#[should_panic(expected = "`attempts` is 0")]
fn invalid_terms_are_refused() {
    let mut rehearsal = Rehearsal::new(Router::new());
    rehearsal.schedule("a:b:c:1", &()).attempts(0);
}

/// Zones with changes of 30, 60 and 120 minutes, at several hours, in both hemispheres, and without any.
const ZONES: [&str; 40] = [
    "Africa/Cairo",
    "Africa/Casablanca",
    "Africa/Johannesburg",
    "Africa/Lagos",
    "America/Argentina/Buenos_Aires",
    "America/Asuncion",
    "America/Chicago",
    "America/Denver",
    "America/Godthab",
    "America/Halifax",
    "America/Havana",
    "America/Los_Angeles",
    "America/Mexico_City",
    "America/New_York",
    "America/Phoenix",
    "America/Santiago",
    "America/Sao_Paulo",
    "America/St_Johns",
    "Antarctica/Troll",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Jerusalem",
    "Asia/Kathmandu",
    "Asia/Kolkata",
    "Asia/Shanghai",
    "Asia/Tehran",
    "Asia/Tokyo",
    "Atlantic/Azores",
    "Australia/Adelaide",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Europe/Berlin",
    "Europe/Dublin",
    "Europe/Lisbon",
    "Europe/London",
    "Europe/Moscow",
    "Pacific/Apia",
    "Pacific/Auckland",
    "Pacific/Chatham",
    "Pacific/Easter",
];

/// Each day of the year has one run: at its time on the wall or, if the clock skips that, when it
/// goes on.
#[tokio::test(start_paused = true)]
async fn a_year_in_forty_zones_has_a_run_on_each_day() {
    let times = ["00:30", "02:00", "02:30", "03:00"];
    let mut rehearsal = Rehearsal::new(Router::new().route("a:b:c:*", done));
    let start = jiff::Timestamp::try_from(rehearsal.now()).unwrap();
    for (number, zone) in ZONES.iter().enumerate() {
        let (hour, minute) = times[number % times.len()].split_once(':').unwrap();
        let rule = Rule::cron(&format!("{minute} {hour} * * *")).unwrap();
        let rule = rule.zone(zone).unwrap();
        rehearsal
            .schedule(format!("a:b:c:{number}"), "")
            .recurring(&rule);
    }
    let runs = rehearsal.advance(366 * 24 * HOUR).await;
    let mut skipped = 0;
    for (number, name) in ZONES.iter().enumerate() {
        let zone = jiff::tz::TimeZone::get(name).unwrap();
        let time: jiff::civil::Time = times[number % times.len()].parse().unwrap();
        let id = number.to_string();
        let runs = runs.iter().filter(|run| run.key.id() == id);
        let runs: Vec<jiff::Zoned> = runs
            .map(|run| {
                jiff::Timestamp::try_from(run.at)
                    .unwrap()
                    .to_zoned(zone.clone())
            })
            .collect();
        assert!(
            (364..=367).contains(&runs.len()),
            "{name}: {} runs",
            runs.len()
        );
        for days in runs.windows(2) {
            assert_eq!(days[0].date().tomorrow().unwrap(), days[1].date(), "{name}");
        }
        assert!(
            runs[0].timestamp().duration_since(start).as_hours() < 48,
            "{name}"
        );
        for run in &runs {
            if run.time() == time {
                continue;
            }
            // A second before, the clock showed a time before the one that was skipped.
            let before = run.checked_sub(jiff::SignedDuration::from_secs(1)).unwrap();
            let named = run.date().to_datetime(time);
            assert!(before.offset() != run.offset(), "{name}: {run}");
            assert!(
                before.datetime() < named && named < run.datetime(),
                "{name}: {run}"
            );
            skipped += 1;
        }
    }
    assert!(skipped > 10, "{skipped} times were skipped");
}

mod with_a_client {
    use super::*;
    use crate::{
        Client, ErrorKind, IfAbsent, Json, MemberState, NewJob, Placed, Rescheduled, Updated,
    };

    const KEY: &str = "a:b:c:1";

    fn rehearsal(app: Router<Client>) -> (Rehearsal, Client) {
        let client = ManualClock::new().client();
        let app = app.with_state(client.clone());
        (Rehearsal::with_client(app, &client), client)
    }

    #[tokio::test]
    async fn calls_answer_as_on_a_redis() {
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", done));
        let start = rehearsal.now();
        let created = client.schedule(KEY, &1).after(HOUR).await.unwrap();
        assert_eq!(
            (created.placed, created.due),
            (Placed::Created, start + HOUR)
        );
        let replaced = client.schedule(KEY, &2).after(2 * HOUR).await.unwrap();
        assert_eq!(replaced.placed, Placed::Replaced);
        let IfAbsent::Present(there) = client.schedule(KEY, &3).if_absent().await.unwrap() else {
            panic!("it is there");
        };
        assert_eq!(there.json::<u8>().unwrap(), 2);
        let moved = client.reschedule(KEY).after(SECOND).await.unwrap();
        assert_eq!(moved, Rescheduled::Moved(start + SECOND));
        let updated = client.update_payload(KEY, &4).await.unwrap();
        assert_eq!(updated, Updated::Updated(start + SECOND));
        let view = client.get(KEY).await.unwrap().unwrap();
        assert_eq!(
            (view.state(), view.due()),
            (crate::JobState::Pending, start + SECOND)
        );
        let steps: Vec<_> = view.steps().iter().map(|step| &*step.what).collect();
        assert_eq!(steps, ["postponed", "updated"]);
        let many = ["a:b:c:2", KEY, "a:b:c:2"].map(|key| NewJob::new(key, "").if_absent());
        let many = client.schedule_many(many).await;
        let stored: Vec<bool> = many.into_iter().map(|it| it.unwrap().is_some()).collect();
        assert_eq!(stored, [true, false, false]);
        assert_eq!(
            client.cancel("a:b:c:2").await.unwrap(),
            Cancelled::Cancelled
        );
        assert_eq!(client.cancel("a:b:c:2").await.unwrap(), Cancelled::Absent);
        let runs = rehearsal.advance(HOUR).await;
        assert_eq!(times(&runs, start), [1.0]);
        assert!(client.get(KEY).await.unwrap().is_none(), "it is done");
    }

    #[tokio::test]
    async fn a_job_that_a_handler_schedules_under_its_own_name_supersedes_its_retries() {
        async fn again(job: Job, Json(number): Json<u8>, State(client): State<Client>) -> Outcome {
            if number < 3 {
                let next = number + 1;
                let placed = client.schedule(job.key(), &next).after(HOUR).await.unwrap();
                assert_eq!(placed.placed, Placed::Succeeds);
                let running = client.get(job.key()).await.unwrap().unwrap();
                assert_eq!(running.state(), crate::JobState::Running);
            }
            Outcome::retry("and fails")
        }
        let retry = RetryPolicy::fixed(SECOND).unwrap().attempts(2);
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", again.retry(retry)));
        let start = rehearsal.now();
        client.schedule(KEY, &1).await.unwrap();
        let runs = rehearsal.advance(24 * HOUR).await;
        assert_eq!(times(&runs, start), [0.0, 3600.0, 7200.0, 7201.0]);
        assert_eq!(rehearsal.job(KEY).unwrap().state(), JobState::Dead);
    }

    #[tokio::test]
    async fn a_run_that_is_cancelled_is_told_and_not_retried() {
        async fn quit(job: Job, State(client): State<Client>) -> Outcome {
            assert_eq!(client.cancel(job.key()).await.unwrap(), Cancelled::Running);
            assert!(job.cancellation().is_raised());
            Outcome::retry("cancelled")
        }
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", quit));
        client.schedule(KEY, "").await.unwrap();
        assert_eq!(rehearsal.advance(HOUR).await.len(), 1);
        assert_eq!(rehearsal.job(KEY).unwrap().state(), JobState::Cancelled);
    }

    #[tokio::test]
    async fn a_rule_that_its_own_run_cancels_ends_however_the_run_ends() {
        async fn last(job: Job, State(client): State<Client>) -> Outcome {
            assert_eq!(client.cancel(job.key()).await.unwrap(), Cancelled::Running);
            match job.key().id() {
                "done" => Outcome::Done,
                _ => Outcome::bury("no"),
            }
        }
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", last));
        for (id, state) in [("done", JobState::Done), ("dies", JobState::Cancelled)] {
            let key = format!("a:b:c:{id}");
            let rule = Rule::every(HOUR).unwrap();
            client.schedule(&key, "").recurring(rule).await.unwrap();
            assert_eq!(rehearsal.advance(5 * HOUR).await.len(), 1, "{id}");
            assert_eq!(rehearsal.job(&key).unwrap().state(), state);
        }
    }

    #[tokio::test]
    async fn a_dead_letter_keeps_the_time_of_its_death() {
        let bury = async || Outcome::bury("no");
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", bury));
        let start = rehearsal.now();
        client.schedule(KEY, "").after(SECOND).await.unwrap();
        rehearsal.advance(HOUR).await;
        let letter = client.get(KEY).await.unwrap().unwrap();
        assert_eq!(
            (letter.state(), letter.due()),
            (crate::JobState::Dead, start + SECOND)
        );
    }

    #[tokio::test]
    async fn rules_can_be_changed_paused_and_resumed() {
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", done));
        let rule = |text: &str| Rule::cron(text).unwrap();
        let daily = client.schedule(KEY, "").recurring(rule("0 9 * * *"));
        daily.await.unwrap();
        assert_eq!(rehearsal.advance(48 * HOUR).await.len(), 2);
        client.change_rule(KEY, &rule("0 * * * *")).await.unwrap();
        assert_eq!(rehearsal.advance(24 * HOUR).await.len(), 24);
        client.pause_rule(KEY).await.unwrap();
        assert!(rehearsal.advance(24 * HOUR).await.is_empty());
        client.resume_rule(KEY).await.unwrap();
        assert_eq!(rehearsal.advance(24 * HOUR).await.len(), 24);
        let view = client.get(KEY).await.unwrap().unwrap();
        assert_eq!(view.occurrence().unwrap().number, 51);
    }

    #[tokio::test]
    async fn a_series_moves_as_a_whole() {
        let (mut rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", done));
        let series = || client.series(KEY);
        let made = series()
            .anchor("2030-02-01 18:00", "Europe/Berlin")
            .at(["-15d 09:00", "-3d 09:00", "-1h"])
            .await
            .unwrap();
        assert_eq!(made.members.len(), 3);
        let runs = rehearsal.advance(20 * 24 * HOUR).await;
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].key.as_str(), "a:b:c:1~-15d");
        series().move_to("2030-02-08 18:00").await.unwrap();
        let runs = rehearsal.advance(30 * 24 * HOUR).await;
        let ran: Vec<String> = runs
            .iter()
            .map(|run| jiff::Timestamp::try_from(run.at).unwrap().to_string())
            .collect();
        assert_eq!(ran, ["2030-02-05T08:00:00Z", "2030-02-08T16:00:00Z"]);
        let view = series().view().await.unwrap().unwrap();
        let ended = |member: &crate::MemberView| member.state == MemberState::Ended;
        assert!(view.members.iter().all(ended), "{view:?}");
        let cancelled = series().cancel().await.unwrap();
        assert!(cancelled.is_some());
        assert!(series().view().await.unwrap().is_none());
    }

    #[tokio::test]
    async fn no_run_begins_in_quiet_hours_of_its_route() {
        let quiet = |hours: &str| crate::QuietHours::hours(hours).unwrap();
        let app = Router::new()
            .route("a:b:c:*", done.quiet(quiet("22:00-08:00")))
            .route(
                "a:b:d:*",
                done.quiet(quiet("00:00-01:00").instead(crate::Instead::Skip)),
            );
        let mut rehearsal = Rehearsal::new(app);
        let start = rehearsal.now();
        rehearsal.schedule(KEY, "");
        rehearsal.schedule("a:b:d:1", "");
        let runs = rehearsal.advance(24 * HOUR).await;
        assert_eq!(times(&runs, start), [8.0 * 3600.0]);
        assert_eq!(runs[0].attempt, 1);
        assert_eq!(rehearsal.job("a:b:d:1").unwrap().state(), JobState::Skipped);
    }

    #[tokio::test]
    async fn other_calls_are_refused_at_once() {
        let (_rehearsal, client) = rehearsal(Router::new().route("a:b:c:*", done));
        let refusals = [
            client.stats("a:b:c").await.unwrap_err(),
            client.ping().await.unwrap_err(),
            client.paused().await.unwrap_err(),
            client
                .everything()
                .list(crate::JobState::Pending)
                .await
                .unwrap_err(),
            client.dead_letters(KEY).await.unwrap_err(),
        ];
        for error in refusals {
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert!(error.to_string().contains("needs a Redis"), "{error}");
        }
    }
}
