//! Keyfall as a library: 500 jobs in each call, and a worker with one route.

use std::error::Error;
use std::fs::OpenOptions;
use std::future::pending;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keyfall::{Client, Json, NewJob, Outcome, Router, Worker};
use serde::{Deserialize, Serialize};

const KIND: &str = "app1:bench:job";

#[derive(Serialize, Deserialize)]
struct Payload {
    due_ms: f64,
    text: String,
}

fn run(job: &Payload) -> Result<(), Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3;
    let path = std::env::var("COMPARE_LOG")?;
    let mut log = OpenOptions::new().append(true).create(true).open(path)?;
    // One write, as other jobs write at the same time.
    log.write_all(format!("{} {now}\n", job.due_ms).as_bytes())?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let client = Client::connect(&format!("redis://127.0.0.1:{}", words[2])).await?;
    if words[1] == "work" {
        let handler = async |Json(job): Json<Payload>| match run(&job) {
            Ok(()) => Outcome::Done,
            Err(error) => Outcome::bury(error.to_string()),
        };
        let router = Router::new().route(&format!("{KIND}:*"), handler);
        Worker::new(client, router).run_until(pending()).await?;
        return Ok(());
    }
    let (count, first, step): (u32, f64, f64) =
        (words[3].parse()?, words[4].parse()?, words[5].parse()?);
    let dues: Vec<f64> = (0..count)
        .map(|number| first + f64::from(number) * step)
        .collect();
    let began = Instant::now();
    for (part, some) in dues.chunks(500).enumerate() {
        let jobs = some.iter().enumerate().map(|(number, &due_ms)| {
            let payload = Payload {
                due_ms,
                text: "x".repeat(180),
            };
            let due = UNIX_EPOCH + Duration::from_secs_f64(due_ms / 1e3);
            NewJob::new(format!("{KIND}:{first}-{part}-{number}"), &payload).at(due)
        });
        for scheduled in client.schedule_many(jobs).await {
            scheduled?;
        }
    }
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
