//! A service that schedules: one job, many jobs, and what can be done with them until they are
//! due.
//!
//! It needs a Redis, at `KEYFALL_REDIS_URL` or else at `redis://127.0.0.1:6379`, and no worker:
//! nothing falls due before it has ended, and its last call cancels everything.
//!
//! ```sh
//! cargo run --example producer
//! ```
//!
//! A service that only schedules depends on keyfall with `default-features = false`.

use std::time::{Duration, SystemTime};

use keyfall::{Client, IfAbsent, NewJob, Rescheduled, RetryPolicy, Scheduled};
use serde_json::json;

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::main]
async fn main() -> keyfall::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    one(&client).await?;
    only_if_absent(&client).await?;
    many(&client).await;
    refused(&client).await;

    let cancelled = client.prefix("app1:coupon:expire:").cancel().await?;
    println!("cancelled {} coupons", cancelled.done);
    Ok(())
}

/// From its schedule to its cancel.
async fn one(client: &Client) -> keyfall::Result<()> {
    let key = "app1:coupon:expire:1";
    let scheduled = client
        .schedule(key, &json!({ "user": 7, "percent": 20 }))
        .after(24 * HOUR)
        .header("tenant", "acme")
        // Instead of the policy of its route.
        .retry(RetryPolicy::two_hour_ladder())
        .await?;
    println!("coupon 1: {:?}", scheduled.placed);

    if let Rescheduled::Moved(_) = client.reschedule(key).after(48 * HOUR).await? {
        println!("coupon 1 is good for a day longer");
    }

    if let Some(job) = client.get(key).await? {
        let payload: serde_json::Value = job.json()?;
        println!("coupon 1: {:?}, for user {}", job.state(), payload["user"]);
    }

    println!("coupon 1: {:?}", client.cancel(key).await?);
    println!("coupon 1: {:?}", client.cancel(key).await?);
    Ok(())
}

/// The first call wins, and later ones see what it made.
async fn only_if_absent(client: &Client) -> keyfall::Result<()> {
    let key = "app1:coupon:expire:2";
    for user in [7, 8] {
        let call = client.schedule(key, &json!({ "user": user })).after(HOUR);
        match call.if_absent().await? {
            IfAbsent::Scheduled(_) => println!("coupon 2 is for user {user}"),
            IfAbsent::Present(job) => {
                let payload: serde_json::Value = job.json()?;
                println!("coupon 2 is for user {} already", payload["user"]);
            }
        }
    }
    Ok(())
}

/// In one call, which answers for each of them. One that is not valid spoils no other.
async fn many(client: &Client) {
    let ids = (1000..2000).map(|id| id.to_string());
    let jobs = ids.chain(["no id".to_owned()]).map(|id| {
        let key = format!("app1:coupon:expire:{id}");
        NewJob::new(key, &json!({ "user": 7 })).after(HOUR)
    });
    let answers = client.schedule_many(jobs).await;
    let (scheduled, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    println!("scheduled {} coupons at once", scheduled.len());
    for error in failed.into_iter().filter_map(Result::err) {
        println!("not scheduled: {error}");
    }
}

/// An error says whether the same call can succeed later.
async fn refused(client: &Client) {
    match insist(client, "app1:coupon:expire", SystemTime::now() + HOUR).await {
        Ok(scheduled) => println!("coupon: {:?}", scheduled.placed),
        Err(error) => println!("mend the call: {error}"),
    }
}

/// Schedules, though Redis may be away for longer than a call waits for it.
///
/// Every call may be repeated, also one of which nobody knows whether it was carried out. The due
/// time is fixed before the first, so that no repeat postpones the job.
async fn insist(client: &Client, key: &str, due: SystemTime) -> keyfall::Result<Scheduled> {
    let mut pause = Duration::from_secs(1);
    for _ in 0..4 {
        match client.schedule(key, "").at(due).await {
            Err(error) if error.is_retryable() => {
                eprintln!("once more in {pause:?}: {error}");
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            result => return result,
        }
    }
    client.schedule(key, "").at(due).await
}
