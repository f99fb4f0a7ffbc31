//! One call, from a job to its outcome: destination, permission of the host, request, redirects,
//! answer.

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::{Duration, Instant};

use reqwest::header::HeaderMap;
use reqwest::{Client, Url};
use tokio::time::timeout;

use super::URL;
use super::allowed::AllowedHost;
use super::answer::HttpAnswer;
use super::clients::connecting_within;
use super::holds::Holds;
use super::hosts::{CallResult, Hosts, PutOff};
use super::lookups::Unresolved;
use super::request::{HttpRequest, PRIVATE};
use super::resolver::{AddressFilter, RefusedAddress};
use super::signature::Secret;
use crate::handler::Job;
use crate::outcome::{Failure, Outcome};

/// How long a job is put off if look-ups for other hosts left no place for the look-up of its host.
const CROWDED: Duration = Duration::from_secs(1);

/// How many characters of a redirect's URL an error quotes.
const SHOWN: usize = 200;

/// A target with valid settings. One caller is shared by all clones of an `Http`.
pub(super) struct Caller {
    /// The URL of the route; `None` if only jobs name URLs.
    pub(super) url: Option<Url>,
    /// The hosts that jobs may name; `None` if jobs may not name URLs.
    pub(super) allowed: Option<Vec<AllowedHost>>,
    /// The client for the URL of the route, which may have any address.
    pub(super) own: Client,
    /// The client for URLs of jobs and redirects, which refuses forbidden addresses. `None` if
    /// there can be no such URLs.
    pub(super) guarded: Option<Client>,
    /// Checks addresses that a URL names literally.
    pub(super) guard: AddressFilter,
    /// Each request is signed with each of these.
    pub(super) secrets: Vec<Secret>,
    /// Headers that the route adds; redirects to other hosts leave them out.
    pub(super) headers: HeaderMap,
    /// How many redirects are followed.
    pub(super) redirects: usize,
    /// How many bytes of an answer are read.
    pub(super) response_limit: usize,
    pub(super) hosts: Arc<Hosts>,
    /// Holds kinds whose receiver asks for it; `None` if the route does not do so.
    pub(super) holds: Option<Arc<Holds>>,
}

/// The destination of one hop of a call.
#[derive(Debug, Clone)]
struct CallDestination {
    url: Url,
    /// Whether a job named the first URL of this call; otherwise the route did.
    by_job: bool,
    /// Whether the URL has the origin of the first URL: no redirect to another origin has been
    /// followed.
    is_meant: bool,
}

/// The reason why a call has no answer.
enum CallFailure {
    /// The address is forbidden. Nothing was sent there.
    Refused(RefusedAddress),
    /// The name was not looked up, because other look-ups hold all places.
    Crowded(Unresolved),
    /// The connection failed, or broke before the answer was complete.
    Broken {
        error: reqwest::Error,
        /// The request may have arrived at a server.
        was_sent: bool,
    },
    /// The answer was a redirect that is not followed; the text says why.
    Astray(String),
}

