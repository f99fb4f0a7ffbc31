//! HTTP callbacks: a job is sent to a server, whose answer says how it ended.
//!
//! | part | what it does |
//! |---|---|
//! | [`caller`] | one call, from the job to its outcome |
//! | [`request`], [`signature`] | what is sent |
//! | [`answer`] | what an answer means |
//! | [`hosts`] | how many calls each host has, and which are left alone |
//! | [`address`], [`resolver`], [`allowed`] | where jobs may go that name a URL |
//! | [`lookups`] | how names become addresses, in a bounded time and number |
//! | [`settings`] | what a target is told, and whether that can work |
//! | [`clients`] | connections and certificates |

mod address;
mod allowed;
mod answer;
mod caller;
mod clients;
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
use crate::handler::{Handler, Job, Route};
use crate::outcome::Outcome;
use crate::settings::Pem;
use caller::Caller;
use lookups::Lookups;
use settings::Settings;

/// The header by which a job names its URL.
const URL: &str = "url";

/// How long a call may take, where neither route nor job says.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Sends the jobs of its routes to the HTTP server at this URL: the payload as the body of a
/// `POST`. See [`Http`].
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

/// Sends each job to the URL that it names in its header `url`, on one of these hosts: see
/// [`Http::job_urls`]. A job that names none is buried.
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

/// Sends jobs to an HTTP server, whose answer says how the run ended.
///
/// | answer | outcome |
/// |---|---|
/// | 2xx | [`Done`](Outcome::Done) |
/// | 410 | [`Bury`](Outcome::Bury) |
/// | any other, or none in time | [`Retry`](Outcome::Retry), with status and beginning of the body |
/// | none, because the host is down or has enough to do | [`SnoozeBecause`](Outcome::SnoozeBecause): not sent, no attempt |
///
/// `Retry-After` is obeyed, in seconds or as a date: no sooner than the
/// [policy](Handler::retry) says, and no later than its longest delay.
/// A whole call may take as long as the [timeout](Handler::timeout) of the job or of the route, 30 s
/// if neither has one.
///
/// The body is the payload. Headers say the rest: `keyfall-key` (percent-encoded where it is not
/// visible ASCII), `keyfall-attempt`, `keyfall-max-attempts`, `keyfall-due` and
/// `keyfall-first-scheduled` (RFC 3339), `keyfall-lag-ms`, `keyfall-fence`, and
/// `keyfall-idempotency-key`, which all attempts have and no other job. The job's own headers are
/// passed on, but for those that HTTP keeps for itself and those that begin with `keyfall-` or
/// `webhook-`.
/// `content-type` is `application/json` if the payload is that, unless the job says another one.
///
/// Clones share connections and what is known of the hosts. Proxies that the environment names
/// are not used.
///
/// # Where it connects to
///
/// The URL of the route is the word of whoever runs the worker: it may be anywhere, loopback and
/// private addresses included. Whatever a job or a redirect names may not: see
/// [`job_urls`](Self::job_urls) and [`redirects`](Self::redirects).
#[derive(Clone)]
#[must_use = "it does nothing before it is the handler of a route"]
pub struct Http {
    settings: Settings,
    /// Made when it is first asked for.
    caller: Arc<OnceLock<std::result::Result<Arc<Caller>, String>>>,
}

impl Http {
    fn new(url: Option<String>) -> Self {
        Http {
            settings: Settings::new(url),
            caller: Arc::default(),
        }
    }

    fn with(mut self, set: impl FnOnce(&mut Settings)) -> Self {
        set(&mut self.settings);
        self.caller = Arc::default();
        self
    }

    /// Lets a job name its own URL, in the header `url`, on one of these hosts:
    /// `hooks.example.org`, `*.example.org` for all below one, `hooks.example.org:8443` for a port
    /// that is not that of the scheme. They are called with TLS only; one that is to be called
    /// without it is written `http://hooks.example.org`, and one that may be called either way is
    /// written twice.
    ///
    /// Such a URL never leads to a loopback, private, link-local, unique-local, multicast or
    /// metadata address, or to another that is not of the open internet, whatever a name stands
    /// for at the moment: the address that is connected to is the one that is checked. A job whose
    /// URL is not allowed is buried, one whose host resolves to such an address has failed.
    ///
    /// A job brings its own [retry policy](crate::Schedule::retry) and
    /// [timeout](crate::Schedule::timeout) as any other does. Defaults to no host; without it the
    /// header `url` means nothing. It is never passed on.
    pub fn job_urls<T: Into<String>>(self, hosts: impl IntoIterator<Item = T>) -> Self {
        self.with(|to| to.job_hosts = Some(hosts.into_iter().map(Into::into).collect()))
    }

    /// Lets jobs and redirects lead to these networks, too: `10.0.0.0/8`, `fd00::/8`, or a single
    /// address. Defaults to none.
    pub fn networks<T: Into<String>>(self, networks: impl IntoIterator<Item = T>) -> Self {
        self.with(|to| to.networks = networks.into_iter().map(Into::into).collect())
    }

