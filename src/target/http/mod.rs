//! HTTP callbacks: a job is posted to a server, and the status of the answer decides its outcome.
//!
//! | part | task |
//! |---|---|
//! | [`caller`] | makes one call, from the job to its outcome |
//! | [`request`], [`signature`] | make headers and body of a request, and sign it |
//! | [`answer`] | reads an answer, and turns it into an outcome |
//! | [`hosts`] | limits the calls to each host, and pauses hosts that are down |
//! | [`address`], [`resolver`], [`allowed`] | limit the hosts and addresses that jobs may name |
//! | [`lookups`] | resolves names, in a bounded time and number |
//! | [`settings`] | validates the settings of a target |
//! | [`clients`] | makes HTTP clients: connections and certificates |

mod address;
mod allowed;
mod answer;
mod caller;
mod clients;
mod holds;
mod hosts;
mod lookups;
mod request;
mod resolver;
mod settings;
mod signature;

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::handler::{Handler, Job, Route, RouteTask, RouteTaskContext};
use crate::outcome::Outcome;
use crate::settings::Pem;
use caller::Caller;
use lookups::Lookups;
use settings::Settings;

/// The header of a job that names its URL.
const URL: &str = "url";

/// Default limit of a whole call, where neither route nor job sets one.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A target that posts each job of its routes to this URL, with the payload as the body. See
/// [`Http`] for answers, headers and limits.
///
/// An invalid URL, or one with a user or a password, is refused by the router.
///
/// ```
/// use keyfall::{Handler, RetryPolicy, Router, target};
/// use std::time::Duration;
///
/// let shop = target::http("https://shop.example.org/reminders")
///     .secret("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw");
/// let app: Router = Router::new().route(
///     "app1:trans:notice:*",
///     shop.retry(RetryPolicy::two_hour_ladder()).timeout(Duration::from_secs(10)),
/// );
/// ```
pub fn http(url: impl Into<String>) -> Http {
    Http::new(Some(url.into()))
}

/// A target that posts each job to the URL in its header `url`, on one of these hosts: see
/// [`Http::job_urls`]. A job without the header is buried.
///
/// ```
/// use keyfall::{Router, target};
///
/// let app: Router =
///     Router::new().route("app1:hook:call:*", target::http_of_jobs(["*.customers.example.org"]));
/// ```
pub fn http_of_jobs<T: Into<String>>(hosts: impl IntoIterator<Item = T>) -> Http {
    Http::new(None).job_urls(hosts)
}

/// Posts jobs to an HTTP server. The answer decides the outcome of the run:
///
/// | answer | outcome |
/// |---|---|
/// | 2xx | [`Done`](Outcome::Done) |
/// | 410 | [`Bury`](Outcome::Bury) |
/// | any other, or none in time | [`Retry`](Outcome::Retry), with the status and the first 1 KiB of the body |
/// | none, because the host is down or busy | [`SnoozeBecause`](Outcome::SnoozeBecause): not sent, and no attempt is counted |
///
/// `Retry-After` is obeyed, in seconds or as a date, within bounds: the next attempt comes no
/// sooner than the [policy](Handler::retry) says, and no later than its longest delay. A whole call
/// may take as long as the [timeout](Handler::timeout) of the job or of the route; 30 s if neither
/// has one.
///
/// # Request
///
/// The body is the payload. `content-type` is the header of this name that the job has, or else
/// `application/json` if the payload is JSON, or else `application/octet-stream`. These headers
/// describe the job:
///
/// | header | value |
/// |---|---|
/// | `keyfall-key` | the job key, with `%XX` for `%` and for all but visible ASCII |
/// | `keyfall-attempt`, `keyfall-max-attempts` | the number of this attempt, and the limit of attempts |
/// | `keyfall-due`, `keyfall-first-scheduled` | times in RFC 3339 |
/// | `keyfall-lag-ms` | milliseconds from the due time to the start |
/// | `keyfall-fence` | the [fencing value](Job::fence) |
/// | `keyfall-idempotency-key` | the same for all attempts of a job, and different for all other jobs |
///
/// The headers of the job are passed on, without the headers that HTTP uses for connections and
/// without names that begin with `keyfall-` or `webhook-`.
///
/// Clones share connections, limits and the state of hosts. Proxies in the environment are not
/// used.
///
/// # Allowed addresses
///
/// The URL of the route comes from the operator of the worker, and may have any address, including
/// loopback and private addresses. A URL that a job or a redirect names may not: see
/// [`job_urls`](Self::job_urls) and [`redirects`](Self::redirects).
#[derive(Clone)]
#[must_use = "it does nothing before it is the handler of a route"]
pub struct Http {
    settings: Settings,
    /// Made at the first use from the settings, or the fault of the settings.
    caller: Arc<OnceLock<std::result::Result<Arc<Caller>, String>>>,
}

