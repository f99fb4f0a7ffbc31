//! The place of the database, and how its certificate is checked.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::ring;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};

/// How long a statement may take, unless the URL says otherwise.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a connection may take, unless the URL says otherwise.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The place of the database.
#[derive(Clone)]
pub struct Settings {
    url: String,
    password: Option<String>,
    ca_file: Option<PathBuf>,
    pub(crate) connections: usize,
    pub(crate) statement_timeout: Duration,
}

impl Settings {
    /// A database by its URL, `postgresql://user@host:5432/name`, or by keywords and values,
    /// `host=/run/postgresql dbname=name`. Parameters as
    /// [libpq has them](https://www.postgresql.org/docs/current/libpq-connect.html#LIBPQ-PARAMKEYWORDS):
    /// `connect_timeout`, `target_session_attrs`, `application_name`, `options`; and `sslmode`, which
    /// is `disable`, `prefer` or `require`. The certificate is always checked, as libpq does with
    /// `verify-full`. Several hosts are tried in turn.
    pub fn new(url: impl Into<String>) -> Self {
        Settings {
            url: url.into(),
            password: None,
            ca_file: None,
            connections: 4,
            statement_timeout: STATEMENT_TIMEOUT,
        }
    }

    /// The password, instead of one in the URL.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// A file with the certificates of the CAs that are trusted, PEM. Defaults to those of the
    /// system.
    #[must_use]
    pub fn ca_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca_file = Some(file.into());
        self
    }

    /// How many connections there are at most, beside the one that listens. Defaults to 4.
    #[must_use]
    pub fn connections(mut self, most: usize) -> Self {
        self.connections = most.max(1);
        self
    }

    /// How long a statement may take. Defaults to 30 s.
    #[must_use]
    pub fn statement_timeout(mut self, limit: Duration) -> Self {
        self.statement_timeout = limit;
        self
    }

    /// Checks the URL, without a connection.
    ///
    /// # Errors
    /// [`Error::Setting`] if it is not valid.
    pub fn check_url(&self) -> Result<()> {
        self.config().map(drop)
    }

    /// Reads the file of the CAs.
    ///
    /// # Errors
    /// [`Error::Setting`] if it has no certificates.
    pub fn check_ca_file(&self) -> Result<()> {
        self.ca_file
            .as_deref()
            .map_or(Ok(()), |file| roots_in(file).map(drop))
    }

    /// The configuration of a connection.
    ///
    /// # Errors
    /// [`Error::Setting`] if the URL does not parse, or names no user or database.
    pub(crate) fn config(&self) -> Result<tokio_postgres::Config> {
        let mut config: tokio_postgres::Config = self.url.parse().map_err(|error| {
            Error::Setting(format!(
                "the URL of the database is not valid: {}; write \
                 `postgresql://user@host:5432/name`",
                crate::error::with_causes(&error)
            ))
        })?;
        if let Some(password) = &self.password {
            config.password(password);
        }
        if config.get_hosts().is_empty() {
            // Where Debian's packages have their socket.
            config.host_path("/var/run/postgresql");
        }
        if config.get_application_name().is_none() {
            config.application_name("keyfall");
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        // A server that is gone without a word is noticed within half a minute.
        config.keepalives_interval(Duration::from_secs(5));
        config.keepalives_retries(3);
        if config.get_tcp_user_timeout().is_none() {
            config.tcp_user_timeout(Duration::from_secs(15));
        }
        Ok(config)
    }

    /// TLS with the trusted CAs. Whether a connection uses it is up to `sslmode`.
    ///
    /// # Errors
    /// [`Error::Setting`] if the file of the CAs cannot be read.
    pub(crate) fn tls(&self, config: &tokio_postgres::Config) -> Result<MakeRustlsConnect> {
        let roots = match &self.ca_file {
            Some(file) => roots_in(file)?,
            // To read the CAs of the system takes longer than to connect.
            None if !may_use_tls(config) => RootCertStore::empty(),
            None => {
                let mut roots = RootCertStore::empty();
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                roots
            }
        };
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::Setting(format!("TLS cannot be used: {error}")))?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(MakeRustlsConnect::new(config))
    }
}

/// A connection through a Unix socket never uses TLS.
fn may_use_tls(config: &tokio_postgres::Config) -> bool {
    let is_tcp = |host: &Host| matches!(host, Host::Tcp(_));
    config.get_ssl_mode() != SslMode::Disable && config.get_hosts().iter().any(is_tcp)
}

fn roots_in(file: &Path) -> Result<RootCertStore> {
    let wrong = |why: String| {
        Error::Setting(format!(
            "the CA file of the database, {}: {why}; name a file with certificates in PEM",
            file.display()
        ))
    };
    let mut roots = RootCertStore::empty();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|it| wrong(it.to_string()))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|it| wrong(it.to_string()))?;
        roots.add(certificate).map_err(|it| wrong(it.to_string()))?;
    }
    if roots.is_empty() {
        return Err(wrong("it has no certificate".into()));
    }
    Ok(roots)
}

/// The hosts of a configuration, for messages; never the password.
pub(crate) fn place(config: &tokio_postgres::Config) -> String {
    let hosts = config.get_hosts().iter().map(|host| match host {
        Host::Tcp(name) => name.clone(),
        Host::Unix(path) => path.display().to_string(),
    });
    hosts.collect::<Vec<_>>().join(",")
}

impl fmt::Debug for Settings {
    /// Leaves out URL and password, which may be private.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("ca_file", &self.ca_file)
            .field("connections", &self.connections)
            .finish_non_exhaustive()
    }
}
