//! The settings of an HTTP target as the caller of the library gave them, and their validation.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::address::Network;
use super::allowed::AllowedHost;
use super::caller::{Caller, parse};
use super::clients::{Connecting, HttpCertificates, client as client_of};
use super::holds::Holds;
use super::hosts::{HostLimits, Hosts};
use super::lookups::{Lookups, NameSource};
use super::request::is_reserved;
use super::resolver::{AddressFilter, Resolver};
use super::signature::Secret;

/// Default limit of simultaneous calls to one host, where jobs name hosts.
const CALLS_OF_JOBS: usize = 16;

/// The settings of a target, not yet validated. The setters of `Http` document each of them.
#[derive(Clone)]
pub(super) struct Settings {
    /// The URL of the route; `None` if only jobs name URLs.
    pub(super) url: Option<String>,
    /// `None` if jobs may not name URLs.
    pub(super) job_hosts: Option<Vec<String>>,
    /// In the form `10.0.0.0/8`, or single addresses.
    pub(super) networks: Vec<String>,
    /// In the form `whsec_` and base64.
    pub(super) secrets: Vec<String>,
    /// Names and values.
    pub(super) headers: Vec<(String, String)>,
    pub(super) certificates: HttpCertificates,
    /// 5 s by default.
    pub(super) connect_timeout: Duration,
    /// In bytes; 64 KiB by default.
    pub(super) response_limit: usize,
    /// 0 by default.
    pub(super) redirects: usize,
    /// `None` for [`CALLS_OF_JOBS`] where jobs name URLs, and for no limit elsewhere.
    pub(super) host_concurrency: Option<usize>,
    /// Failures in a row that open a breaker; 5 by default.
    pub(super) failures: u32,
    /// The longest pause of a host; 60 s by default.
    pub(super) longest_pause: Duration,
    /// The longest hold of a kind that an answer can ask for; `None` if none can.
    pub(super) hold_kind: Option<Duration>,
    /// The resolver; by default the system's, which all targets of the process share.
    pub(super) lookups: Arc<Lookups>,
}

impl Settings {
    /// The default settings, with the URL of the route, if it has one.
    pub(super) fn new(url: Option<String>) -> Self {
        Settings {
            url,
            job_hosts: None,
            networks: Vec::new(),
            secrets: Vec::new(),
            headers: Vec::new(),
            certificates: HttpCertificates::default(),
            connect_timeout: Duration::from_secs(5),
            response_limit: 64 * 1024,
            redirects: 0,
            host_concurrency: None,
            failures: 5,
            longest_pause: Duration::from_secs(60),
            hold_kind: None,
            lookups: Lookups::of_the_system(),
        }
    }

    /// Validates the settings, reads the certificates, and makes a caller. It connects to nothing.
    ///
    /// # Errors
    /// The first fault, and its remedy.
    pub(super) fn caller(&self) -> Result<Caller, String> {
        let url = self.url.as_deref().map(parse).transpose();
        let url = url.map_err(|fault| format!("the URL of its callback {fault}"))?;
        let allowed: Option<Vec<AllowedHost>> = match &self.job_hosts {
            None => None,
            Some(hosts) if hosts.is_empty() => {
                return Err("`job_urls` has no host: write the hosts that jobs may name".into());
            }
            Some(hosts) => Some(all("job_urls", hosts)?),
        };
        let networks: Vec<Network> = all("networks", &self.networks)?;
        let secrets: Vec<Secret> = all("secret", &self.secrets)?;
        let headers = headers(&self.headers)?;
        if self.connect_timeout.is_zero() {
            return Err("`connect_timeout` is zero: make it longer".into());
        }
        if self.host_concurrency == Some(0) {
            return Err(
                "`host_concurrency` is 0, so nothing could be sent: write 1 or more".into(),
            );
        }
        if self.failures == 0 {
            return Err("`breaker_failures` is 0: write 1 or more".into());
        }
        if self.longest_pause.is_zero() {
            return Err("`breaker_pause` is zero: make it longer".into());
        }
        let hour = Duration::from_secs(3600);
        if let Some(longest) = self.hold_kind
            && !(Duration::from_secs(1)..=hour).contains(&longest)
        {
            return Err(format!("`hold_kind` is from 1s to 1h, not {longest:?}"));
        }
        let guard = AddressFilter {
            networks: networks.into(),
        };
        let client = |named, guard: Option<AddressFilter>, with_tls| {
            client_of(Connecting {
                certificates: &self.certificates,
                timeout: self.connect_timeout,
                resolver: Resolver {
                    lookups: self.lookups.clone(),
                    // The rest of the time is for the connection itself.
                    within: self.connect_timeout * 4 / 5,
                    named,
                    guard,
                },
                with_tls,
            })
        };
        let own = client(
            NameSource::ByRoute,
            None,
            url.as_ref().is_some_and(|url| url.scheme() == "https"),
        )?;
        let is_guarded = allowed.is_some() || self.redirects > 0;
        let guarded = is_guarded.then(|| client(NameSource::ByJob, Some(guard.clone()), true));
        let guarded = guarded.transpose()?;
        let of_jobs = allowed.as_ref().map(|_| CALLS_OF_JOBS);
        Ok(Caller {
            url,
            allowed,
            own,
            guarded,
            guard,
            secrets,
            headers,
            redirects: self.redirects,
            response_limit: self.response_limit,
            holds: self.hold_kind.map(|longest| Arc::new(Holds::new(longest))),
            hosts: Hosts::new(HostLimits {
                concurrency: self.host_concurrency.or(of_jobs),
                failures: self.failures,
                longest_pause: self.longest_pause,
            }),
        })
    }
}

/// Parses all texts of a setting.
///
/// # Errors
/// The first text that is invalid, after the name of the setting.
fn all<T>(setting: &str, texts: &[String]) -> Result<Vec<T>, String>
where
    T: FromStr<Err: fmt::Display>,
{
    let parse = |text: &String| {
        let parsed = text.parse();
        parsed.map_err(|fault| format!("`{setting}`: {fault}"))
    };
    texts.iter().map(parse).collect()
}

/// Parses the headers that a route adds, and marks their values as sensitive. Errors do not quote a
/// value, which may be a secret.
fn headers(texts: &[(String, String)]) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in texts {
        let parsed = name.parse::<HeaderName>();
        let parsed =
            parsed.map_err(|_| format!("`header`: {name:?} is not a valid name of a header"))?;
        if is_reserved(&parsed) {
            return Err(format!(
                "`header`: {name} is set by Keyfall or by HTTP itself: leave it out"
            ));
        }
        let mut value = HeaderValue::try_from(value)
            .map_err(|_| format!("`header`: the value of {name} does not fit on one line"))?;
        value.set_sensitive(true);
        headers.insert(parsed, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_from_job_urls_have_sixteen_calls_at_a_time() {
        let calls = |url: Option<&str>, job_hosts: Option<&str>| {
            let mut settings = Settings::new(url.map(Into::into));
            settings.job_hosts = job_hosts.map(|host| vec![host.into()]);
            settings.caller().unwrap().hosts.limits().concurrency
        };
        assert_eq!(calls(None, Some("example.org")), Some(16));
        assert_eq!(calls(Some("http://h/"), Some("example.org")), Some(16));
        assert_eq!(calls(Some("http://h/"), None), None);
    }
}