impl Http {
    /// A target with default settings.
    fn new(url: Option<String>) -> Self {
        Http {
            settings: Settings::new(url),
            caller: Arc::default(),
        }
    }

    /// The same target with a changed setting. It shares no connections and hosts with the old one.
    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self.caller = Arc::default();
        self
    }

    /// Lets jobs name their own URLs, in the header `url`, on one of these hosts:
    ///
    /// | host | allows |
    /// |---|---|
    /// | `hooks.example.org` | HTTPS on port 443 |
    /// | `hooks.example.org:8443` | HTTPS on this port |
    /// | `*.example.org` | HTTPS on port 443, on all hosts below `example.org` |
    /// | `http://hooks.example.org` | HTTP without TLS, on port 80 |
    ///
    /// To allow a host with and without TLS, list both forms.
    ///
    /// Such a URL never leads to a loopback, private, link-local, unique-local, multicast or
    /// metadata address, or to any other address outside of the open internet. The check applies to
    /// the address of each connection, whatever the name resolved to before. A job with a URL that
    /// is not allowed is buried; an attempt fails if the host resolves to a forbidden address.
    ///
    /// A job can have its own [retry policy](crate::Schedule::retry) and
    /// [timeout](crate::Schedule::timeout), as on other routes. The header `url` is never passed
    /// on.
    ///
    /// Defaults to no setting: the header `url` is ignored. An empty list is refused by the router.
    ///
    /// ```
    /// use keyfall::target;
    ///
    /// let target = target::http("https://shop.example.org/reminders")
    ///     .job_urls(["*.customers.example.org", "hooks.example.net:8443"]);
    /// ```
    pub fn job_urls<T: Into<String>>(self, hosts: impl IntoIterator<Item = T>) -> Self {
        self.with(|to| to.job_hosts = Some(hosts.into_iter().map(Into::into).collect()))
    }

    /// Lets jobs and redirects lead to addresses in these networks, too: `10.0.0.0/8`, `fd00::/8`,
    /// or a single address. Defaults to none.
    ///
    /// ```
    /// use keyfall::target;
    ///
    /// let target = target::http_of_jobs(["*.shop.internal"]).networks(["10.0.0.0/8", "fd00::/8"]);
    /// ```
    pub fn networks<T: Into<String>>(self, networks: impl IntoIterator<Item = T>) -> Self {
        self.with(|to| to.networks = networks.into_iter().map(Into::into).collect())
    }

    /// Signs each call by the [Standard Webhooks](https://www.standardwebhooks.com) specification,
    /// in the headers `webhook-id`, `webhook-timestamp` and `webhook-signature`.
    ///
    /// A secret is `whsec_`, followed by 24 to 64 bytes in base64. A second call of this function
    /// adds a second secret: each request then has a signature by each secret, so that receivers
    /// can change to the new one at any time.
    ///
    /// `webhook-id` is the same for all attempts of a job. Defaults to no signature.
    pub fn secret(self, secret: impl Into<String>) -> Self {
        self.with(|to| to.secrets.push(secret.into()))
    }

    /// Adds a header to each request, such as `authorization`. It replaces a header of the job with
    /// the same name. Hosts that jobs name receive it, too; hosts that a redirect leads to do not.
    ///
    /// Names that HTTP uses for connections, or that begin with `keyfall-` or `webhook-`, are
    /// refused by the router.
    ///
    /// ```
    /// use keyfall::target;
    ///
    /// let target = target::http("https://shop.example.org/reminders")
    ///     .header("authorization", "Bearer 6f1ed002ab5595859014ebf0951522d9");
    /// ```
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|to| to.headers.push((name.into(), value.into())))
    }

    /// The certificates of the CA that signs server certificates, as PEM. No other CA is trusted
    /// then. Defaults to the CAs that this system trusts.
    pub fn ca_certificate(self, pem: impl Into<Vec<u8>>) -> Self {
        self.with(|to| to.certificates.ca = Some(Pem::Text(pem.into())))
    }

    /// Like [`ca_certificate`](Self::ca_certificate), from a file, which is read when the route is
    /// added.
    pub fn ca_certificate_file(self, path: impl AsRef<Path>) -> Self {
        self.with(|to| to.certificates.ca = Some(Pem::File(path.as_ref().into())))
    }

    /// The client certificate, for servers that ask for one: a chain that begins with the
    /// certificate itself, and its private key, both as PEM. Defaults to none.
    pub fn client_certificate(self, chain: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        let client = (Pem::Text(chain.into()), Pem::Text(key.into()));
        self.with(|to| to.certificates.client = Some(client))
    }

    /// Like [`client_certificate`](Self::client_certificate), from files, which are read when the
    /// route is added.
    pub fn client_certificate_files(self, chain: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        let (chain, key) = (chain.as_ref().into(), key.as_ref().into());
        self.with(|to| to.certificates.client = Some((Pem::File(chain), Pem::File(key))))
    }

    /// The limit for connecting, including the look-up of the name and TLS; a part of the whole
    /// timeout. Four fifths of it are for the look-up. Must be longer than zero. Defaults to 5 s.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with(|to| to.connect_timeout = timeout)
    }

    /// How many bytes of an answer are read; a longer answer closes the connection. A failed job
    /// keeps the first 1 KiB. Defaults to 64 KiB.
    pub fn response_limit(self, bytes: usize) -> Self {
        self.with(|to| to.response_limit = bytes)
    }

    /// How many redirects a call follows. Defaults to 0: a redirect is a failure.
    ///
    /// Only 307 and 308 are followed, which ask for the same request at another URL. A redirect
    /// never leads from HTTPS to HTTP, nor to an address that a job may not name; from the URL of a
    /// job, it leads only to hosts that jobs may name. Another host does not receive the headers
    /// `authorization`, `cookie`, and the headers that [`header`](Self::header) adds.
    pub fn redirects(self, most: usize) -> Self {
        self.with(|to| to.redirects = most)
    }

    /// How many calls each host has at a time from this target, 1 or more. The same number of jobs
    /// may wait for a turn, for a second each; any other job is put off for about a second, and no
    /// attempt is counted. So a busy host does not delay jobs for other hosts.
    ///
    /// Defaults to 16 where jobs name URLs. Otherwise there is no limit, since
    /// [`concurrency`](Handler::concurrency) of the route limits the calls.
    pub fn host_concurrency(self, calls: usize) -> Self {
        self.with(|to| to.host_concurrency = Some(calls))
    }

    /// After how many failures in a row, 1 or more, a host counts as down and gets no calls for a
    /// while. A failure of a host is a call without a connection or without an answer in time, or
    /// an answer with 502, 503 or 504. Defaults to 5.
    ///
    /// Meanwhile its jobs are put off, and no attempt is counted. After one second, one job is sent
    /// as a trial; if the trial fails, the next pause is twice as long. A trial that could not
    /// connect counts as no attempt of its job.
    ///
    /// `keyfall why`, `keyfall breakers` and the doctor name hosts that are down.
    /// [`Client::close_breaker`](crate::Client::close_breaker) ends a pause at once.
    pub fn breaker_failures(self, failures: u32) -> Self {
        self.with(|to| to.failures = failures)
    }

    /// The longest pause of a host that is down. Must be longer than zero. Defaults to 60 s.
    pub fn breaker_pause(self, longest: Duration) -> Self {
        self.with(|to| to.longest_pause = longest)
    }

    /// Lets an answer hold all jobs of a kind, on all instances: 429 or 503 with `Retry-After`. No
    /// job of the kind starts before that time is over, at most `longest` from now, and no attempt is
    /// counted meanwhile. From 1 s to 1 h. The kind needs a [limit](crate::Client::limit).
    ///
    /// Defaults to no setting: `Retry-After` delays the job of the call alone.
    pub fn hold_kind(self, longest: Duration) -> Self {
        self.with(|to| to.hold_kind = Some(longest))
    }

    /// Resolves names with this function instead of the resolver of the system. Its results are
    /// checked like any other addresses. A look-up that takes too long is dropped.
    ///
    /// ```
    /// use keyfall::target;
    /// use std::net::IpAddr;
    ///
    /// let target = target::http("https://shop.internal/reminders")
    ///     .resolve_with(|_name: String| async { Ok(vec![IpAddr::from([10, 0, 0, 7])]) });
    /// ```
    pub fn resolve_with<F, Fut>(self, lookup: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = io::Result<Vec<IpAddr>>> + Send + 'static,
    {
        let lookups = Lookups::new(Arc::new(move |name, place| {
            let lookup = lookup(name);
            Box::pin(async move {
                let _place = place;
                lookup.await
            })
        }));
        self.with(|to| to.lookups = lookups)
    }

    /// Validates all settings and reads the certificate files, as the router does with a route: for
    /// programs that report the faults of a configuration. It connects to nothing.
    ///
    /// ```
    /// use keyfall::target;
    ///
    /// assert!(target::http("shop.example.org").check().is_err(), "it is no URL");
    /// ```
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] for the first invalid setting, with its remedy.
    pub fn check(&self) -> Result<()> {
        let invalid = |fault| Error::new(ErrorKind::InvalidSetting, fault);
        self.settings.caller().map(drop).map_err(invalid)
    }

    /// The caller, made at the first use; or the fault of the settings.
    fn caller(&self) -> std::result::Result<Arc<Caller>, String> {
        let make = || self.settings.caller().map(Arc::new);
        self.caller.get_or_init(make).clone()
    }
}