impl Caller {
    /// Posts a job, and returns its outcome, within the timeout of the job. Tells `hosts` whether
    /// the host works. A future that is dropped says nothing about the host.
    pub(super) async fn call(&self, job: Job) -> Outcome {
        let begun = Instant::now();
        let place = match self.place(&job) {
            Ok(place) => place,
            Err(reason) => return Outcome::bury(reason),
        };
        let name = name(&place.url);
        // Half of the time is left for the call: a busy host must not be blamed for a call that had
        // no time left.
        let patience = job.timeout() / 2;
        let pass = match self.hosts.enter(&name, patience).await {
            Ok(pass) => pass,
            Err(PutOff { after, is_down }) => {
                let why = match is_down {
                    true => "is down, and is not called for a while",
                    false => "has no free slot for another call",
                };
                return Outcome::snooze_because(after, format!("{name} {why}"));
            }
        };
        let request = HttpRequest::of(&job, &self.secrets);
        let left = job.timeout().saturating_sub(begun.elapsed());
        // A trial must know before its time is over whether it could connect: only a request that
        // was sent is an attempt.
        let to_connect = match pass.is_trial() {
            true => left * 4 / 5,
            false => Duration::MAX,
        };
        let call = connecting_within(to_connect, self.post(&request, place));
        let Ok(answered) = timeout(left, call).await else {
            // A job that is in a hurry must not stop the calls of all others.
            pass.ends(match job.is_hurried() {
                true => CallResult::Unknown,
                false => CallResult::Down,
            });
            let limit = job.timeout();
            return Outcome::retry(format!("{name} did not answer within {limit:?}"));
        };
        match answered {
            Ok(answer) => {
                pass.ends(if answer.host_is_down() {
                    CallResult::Down
                } else {
                    CallResult::Up
                });
                if let Some(holds) = &self.holds
                    && let Some(time) = answer.asks_all_to_wait()
                {
                    holds.ask(job.key().kind(), time);
                }
                answer.outcome(&name, &job)
            }
            Err(CallFailure::Broken { error, was_sent }) => {
                let is_trial = pass.is_trial();
                pass.ends(CallResult::Down);
                let told = told(&name, error);
                match self.hosts.pause_of(&name) {
                    // Nothing was sent, and the host was known to be down: this is no attempt.
                    Some(after) if is_trial && !was_sent => Outcome::snooze_because(
                        after,
                        format!("{told}; the host is down, and is not called for a while"),
                    ),
                    _ => Outcome::Retry {
                        after: None,
                        error: told,
                    },
                }
            }
            Err(CallFailure::Refused(refused)) => {
                pass.ends(CallResult::Unknown);
                Outcome::retry(refused)
            }
            Err(CallFailure::Crowded(why)) => {
                pass.ends(CallResult::Unknown);
                tracing::debug!(%why, key = %job.key(), "a callback is postponed");
                Outcome::snooze_because(CROWDED, why)
            }
            Err(CallFailure::Astray(fault)) => {
                pass.ends(CallResult::Up);
                Outcome::retry(format!("{name} {fault}"))
            }
        }
    }

    /// The destination of a job: the URL in its header, if the route allows that, or else the URL
    /// of the route.
    ///
    /// # Errors
    /// The reason to bury the job: no attempt can succeed.
    fn place(&self, job: &Job) -> Result<CallDestination, String> {
        let named = job.headers().iter();
        let mut named = named.filter(|(name, _)| name.eq_ignore_ascii_case(URL));
        let url = match (&self.allowed, named.next()) {
            (Some(allowed), Some((_, text))) => {
                let url = parse(text).map_err(|fault| format!("its header `{URL}` {fault}"))?;
                if let Err(fault) = among(allowed, &url) {
                    return Err(format!("its header `{URL}` names {}, {fault}", name(&url)));
                }
                self.guard
                    .check_host(&url)
                    .map_err(|refused| refused.to_string())?;
                return Ok(CallDestination {
                    url,
                    by_job: true,
                    is_meant: true,
                });
            }
            _ => self.url.clone(),
        };
        let url =
            url.ok_or_else(|| format!("it has no header `{URL}`, and its route has no URL"))?;
        Ok(CallDestination {
            url,
            by_job: false,
            is_meant: true,
        })
    }

    /// Posts the request, follows redirects, and returns the last answer.
    async fn post(
        &self,
        request: &HttpRequest,
        mut place: CallDestination,
    ) -> Result<HttpAnswer, CallFailure> {
        for hop in 0.. {
            let is_own = place.is_meant && !place.by_job;
            let client = if is_own {
                &self.own
            } else {
                let guarded = self.guarded.as_ref();
                guarded.expect("it exists where jobs or redirects name URLs")
            };
            let sent = client
                .post(place.url.clone())
                .headers(self.headers_for(request, &place))
                .body(request.body.clone())
                .send();
            let response = sent.await.map_err(|error| CallFailure::of(error, hop))?;
            let answer = HttpAnswer::read(response, self.response_limit).await;
            let answer = answer.map_err(|error| CallFailure::of(error, hop))?;
            match answer.elsewhere() {
                Some(to) if hop < self.redirects => place = self.follow(place, to)?,
                _ => return Ok(answer),
            }
        }
        unreachable!("the last hop returns its answer")
    }

