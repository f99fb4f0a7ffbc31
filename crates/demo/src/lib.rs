//! The demo: a realistic mix of [Keyfall](keyfall) reminders on a private Redis, printed as they
//! fall due. It is behind `make demo` and `keyfall demo`.

use std::future::IntoFuture;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, Handler, Job, JobState, Json, Outcome, RetryPolicy, Router, Segments, State,
    Stats, Worker,
};
use serde::{Deserialize, Serialize};

/// The number of notices that fall due at the same instant.
const CROWD: u32 = 300;

/// The number of retries of a notice.
const RUNGS: u32 = 3;

/// The state of the demo, shared by the handlers.
#[derive(Clone)]
struct Board(Arc<Shared>);

/// The contents of [`Board`].
struct Shared {
    start: Instant,
    /// The factor by which all delays in this file are multiplied.
    stretch: f64,
    /// The lateness of each run, and whether its job was one of the crowd.
    lags: Mutex<Vec<(bool, Duration)>>,
}

/// The payload of a notice.
#[derive(Serialize, Deserialize)]
struct Notice {
    /// How many attempts fail before the receiver accepts the notice.
    refusals: u32,
}

/// The length of the demo without stretching, in seconds.
pub const SECONDS: u64 = 40;

/// Runs the demo on a private Redis for about `seconds` seconds, and prints each event to stdout.
/// All delays are stretched to fit. Ctrl-C ends it early; nothing is left behind.
///
/// # Errors
/// If no Redis can be started, or if it does not answer.
pub async fn run(seconds: u64) -> anyhow::Result<()> {
    let redis = Embedded::start().await?;
    let client = Client::connect(&redis.url()).await?;
    let board = Board(Arc::new(Shared {
        start: Instant::now(),
        stretch: seconds as f64 / SECONDS as f64,
        lags: Mutex::default(),
    }));
    println!("A private Redis runs at {}", redis.url());
    println!("This takes about {seconds} s");
    println!(
        "{:>8}  {:<34} {:>7} {:>9}  what happened",
        "after", "key", "attempt", "lag"
    );

    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let mut worker = tokio::spawn(Worker::new(client.clone(), routes(&board)?).run_until(
        async move {
            // A dropped sender means the same as a message.
            let _ = stopped.await;
        },
    ));
    let interrupted = tokio::select! {
        played = play(&client, &board) => played.map(|()| false)?,
        interrupt = tokio::signal::ctrl_c() => interrupt.map(|()| true)?,
        ended = &mut worker => return Ok(ended.context("the worker panicked")??),
    };
    if interrupted {
        println!("interrupted");
    }
    let _ = stop.send(());
    worker.await.context("the worker panicked")??;
    summary(&client, &board).await?;
    redis.stop().await?;
    Ok(())
}

/// The routes of the three kinds.
fn routes(board: &Board) -> anyhow::Result<Router> {
    let ladder = [1.0, 2.0, 4.0].map(|seconds| board.stretched(seconds));
    debug_assert_eq!(ladder.len(), RUNGS as usize);
    Ok(Router::new()
        .route("shop:order:close:{order}", close)
        .route(
            "shop:pay:notice:{order}",
            notify.retry(RetryPolicy::ladder(ladder)?),
        )
        .route(
            "shop:pay:refund:{order}",
            check_refund.retry(RetryPolicy::fixed(board.stretched(3.0))?),
        )
        .with_state(board.clone()))
}

/// Closes an unpaid order.
async fn close(job: Job, State(board): State<Board>) {
    board.show(&job, "unpaid: closed");
}

/// Delivers a notice to a receiver that may be down, with a ladder of retries.
async fn notify(job: Job, State(board): State<Board>, Json(notice): Json<Notice>) -> Outcome {
    if job.attempt() > RUNGS {
        board.show(
            &job,
            "the receiver is down, at the end of the ladder: a dead letter",
        );
        return Outcome::retry("503 from the receiver");
    }
    if job.attempt() <= notice.refusals {
        board.show(&job, "the receiver is down: tried again by the ladder");
        return Outcome::retry("503 from the receiver");
    }
    board.show(&job, "delivered");
    Outcome::Done
}

/// Polls a refund: it is through at the third look.
async fn check_refund(
    job: Job,
    State(board): State<Board>,
    Segments(order): Segments<String>,
) -> Outcome {
    if job.attempt() < 3 {
        board.show(
            &job,
            &format!("refund of {order} not through yet: looked at again"),
        );
        return Outcome::again();
    }
    board.show(&job, "refund is through");
    Outcome::Done
}

