//! A daily digest: a job that recurs on every weekday at nine in Berlin, and not on holidays.
//!
//! It prints the next times of the rule, runs the job once before its time, as an operator would to
//! see a digest now, and says when the next one is due. It needs a Redis, at `KEYFALL_REDIS_URL` or
//! else at `redis://127.0.0.1:6379`, and ends when the digest has run.
//!
//! ```sh
//! cargo run --example digest
//! ```

use std::time::{Duration, SystemTime};

use keyfall::{
    Client, Instead, Job, Json, Missed, QuietHours, RetryPolicy, Router, Rule, State, Worker,
};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

const KEY: &str = "app1:digest:daily:42";

/// The payload is a template: each run gets the day that it is for.
#[derive(Serialize, Deserialize)]
struct Digest {
    user: u32,
    day: String,
}

fn weekdays_at_nine() -> keyfall::Result<Rule> {
    let holidays = QuietHours::on(&["SAT", "SUN"])?
        .holidays(&["2026-12-25", "2027-01-01"])?
        .instead(Instead::Skip);
    Rule::cron("0 9 * * *")?
        .zone("Europe/Berlin")?
        .quiet(holidays)
        .template()
        // After an outage one digest is enough, and not all at the same time.
        .when_missed(Missed::Spread(Duration::from_secs(600)))
}

async fn digest(job: Job, Json(digest): Json<Digest>, State(sent): State<mpsc::Sender<u64>>) {
    let number = job.occurrence().map_or(0, |it| it.number);
    println!("digest {number} of user {} for {}", digest.user, digest.day);
    sent.send(number).await.ok();
}

#[tokio::main]
async fn main() -> keyfall::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    let rule = weekdays_at_nine()?;
    println!("{rule}");
    for time in rule.upcoming(SystemTime::now(), 5) {
        println!("  in {} hours", hours_until(time));
    }
    let payload = Digest {
        user: 42,
        day: "{{scheduled_for %Y-%m-%d}}".to_owned(),
    };
    client
        .schedule(KEY, &payload)
        .recurring(rule)
        .retry(RetryPolicy::fixed(Duration::from_secs(60))?.attempts(5))
        .await?;

    let (sent, mut digests) = mpsc::channel(8);
    let routes = Router::new()
        .route("app1:digest:daily:{user}", digest)
        .with_state(sent);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes).run_until(async { _ = stopped.await });
    let demo = async {
        client.fire_now(KEY).await?;
        let first = digests.recv().await;
        // Its run ends a moment after its handler: then the next occurrence is pending.
        loop {
            let job = client.get(KEY).await?;
            let next = job
                .as_ref()
                .and_then(|job| Some((job.due(), job.occurrence()?)));
            match next {
                Some((due, occurrence)) if Some(occurrence.number) > first => {
                    let hours = hours_until(due);
                    println!("digest {} is due in {hours} hours", occurrence.number);
                    break;
                }
                _ => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        client.cancel(KEY).await?;
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}

fn hours_until(time: SystemTime) -> u64 {
    let left = time.duration_since(SystemTime::now()).unwrap_or_default();
    left.as_secs() / 3600
}
