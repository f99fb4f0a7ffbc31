//! Asks a bank for the state of a refund until it is through.
//!
//! "Not yet" is no failure: the handler returns `Outcome::again()`, and the job climbs a ladder
//! that asks often at first and seldom later. It needs a Redis, at `KEYFALL_REDIS_URL` or else at
//! `redis://127.0.0.1:6379`, and ends when every refund is decided.
//!
//! ```sh
//! cargo run --example refund
//! ```

use std::time::Duration;

use keyfall::{Client, Handler, Job, JobState, Outcome, RetryPolicy, Router, Segments, Worker};
use tokio::sync::oneshot;

enum Refund {
    UnderWay,
    Through,
    Denied,
}

/// Stands for the bank, and its answer to the question with this number.
async fn ask_bank(refund: u64, question: u32) -> Result<Refund, &'static str> {
    match (refund, question) {
        (1, 2) => Err("the bank does not answer"),
        (1, 4) => Ok(Refund::Through),
        (2, 2) => Ok(Refund::Denied),
        _ => Ok(Refund::UnderWay),
    }
}

async fn check(job: Job, Segments(refund): Segments<u64>) -> Outcome {
    let answer = ask_bank(refund, job.attempt()).await;
    let (found, outcome) = match answer {
        Ok(Refund::Through) => ("through", Outcome::Done),
        Ok(Refund::Denied) => ("denied", Outcome::bury("the bank denied it")),
        Ok(Refund::UnderWay) => ("under way", Outcome::again()),
        // A failure takes the ladder's next rung as well.
        Err(error) => (error, Outcome::retry(error)),
    };
    println!("refund {refund}, question {}: {found}", job.attempt());
    outcome
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    // In earnest something like "1m 5m 30m 2h 12h 1day": this is text, so it can stand in a
    // configuration.
    let ladder: RetryPolicy = "100ms 100ms 200ms 400ms".parse()?;
    let routes = Router::new().route("app1:refund:check:{refund}", check.retry(ladder));
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes).run_until(async { _ = stopped.await });

    let demo = async {
        let refunds = [1, 2, 3].map(|refund| format!("app1:refund:check:{refund}"));
        for key in &refunds {
            client.schedule(key, "").await?;
        }
        for key in &refunds {
            conclude(&client, key).await?;
        }
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}

/// Waits until a refund is through, or is one for a person to look at.
async fn conclude(client: &Client, key: &str) -> keyfall::Result<()> {
    while let Some(job) = client.get(key).await? {
        if job.state() == JobState::Dead {
            println!("{key} needs a person: {}", job.last_error().unwrap_or("?"));
            client.delete_dead_letter(key).await?;
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    println!("{key} is through");
    Ok(())
}
