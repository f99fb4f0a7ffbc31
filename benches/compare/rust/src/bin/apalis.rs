//! apalis-redis: 500 jobs in each push, or one in each push of 64 tasks, and a worker with
//! `concurrency(50)` that polls ten times a second, fetches 50 jobs at a time, and keeps no results. A time
//! is cut to whole seconds.

use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use apalis::prelude::*;
use apalis_redis::{RedisStorage, RedisTask};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Job {
    due_ms: f64,
    text: String,
}

static LOG: OnceLock<File> = OnceLock::new();

async fn run(job: Job) -> Result<(), BoxDynError> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3;
    let mut log = LOG.get().ok_or("the log is open")?;
    // One write, as other jobs write at the same time.
    log.write_all(format!("{} {now}\n", job.due_ms).as_bytes())?;
    Ok(())
}

fn task(due_ms: f64) -> RedisTask<Job> {
    let text = "x".repeat(180);
    let due = UNIX_EPOCH + Duration::from_secs_f64(due_ms / 1e3);
    TaskBuilder::new(Job { due_ms, text })
        .run_at_time(due)
        .build()
}

#[tokio::main]
async fn main() -> Result<(), BoxDynError> {
    let words: Vec<String> = std::env::args().collect();
    let url = format!("redis://127.0.0.1:{}", words[2]);
    let mut storage = RedisStorage::<Job, _>::new(apalis_redis::connect(url).await?);
    if words[1] == "work" {
        let path = std::env::var("COMPARE_LOG")?;
        LOG.get_or_init(|| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .open(path)
                .unwrap()
        });
        // Without it, due jobs are looked for twice a minute.
        let config = storage.get_config().clone();
        let config = config.batch_size(50).persist_results(false);
        // With events or locks, it may look for due jobs at its heartbeat only.
        let storage = storage.with_config(config.lock_tasks(false).emit_events(false));
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
    if words[1] == "many" {
        for some in dues.chunks(500) {
            let tasks: Vec<_> = some.iter().map(|&due_ms| task(due_ms)).collect();
            storage.push_all(futures::stream::iter(tasks)).await?;
        }
    } else {
        let callers = dues.chunks(dues.len().div_ceil(64)).map(|some| {
            let (some, mut storage) = (some.to_vec(), storage.clone());
            tokio::spawn(async move {
                for due_ms in some {
                    storage.push_task(task(due_ms)).await.unwrap();
                }
            })
        });
        futures::future::try_join_all(callers).await?;
    }
    println!("{}", began.elapsed().as_secs_f64());
    Ok(())
}
