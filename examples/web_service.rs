//! A web service with a worker inside: orders that are not paid in time are closed.
//!
//! It needs a Redis, at `KEYFALL_REDIS_URL` or else at `redis://127.0.0.1:6379`, and listens at
//! `LISTEN`, or else at `127.0.0.1:3000`.
//!
//! ```sh
//! cargo run --example web_service
//! ```
//!
//! and in another terminal:
//!
//! ```sh
//! curl -i -d '{"order": 42, "minutes": 15}' -H 'content-type: application/json' \
//!     http://127.0.0.1:3000/orders
//! curl -i http://127.0.0.1:3000/orders/42
//! curl -i -X DELETE http://127.0.0.1:3000/orders/42
//! ```
//!
//! At SIGTERM or Ctrl-C it answers the requests that it has, finishes the jobs that run, and ends.

use std::time::{Duration, SystemTime};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router, serve};
use futures_util::FutureExt;
use keyfall::{Cancelled, Client, ErrorKind, Segments, Worker};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;

#[derive(Deserialize)]
struct NewOrder {
    order: u64,
    /// The time to pay.
    minutes: u64,
}

fn key(order: u64) -> String {
    format!("app1:order:expire:{order}")
}

async fn place(
    State(client): State<Client>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Value>), Failure> {
    let time_to_pay = Duration::from_secs(new.minutes.saturating_mul(60));
    let scheduled = client
        .schedule(key(new.order), "")
        .after(time_to_pay)
        .await?;
    println!("order {} is placed", new.order);
    let answer = json!({ "order": new.order, "pay_by": seconds(scheduled.due) });
    Ok((StatusCode::CREATED, Json(answer)))
}

async fn look(State(client): State<Client>, Path(order): Path<u64>) -> Result<Response, Failure> {
    let Some(job) = client.get(key(order)).await? else {
        return Ok(StatusCode::NOT_FOUND.into_response());
    };
    let state = format!("{:?}", job.state());
    let answer = json!({ "order": order, "state": state, "pay_by": seconds(job.due()) });
    Ok(Json(answer).into_response())
}

/// The order is paid, or nobody wants it any more.
async fn settle(
    State(client): State<Client>,
    Path(order): Path<u64>,
) -> Result<StatusCode, Failure> {
    Ok(match client.cancel(key(order)).await? {
        Cancelled::Cancelled => StatusCode::NO_CONTENT,
        // Too late: it is being closed.
        Cancelled::Running => StatusCode::CONFLICT,
        Cancelled::Absent => StatusCode::NOT_FOUND,
    })
}

/// What Keyfall refused, as an answer.
struct Failure(keyfall::Error);

impl From<keyfall::Error> for Failure {
    fn from(error: keyfall::Error) -> Self {
        Failure(error)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = match self.0.kind() {
            ErrorKind::InvalidTime => StatusCode::UNPROCESSABLE_ENTITY,
            // The client may try again.
            _ if self.0.is_retryable() => StatusCode::SERVICE_UNAVAILABLE,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        (status, self.0.to_string()).into_response()
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// The handler of the worker.
async fn expire(Segments(order): Segments<u64>) {
    println!("order {order} is being closed");
    // What it takes to give the goods back.
    tokio::time::sleep(Duration::from_secs(2)).await;
    println!("order {order} is closed");
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;
    let address = std::env::var("LISTEN");
    let listener = TcpListener::bind(address.as_deref().unwrap_or("127.0.0.1:3000")).await?;
    println!("listening at http://{}", listener.local_addr()?);

    let web = Router::new()
        .route("/orders", post(place))
        .route("/orders/{order}", get(look).delete(settle))
        .with_state(client.clone());
    let jobs = keyfall::Router::new().route("app1:order:expire:{order}", expire);

    // One signal stops both.
    let stop = asked_to_stop().shared();
    let server = serve(listener, web).with_graceful_shutdown(stop.clone());
    let server = async { server.await.map_err(anyhow::Error::from) };
    let worker = Worker::new(client, jobs).run_until(stop);
    let worker = async { worker.await.map_err(anyhow::Error::from) };
    tokio::try_join!(server, worker)?;
    println!("stopped");
    Ok(())
}

/// By SIGTERM, as service managers do, or by Ctrl-C.
async fn asked_to_stop() {
    let interrupted = async { tokio::signal::ctrl_c().await.expect("Ctrl-C can be caught") };
    #[cfg(unix)]
    let terminated = async {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).expect("SIGTERM can be caught");
        terminate.recv().await;
    };
    #[cfg(not(unix))]
    let terminated = std::future::pending::<()>();
    tokio::select! {
        () = interrupted => {}
        () = terminated => {}
    }
    println!("stopping");
}
