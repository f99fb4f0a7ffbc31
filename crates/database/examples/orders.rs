//! An order service with an outbox: an order and its deadline are one transaction.
//!
//! An order that is not paid in time expires. It is stored together with the reminder of that, and paid
//! together with the cancel of the reminder: there is no order without a reminder, and no reminder
//! without an order. One that is rolled back leaves neither.
//!
//!     KEYFALL_DATABASE_URL='host=/var/run/postgresql user=keyfall dbname=orders' \
//!     KEYFALL_REDIS_URL=redis://127.0.0.1:6379 \
//!         cargo run -p keyfall-database --example orders
//!
//! The relay runs here as well, so that there is one program to start. Elsewhere `keyfall serve` is the
//! relay, and the service needs PostgreSQL alone.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use keyfall::{Client, Job, Outcome, Router, Worker};
use keyfall_database::{Database, Relay, Settings};
use tokio_postgres::NoTls;

type Result<T = (), E = Box<dyn Error>> = std::result::Result<T, E>;

/// How long an order may be unpaid.
const DEADLINE: &str = "1 second";

#[tokio::main]
async fn main() -> Result {
    let database = std::env::var("KEYFALL_DATABASE_URL")?;
    let redis = std::env::var("KEYFALL_REDIS_URL")?;

    // The tables, the relay, and a worker for the reminders.
    let keyfall = Database::open(&Settings::new(&database))?;
    keyfall.migrate().await?;
    let client = Client::connect(&redis).await?;
    tokio::spawn(Relay::new(client.clone(), keyfall).run_until(std::future::pending()));
    let orders = Arc::new(connect(&database).await?);
    let expire = async move |job: Job| match expired(&orders, job.key().id()).await {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::retry(error.to_string()),
    };
    let router = Router::new().route("shop:order:expire:{id}", expire);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let worker = tokio::spawn(Worker::new(client, router).run_until(async {
        let _ = stopped.await;
    }));

    // The service.
    let mut sql = connect(&database).await?;
    sql.batch_execute(
        "CREATE TABLE IF NOT EXISTS orders
            (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, total text, state text)",
    )
    .await?;
    let forgotten = place(&mut sql, "99.90").await?;
    let paid = place(&mut sql, "12.00").await?;
    pay(&mut sql, paid).await?;
    println!("placed {forgotten} and {paid}, paid {paid}");

    while state(&sql, forgotten).await? == "open" {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for order in [forgotten, paid] {
        println!("order {order} is {}", state(&sql, order).await?);
    }
    // What has run is settled before it ends.
    drop(stop);
    Ok(worker.await??)
}

/// Stores an order, and has it expire if nobody pays.
async fn place(sql: &mut tokio_postgres::Client, total: &str) -> Result<i64> {
    let order = sql.transaction().await?;
    let insert = "INSERT INTO orders (total, state) VALUES ($1, 'open') RETURNING id";
    let id: i64 = order.query_one(insert, &[&total]).await?.get(0);
    let remind = format!("SELECT keyfall_schedule($1, delay => '{DEADLINE}')");
    order.execute(&remind, &[&key(id)]).await?;
    order.commit().await?;
    Ok(id)
}

/// Notes that an order is paid, and cancels the reminder.
async fn pay(sql: &mut tokio_postgres::Client, id: i64) -> Result {
    let payment = sql.transaction().await?;
    let paid = "UPDATE orders SET state = 'paid' WHERE id = $1 AND state = 'open'";
    if payment.execute(paid, &[&id]).await? == 0 {
        return Err(format!("order {id} is not open any more").into());
    }
    payment
        .execute("SELECT keyfall_cancel($1)", &[&key(id)])
        .await?;
    Ok(payment.commit().await?)
}

/// A payment may have been faster, and the reminder can come twice: the state decides.
async fn expired(sql: &tokio_postgres::Client, id: &str) -> Result {
    let id: i64 = id.parse()?;
    let expire = "UPDATE orders SET state = 'expired' WHERE id = $1 AND state = 'open'";
    sql.execute(expire, &[&id]).await?;
    Ok(())
}

fn key(id: i64) -> String {
    format!("shop:order:expire:{id}")
}

async fn state(sql: &tokio_postgres::Client, id: i64) -> Result<String> {
    let read = "SELECT state FROM orders WHERE id = $1";
    Ok(sql.query_one(read, &[&id]).await?.get(0))
}

async fn connect(url: &str) -> Result<tokio_postgres::Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}
