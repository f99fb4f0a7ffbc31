//! HTTP clients: trusted and own certificates, time limits of connections, and their reuse.

use std::error::Error as StdError;
use std::fs;
use std::io;
use std::time::Duration;

use futures_util::future::BoxFuture;
use reqwest::redirect::Policy;
use reqwest::{Certificate, Client, Identity};
use rustls::crypto::ring;
use tokio::time::timeout;
use tower::util::MapFutureLayer;

use super::resolver::Resolver;
use crate::settings::Pem;

/// How long an idle connection is kept: shorter than the five seconds after which many servers
/// close idle connections, so that a call seldom meets a closed one.
const IDLE: Duration = Duration::from_secs(4);

/// The certificates of connections that use TLS.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpCertificates {
    /// The only trusted CA; `None` for the CAs that the system trusts.
    pub(super) ca: Option<Pem>,
    /// The client certificate and its private key, for servers that ask for one.
    pub(super) client: Option<(Pem, Pem)>,
}

/// The settings of one client.
pub(super) struct Connecting<'a> {
    pub(super) certificates: &'a HttpCertificates,
    /// The limit for connecting, look-up of the name and TLS included.
    pub(super) timeout: Duration,
    pub(super) resolver: Resolver,
    /// Whether a URL of this client can need TLS.
    pub(super) with_tls: bool,
}

tokio::task_local! {
    /// The limit for connecting in the call of this task, where it is shorter than the client's.
    static CONNECT_WITHIN: Duration;
}

/// Runs `call` with a shorter limit for connecting than its client has. Beyond the limit it fails
/// with an error of connecting.
pub(super) fn connecting_within<C: Future>(
    limit: Duration,
    call: C,
) -> impl Future<Output = C::Output> {
    CONNECT_WITHIN.scope(limit, call)
}

/// The result of the connector: a connection, or its error.
type Connected<T> = Result<T, Box<dyn StdError + Send + Sync>>;

/// Applies the limit of the current call to `connecting`. The limit is read at once, not when the
/// future runs: a client may continue to connect in a task of its own after another connection
/// became free.
fn limited<T>(connecting: BoxFuture<'static, Connected<T>>) -> impl Future<Output = Connected<T>> {
    let limit = CONNECT_WITHIN.try_with(|limit| *limit);
    async move {
        match limit {
            Ok(limit) => timeout(limit, connecting)
                .await
                .unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into())),
            Err(_) => connecting.await,
        }
    }
}

/// Makes an HTTP client. It follows no redirects, since the caller checks each of them first.
///
/// # Errors
/// The fault of the certificates, and the remedy.
pub(super) fn client(connecting: Connecting<'_>) -> Result<Client, String> {
    let Connecting {
        certificates,
        timeout,
        resolver,
        with_tls,
    } = connecting;
    // Fails if the application has installed another provider; then that one is used.
    let _ = ring::default_provider().install_default();
    let mut client = Client::builder()
        .user_agent(concat!("keyfall/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(timeout)
        .connector_layer(MapFutureLayer::new(limited))
        .pool_idle_timeout(IDLE)
        // The caller follows redirects, after checks.
        .redirect(Policy::none())
        // A proxy would connect to any address, unchecked.
        .no_proxy()
        .dns_resolver(resolver);
    if let Some(ca) = &certificates.ca {
        let found = Certificate::from_pem_bundle(&text(ca, "ca_certificate")?);
        let found = found.ok().filter(|found| !found.is_empty());
        client = client.tls_certs_only(found.ok_or(
            "`ca_certificate` holds no certificate: write it as PEM, -----BEGIN CERTIFICATE-----",
        )?);
    } else if !with_tls {
        // The system may have no CA certificates, and none are needed.
        client = client.tls_certs_only([]);
    }
    if let Some((chain, key)) = &certificates.client {
        let mut pem = text(chain, "client_certificate")?;
        pem.push(b'\n');
        pem.extend(text(key, "client_certificate")?);
        let identity = Identity::from_pem(&pem).map_err(
            |_| "`client_certificate` holds no certificate with its private key: write both as PEM",
        )?;
        client = client.identity(identity);
    }
    client.build().map_err(|error| {
        let cause = std::error::Error::source(&error);
        let cause = cause.map_or_else(|| error.to_string(), ToString::to_string);
        format!("its certificates cannot be used: {cause}")
    })
}

/// The text of a certificate or a key; reads its file, if it is one. `name` is the setting, for
/// errors.
fn text(pem: &Pem, name: &str) -> Result<Vec<u8>, String> {
    match pem {
        Pem::Text(text) => Ok(text.clone()),
        Pem::File(path) => fs::read(path)
            .map_err(|error| format!("`{name}`: {} cannot be read: {error}", path.display())),
    }
}
