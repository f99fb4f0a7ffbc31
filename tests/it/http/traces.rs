//! The traces of the daemon, as a collector receives them over OTLP.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::extract::State;
use axum::routing::post;
use keyfall_testing::files::Folder;
use keyfall_testing::process::{TalkingProcess, example};
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use prost::Message;
use serde_json::json;
use tokio::net::TcpListener;

use super::Daemon;
use crate::callbacks::receiver::{Receiver, says};
use crate::runs::eventually;
use crate::site::Site;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const CALLER: &str = "00f067aa0ba902b7";

/// Takes spans, with the name of the service that sent them.
#[derive(Clone, Default)]
struct Collector {
    spans: Arc<Mutex<Vec<(String, Span)>>>,
    url: String,
}

impl Collector {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let collector = Collector {
            url: format!("http://{}", listener.local_addr().unwrap()),
            ..Collector::default()
        };
        let router = Router::new().route("/v1/traces", post(Collector::take));
        let router = router.with_state(collector.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
        collector
    }

    async fn take(State(collector): State<Collector>, body: Bytes) {
        let request = ExportTraceServiceRequest::decode(body).unwrap();
        for group in request.resource_spans {
            let attributes = group.resource.unwrap().attributes;
            let service = attributes.iter().find(|it| it.key == "service.name");
            let service = text(&service.unwrap().value.as_ref().unwrap().value);
            let spans = group.scope_spans.into_iter().flat_map(|it| it.spans);
            let mut known = collector.spans.lock().unwrap();
            known.extend(spans.map(|span| (service.clone(), span)));
        }
    }

    fn all(&self) -> Vec<(String, Span)> {
        self.spans.lock().unwrap().clone()
    }

    /// Waits for this number of spans with this name; returns them in the order of their starts.
    async fn named(&self, name: &str, count: usize) -> Vec<Span> {
        eventually(&format!("{count} spans {name}"), async || {
            let mut spans: Vec<Span> = self.all().into_iter().map(|(_, span)| span).collect();
            spans.retain(|span| span.name == name);
            spans.sort_by_key(|span| span.start_time_unix_nano);
            (spans.len() >= count).then_some(spans)
        })
        .await
    }

    /// The flags of a daemon that sends its spans here, without a long delay.
    fn flags(&self) -> [String; 2] {
        ["--traces-endpoint".to_owned(), self.url.clone()]
    }
}

fn text(value: &Option<Any>) -> String {
    match value {
        Some(Any::StringValue(text)) => text.clone(),
        Some(Any::IntValue(number)) => number.to_string(),
        other => format!("{other:?}"),
    }
}