/// Marker type that lets an [`Http`] implement [`Handler`] beside functions. It has no values.
#[derive(Debug)]
pub enum Calls {}

#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Calls, S> for Http {
    fn into_route(self) -> Route<S> {
        let caller = self.caller();
        let fault = caller.as_ref().err().cloned();
        let hosts = caller.as_ref().ok().map(|caller| caller.hosts.clone());
        let holds = caller.as_ref().ok().and_then(|caller| caller.holds.clone());
        let route = Route::new(move |job: Job, _| {
            let caller = caller.clone();
            Box::pin(async move {
                match caller {
                    Ok(caller) => caller.call(job).await,
                    // No router takes such a route.
                    Err(fault) => Outcome::retry(fault),
                }
            })
        });
        route.with(|options| {
            options.timeout = Some(TIMEOUT);
            options.breakers = hosts.map(|hosts| hosts as _);
            options.fault = fault;
            options.route_task = holds.map(|holds| {
                RouteTask::new(move |context: RouteTaskContext| {
                    let holds = holds.clone();
                    Box::pin(async move { holds.carry_out(context.client).await })
                })
            });
        })
    }
}

/// Leaves out the secrets and the URL, which may hold one.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("job_urls", &self.settings.job_hosts)
            .field("secrets", &self.settings.secrets.len())
            .finish_non_exhaustive()
    }
}
