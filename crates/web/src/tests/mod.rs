//! The pages before calls that are made up here.
//!
//! | module | content |
//! |---|---|
//! | [`entering`] | login, logout, cookies, and requests of other sites |
//! | [`hostile`] | every value of a call is hostile |
//! | [`reading`] | languages, links behind a proxy, errors, and what a reader may not do |
//! | [`showing`] | what single pages show, and in which case |
//! | [`words`] | words and templates |

mod entering;
mod hostile;
mod reading;
mod showing;
mod words;

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use keyfall_daemon::UiTerms;
use keyfall_daemon::shapes::RightsOut;
use serde_json::{Value, json};
use tower::ServiceExt;

use crate::Web;
use crate::api::Api;
use crate::assets::Assets;
use crate::cx::Cx;
use crate::gathered::Gathered;
use crate::page::Page;
use crate::words::Words;

/// The token that the calls know.
const TOKEN: &str = "kf_3f9a1c20_secret";

const TRACEPARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The page of a reader who may do everything, in English and in UTC.
pub(crate) fn page() -> Page {
    let rights = RightsOut {
        token: None,
        scopes: ["read", "schedule", "consume", "operate"]
            .map(Into::into)
            .into(),
        prefixes: vec![String::new()],
    };
    Page {
        words: Words::of(&HeaderMap::new()),
        zone: Page::utc(),
        now: SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000),
        here: "",
        rights: Some(Arc::new(rights)),
        is_read_only: false,
        has_archive: true,
        can_leave: false,
        path: Uri::from_static("/ui/"),
        assets: Assets::get(),
    }
}

/// A request of that reader, whose calls nobody answers.
pub(crate) fn cx() -> Cx {
    Cx {
        caller: Api::new(Router::new()).caller(None, None),
        page: page(),
        peer: None,
        is_part: false,
    }
}

/// A page over calls that answer with one text wherever a text can be.
struct Site {
    router: Router,
    /// The calls that were made, each with its body.
    calls: Arc<Mutex<Vec<String>>>,
}

/// The calls: their answers have this text, and the rights have these scopes.
#[derive(Clone)]
struct Calls {
    text: String,
    scopes: Vec<&'static str>,
    has_tokens: bool,
    /// The calls fail, because Redis is away.
    is_away: bool,
    /// The changes of the past do not come.
    is_slow: bool,
    /// So many pages of a search are without a job, and the search goes on after them.
    empty: usize,
    /// How long each page of a search takes.
    searching: Duration,
    /// The archive has no payloads.
    is_bare: bool,
    /// The archive cannot be asked, and says so by this code.
    archive_fails: Option<&'static str>,
    /// How long pages wait for answers that are gathered.
    patience: Duration,
    made: Arc<Mutex<Vec<String>>>,
}

struct Answer {
    status: u16,
    headers: HeaderMap,
    body: String,
}

impl Calls {
    fn new(text: &str) -> Self {
        Calls {
            text: text.to_owned(),
            scopes: vec!["read", "schedule", "operate"],
            has_tokens: false,
            is_away: false,
            is_slow: false,
            empty: 0,
            searching: Duration::ZERO,
            is_bare: false,
            archive_fails: None,
            patience: Duration::from_secs(10),
            made: Arc::default(),
        }
    }

    fn router(self) -> Router {
        Router::new().fallback(move |request: Request| {
            let calls = self.clone();
            async move { calls.answer(request).await }
        })
    }

    async fn answer(self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let path = head.uri.path().to_owned();
        let bearer = head.headers.get(header::AUTHORIZATION);
        let is_known = bearer.is_some_and(|it| *it == format!("Bearer {TOKEN}"));
        if self.has_tokens && !is_known {
            return problem(401, "unauthorized", "a token is needed");
        }
        let body = to_bytes(body, usize::MAX).await.unwrap();
        let body = String::from_utf8(body.into()).unwrap();
        let target = head.uri.path_and_query().unwrap();
        let made = format!("{} {target} {body}", head.method);
        self.made.lock().unwrap().push(made);
        if path == "/v1/rights" {
            let rights = json!({"scopes": self.scopes, "prefixes": [""]});
            return Json(rights).into_response();
        }
        if self.is_away {
            return problem(503, "unavailable", &self.text);
        }
        if let Some(code) = self
            .archive_fails
            .filter(|_| path.starts_with("/v1/archive"))
        {
            return problem(503, code, &self.text);
        }
        if path == "/v1/jobs" {
            tokio::time::sleep(self.searching).await;
            let query = head.uri.query().unwrap_or("");
            let cursor = query
                .split('&')
                .find_map(|it| it.strip_prefix("cursor=after-"));
            let number: usize = cursor.map_or(0, |it| it.parse().unwrap());
            if number < self.empty {
                let next = format!("after-{}", number + 1);
                return Json(json!({"jobs": [], "damaged": [], "scanned": 100, "next": next}))
                    .into_response();
            }
        }
        if self.is_slow && path == "/v1/tail" {
            let nothing = futures_util::stream::pending::<Result<Bytes, Infallible>>();
            return Body::from_stream(nothing).into_response();
        }
        match self.shape(head.method.as_str(), &path) {
            Some(Value::String(lines)) => lines.into_response(),
            Some(shape) => Json(shape).into_response(),
            None => problem(404, "job_absent", &self.text),
        }
    }