fn attribute(span: &Span, name: &str) -> String {
    let found = span.attributes.iter().find(|it| it.key == name);
    let found = found.unwrap_or_else(|| panic!("no {name} in {span:?}"));
    text(&found.value.as_ref().unwrap().value)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn links(span: &Span) -> Vec<String> {
    span.links.iter().map(|link| hex(&link.span_id)).collect()
}

/// `keyfall serve` that traces, and sends its spans without a long delay.
fn serve(site: &Site, collector: &Collector, flags: &[&str]) -> Daemon {
    let [flag, url] = collector.flags();
    let flags = [flags, &[&flag, &url]].concat();
    let mut command = Daemon::command(site, &flags);
    command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
    Daemon::spawned(command)
}

/// Schedules a job within the trace of its caller.
async fn schedule(daemon: &Daemon, key: &str, after: &str, parent: &str) {
    let path = format!("/v1/jobs/{key}");
    let request = daemon.request("PUT", &path).header("traceparent", parent);
    let request = request.header("tracestate", "shop=1");
    let answer = request.json(&json!({"after": after})).send().await.unwrap();
    assert_eq!(answer.status(), 201);
}

fn parent() -> String {
    format!("00-{TRACE}-{CALLER}-01")
}

// Stopping a process blocks the thread of the test, and the collector has to continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_of_a_request_continues_through_every_attempt() {
    let site = Site::new("traces").await;
    let collector = Collector::start().await;
    let folder = Folder::new("traces");
    let mut shop = Receiver::start(|received| match received.header("keyfall-attempt") {
        "3" => says("200 OK", "", ""),
        _ => says("503 Service Unavailable", "", ""),
    })
    .await;
    let route = format!(
        "[[route]]\npattern = \"{}:it:call:*\"\nretry = \"10ms 10ms\"\n\
         target = {{ http = {{ url = \"{}\" }} }}\n[traces]\nservice = \"reminders\"\n",
        site.app,
        shop.url("/hook")
    );
    folder.write("k.toml", &route);
    let daemon = serve(&site, &collector, &["--config", &folder.path("k.toml")]);
    let kind = format!("{}:it:call", site.app);
    let key = format!("{kind}:1");
    schedule(&daemon, &key, "10ms", &parent()).await;
    let runs = collector.named(&format!("process {kind}"), 3).await;
    let request = &collector.named("PUT /v1/jobs/{key}", 1).await[0];

    assert_eq!(request.kind, SpanKind::Server as i32);
    assert_eq!(hex(&request.trace_id), TRACE);
    assert_eq!(hex(&request.parent_span_id), CALLER);
    assert_eq!(request.trace_state, "shop=1");
    assert_eq!(attribute(request, "http.response.status_code"), "201");
    let creation = hex(&request.span_id);
    let mut before: Option<String> = None;
    for (run, attempt) in runs.iter().zip(1..) {
        assert_eq!(run.kind, SpanKind::Consumer as i32);
        assert_eq!(hex(&run.trace_id), TRACE, "{attempt}");
        assert_eq!(hex(&run.parent_span_id), creation, "{attempt}");
        assert_eq!(run.trace_state, "shop=1");
        let expected: Vec<String> = [Some(creation.clone()), before]
            .into_iter()
            .flatten()
            .collect();
        assert_eq!(links(run), expected, "{attempt}");
        for (name, value) in [
            ("messaging.system", "keyfall"),
            ("messaging.operation.name", "process"),
            ("messaging.operation.type", "process"),
            ("messaging.destination.name", &kind),
            ("messaging.message.id", &key),
            ("keyfall.attempt", &attempt.to_string()),
            (
                "keyfall.outcome",
                if attempt < 3 { "failed" } else { "done" },
            ),
        ] {
            assert_eq!(attribute(run, name), value, "{name}");
        }
        let status = run.status.clone().unwrap_or_default();
        let failed = status.code == StatusCode::Error as i32;
        assert_eq!(failed, attempt < 3, "{status:?}");
        assert_eq!(status.message.contains("503"), attempt < 3, "{status:?}");
        // The receiver continues the trace from this attempt.
        let received = shop.next().await;
        let sent = format!("00-{TRACE}-{}-01", hex(&run.span_id));
        assert_eq!(received.header("traceparent"), sent);
        assert_eq!(received.header("tracestate"), "shop=1");
        before = Some(hex(&run.span_id));
    }
    assert_eq!(runs.len(), 3);
    for (service, span) in collector.all() {
        assert_eq!(service, "reminders");
        assert_ne!(span.name, "request");
    }
    site.assert_balanced().await;
}

