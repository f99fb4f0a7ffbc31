//! Sends spans to a collector, over OTLP. No request waits for the collector: spans that it does
//! not take in time are dropped.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Handle;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::{Layer, Registry};

use crate::config::TracesSection;

/// The log target of health checks. They are not traced.
pub(super) const PROBES: &str = "keyfall::probes";

/// The log target of messages about the collector; not traced either.
const SENDING: &str = "keyfall::traces";

/// The time limit of one delivery.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long a stop waits for the last delivery.
const LAST: Duration = Duration::from_secs(5);

/// The sender of the spans of this process, until it is stopped.
pub struct Traces(SdkTracerProvider);

impl Traces {
    /// Starts sending by these settings, in tasks of this runtime; `None` if there is no collector.
    pub fn start(settings: &TracesSection, runtime: &Handle) -> anyhow::Result<Option<Self>> {
        if settings.endpoint.is_none() && !is_set(&COLLECTOR) {
            return Ok(None);
        }
        let client = reqwest::Client::builder().timeout(PATIENCE).build()?;
        let post = Post {
            client,
            runtime: runtime.clone(),
            is_away: Arc::default(),
        };
        let mut exporter = SpanExporter::builder().with_http().with_http_client(post);
        if let Some(endpoint) = &settings.endpoint {
            exporter = exporter.with_endpoint(format!("{}/v1/traces", endpoint.0));
        }
        let exporter = exporter.build();
        let exporter = exporter.context("the collector of traces cannot be used")?;

        let is_named = is_set(&["OTEL_SERVICE_NAME", "OTEL_RESOURCE_ATTRIBUTES"]);
        let resource = Resource::builder();
        let resource = match (&settings.service, is_named) {
            (Some(name), _) => resource.with_service_name(name.clone()),
            (None, true) => resource,
            (None, false) => resource.with_service_name("keyfall"),
        };
        let mut provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_resource(resource.build());
        if let Some(share) = settings.sample {
            let own = Sampler::TraceIdRatioBased(share.0);
            provider = provider.with_sampler(Sampler::ParentBased(Box::new(own)));
        }
        Ok(Some(Traces(provider.build())))
    }

    /// A layer that turns log spans into spans of the trace.
    pub fn layer(&self) -> impl Layer<Registry> + Send + Sync + use<> {
        let ours = Targets::new()
            .with_target("keyfall", LevelFilter::INFO)
            .with_target(PROBES, LevelFilter::OFF)
            .with_target(SENDING, LevelFilter::OFF);
        tracing_opentelemetry::layer()
            .with_tracer(self.0.tracer("keyfall"))
            .with_filter(ours)
    }

    /// Sends the remaining spans, outside of the runtime, which still has to run.
    pub fn stop(self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST) {
            tracing::warn!(target: SENDING, %error, "the last spans could not be sent");
        }
    }
}

/// The variables by which the environment names a collector.
const COLLECTOR: [&str; 2] = [
    "OTEL_EXPORTER_OTLP_ENDPOINT",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
];

fn is_set(names: &[&str]) -> bool {
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    names.iter().any(is_set)
}

/// Sends requests on the runtime of the daemon; the thread that collects spans has none.
#[derive(Debug, Clone)]
struct Post {
    client: reqwest::Client,
    runtime: Handle,
    /// Whether the absence of the collector was logged.
    is_away: Arc<AtomicBool>,
}

type SendResult = Result<Response<Bytes>, HttpError>;

impl HttpClient for Post {
    // As `async_trait` writes it.
    fn send_bytes<'a, 'b>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = SendResult> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let client = self.client.clone();
        let sending = self
            .runtime
            .spawn(async move { client.send_bytes(request).await.map_err(discreet) });
        Box::pin(async move {
            let sent = sending.await.map_err(HttpError::from).and_then(|sent| sent);
            self.tell(&sent);
            sent
        })
    }
}

/// The same without user and password, which `OTEL_EXPORTER_OTLP_ENDPOINT` may hold.
fn discreet(error: HttpError) -> HttpError {
    let mut error = match error.downcast::<reqwest::Error>() {
        Ok(error) => error,
        Err(other) => return other,
    };
    if let Some(url) = error.url_mut() {
        // The `url` crate refuses this for an address that can have no user.
        let _ = (url.set_username(""), url.set_password(None));
    }
    error
}

impl Post {
    /// Logs once that the collector is away, and once that it is back.
    fn tell(&self, sent: &SendResult) {
        let fault = match sent {
            Ok(answer) if answer.status().is_success() => None,
            Ok(answer) => Some(format!("it answers {}", answer.status())),
            Err(error) => Some(error.to_string()),
        };
        let was_away = self.is_away.swap(fault.is_some(), Ordering::Relaxed);
        match fault {
            Some(fault) if !was_away => {
                tracing::warn!(target: SENDING, fault, "the collector takes no traces; they are dropped");
            }
            None if was_away => {
                tracing::info!(target: SENDING, "the collector takes traces again");
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_collector_that_is_away_is_named_without_its_password() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let post = Post {
            client: reqwest::Client::new(),
            runtime: Handle::current(),
            is_away: Arc::default(),
        };
        let request = Request::post("http://me:secret@127.0.0.1:1/v1/traces");
        let request = request.body(Bytes::new()).unwrap();
        let told = post.send_bytes(request).await.unwrap_err().to_string();
        assert!(told.contains("127.0.0.1:1"), "{told}");
        assert!(!told.contains("secret"), "{told}");
    }
}