    fn shape(&self, method: &str, path: &str) -> Option<Value> {
        let text = &self.text;
        let time = "2026-11-24T12:00:00.123Z";
        let by = format!("{text} (ops)");
        let late = json!([{"address": text, "overdue": 4, "overdue_for": "7s"}]);
        let counts = json!({
            "pending": 3, "overdue": 1, "running": 1, "lapsed": 1, "dead": 1, "late": late
        });
        let unseen = json!([{"server": text, "error": text, "shards": []}]);
        let job = json!({
            "key": text, "state": "pending", "due": time, "attempts": 2, "last_error": text,
            "first_scheduled_at": time, "headers": {text: text, "traceparent": TRACEPARENT}, "payload": {text: [text, 1.50]},
            "retry": {"ladder": ["15s"]}, "timeout": "3s", "max_lateness": "1h skip", "letter": 7, "successor_due": time,
            "occurrence": {
                "number": 12, "scheduled_for": time, "skipped": 3, "declared_by": text,
                "rule": {"cron": "0 9 * * *", "zone": "Europe/Berlin"}
            },
            "series": {"zone": text}, "shift": {"from": time, "why": text}
        });
        let happening = json!({
            "kind": text, "key": text, "what": text, "at": time, "by": text, "text": text
        });
        let counters = [
            "accepted",
            "requeued",
            "done",
            "cancelled",
            "replaced",
            "buried",
            "skipped",
            "deleted",
            "trimmed",
            "failed",
            "again",
            "snoozed",
            "returned",
            "lapsed",
        ];
        let counters: Value = counters
            .iter()
            .map(|&it| (it.to_owned(), json!(1)))
            .collect();
        let findings = ["error", "warning", "info", "ok"].map(|severity| {
            json!({
                "id": text, "severity": severity, "seen": true, "found": text, "expected": text,
                "why": text, "remedy": text, "fixable": severity == "warning"
            })
        });
        let steps = json!({
            "started": [0, 3], "done": [0, 1], "failed": [0, 1], "buried": [0, 1], "late": [0, 1],
            "lag_p50_ms": [null, 1.5], "lag_p99_ms": [null, 2.5], "lag_max_ms": [null, 2.5]
        });
        let mut kind_steps = steps.clone();
        kind_steps["kind"] = json!(text);
        let instance = json!({
            "id": text, "host": text, "pid": 1, "version": text, "started": time, "seen_ms": 20_000,
            "routes": [text], "saturated": [text], "has_fallback": true, "hears_events": false,
            "adopts": [text], "open_breakers": [text], "slots": [16], "free": [5]
        });
        let shard = json!({
            "shard": 1, "ledger": text, "server": text, "emptied": true,
            "jobs": {"pending": 3, "overdue": 1, "leased": 0, "dead": 0}, "overdue_for": "3s", "pacer": text, "standby": text
        });
        let ended = json!({
            "key": text, "how": text, "ended": time, "accepted": time, "due": time, "begun": time,
            "attempts": 2, "worker": text, "error": text, "headers": {text: text},
            "payload_bytes": 5, "has_payload": !self.is_bare, "letter": 7, "occurrence": time
        });
        Some(match (method, path) {
            ("GET", "/v1/archive") => json!({"jobs": [ended], "next": text}),
            ("GET", path) if path.starts_with("/v1/archive/") => json!({
                "run": ended, "payload": {text: [text, 1.50]}, "retry": {"ladder": ["15s"]},
                "max_attempts": 3, "timeout": "3s", "max_lateness": "1h skip"
            }),
            ("POST", path) if path.starts_with("/v1/archive/") => {
                json!({"key": text, "ended": time, "due": time})
            }
            ("GET", "/v1/overview") => json!({
                "at": time, "total": 1, "next": text, "instances": [instance], "unseen": unseen,
                "kinds": [{
                    "kind": text, "pending": 3, "overdue": 1, "leased": 1, "successors": 0, "dead": 1,
                    "paused": true, "counters": counters, "at": time, "overdue_for": "10s",
                    "due_within": {"minute": 1, "hour": 1, "day": 1}
                }]
            }),
            ("GET", "/v1/upcoming") => json!({
                "at": time, "from": time, "step": "1h", "overdue": 1, "earlier": 0, "bars": [0, 5],
                "later": 2
            }),
            ("GET", "/v1/dead/groups") => json!({
                "groups": [{
                    "kind": text, "reason": text, "count": 3, "first": time, "last": time,
                    "example": text, "letter": 7
                }],
                "damaged": 1, "scanned": 4, "next": text, "unseen": unseen
            }),
            ("POST", "/v1/dead/requeue" | "/v1/dead/delete") => json!({
                "matched": 3, "done": 2, "running": 0, "skipped": 0, "dry_run": false, "more": true
            }),
            ("GET", "/v1/actions") => json!({
                "actions": [{
                    "at": time, "what": text, "on": text, "who": text, "by": text, "count": 3,
                    "note": text
                }]
            }),
            ("GET", "/v1/series") => json!({
                "at": time, "from": time, "step": "1m", "total": 1, "sum": steps,
                "kinds": [kind_steps]
            }),
            ("GET", "/v1/jobs/count") => counts,
            ("GET", "/v1/jobs") => json!({
                "jobs": [job], "damaged": [{"name": text, "error": text}], "next": text,
                "unseen": unseen
            }),
            ("GET", "/v1/paused") => json!({
                "prefixes": [{"name": text, "since": time, "by": by}],
                "kinds": [
                    {"name": text, "since": time, "by": by}, {"name": format!("z:{text}"), "since": time}
                ],
                "unseen": unseen
            }),
            ("GET", "/v1/limits") => json!({
                "limits": [{
                    "kind": text, "rate": text, "burst": 2, "concurrency": 5, "since": time,
                    "by": text, "leased": 3, "room": 2, "held": 7, "next": time
                }],
                "unseen": unseen
            }),
            ("PUT", path) if path.ends_with("/limit") => json!({
                "kind": text, "concurrency": 5, "since": time, "by": text, "leased": 0, "room": 5,
                "held": 0
            }),
            ("DELETE", path) if path.ends_with("/limit") => json!({"kind": text, "removed": true}),
            ("POST", "/v1/pause" | "/v1/resume") => json!({"kinds": [text], "dry_run": true}),
            ("GET", "/v1/instances") => json!({"instances": [instance], "unseen": unseen}),
            ("GET", "/v1/routes") => json!({
                "routes": [{"pattern": text, "instances": 1, "saturated": 1, "slots": 16, "free": 5}],
                "unrouted": vec![json!({"kind": text, "jobs": 1}); 25]
            }),
            ("GET", "/v1/servers") => json!({
                "servers": [{
                    "address": text, "number": 0, "topology": "sentinel", "version": text,
                    "replicas": 1, "round_trip_us": 250, "ledgers": 3,
                    "pacers": [{"instance": text, "paces": 2, "stands_by": 1}]
                }, {
                    "address": text, "topology": "cluster", "away": text, "ledgers": 0, "pacers": []
                }]
            }),
            ("GET", "/v1/shards") => json!({
                "total": 25, "kinds": [{"kind": text, "from": 1, "shards": [shard]}], "next": text,
                "unseen": unseen
            }),
            ("GET", "/v1/doctor") => json!({
                "server": text, "worst": "error",
                "findings": findings
            }),
            ("POST", "/v1/doctor/fix") => json!({
                "server": text, "worst": "warning",
                "findings": [{
                    "id": text, "severity": "warning", "seen": true, "found": text,
                    "expected": text, "why": text, "fixed": text, "repaired": text == "x"
                }]
            }),
            ("GET", "/v1/tail") => {
                let lines = [
                    json!({"alive": {"at": time}}),
                    json!({"happened": happening}),
                    json!({"missed": {"kind": text}}),
                    json!({"away": {"error": text}}),
                ];
                // The page shows that Redis is away instead of rows.
                let shown = if self.is_away {
                    &lines[..]
                } else {
                    &lines[..3]
                };
                Value::String(shown.iter().map(|line| format!("{line}\n")).collect())
            }
            ("GET", path) if path.ends_with("/story") => json!({
                "key": text, "state": "pending", "happenings": [happening], "history_entries": 1,
                "waits": [{"for": text, "text": text}], "archived": [ended], "key_differs": text, "gap": text
            }),
            ("PUT" | "POST" | "DELETE", path) if path.starts_with("/v1/series/") => json!({
                "key": text,
                "members": [{"key": text, "at": text, "what": "moved", "due": time, "why": text}]
            }),
            ("GET", path) if path.starts_with("/v1/series/") => json!({
                "key": text, "anchor": time, "zone": text, "past": "skip", "kept_until": time,
                "members": [{"key": text, "at": text, "state": "left_out", "due": time, "why": text}]
            }),
            ("GET", path) if path.starts_with("/v1/dead/") => json!({"letters": [job]}),
            ("GET", path) if path.starts_with("/v1/jobs/") => job,
            ("POST", path) if path.ends_with("/fire") || path.ends_with("/postpone") => {
                json!({"key": text, "successor": false, "due": time})
            }
            (_, path) if path.contains("/rule") && path.starts_with("/v1/jobs/") => {
                json!({"key": text, "changed": true, "after_run": false, "due": time})
            }
            ("POST", "/v1/rules/preview") => json!({"words": text, "rule": {}, "times": [time]}),
            ("PUT", path) if path.ends_with("/payload") => {
                json!({"key": text, "successor": false, "due": time})
            }
            ("DELETE", path) if path.starts_with("/v1/jobs/") => {
                json!({"key": text, "running": false})
            }
            ("POST", path) if path.ends_with("/requeue") => {
                json!({"key": text, "letter": 7, "due": time})
            }
            _ => return None,
        })
    }

