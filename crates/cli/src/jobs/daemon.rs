//! Sends calls to a daemon.

use std::error::Error as _;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use futures_util::{StreamExt, TryStreamExt};
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Method, RequestBuilder, Response, Url};

use tokio::time::timeout;

use super::{Answer, Call, Parts, refused, wait_of};
use crate::stop::Stop;

/// The time limit for a connection.
const TO_CONNECT: Duration = Duration::from_secs(10);

/// The time limit for a call on one job: longer than the default time that the daemon gives Redis.
const FOR_ONE: Duration = Duration::from_secs(60);

/// The time limit for a probe.
const FOR_A_PROBE: Duration = Duration::from_secs(5);

/// The time limit for a call on many jobs.
const FOR_MANY: Duration = Duration::from_secs(3600);

/// The longest wait before a call is repeated after a refusal with 429; a longer wait is reported
/// instead.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The most repeats of a call that is refused with 429.
const TRIES: usize = 100;

/// The address of a daemon, and the credentials for it.
#[derive(Debug)]
pub(crate) struct Address {
    pub(crate) url: Url,
    pub(crate) token: Option<String>,
    /// The certificates of the CA that signed the certificate of the daemon, if this system does
    /// not trust it.
    pub(crate) ca_file: Option<PathBuf>,
}

#[derive(Clone)]
pub(crate) struct Daemon {
    client: Client,
    url: Url,
}

