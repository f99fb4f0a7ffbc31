//! The trace of whoever schedules a job goes on in its handler, through every attempt.
//!
//! `checkout` schedules `APP:order:expire:…`; the worker closes the order at the second attempt,
//! and has a mail follow. Spans go to the collector at `OTEL_EXPORTER_OTLP_ENDPOINT`, or else at
//! `http://localhost:4318`; the Redis is that at `KEYFALL_REDIS_URL`, or else at
//! `redis://127.0.0.1:6379`. In two terminals:
//!
//! ```sh
//! cargo run -p keyfall-daemon --example traced -- app1
//! cargo run -p keyfall-daemon --example traced -- app1 schedule 42
//! ```

use std::time::Duration;

use keyfall::{Client, Handler, Job, Outcome, RetryPolicy, Router, State, Worker};
use opentelemetry::trace::TracerProvider;
use opentelemetry_otlp::SpanExporter;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::Layer;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Everything that is needed beside Keyfall: an exporter, and spans of `tracing` that go to it.
fn trace() -> anyhow::Result<SdkTracerProvider> {
    let exporter = SpanExporter::builder().with_http().build()?;
    let provider = SdkTracerProvider::builder()
        .with_batch_exporter(exporter)
        .with_resource(Resource::builder().with_service_name("orders").build())
        .build();
    let layer = tracing_opentelemetry::layer().with_tracer(provider.tracer("orders"));
    tracing_subscriber::registry()
        .with(layer.with_filter(LevelFilter::INFO))
        .init();
    Ok(provider)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    // The HTTP client of the exporter has no TLS of its own as it is built here.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let provider = trace()?;
    let url = std::env::var("KEYFALL_REDIS_URL");
    let client = Client::connect(url.as_deref().unwrap_or("redis://127.0.0.1:6379")).await?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [app] => work(client, app).await?,
        [app, "schedule", order] => checkout(&client, app, order).await?,
        _ => anyhow::bail!("give an app, or an app, `schedule` and the number of an order"),
    }
    // What is not sent yet. It blocks, so not on this runtime.
    tokio::task::spawn_blocking(move || provider.shutdown()).await??;
    Ok(())
}

#[tracing::instrument(skip(client))]
async fn checkout(client: &Client, app: &str, order: &str) -> anyhow::Result<()> {
    let key = format!("{app}:order:expire:{order}");
    // The job carries the span that this runs in.
    let call = client.schedule(key, "");
    call.after(Duration::from_millis(100)).await?;
    Ok(())
}

async fn work(client: Client, app: &str) -> anyhow::Result<()> {
    let retry = RetryPolicy::fixed(Duration::from_millis(100))?;
    let router = Router::new()
        .route(
            &format!("{app}:order:expire:{{order}}"),
            expire.retry(retry),
        )
        .route(&format!("{app}:order:mail:{{order}}"), mail)
        .with_state(client.clone());
    Worker::new(client, router).run().await?;
    Ok(())
}

async fn expire(job: Job, State(client): State<Client>) -> Outcome {
    if job.attempt() == 1 {
        return Outcome::retry("the shop does not answer");
    }
    match close(&client, &job).await {
        Ok(()) => Outcome::Done,
        Err(error) => Outcome::retry(error),
    }
}

#[tracing::instrument(skip_all)]
async fn close(client: &Client, job: &Job) -> keyfall::Result<()> {
    let mail = job.key().as_str().replace(":expire:", ":mail:");
    client.schedule(mail, "").await?;
    Ok(())
}

async fn mail(job: Job) {
    tracing::info!(order = job.key().id(), "closed");
}