    fn site(mut self, has_tokens: bool) -> Site {
        self.has_tokens = has_tokens;
        let terms = UiTerms {
            has_tokens,
            has_archive: true,
            is_tls: false,
            body_limit: 10_000,
            body_timeout: Duration::from_secs(10),
            trace_url: Some("https://traces.example/{trace_id}".to_owned()),
        };
        let calls = self.made.clone();
        let patience = self.patience;
        let mut web = Web::of_daemon(self.router(), terms);
        web.gathered = Gathered::waiting(patience);
        Site::of(web, calls)
    }
}

fn problem(status: u16, code: &str, detail: &str) -> Response {
    let body = json!({
        "status": status, "title": "It failed", "detail": detail, "code": code,
        "retryable": status == 503
    });
    (StatusCode::from_u16(status).unwrap(), Json(body)).into_response()
}

impl Site {
    fn of(web: Web, calls: Arc<Mutex<Vec<String>>>) -> Self {
        let router = Router::new().nest_service("/ui", web.into_router());
        Site { router, calls }
    }

    /// How many pages of a search were asked for.
    fn searches(&self) -> usize {
        let calls = self.calls.lock().unwrap();
        let searches = calls.iter().filter(|it| it.starts_with("GET /v1/jobs?"));
        searches.count()
    }

