//! Closes orders that nobody pays: a warning after ten minutes, the end after fifteen.
//!
//! A warning and a close are two kinds, so that each has its own route, limits and counts, and
//! one order has a job of each. It needs a Redis, at `KEYFALL_REDIS_URL` or else at
//! `redis://127.0.0.1:6379`, and ends when one order was closed and the other one paid.
//!
//! ```sh
//! cargo run --example order_timeout
//! ```

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use keyfall::{Cancelled, Client, NewJob, Router, Segments, State, Worker};
use tokio::sync::oneshot;

/// A short one, so that there is something to see.
const MINUTE: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Open,
    Paid,
    Closed,
}

/// Stands for a database: orders by number.
#[derive(Clone, Default)]
struct Orders(Arc<Mutex<HashMap<u64, Order>>>);

impl Orders {
    /// Ends an order that is open, and returns how it has ended: perhaps otherwise.
    fn end(&self, number: u64, end: Order) -> Option<Order> {
        let mut orders = self.0.lock().unwrap();
        let order = orders.get_mut(&number)?;
        if *order == Order::Open {
            *order = end;
        }
        Some(*order)
    }

    fn get(&self, number: u64) -> Option<Order> {
        self.0.lock().unwrap().get(&number).copied()
    }
}

/// Places an order and starts its clocks.
async fn place(client: &Client, orders: &Orders, number: u64) -> keyfall::Result<()> {
    orders.0.lock().unwrap().insert(number, Order::Open);
    let clocks = [("warn", 10 * MINUTE), ("close", 15 * MINUTE)];
    let jobs = clocks
        .map(|(step, after)| NewJob::new(format!("app1:order:{step}:{number}"), "").after(after));
    for answer in client.schedule_many(jobs).await {
        answer?;
    }
    println!("order {number} is placed");
    Ok(())
}

/// Takes a payment and stops the clocks.
async fn pay(client: &Client, orders: &Orders, number: u64) -> keyfall::Result<()> {
    if orders.end(number, Order::Paid) != Some(Order::Paid) {
        println!("order {number} is closed: the payment goes back");
        return Ok(());
    }
    println!("order {number} is paid");
    for step in ["warn", "close"] {
        // What is running by now finds that the order is paid.
        if client.cancel(format!("app1:order:{step}:{number}")).await? == Cancelled::Cancelled {
            println!("order {number}: no {step}");
        }
    }
    Ok(())
}

async fn warn(Segments(number): Segments<u64>, State(orders): State<Orders>) {
    if orders.get(number) == Some(Order::Open) {
        println!("order {number} is to be paid within five minutes");
    }
}

async fn close(Segments(number): Segments<u64>, State(orders): State<Orders>) {
    // The database decides, not the job: a payment may come at this very moment.
    if orders.end(number, Order::Closed) == Some(Order::Closed) {
        println!("order {number} is closed");
    }
}

#[tokio::main]
async fn main() -> keyfall::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    let orders = Orders::default();
    let routes = Router::new()
        .route("app1:order:warn:{number}", warn)
        .route("app1:order:close:{number}", close)
        .with_state(orders.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes).run_until(async { _ = stopped.await });
    let demo = async {
        place(&client, &orders, 1).await?;
        place(&client, &orders, 2).await?;
        pay(&client, &orders, 2).await?;
        while orders.get(1) != Some(Order::Closed) {
            tokio::time::sleep(MINUTE).await;
        }
        pay(&client, &orders, 1).await?;
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}