// Stopping a process blocks the thread of the test, and the collector has to continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trace_continues_in_another_process() {
    let site = Site::new("traces-restart").await;
    let collector = Collector::start().await;
    let daemon = serve(&site, &collector, &[]);
    schedule(&daemon, &site.key(1), "500ms", &parent()).await;
    let batch = format!("{{\"call\": \"schedule\", \"key\": \"{}\"}}", site.key(2));
    let request = daemon.request("POST", "/v1/batch").body(batch);
    let answer = request.header("traceparent", parent()).send().await;
    assert!(answer.unwrap().text().await.unwrap().contains("201"));
    // The daemon sends the remaining spans at its end.
    daemon.process.stop();
    let request = &collector.named("PUT /v1/jobs/{key}", 1).await[0];
    let batch = &collector.named("POST /v1/batch", 1).await[0];

    let daemon = serve(&site, &collector, &["--traces-sample", "0%"]);
    let mut pulled = Vec::new();
    while pulled.len() < 2 {
        pulled.extend(daemon.pull(2, "10s").await);
    }
    for job in &pulled {
        assert_eq!(daemon.settle("finish", job, json!({})).await, "done");
    }
    daemon.process.stop();
    let runs = collector
        .named(&format!("process {}", site.kind()), 2)
        .await;
    for (id, creation) in [(1, request), (2, batch)] {
        let of = |run: &&Span| attribute(run, "messaging.message.id") == site.key(id);
        let run = runs.iter().find(of).unwrap();
        assert_eq!(hex(&run.trace_id), TRACE, "{id}");
        assert_eq!(run.parent_span_id, creation.span_id, "{id}");
    }
    // The daemon records only traces that other programs have begun to record.
    for (_, span) in collector.all() {
        assert_eq!(hex(&span.trace_id), TRACE, "{span:?}");
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn without_a_collector_jobs_carry_the_trace_of_their_caller() {
    let site = Site::new("traces-none").await;
    let daemon = Daemon::start(&site);
    let headers = async |id: &str| site.view(&site.key(id)).await.headers().clone();
    schedule(&daemon, &site.key("good"), "1h", &parent()).await;
    let good = headers("good").await;
    assert_eq!(good.get("traceparent"), Some(&*parent()));
    assert_eq!(good.get("tracestate"), Some("shop=1"));
    schedule(&daemon, &site.key("none"), "1h", "00-nonsense").await;
    assert!(headers("none").await.is_empty());
    // The job keeps its own headers.
    let path = format!("/v1/jobs/{}", site.key("own"));
    let body = json!({"after": "1h", "headers": {"traceparent": "mine"}});
    let request = daemon.request("PUT", &path).header("traceparent", parent());
    assert_eq!(request.json(&body).send().await.unwrap().status(), 201);
    assert_eq!(headers("own").await.get("traceparent"), Some("mine"));
    assert_eq!(headers("own").await.len(), 1);
}

#[tokio::test]
async fn a_missing_collector_delays_nothing() {
    let site = Site::new("traces-away").await;
    // The collector accepts connections and does not answer.
    let hangs = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let collector = Collector {
        url: format!("http://{}", hangs.local_addr().unwrap()),
        ..Collector::default()
    };
    let daemon = serve(&site, &collector, &[]);
    // More spans than the daemon keeps.
    let line = |id| {
        format!(
            "{{\"call\": \"schedule\", \"key\": \"{}\"}}\n",
            site.key(id)
        )
    };
    let batch: String = (0..3000).map(line).collect();
    let request = daemon.request("POST", "/v1/batch").body(batch);
    request.send().await.unwrap().text().await.unwrap();
    let mut settled = 0;
    while settled < 3000 {
        let jobs = daemon.pull(1000, "10s").await;
        let leases: Vec<_> = jobs.iter().map(|job| &job["lease"]).collect();
        daemon
            .post("/v1/leases/finish", json!({"leases": leases}))
            .await;
        settled += jobs.len();
    }
    // The daemon ends all the same, with success.
    daemon.process.stop();
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_malformed_collector_address_is_refused() {
    let site = Site::new("traces-wrong").await;
    let command = Daemon::command(&site, &["--traces-endpoint", "collector:4317"]);
    let output = { command }.output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("traces.endpoint"), "{said}");
    assert!(said.contains("http://host:4318"), "{said}");
}

// Stopping a process blocks the thread of the test, and the collector has to continue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trace_of_a_producer_continues_in_a_worker() {
    let site = Site::new("traces-library").await;
    let collector = Collector::start().await;
    let run = |args: &[&str]| {
        let mut command = example("traced", &site.url);
        command.arg(&site.app).args(args);
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", &collector.url);
        command.env("OTEL_BSP_SCHEDULE_DELAY", "50");
        TalkingProcess::spawn(command)
    };
    run(&["schedule", "7"]).ends();
    let checkout = &collector.named("checkout", 1).await[0];
    let worker = run(&[]);
    let kind = format!("{}:order:expire", site.app);
    let runs = collector.named(&format!("process {kind}"), 2).await;
    for run in &runs {
        assert_eq!(run.trace_id, checkout.trace_id);
        assert_eq!(run.parent_span_id, checkout.span_id);
    }
    assert_eq!(links(&runs[1])[1], hex(&runs[0].span_id));
    // The work of handlers is part of the trace, including jobs that they schedule.
    let closing = &collector.named("close", 1).await[0];
    assert_eq!(closing.parent_span_id, runs[1].span_id);
    let follow = collector
        .named(&format!("process {}:order:mail", site.app), 1)
        .await;
    assert_eq!(follow[0].trace_id, checkout.trace_id);
    assert_eq!(follow[0].parent_span_id, closing.span_id);
    worker.stop();
    site.assert_balanced().await;
}
