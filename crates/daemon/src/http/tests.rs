//! The rights of tokens, with tokens that are made up here.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use axum::http::Request;
use keyfall::Client;
use keyfall::embedded::Embedded;
use keyfall::target::Pull;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use super::auth::{Grant, Scope, Tokens};
use super::connections::Sent;
use super::{Api, RouteSet, Routes, Settings, router};

/// A token is its scopes and a prefix, such as `read,schedule/app1:`.
struct Telling;

struct Told(String);

impl Tokens for Telling {
    fn check(&self, bearer: &str) -> Option<Arc<dyn Grant>> {
        bearer
            .contains('/')
            .then(|| Arc::new(Told(bearer.to_owned())) as _)
    }
}

impl Grant for Told {
    fn id(&self) -> &str {
        &self.0
    }

    fn allows(&self, scope: Scope, prefix: &str) -> bool {
        let (scopes, own) = self.0.split_once('/').unwrap();
        scopes.split(',').any(|one| one == scope.as_str()) && prefix.starts_with(own)
    }

    fn scopes(&self) -> Vec<Scope> {
        let mut all = Scope::ALL.to_vec();
        all.retain(|&scope| self.allows(scope, &self.prefixes()[0]));
        all
    }

    fn prefixes(&self) -> Vec<String> {
        vec![self.0.split_once('/').unwrap().1.to_owned()]
    }
}

struct Daemon {
    router: Router,
    _redis: Embedded,
}

impl Daemon {
    async fn start() -> Self {
        let redis = Embedded::start().await.unwrap();
        let settings = Settings {
            tls: None,
            body_limit: 10_000,
            header_timeout: Duration::from_secs(10),
            body_timeout: Duration::from_secs(10),
            max_connections: 10,
            requests_per_second: None,
            trace_url: None,
            access_log: true,
            grace: Duration::from_secs(10),
        };
        let client = Client::connect(&redis.url()).await.unwrap();
        let stopping = CancellationToken::new();
        let tokens = Some(Box::new(Telling) as _);
        let api = Api::new(
            client,
            Pull::new(),
            Routes::new(RouteSet::default()),
            keyfall::Readiness::default(),
            stopping,
            settings,
            tokens,
        );
        Daemon {
            router: router(Arc::new(api)),
            _redis: redis,
        }
    }