/// Schedules the mix, changes some jobs on the way, and waits until all have ended.
async fn play(client: &Client, board: &Board) -> anyhow::Result<()> {
    let after = |seconds: f64| board.stretched(seconds);
    for order in 1..=30_u32 {
        let key = format!("shop:order:close:{}", 2000 + order);
        client
            .schedule(&key, "unpaid")
            .after(after(f64::from(order) * 1.15))
            .await?;
    }
    for (order, seconds, refusals) in [(1, 2.0, 0), (2, 4.0, 2), (3, 6.0, 1), (4, 9.0, 9)] {
        let key = format!("shop:pay:notice:{}", 3000 + order);
        client
            .schedule(&key, &Notice { refusals })
            .after(after(seconds))
            .await?;
    }
    client
        .schedule("shop:pay:refund:4001", &())
        .after(after(12.0))
        .await?;
    client
        .schedule("shop:order:close:cancelled", "")
        .after(after(10.0))
        .await?;
    client
        .schedule("shop:order:close:postponed", "")
        .after(after(5.0))
        .await?;

    tokio::time::sleep(after(3.0)).await;
    let answer = client.cancel("shop:order:close:cancelled").await?;
    anyhow::ensure!(
        answer == Cancelled::Cancelled,
        "the cancel was answered {answer:?}"
    );
    board.say(
        "shop:order:close:cancelled",
        "paid: cancelled, it will never run",
    );
    client
        .reschedule("shop:order:close:postponed")
        .after(after(22.0))
        .await?;
    board.say("shop:order:close:postponed", "postponed");

    let crowd_due = std::time::SystemTime::now() + after(25.0);
    let schedules = (0..CROWD).map(|order| {
        let key = format!("shop:pay:notice:crowd-{order:03}");
        client
            .schedule(&key, &Notice { refusals: 0 })
            .at(crowd_due)
            .into_future()
    });
    futures_util::future::try_join_all(schedules).await?;
    board.say(
        "shop:pay:notice:crowd-…",
        &format!("{CROWD} are due at one instant"),
    );

    let end = Instant::now() + after(SECONDS as f64);
    while Instant::now() < end && pending(client).await? > 0 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// The kinds of the demo.
const KINDS: [&str; 3] = ["shop:order:close", "shop:pay:notice", "shop:pay:refund"];

/// The number of jobs that have not ended.
async fn pending(client: &Client) -> keyfall::Result<u64> {
    let mut pending = 0;
    for kind in KINDS {
        let stats = client.stats(kind).await?;
        pending += stats.pending + stats.leased + stats.successors;
    }
    Ok(pending)
}

/// Prints the lateness and the counters of all jobs.
async fn summary(client: &Client, board: &Board) -> anyhow::Result<()> {
    let lags = board.0.lags.lock().expect("no panic while held").clone();
    let alone = lags.iter().filter(|(crowd, _)| !crowd);
    println!();
    println!("fired      {}", lags.len());
    println!("lag        {}", percentiles(lags.iter()));
    println!(
        "           {}, without those at one instant",
        percentiles(alone)
    );
    let mut all = Vec::new();
    for kind in KINDS {
        all.push(client.stats(kind).await?);
    }
    let sum = |count: fn(&Stats) -> u64| all.iter().map(count).sum::<u64>();
    println!(
        "retried    {} after a failure, {} without",
        sum(|s| s.failed),
        sum(|s| s.again)
    );
    println!("dead       {}{}", sum(|s| s.dead), letter(client).await?);
    println!("cancelled  {}", sum(|s| s.cancelled));
    println!(
        "balance    {} accepted = {} pending + {} leased + {} successors + {} done + {} cancelled \
         + {} replaced + {} buried: {}",
        sum(|s| s.accepted),
        sum(|s| s.pending),
        sum(|s| s.leased),
        sum(|s| s.successors),
        sum(|s| s.done),
        sum(|s| s.cancelled),
        sum(|s| s.replaced),
        sum(|s| s.buried),
        if all.iter().all(Stats::is_balanced) {
            "balanced"
        } else {
            "NOT BALANCED"
        },
    );
    Ok(())
}

/// The percentiles of lateness, as text.
fn percentiles<'a>(lags: impl Iterator<Item = &'a (bool, Duration)>) -> String {
    let mut lags: Vec<Duration> = lags.map(|(_, lag)| *lag).collect();
    lags.sort_unstable();
    let at = |share: f64| {
        let last = lags.len().saturating_sub(1);
        let place = (last as f64 * share).round() as usize;
        lags.get(place).map_or(f64::NAN, |lag| millis(*lag))
    };
    format!(
        "p50 {:.1} ms, p99 {:.1} ms, max {:.1} ms",
        at(0.5),
        at(0.99),
        at(1.0)
    )
}

/// The text about the notice that became a dead letter; empty if there is none.
async fn letter(client: &Client) -> keyfall::Result<String> {
    let job = client.get("shop:pay:notice:3004").await?;
    Ok(match job {
        Some(job) if job.state() == JobState::Dead => format!(
            ": {} after {} attempts, {}",
            job.key(),
            job.attempts(),
            job.last_error().unwrap_or("without a reason")
        ),
        _ => String::new(),
    })
}

impl Board {
    /// A delay of the demo, stretched.
    fn stretched(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds * self.0.stretch)
    }

    /// Prints a run, and notes its lateness.
    fn show(&self, job: &Job, what: &str) {
        let is_crowd = job.key().id().starts_with("crowd-");
        let mut lags = self.0.lags.lock().expect("no panic while held");
        lags.push((is_crowd, job.lag()));
        drop(lags);
        println!(
            "{:>6.2} s  {:<34} {:>7} {:>6.1} ms  {what}",
            self.0.start.elapsed().as_secs_f64(),
            job.key().as_str(),
            job.attempt(),
            millis(job.lag()),
        );
    }

    /// Prints a change of a job by a caller.
    fn say(&self, key: &str, what: &str) {
        let after = self.0.start.elapsed().as_secs_f64();
        println!("{after:>6.2} s  {key:<34} {:>7} {:>9}  {what}", "", "");
    }
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}
