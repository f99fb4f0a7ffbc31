//! apalis-redis: 500 jobs in each push, and a worker with `concurrency(50)` that polls ten times a
//! second. A time is cut to whole seconds.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apalis::prelude::*;
use apalis_redis::RedisStorage;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    due_ms: f64,
    text: String,
}

async fn run(job: Job) -> Result<(), BoxDynError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3;
    let path = std::env::var("COMPARE_LOG")?;
    let mut log = OpenOptions::new().append(true).create(true).open(path)?;
    // One write, as other jobs write at the same time.
    log.write_all(format!("{} {now}\n", job.due_ms).as_bytes())?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let words: Vec<String> = std::env::args().collect();
    let url = format!("redis://127.0.0.1:{}", words[2]);
    let mut storage = RedisStorage::<Job, _>::new(apalis_redis::connect(url).await?);
    if words[1] == "work" {
        // Without it, due jobs are looked for twice a minute.
        let storage = storage.poll_with_interval(Duration::from_millis(100));
        let worker = WorkerBuilder::new("compare").backend(storage);
        worker.concurrency(50).build(run).run().await?;
        return Ok(());
    }
    let (count, first, step): (u32, f64, f64) =
        (words[3].parse()?, words[4].parse()?, words[5].parse()?);
    let dues: Vec<f64> = (0..count)
        .map(|number| first + f64::from(number) * step)
        .collect();
    let began = Instant::now();
    for some in dues.chunks(500) {
        let tasks: Vec<_> = some
            .iter()
            .map(|&due_ms| {
                let job = Job {
                    due_ms,
                    text: "x".repeat(180),
                };
                let due = UNIX_EPOCH + Duration::from_secs_f64(due_ms / 1e3);
                TaskBuilder::new(job).run_at_time(due).build()
            })
            .collect();
        storage.push_all(futures::stream::iter(tasks)).await?;
    }
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
