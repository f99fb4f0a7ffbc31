//! A worker to be watched, stopped and killed.
//!
//! It runs the jobs `APP:work:sleep:…`, each of which sleeps for as many milliseconds as
//! its payload says. The Redis is that at `KEYFALL_REDIS_URL`, or else at
//! `redis://127.0.0.1:6379`. Start one or two workers, in terminals of their own:
//!
//! ```sh
//! cargo run --example worker -- app1
//! ```
//!
//! and give them something to do:
//!
//! ```sh
//! cargo run --example worker -- app1 schedule 20
//! ```
//!
//! With Ctrl-C a worker finishes what it runs. With `kill -9` it cannot, and another one
//! takes its jobs over as soon as their leases have lapsed, as attempt 2.

use std::time::Duration;

use keyfall::{CancelSignal, Client, Handler, Job, Json, Outcome, RetryPolicy, Router, Worker};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [app] => work(client, app).await,
        [app, "schedule", count] => schedule(&client, app, count.parse()?).await,
        _ => anyhow::bail!("give an app, or an app, `schedule` and a number"),
    }
}

async fn work(client: Client, app: &str) -> anyhow::Result<()> {
    let router = Router::new().route(
        &format!("{app}:work:sleep:{{id}}"),
        // Three attempts, those that ended with their worker included.
        sleep.retry(RetryPolicy::fixed(Duration::from_secs(1))?.attempts(3)),
    );
    // A short lease: jobs are taken over two seconds after their worker died. The price is
    // that it is renewed more often.
    let worker = Worker::new(client, router).lease(Duration::from_secs(2));
    println!("working for {app}");
    worker.run().await?;
    println!("stopped");
    Ok(())
}

async fn sleep(job: Job, Json(ms): Json<u64>, stop: CancelSignal) -> Outcome {
    println!("started {} {}", job.key(), job.attempt());
    tokio::select! {
        () = tokio::time::sleep(Duration::from_millis(ms)) => {
            println!("finished {}", job.key());
            Outcome::Done
        }
        // Somebody cancelled it, or the lease is about to be lost.
        () = stop.raised() => Outcome::retry("it was told to stop"),
    }
}

async fn schedule(client: &Client, app: &str, count: u64) -> anyhow::Result<()> {
    for id in 0..count {
        let key = format!("{app}:work:sleep:{id}");
        client
            .schedule(&key, &3000)
            .after(Duration::from_secs(id))
            .await?;
    }
    println!("scheduled {count} jobs, one due each second");
    Ok(())
}