    /// The headers for one hop: all headers for the origin of the first URL, and all but the
    /// private headers for any other origin.
    fn headers_for(&self, request: &HttpRequest, place: &CallDestination) -> HeaderMap {
        let mut headers = request.headers.clone();
        if place.is_meant {
            headers.extend(self.headers.clone());
        } else {
            for name in PRIVATE {
                headers.remove(name);
            }
        }
        headers
    }

    /// The destination that a redirect leads to, checked like the first one.
    fn follow(&self, from: CallDestination, to: &str) -> Result<CallDestination, CallFailure> {
        let shown: String = to.chars().take(SHOWN).collect();
        let astray = |fault: &str| {
            CallFailure::Astray(format!(
                "redirects to {shown:?}, which is not followed: {fault}"
            ))
        };
        let url = from.url.join(to).ok();
        let url = url
            .filter(is_http)
            .ok_or_else(|| astray("it is not a URL"))?;
        if from.url.scheme() == "https" && url.scheme() == "http" {
            return Err(astray("it is without TLS"));
        }
        if url.origin() == from.url.origin() {
            return Ok(CallDestination { url, ..from });
        }
        if from.by_job
            && let Some(allowed) = &self.allowed
            && let Err(fault) = among(allowed, &url)
        {
            return Err(astray(fault));
        }
        self.guard.check_host(&url).map_err(CallFailure::Refused)?;
        Ok(CallDestination {
            url,
            is_meant: false,
            ..from
        })
    }
}

impl CallFailure {
    /// Classifies an error of the client after `hops` redirects.
    fn of(error: reqwest::Error, hops: usize) -> Self {
        // The error of our own resolver, if it is the cause.
        let mut cause: Option<&(dyn StdError + 'static)> = Some(&error);
        while let Some(error) = cause {
            if let Some(refused) = error.downcast_ref::<RefusedAddress>() {
                return CallFailure::Refused(refused.clone());
            }
            if let Some(why @ Unresolved::Crowded(_)) = error.downcast_ref() {
                return CallFailure::Crowded(why.clone());
            }
            cause = error.source();
        }
        let was_sent = hops > 0 || !error.is_connect();
        CallFailure::Broken { error, was_sent }
    }
}

/// Parses a URL for calls: `http` or `https`, with a host, without user and password.
///
/// # Errors
/// The violated rule and its remedy, as the end of a sentence. It does not quote the text, which
/// may hold a secret.
pub(super) fn parse(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).ok().filter(is_http);
    let url = url.ok_or("is not a URL: write https://hooks.example.org/path")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("has a user or a password: send them in a header");
    }
    Ok(url)
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// Verifies that a job may name this URL.
///
/// # Errors
/// The reason why not, and the remedy.
fn among(allowed: &[AllowedHost], url: &Url) -> Result<(), &'static str> {
    let have = |url: &Url| allowed.iter().any(|host| host.allows(url));
    if have(url) {
        return Ok(());
    }
    let mut with_tls = url.clone();
    // The scheme `http` can always be replaced by `https`.
    let _ = with_tls.set_scheme("https");
    Err(if url.scheme() == "http" && have(&with_tls) {
        "which the route allows with TLS only: name it with https, or let the route allow it \
         with http:// before it"
    } else {
        "which is not among the hosts that the route allows"
    })
}

/// The name of a host in messages, with its port if the URL has one. It leaves out the path, which
/// may hold a secret.
fn name(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

/// The text of a failed connection: the innermost cause, without the URL.
fn told(name: &str, error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let mut cause: &(dyn StdError + 'static) = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let what = if error.is_timeout() && error.is_connect() {
        "did not accept a connection in time".to_owned()
    } else if error.is_connect() {
        format!("cannot be reached: {cause}")
    } else {
        format!("broke off: {cause}")
    };
    Failure::written(format_args!("{name} {what}"))
}