    /// Signs each call after the [Standard Webhooks](https://www.standardwebhooks.com)
    /// specification, with `webhook-id`, `webhook-timestamp` and `webhook-signature`. A secret is
    /// `whsec_` and 24 to 64 bytes in base64. Called again, it adds another one, so that receivers
    /// can change theirs one by one: each call has a signature by each.
    ///
    /// The id is the same over all retries of a job. Defaults to no signature.
    pub fn secret(self, secret: impl Into<String>) -> Self {
        self.with(|to| to.secrets.push(secret.into()))
    }

    /// Sends this header, too, such as `authorization`; instead of that of the job, if it has one
    /// of this name. To all hosts that a job names, too, and not to where a redirect leads.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.with(|to| to.headers.push((name.into(), value.into())))
    }

    /// The certificates of the CA that signed the server's, as PEM; no other is trusted then.
    /// Defaults to the CAs that this system trusts.
    pub fn ca_certificate(self, pem: impl Into<Vec<u8>>) -> Self {
        self.with(|to| to.certificates.ca = Some(Pem::Text(pem.into())))
    }

    /// Like [`ca_certificate`](Self::ca_certificate), from a file, which is read when the route is
    /// added.
    pub fn ca_certificate_file(self, path: impl AsRef<Path>) -> Self {
        self.with(|to| to.certificates.ca = Some(Pem::File(path.as_ref().into())))
    }

    /// What a server is shown that asks for a certificate: a chain that begins with its own, and
    /// the private key, both as PEM. Defaults to none.
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

    /// How long it may take to be connected, names and TLS included; part of the whole. Four fifths
    /// of it are for finding the address of the name. Longer than zero. Defaults to 5 s.
    pub fn connect_timeout(self, timeout: Duration) -> Self {
        self.with(|to| to.connect_timeout = timeout)
    }

    /// How many bytes of an answer are read; the connection is closed if there are more. Of the
    /// beginning, 1 KiB is kept with a job that failed. Defaults to 64 KiB.
    pub fn response_limit(self, bytes: usize) -> Self {
        self.with(|to| to.response_limit = bytes)
    }

    /// How many redirects are followed: those with 307 and 308, which ask for the same request
    /// elsewhere. They lead to no address that a job could not name, and from the URL of a job to
    /// no host that it could not name; never from HTTPS to HTTP. To another host, the headers
    /// `authorization`, `cookie` and those of [`header`](Self::header) do not go along. Defaults
    /// to 0: a redirect is a failure.
    pub fn redirects(self, most: usize) -> Self {
        self.with(|to| to.redirects = most)
    }

    /// How many calls each host has at a time from this target, 1 or more. As many wait for their
    /// turn; a job that finds no place there is put off for about a second, without an attempt, so
    /// that it is not in the way of those to other hosts. Defaults to 16 where jobs name URLs, and
    /// to no limit otherwise, where [`concurrency`](Handler::concurrency) does.
    pub fn host_concurrency(self, calls: usize) -> Self {
        self.with(|to| to.host_concurrency = Some(calls))
    }

    /// After how many failures in a row, 1 or more, a host is left alone for a while. Failures of a
    /// host are no connection, no answer in time, and 502, 503 and 504.
    ///
    /// Its jobs are put off meanwhile, and no attempt is counted. After a second one of them is
    /// sent; if that fails too, the next pause is twice as long, and if it could not even be connected,
    /// no attempt is counted either. `keyfall why`, `keyfall breakers` and the doctor name such hosts,
    /// and [`Client::close_breaker`](crate::Client::close_breaker) has one called again at once.
    /// Defaults to 5.
    pub fn breaker_failures(self, failures: u32) -> Self {
        self.with(|to| to.failures = failures)
    }

    /// For how long a host that is down is left alone at the most. Longer than zero. Defaults to
    /// 60 s.
    pub fn breaker_pause(self, longest: Duration) -> Self {
        self.with(|to| to.longest_pause = longest)
    }

    /// Finds the addresses of names by this function instead of the system's resolver. What it
    /// finds is checked like any other. One that takes too long is dropped.
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

    /// Checks all settings and reads the certificates, as the router does with a route: for
    /// programs that tell the faults of a configuration.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if one is not valid, with the remedy.
    pub fn check(&self) -> Result<()> {
        let invalid = |fault| Error::new(ErrorKind::InvalidSetting, fault);
        self.settings.caller().map(drop).map_err(invalid)
    }

    fn caller(&self) -> std::result::Result<Arc<Caller>, String> {
        let make = || self.settings.caller().map(Arc::new);
        self.caller.get_or_init(make).clone()
    }
}

/// Tells an [`Http`] from a function where both are handlers.
#[derive(Debug)]
pub enum Calls {}

#[diagnostic::do_not_recommend]
impl<S: Send + Sync + 'static> Handler<Calls, S> for Http {
    fn into_route(self) -> Route<S> {
        let caller = self.caller();
        let fault = caller.as_ref().err().cloned();
        let hosts = caller.as_ref().ok().map(|caller| caller.hosts.clone());
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
        })
    }
}

/// Without secrets, and without the URL, which may hold one.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("job_urls", &self.settings.job_hosts)
            .field("secrets", &self.settings.secrets.len())
            .finish_non_exhaustive()
    }
}
