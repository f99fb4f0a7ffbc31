//! Layers of tower around the handlers: a span for the log, a timeout, a limit that routes share.
//!
//! It needs a Redis, at `KEYFALL_REDIS_URL` or else at `redis://127.0.0.1:6379`, and ends when
//! all mails are out.
//!
//! ```sh
//! cargo run --example layers
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use keyfall::{Client, Handler, Job, RetryPolicy, Router, State, Worker};
use tokio::sync::oneshot;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::timeout::TimeoutLayer;
use tower::{Layer, Service};
use tracing::instrument::{Instrument, Instrumented};

/// A layer of one's own: what a run logs names the request that scheduled the job. Which job it
/// is and which attempt, the worker's own span says.
#[derive(Clone)]
struct Spans;

#[derive(Clone)]
struct InSpan<S>(S);

impl<S> Layer<S> for Spans {
    type Service = InSpan<S>;

    fn layer(&self, inner: S) -> InSpan<S> {
        InSpan(inner)
    }
}

impl<S: Service<Job>> Service<Job> for InSpan<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = Instrumented<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, job: Job) -> Self::Future {
        let span = tracing::info_span!("request", id = job.headers().get("request"));
        self.0.call(job).instrument(span)
    }
}

/// How many mails are out.
#[derive(Clone, Default)]
struct Sent(Arc<AtomicU32>);

async fn welcome(State(sent): State<Sent>) {
    tracing::info!("welcome");
    sent.0.fetch_add(1, Ordering::Relaxed);
}

async fn invoice(job: Job, State(sent): State<Sent>) {
    if job.attempt() == 1 {
        tracing::info!("the mail service hangs");
        std::future::pending::<()>().await;
    }
    tracing::info!("invoice");
    sent.0.fetch_add(1, Ordering::Relaxed);
}

#[tokio::main]
async fn main() -> keyfall::Result<()> {
    tracing_subscriber::fmt().with_ansi(false).init();
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;

    let sent = Sent::default();
    let soon = RetryPolicy::fixed(Duration::from_millis(100))?;
    let routes = Router::new()
        .route("app1:mail:welcome:{user}", welcome)
        .route("app1:mail:invoice:{order}", invoice.retry(soon))
        // From the inside out: a run may take half a second, which counts from when it has got
        // one of the two connections to the mail service; and whatever happens is in a span.
        .layer(TimeoutLayer::new(Duration::from_millis(500)))
        .layer(GlobalConcurrencyLimitLayer::new(2))
        .layer(Spans)
        .with_state(sent.clone());
    let (stop, stopped) = oneshot::channel::<()>();
    let worker = Worker::new(client.clone(), routes).run_until(async { _ = stopped.await });

    let demo = async {
        let invoice = client.schedule("app1:mail:invoice:42", "");
        invoice.header("request", "r-7001").await?;
        for user in 1..=3 {
            client
                .schedule(format!("app1:mail:welcome:{user}"), "")
                .await?;
        }
        while sent.0.load(Ordering::Relaxed) < 4 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(stop);
        Ok(())
    };
    tokio::try_join!(worker, demo)?;
    Ok(())
}
