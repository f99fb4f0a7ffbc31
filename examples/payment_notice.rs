//! Tells a shop that an order was paid, again and again until it answers, as payment providers do.
//!
//! Notices climb a ladder of delays. One whose ladder has ended is a dead letter, which somebody
//! requeues once the shop is mended. It needs a Redis, at `KEYFALL_REDIS_URL` or else at
//! `redis://127.0.0.1:6379`, and ends when every notice was delivered, or refused for good.
//!
//! ```sh
//! cargo run --example payment_notice
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::{Client, Handler, Job, Json, Notice, Outcome, RetryPolicy, Router, State, Worker};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

/// Stands for a shop and the way there.
#[derive(Clone, Default)]
struct Shop {
    /// How many of the next requests about an order fail.
    failures: Arc<Mutex<HashMap<u64, u32>>>,
    received: Arc<Mutex<Vec<u64>>>,
}

impl Shop {
    /// `POST`s a notice, and returns the status of the answer.
    async fn post(&self, notice: &Value) -> u16 {
        let order = notice["order"].as_u64().unwrap_or_default();
        match self.failures.lock().unwrap().get_mut(&order) {
            None => 404,
            Some(0) => {
                self.received.lock().unwrap().push(order);
                200
            }
            Some(failures) => {
                *failures -= 1;
                503
            }
        }
    }

    fn fails(&self, order: u64, times: u32) {
        self.failures.lock().unwrap().insert(order, times);
    }
}

async fn notify(job: Job, Json(notice): Json<Value>, State(shop): State<Shop>) -> Outcome {
    // A notice can arrive twice, if a worker dies before it has said that it was delivered. A
    // shop tells them by the order.
    let status = shop.post(&notice).await;
    println!("{}, attempt {}: {status}", job.key().id(), job.attempt());
    match status {
        200..=299 => Outcome::Done,
        // Whoever asks to be left alone for a while says for how long.
        429 => Outcome::retry_after(Duration::from_secs(60), "too many requests"),
        // The shop does not know the order, and will not later.
        404 | 410 => Outcome::bury(format!("the shop answered {status}")),
        _ => Outcome::retry(format!("the shop answered {status}")),
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    let shop = Shop::default();
    // `RetryPolicy::day_ladder()` is the real one: 15 s, 3 min, 10 min … in all a day.
    let ladder: RetryPolicy = "100ms 200ms 400ms".parse()?;
    let routes = Router::new()
        .route("app1:trans:notice:{order}", notify.retry(ladder))
        .with_state(shop.clone());
    // Where an alarm would be raised.
    let (tell, mut buried) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes)
        .on_notice(move |notice| _ = tell.send(notice.clone()))
        .run_until(async { _ = stopped.await });

    let demo = async {
        // Order 41 gets through at once, 42 at the third attempt, 43 not before the shop is
        // mended; and 44 is unknown to the shop.
        for (order, failures) in [(41, 0), (42, 2), (43, u32::MAX)] {
            shop.fails(order, failures);
        }
        for order in 41..=44 {
            let key = format!("app1:trans:notice:{order}");
            let notice = json!({ "order": order, "paid": 990 });
            client.schedule(key, &notice).await?;
        }

        let mut dead = 0;
        while dead < 2 {
            let Some(notice) = buried.recv().await else {
                break;
            };
            if let Notice::Buried { key, reason, .. } = notice {
                println!("{} is a dead letter: {reason}", key.id());
                dead += 1;
            }
        }

        shop.fails(43, 0);
        println!("the shop is mended");
        // One could requeue all of them: `client.prefix("app1:trans:notice:").requeue()`.
        client.requeue("app1:trans:notice:43").await?;
        client.delete_dead_letter("app1:trans:notice:44").await?;

        while shop.received.lock().unwrap().len() < 3 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("all are delivered");
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}