    async fn get(&self, path: &str) -> Answer {
        self.get_with(path, &[]).await
    }

    async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Answer {
        self.ask("GET", path, headers, "").await
    }

    async fn post(&self, path: &str, headers: &[(&str, &str)], form: &str) -> Answer {
        self.ask("POST", path, headers, form).await
    }

    /// A request to a page, as a browser on this machine makes it.
    async fn ask(&self, method: &str, path: &str, with: &[(&str, &str)], body: &str) -> Answer {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/ui/{path}"))
            .header("content-type", "application/x-www-form-urlencoded");
        if !with.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "127.0.0.1:9276");
        }
        for (name, value) in with {
            request = request.header(*name, *value);
        }
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let answer = self.router.clone().oneshot(request).await.unwrap();
        let (head, body) = answer.into_parts();
        let body = to_bytes(body, usize::MAX).await.unwrap();
        Answer {
            status: head.status.as_u16(),
            headers: head.headers,
            body: String::from_utf8_lossy(&body).into_owned(),
        }
    }

    /// The calls that changed something, or would have.
    fn changes(&self) -> Vec<String> {
        let calls = self.calls.lock().unwrap();
        let changes = calls.iter().filter(|call| !call.starts_with("GET "));
        changes.cloned().collect()
    }
}

impl Answer {
    fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().unwrap())
    }
}