impl Daemon {
    pub(crate) fn new(address: Address) -> anyhow::Result<Self> {
        let mut headers = HeaderMap::new();
        if let Some(token) = &address.token {
            let bearer = HeaderValue::from_str(&format!("Bearer {token}"));
            let mut bearer = bearer.map_err(|_| {
                Stop::wrong(
                    "this is not a token: write the one line that `keyfall token make` \
                             prints",
                )
            })?;
            bearer.set_sensitive(true);
            headers.insert(AUTHORIZATION, bearer);
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut client = Client::builder()
            .default_headers(headers)
            .connect_timeout(TO_CONNECT)
            // A POST that is redirected becomes a GET.
            .redirect(Policy::none());
        if let Some(path) = &address.ca_file {
            let shown = path.display();
            let pem = std::fs::read(path).with_context(|| format!("{shown} cannot be read"))?;
            let certificates = Certificate::from_pem_bundle(&pem)
                .ok()
                .filter(|found| !found.is_empty());
            let certificates = certificates.ok_or_else(|| {
                Stop::wrong(format!(
                    "{shown} holds no certificate: write it as PEM, -----BEGIN CERTIFICATE-----"
                ))
            })?;
            client = client.tls_certs_only(certificates);
        } else if address.url.scheme() == "http" {
            // Otherwise the client wants the certificates of some CA, which small systems lack.
            client = client.tls_certs_only([]);
        }
        Ok(Daemon {
            client: client.build().context("the way to the daemon")?,
            url: address.url,
        })
    }

    /// Asks whether the daemon is ready; the error says why it is not.
    pub(crate) async fn is_ready(&self) -> anyhow::Result<()> {
        let mut url = self.url.clone();
        let mut path = url.path_segments_mut().expect("it has a host");
        path.pop_if_empty().push("readyz");
        drop(path);
        let asked = self.client.get(url).timeout(FOR_A_PROBE).send().await;
        let answer = asked.map_err(|error| self.told(&error))?;
        let kind = answer.headers().get(CONTENT_TYPE).map(|it| it.as_bytes());
        match (answer.status().as_u16(), kind) {
            // With a body if it is ready and something is wrong all the same.
            (204, None) | (200, Some(b"application/problem+json")) => Ok(()),
            _ => refused(&self.read(answer).await?),
        }
    }

    pub(super) async fn send(&self, call: Call) -> anyhow::Result<Answer> {
        let patience = if call.is_long { FOR_MANY } else { FOR_ONE };
        let answer = self.admitted(|| self.request(&call).timeout(patience).send());
        self.read(answer.await?).await
    }

    /// Sends a call whose answer has no end. The caller reports a refusal with 429, and waits.
    pub(super) async fn open(&self, call: Call) -> anyhow::Result<Parts> {
        let begun = timeout(FOR_ONE, self.request(&call).send()).await;
        let begun = begun.map_err(|_| self.away("did not answer in time"))?;
        let answer = begun.map_err(|error| self.told(&error))?;
        if answer.status().as_u16() >= 400 {
            refused(&self.read(answer).await?)?;
            bail!("the daemon at {} refused, and did not say why", self.url);
        }
        self.check(&answer)?;
        let own = self.clone();
        let parts = answer.bytes_stream();
        Ok(parts.map_err(move |error| own.told(&error)).boxed())
    }

    fn request(&self, call: &Call) -> RequestBuilder {
        let method: Method = call.method.parse().expect("a method");
        let request = self.client.request(method, call.url(&self.url));
        request.body(call.body.clone())
    }

    /// The answer to a request, which is repeated after a refusal with 429.
    async fn admitted<F>(&self, send: impl Fn() -> F) -> anyhow::Result<Response>
    where
        F: Future<Output = reqwest::Result<Response>>,
    {
        for _ in 0..TRIES {
            let answer = send().await.map_err(|error| self.told(&error))?;
            match wait_of(answer.status(), answer.headers()) {
                // The daemon changed nothing.
                Some(wait) if wait <= LONGEST_WAIT => tokio::time::sleep(wait).await,
                _ => return Ok(answer),
            }
        }
        bail!(Stop::unavailable(
            "the daemon takes no more requests of this token or address: try again later"
        ))
    }

    async fn read(&self, answer: Response) -> anyhow::Result<Answer> {
        self.check(&answer)?;
        let wait = wait_of(answer.status(), answer.headers());
        let status = answer.status().as_u16();
        let body = answer.bytes().await.map_err(|error| self.told(&error))?;
        Ok(Answer {
            status,
            wait,
            body: body.into(),
        })
    }

    /// Fails if Keyfall did not give this answer.
    fn check(&self, answer: &Response) -> anyhow::Result<()> {
        let status = answer.status().as_u16();
        let kind = answer.headers().get(CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("");
        let is_ours = matches!(
            (status < 300, kind),
            (true, "application/json" | "application/x-ndjson")
                | (false, "application/problem+json")
        );
        if !is_ours && matches!(status, 502..=504) {
            // A proxy answers while its daemon restarts.
            bail!(self.away(&format!(
                "is not there: a proxy answered {}",
                answer.status()
            )));
        }
        if !is_ours {
            bail!(
                "there is no Keyfall at {}, it answered {} with {kind:?}: `--api` takes the URL \
                 that `keyfall serve` prints",
                self.url,
                answer.status()
            );
        }
        Ok(())
    }

    /// The error of a request, in words: the fault, and the remedy if there is one.
    fn told(&self, error: &reqwest::Error) -> anyhow::Error {
        let mut cause = error.source();
        let mut last = error.to_string();
        while let Some(error) = cause {
            if let Some(refused) = tls_error(error) {
                return anyhow!(
                    "the daemon at {} cannot be trusted: {refused}; name the CA that signed its \
                     certificate by `--ca-file`, and the host as the certificate does",
                    self.url
                );
            }
            last = error.to_string();
            cause = error.source();
        }
        let what = if error.is_timeout() {
            "did not answer in time".to_owned()
        } else if error.is_connect() {
            format!("cannot be reached: {last}")
        } else {
            format!("broke off: {last}")
        };
        self.away(&what).into()
    }

    fn away(&self, what: &str) -> Stop {
        Stop::unavailable(format!("the daemon at {} {what}", self.url))
    }
}

/// The error of TLS, if TLS refused the connection; `None` if the connection merely ended.
fn tls_error<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a rustls::Error> {
    if let Some(refused) = error.downcast_ref::<rustls::Error>() {
        return Some(refused);
    }
    // The source of an `io::Error` is the source of its inner error, which would be skipped.
    tls_error(error.downcast_ref::<std::io::Error>()?.get_ref()?)
}
