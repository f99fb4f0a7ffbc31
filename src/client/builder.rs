//! The builder of a client: its settings, their limits, and the checks before it connects.

#[cfg(feature = "tls")]
use std::path::Path;
use std::time::Duration;

use super::{Client, Functions};
use crate::error::{Error, ErrorKind, Result};
use crate::key::is_kind_char;
#[cfg(feature = "tls")]
use crate::settings::Pem;
use crate::settings::{ClientSettings, PAYLOAD_LIMITS};
use crate::shards::MAX_SHARDS;
use crate::store;

/// Settings of a [`Client`]; from [`Client::builder`]. Invalid settings are reported by
/// [`connect`](Self::connect) or [`check`](Self::check), not by the methods that set them.
#[derive(Clone)]
#[must_use = "call `connect`"]
pub struct ClientBuilder {
    url: String,
    settings: ClientSettings,
}

impl ClientBuilder {
    pub(super) fn new(url: &str) -> Self {
        ClientBuilder {
            url: url.to_owned(),
            settings: ClientSettings::default(),
        }
    }

    /// The prefix of all Redis keys of Keyfall, except the triggers, which bear the names of their
    /// jobs. Clients and workers of the same jobs need the same namespace. 1 to 64 ASCII letters,
    /// digits, `_`, `-` and `.`. Defaults to `keyfall`.
    pub fn namespace(mut self, namespace: &str) -> Self {
        self.settings.namespace = namespace.to_owned();
        self
    }