    /// The status, and the body as text.
    async fn call(&self, token: &str, call: &str, body: &str) -> (u16, String) {
        let (method, path) = call.split_once(' ').unwrap();
        let peer: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .extension(ConnectInfo(peer))
            .extension(Sent::default());
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let status = answer.status().as_u16();
        let body = to_bytes(answer.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn status(&self, token: &str, call: &str, body: &str) -> u16 {
        self.call(token, call, body).await.0
    }
}

/// Every call that touches jobs, its body, and the scope that it takes for `a:b:c:`.
const CALLS: [(&str, &str, &str); 33] = [
    ("PUT /v1/jobs/a:b:c:1", r#"{"after": "1h"}"#, "schedule"),
    ("GET /v1/jobs/a:b:c:1", "", "read"),
    (
        "POST /v1/jobs/a:b:c:1/postpone",
        r#"{"after": "1h"}"#,
        "schedule",
    ),
    ("POST /v1/jobs/a:b:c:1/fire", "", "schedule"),
    (
        "PUT /v1/jobs/a:b:c:1/payload",
        r#"{"payload": 1}"#,
        "schedule",
    ),
    ("DELETE /v1/jobs/a:b:c:1", "", "schedule"),
    ("GET /v1/jobs?prefix=a:b:c:", "", "read"),
    ("GET /v1/jobs/count?prefix=a:b:c:", "", "read"),
    (
        "POST /v1/jobs/a:b:c:1/restore",
        r#"{"state": "pending", "due": "2020-01-01T00:00:00Z"}"#,
        "operate",
    ),
    ("POST /v1/audit", r#"{"prefix": "a:b:c:"}"#, "read"),
    (
        "POST /v1/audit",
        r#"{"prefix": "a:b:c:", "repair": true}"#,
        "operate",
    ),
    ("POST /v1/jobs/cancel", r#"{"prefix": "a:b:c:"}"#, "operate"),
    ("POST /v1/jobs/fire", r#"{"prefix": "a:b:c:"}"#, "operate"),
    (
        "POST /v1/jobs/postpone",
        r#"{"prefix": "a:b:c:", "after": "1h"}"#,
        "operate",
    ),
    ("GET /v1/dead/a:b:c:1", "", "read"),
    ("GET /v1/dead/groups?prefix=a:b:c:", "", "read"),
    (
        "POST /v1/dead/a:b:c:1/requeue",
        r#"{"letter": 1}"#,
        "operate",
    ),
    ("DELETE /v1/dead/a:b:c:1?letter=1", "", "operate"),
    (
        "POST /v1/dead/requeue",
        r#"{"prefix": "a:b:c:"}"#,
        "operate",
    ),
    ("POST /v1/dead/delete", r#"{"prefix": "a:b:c:"}"#, "operate"),
    ("GET /v1/kinds/a:b:c", "", "read"),
    ("GET /v1/overview?prefix=a:b:c:", "", "read"),
    ("GET /v1/upcoming?prefix=a:b:c:", "", "read"),
    ("GET /v1/series?prefix=a:b:c:", "", "read"),
    (
        "PUT /v1/series/a:b:c:s",
        r#"{"anchor": "2035-01-01", "zone": "UTC", "at": ["-1d"]}"#,
        "schedule",
    ),
    ("GET /v1/series/a:b:c:s", "", "read"),
    ("DELETE /v1/series/a:b:c:s", "", "schedule"),
    (
        "POST /v1/series/preview",
        r#"{"key": "a:b:c:s", "series": {"anchor": "2035-01-01", "zone": "UTC", "at": ["-1d"]}}"#,
        "schedule",
    ),
    ("GET /v1/actions?prefix=a:b:c:", "", "read"),
    (
        "POST /v1/pause",
        r#"{"prefix": "a:b:c:", "dry_run": true}"#,
        "operate",
    ),
    ("GET /v1/jobs/a:b:c:1/story", "", "read"),
    (
        "POST /v1/history",
        r#"{"prefix": "a:b:c:", "entries": 100}"#,
        "operate",
    ),
    (
        "POST /v1/pull",
        r#"{"prefixes": ["a:b:c:"], "wait": "1ms"}"#,
        "consume",
    ),
];

#[tokio::test]
async fn each_call_takes_its_scope_for_its_jobs() {
    let daemon = Daemon::start().await;
    for (call, body, scope) in CALLS {
        let (status, problem) = daemon.call("", call, body).await;
        assert_eq!(status, 401, "{call}: {problem}");
        assert!(problem.contains(r#""code":"unauthorized""#), "{problem}");
        assert_eq!(daemon.status("unknown", call, body).await, 401, "{call}");
        let others = ["read", "schedule", "consume", "operate"];
        let others: Vec<_> = others.into_iter().filter(|one| *one != scope).collect();
        let others = format!("{}/", others.join(","));
        let (status, problem) = daemon.call(&others, call, body).await;
        assert_eq!(status, 403, "{call}: {problem}");
        assert!(problem.contains(r#""code":"forbidden""#), "{problem}");
        let elsewhere = format!("{scope}/a:b:cc:");
        assert_eq!(daemon.status(&elsewhere, call, body).await, 403, "{call}");
        let (status, said) = daemon.call(&format!("{scope}/a:b:c:"), call, body).await;
        assert!(matches!(status, 200 | 201 | 404), "{call}: {status} {said}");
    }
}

#[tokio::test]
async fn a_call_on_all_jobs_needs_a_token_for_all() {
    let daemon = Daemon::start().await;
    for (call, body, scope) in [
        ("GET /v1/routes", "", "read"),
        ("GET /v1/instances", "", "read"),
        ("GET /v1/doctor", "", "read"),
        ("GET /v1/jobs", "", "read"),
        ("GET /v1/overview", "", "read"),
        ("GET /v1/upcoming", "", "read"),
        ("GET /v1/series", "", "read"),
        ("POST /v1/jobs/cancel", r#"{"everything": true}"#, "operate"),
        ("POST /v1/pull", r#"{"wait": "1ms"}"#, "consume"),
    ] {
        assert_eq!(
            daemon.status(&format!("{scope}/a:"), call, body).await,
            403,
            "{call}"
        );
        assert_eq!(
            daemon.status(&format!("{scope}/"), call, body).await,
            200,
            "{call}"
        );
    }
    // The health and the API of the daemon are open to everybody.
    assert_eq!(daemon.status("", "GET /livez", "").await, 204);
    // No worker runs beside this one.
    assert_eq!(daemon.status("", "GET /readyz", "").await, 503);
    assert_eq!(daemon.status("", "GET /v1/openapi.json", "").await, 200);
}

#[tokio::test]
async fn lists_show_the_jobs_of_the_token_and_batches_and_leases_check_each_job() {
    let daemon = Daemon::start().await;
    for key in ["a:b:c:1", "x:y:z:1"] {
        let call = format!("PUT /v1/jobs/{key}");
        assert_eq!(daemon.status("schedule/", &call, "{}").await, 201);
    }
    let everything = r#"{"everything": true}"#;
    assert_eq!(
        daemon
            .status("operate/", "POST /v1/pause", everything)
            .await,
        200
    );
    for (path, list, name) in [
        ("kinds", "kinds", "kind"),
        ("history", "kinds", "kind"),
        ("paused", "kinds", "name"),
    ] {
        let (_, text) = daemon.call("read/a:", &format!("GET /v1/{path}"), "").await;
        let answer: Value = serde_json::from_str(&text).unwrap();
        let seen = answer[list].as_array().unwrap().iter();
        let seen: Vec<_> = seen.map(|one| one[name].clone()).collect();
        assert_eq!(seen, [json!("a:b:c")], "{text}");
        assert_eq!(answer.get("prefixes").unwrap_or(&json!([])), &json!([]));
    }
    let lines = r#"{"call": "cancel", "key": "x:y:z:1"}
        {"call": "cancel", "key": "a:b:c:1"}"#;
    let (status, answers) = daemon.call("schedule/a:", "POST /v1/batch", lines).await;
    let answers: Vec<&str> = answers.lines().collect();
    assert_eq!(status, 200);
    assert!(answers[0].contains(r#""code":"forbidden""#), "{answers:?}");
    assert!(answers[1].contains(r#""status":200"#), "{answers:?}");

    let leases = r#"{"leases": ["x:y:z:1@0123456789abcdef01234567-17"]}"#;
    let (status, said) = daemon
        .call("consume/a:", "POST /v1/leases/finish", leases)
        .await;
    assert_eq!(status, 200);
    assert!(said.contains(r#""code":"forbidden""#), "{said}");
}
