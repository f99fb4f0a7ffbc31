//! Keyfall as a library: 500 jobs in each call, or one in each call of 64 tasks, and a worker with one
//! route.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::future::pending;
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use keyfall::{Client, Json, NewJob, Outcome, Router, Worker};
use serde::{Deserialize, Serialize};

const KIND: &str = "app1:bench:job";

#[derive(Serialize, Deserialize)]
struct Payload {
    due_ms: f64,
    text: String,
}

static LOG: OnceLock<File> = OnceLock::new();

fn run(job: &Payload) -> Result<(), Box<dyn Error>> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3;
    let mut log = LOG.get().ok_or("the log is open")?;
    // One write, as other jobs write at the same time.
    log.write_all(format!("{} {now}\n", job.due_ms).as_bytes())?;
    Ok(())
}

fn payload(due_ms: f64) -> (Payload, SystemTime) {
    let text = "x".repeat(180);
    let due = UNIX_EPOCH + Duration::from_secs_f64(due_ms / 1e3);
    (Payload { due_ms, text }, due)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().collect();
    let client = Client::connect(&format!("redis://127.0.0.1:{}", words[2])).await?;
    if words[1] == "work" {
        let path = std::env::var("COMPARE_LOG")?;
        LOG.get_or_init(|| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .unwrap()
        });
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
    let key = move |part, number| format!("{KIND}:{first}-{part}-{number}");
    if words[1] == "many" {
        for (part, some) in dues.chunks(500).enumerate() {
            let jobs = some.iter().enumerate().map(|(number, &due_ms)| {
                let (payload, due) = payload(due_ms);
                NewJob::new(key(part, number), &payload).at(due)
            });
            for scheduled in client.schedule_many(jobs).await {
                scheduled?;
            }
        }
    } else {
        let share = dues.len().div_ceil(64);
        let callers = dues.chunks(share).enumerate().map(|(part, some)| {
            let (some, client) = (some.to_vec(), client.clone());
            tokio::spawn(async move {
                for (number, due_ms) in some.into_iter().enumerate() {
                    let (payload, due) = payload(due_ms);
                    client
                        .schedule(key(part, number), &payload)
                        .at(due)
                        .await
                        .unwrap();
                }
            })
        });
        futures::future::try_join_all(callers).await?;
    }
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