    /// The largest payload that `schedule` accepts, in bytes: from 1 byte to 256 MiB. Defaults to 1
    /// MiB.
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.settings.payload_limit = bytes;
        self
    }

    /// The longest that a call may take, including the repeats that the client makes by itself:
    /// from 1 ms to 1 h. Defaults to 10 s: longer than a restart of Redis or a fail-over, shorter
    /// than the patience of most callers of a service.
    ///
    /// Some waits come on top: the wait of a [durable](crate::Durable) call, and the hooks for dead
    /// letters when a settlement buries a job. A call on many jobs or kinds, such as
    /// [`schedule_many`](Client::schedule_many), a [`Bulk`](crate::Bulk) call or an audit, may take
    /// as long as it makes progress: the limit holds for each of its steps.
    pub fn call_timeout(mut self, timeout: Duration) -> Self {
        self.settings.call_timeout = timeout;
        self
    }

    /// The longest that opening a connection may take: from 1 ms to 1 h. Defaults to 2 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.settings.link.connect_timeout = timeout;
        self
    }

    /// The longest that Redis may take to answer, from 1 ms to 1 h. After that, the connection
    /// counts as hung and is replaced. Defaults to 2 s.
    pub fn response_timeout(mut self, timeout: Duration) -> Self {
        self.settings.link.response_timeout = timeout;
        self
    }

    /// The certificates of the CA that signed the server's certificate, as PEM. With this setting,
    /// a `rediss://` server must show a certificate of this CA, and no other CA is trusted.
    /// Defaults to the CAs that the operating system trusts.
    ///
    /// ```no_run
    /// # async fn connect() -> keyfall::Result<()> {
    /// let client = keyfall::Client::builder("rediss://redis.internal:6379")
    ///     .ca_certificate_file("/etc/ssl/our-ca.pem")
    ///     .client_certificate_files("/etc/ssl/worker.pem", "/etc/ssl/worker.key")
    ///     .connect()
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tls")]
    pub fn ca_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.settings.link.certificates.ca = Some(Pem::Text(pem.into()));
        self
    }

    /// Like [`ca_certificate`](Self::ca_certificate), from a file, which [`connect`](Self::connect)
    /// reads.
    #[cfg(feature = "tls")]
    pub fn ca_certificate_file(mut self, path: impl AsRef<Path>) -> Self {
        self.settings.link.certificates.ca = Some(Pem::File(path.as_ref().into()));
        self
    }

    /// The client certificate, for a `rediss://` server that asks for one (`tls-auth-clients yes`,
    /// the default of Redis): the certificate chain, own certificate first, and the private key,
    /// both as PEM. Defaults to none.
    #[cfg(feature = "tls")]
    pub fn client_certificate(
        mut self,
        chain: impl Into<Vec<u8>>,
        key: impl Into<Vec<u8>>,
    ) -> Self {
        let (chain, key) = (Pem::Text(chain.into()), Pem::Text(key.into()));
        self.settings.link.certificates.client = Some((chain, key));
        self
    }

    /// Like [`client_certificate`](Self::client_certificate), from files, which
    /// [`connect`](Self::connect) reads. They are not read again: restart a worker when its
    /// certificate is renewed.
    #[cfg(feature = "tls")]
    pub fn client_certificate_files(
        mut self,
        chain: impl AsRef<Path>,
        key: impl AsRef<Path>,
    ) -> Self {
        let (chain, key) = (chain.as_ref().into(), key.as_ref().into());
        self.settings.link.certificates.client = Some((Pem::File(chain), Pem::File(key)));
        self
    }

    /// The number of shards of a new kind, from 1 to [`MAX_SHARDS`](crate::MAX_SHARDS). An existing
    /// kind keeps its number until [`Client::reshard`] changes it. Defaults to 1; on a cluster, to
    /// the number of its primaries, rounded up to 2, 4 or 8.
    pub fn default_shards(mut self, shards: u16) -> Self {
        self.settings.default_shards = Some(shards);
        self
    }

    /// Whether to accept a server that evicts any key when it is full: an `allkeys-*` policy with a
    /// `maxmemory`. Such a server drops jobs silently, and the counters no longer balance. `false`
    /// refuses it; `true` logs a warning. Defaults to `false`.
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.settings.allow_eviction = allow;
        self
    }

    /// Connects, and checks that the server can carry Keyfall.
    ///
    /// # Errors
    /// If a setting or the URL is not valid, the server does not answer, or it cannot carry
    /// Keyfall. The error names the remedy.
    pub async fn connect(self) -> Result<Client> {
        self.validate()?;
        Client::open(&self.url, self.settings).await
    }

    /// Checks all settings, the URL and the certificates, without a connection: for programs that
    /// report all faults of a configuration before they use it.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] for the first invalid setting, with the remedy.
    pub fn check(&self) -> Result<()> {
        self.validate()?;
        store::check_url(&self.url, &self.settings.link)
    }

    /// The library of Redis functions, without a connection: to print it, or to inspect a server
    /// that [`connect`](Self::connect) refuses. As [`Client::functions`].
    ///
    /// # Errors
    /// If a setting or the URL is not valid.
    pub fn functions(self) -> Result<Functions> {
        Ok(self.unchecked()?.functions())
    }

    /// A client that has neither connected to its server nor checked it.
    ///
    /// # Errors
    /// If a setting or the URL is not valid.
    pub(crate) fn unchecked(self) -> Result<Client> {
        self.validate()?;
        Client::unchecked(&self.url, self.settings)
    }

    /// A connection to the same server for lists and streams outside of Keyfall.
    #[cfg(feature = "worker")]
    pub(crate) fn target_redis(&self) -> Result<store::TargetRedis> {
        self.validate()?;
        store::TargetRedis::new(&self.url, &self.settings)
    }

    /// Checks the range of each setting; the URL is checked elsewhere.
    fn validate(&self) -> Result<()> {
        let ClientSettings {
            namespace,
            payload_limit,
            call_timeout,
            default_shards,
            allow_eviction: _,
            link,
        } = &self.settings;
        if namespace.is_empty() || namespace.len() > 64 || !namespace.chars().all(is_kind_char) {
            return Err(invalid(format!(
                "namespace {namespace:?} must be 1 to 64 ASCII letters, digits, `_`, `-` and `.`"
            )));
        }
        if !PAYLOAD_LIMITS.contains(payload_limit) {
            return Err(invalid(format!(
                "payload_limit {payload_limit} must be from 1 byte to 256 MiB"
            )));
        }
        if default_shards.is_some_and(|shards| !(1..=MAX_SHARDS).contains(&shards)) {
            return Err(invalid(format!(
                "default_shards {} must be from 1 to {MAX_SHARDS}",
                default_shards.unwrap_or_default()
            )));
        }
        for (name, timeout) in [
            ("call_timeout", call_timeout),
            ("connect_timeout", &link.connect_timeout),
            ("response_timeout", &link.response_timeout),
        ] {
            if !(Duration::from_millis(1)..=Duration::from_secs(3600)).contains(timeout) {
                return Err(invalid(format!(
                    "{name} {timeout:?} must be from 1 ms to 1 h"
                )));
            }
        }
        Ok(())
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidSetting, message)
}
