//! Calls the server of a job, and says what came of it.

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
use super::hosts::{CallResult, Hosts, PutOff};
use super::lookups::Unresolved;
use super::request::{HttpRequest, PRIVATE};
use super::resolver::{AddressFilter, RefusedAddress};
use super::signature::Secret;
use crate::handler::Job;
use crate::outcome::{Failure, Outcome};

/// For how long a job is put off whose host could not be looked up because of others.
const CROWDED: Duration = Duration::from_secs(1);

/// How much of a redirect's URL is told.
const SHOWN: usize = 200;

/// A target that can be called.
pub(super) struct Caller {
    /// That of the route.
    pub(super) url: Option<Url>,
    /// The hosts that jobs may name; none if jobs name no URL.
    pub(super) allowed: Option<Vec<AllowedHost>>,
    /// For the URL of the route, which may be anywhere.
    pub(super) own: Client,
    /// For all others, if there can be any.
    pub(super) guarded: Option<Client>,
    pub(super) guard: AddressFilter,
    pub(super) secrets: Vec<Secret>,
    /// What the route adds, for the host that it means.
    pub(super) headers: HeaderMap,
    pub(super) redirects: usize,
    pub(super) response_limit: usize,
    pub(super) hosts: Arc<Hosts>,
}

/// Where to call.
#[derive(Debug, Clone)]
struct CallDestination {
    url: Url,
    /// A job named it, and not the route.
    by_job: bool,
    /// It is the host that was meant, and none that it sent us to.
    is_meant: bool,
}

/// Why there is no answer.
enum CallFailure {
    Refused(RefusedAddress),
    /// Its name was not looked up, because others hold up those who look.
    Crowded(Unresolved),
    Broken {
        error: reqwest::Error,
        /// The request may have arrived somewhere.
        was_sent: bool,
    },
    /// A redirect that is not followed.
    Astray(String),
}

impl Caller {
    pub(super) async fn call(&self, job: Job) -> Outcome {
        let begun = Instant::now();
        let place = match self.place(&job) {
            Ok(place) => place,
            Err(reason) => return Outcome::bury(reason),
        };
        let name = name(&place.url);
        // A host that is busy is not to be blamed for a call that had no time left.
        let patience = job.timeout() / 2;
        let pass = match self.hosts.enter(&name, patience).await {
            Ok(pass) => pass,
            Err(PutOff { after, is_down }) => {
                let why = match is_down {
                    true => "is down, and left alone for a while",
                    false => "has enough to do",
                };
                return Outcome::snooze_because(after, format!("{name} {why}"));
            }
        };
        let request = HttpRequest::of(&job, &self.secrets);
        let left = job.timeout().saturating_sub(begun.elapsed());
        // Who tries a host has to know whether it could be connected before its time is over: only
        // what was sent is an attempt.
        let to_connect = match pass.is_trial() {
            true => left * 4 / 5,
            false => Duration::MAX,
        };
        let call = connecting_within(to_connect, self.post(&request, place));
        let Ok(answered) = timeout(left, call).await else {
            pass.ends(CallResult::Down);
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
                answer.outcome(&name, &job)
            }
            Err(CallFailure::Broken { error, was_sent }) => {
                let is_trial = pass.is_trial();
                pass.ends(CallResult::Down);
                let told = told(&name, error);
                match self.hosts.pause_of(&name) {
                    // Nothing was sent, and it was known to be down: this was no attempt of the job.
                    Some(after) if is_trial && !was_sent => Outcome::snooze_because(
                        after,
                        format!("{told}; it is down, and left alone for a while"),
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
                tracing::debug!(%why, key = %job.key(), "a callback is put off");
                Outcome::snooze_because(CROWDED, why)
            }
            Err(CallFailure::Astray(fault)) => {
                pass.ends(CallResult::Up);
                Outcome::retry(format!("{name} {fault}"))
            }
        }
    }

    /// Where a job goes.
    ///
    /// # Errors
    /// Why it can go nowhere, however often it is tried.
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
        let url = url.ok_or_else(|| format!("it has no header `{URL}`, and its route no URL"))?;
        Ok(CallDestination {
            url,
            by_job: false,
            is_meant: true,
        })
    }

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
                guarded.expect("it is there where jobs or redirects say where to go")
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
        unreachable!("a hop too many is an answer")
    }

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

    /// The next hop, checked as the first one was.
    fn follow(&self, from: CallDestination, to: &str) -> Result<CallDestination, CallFailure> {
        let shown: String = to.chars().take(SHOWN).collect();
        let astray = |fault: &str| {
            CallFailure::Astray(format!(
                "redirects to {shown:?}, and that is not followed: {fault}"
            ))
        };
        let url = from.url.join(to).ok();
        let url = url.filter(is_http).ok_or_else(|| astray("it is no URL"))?;
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
    /// Behind so many redirects.
    fn of(error: reqwest::Error, hops: usize) -> Self {
        // The resolver's word, if that is what it is.
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

/// A URL that can be called.
///
/// # Errors
/// The rule and the remedy; nothing of the text, which may hold a secret.
pub(super) fn parse(text: &str) -> Result<Url, &'static str> {
    let url = Url::parse(text).ok().filter(is_http);
    let url = url.ok_or("is no URL: write https://hooks.example.org/path")?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err("holds a user or a password: send them in a header");
    }
    Ok(url)
}

fn is_http(url: &Url) -> bool {
    matches!(url.scheme(), "http" | "https") && url.has_host()
}

/// Whether a job may name this URL.
///
/// # Errors
/// Why not, and the remedy.
fn among(allowed: &[AllowedHost], url: &Url) -> Result<(), &'static str> {
    let have = |url: &Url| allowed.iter().any(|host| host.allows(url));
    if have(url) {
        return Ok(());
    }
    let mut with_tls = url.clone();
    // One of http can always be made one of https.
    let _ = with_tls.set_scheme("https");
    Err(if url.scheme() == "http" && have(&with_tls) {
        "which the route allows with TLS only: name it with https, or let the route allow it \
         with http:// before it"
    } else {
        "which is not among the hosts that the route allows"
    })
}

/// What a host is called: without the path, which may hold a secret.
fn name(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    }
}

fn told(name: &str, error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let mut cause: &(dyn StdError + 'static) = &error;
    while let Some(deeper) = cause.source() {
        cause = deeper;
    }
    let what = if error.is_timeout() && error.is_connect() {
        "could not be connected to in time".to_owned()
    } else if error.is_connect() {
        format!("cannot be reached: {cause}")
    } else {
        format!("broke off: {cause}")
    };
    Failure::written(format_args!("{name} {what}"))
}
