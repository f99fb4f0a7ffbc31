//! Connections: whose certificates are believed, what is shown, and how long they last.

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

/// How long a connection is kept that nobody uses: shorter than the five seconds after which many
/// servers close theirs, so that a call seldom meets one that is closed.
const IDLE: Duration = Duration::from_secs(4);

/// The certificates of connections that use TLS.
#[derive(Debug, Clone, Default)]
pub(super) struct HttpCertificates {
    /// Of whom the server's certificate must be; instead of those whom the system trusts.
    pub(super) ca: Option<Pem>,
    /// What a server is shown that asks who we are: a certificate, and its key.
    pub(super) client: Option<(Pem, Pem)>,
}

/// What makes a client.
pub(super) struct Connecting<'a> {
    pub(super) certificates: &'a HttpCertificates,
    pub(super) timeout: Duration,
    pub(super) resolver: Resolver,
    /// Whether any URL can ask for TLS.
    pub(super) with_tls: bool,
}

tokio::task_local! {
    /// How long connecting may take in this call, if that is less than in others.
    static CONNECT_WITHIN: Duration;
}

/// Makes a call that fails as one that could not be connected if that takes longer, though the
/// client allows more.
pub(super) fn connecting_within<C: Future>(
    limit: Duration,
    call: C,
) -> impl Future<Output = C::Output> {
    CONNECT_WITHIN.scope(limit, call)
}

type Connected<T> = Result<T, Box<dyn StdError + Send + Sync>>;

/// Keeps to that limit. A client can go on connecting in a task of its own, when another connection
/// is free before: so the limit is read now.
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

/// # Errors
/// What is wrong with the certificates, and the remedy.
pub(super) fn client(connecting: Connecting<'_>) -> Result<Client, String> {
    let Connecting {
        certificates,
        timeout,
        resolver,
        with_tls,
    } = connecting;
    // An application may have chosen another one; then that is used.
    let _ = ring::default_provider().install_default();
    let mut client = Client::builder()
        .user_agent(concat!("keyfall/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(timeout)
        .connector_layer(MapFutureLayer::new(limited))
        .pool_idle_timeout(IDLE)
        // Whoever follows them checks them.
        .redirect(Policy::none())
        // A proxy would connect to whatever it is told, unchecked.
        .no_proxy()
        .dns_resolver(resolver);
    if let Some(ca) = &certificates.ca {
        let found = Certificate::from_pem_bundle(&text(ca, "ca_certificate")?);
        let found = found.ok().filter(|found| !found.is_empty());
        client = client.tls_certs_only(found.ok_or(
            "`ca_certificate` holds no certificate: write it as PEM, -----BEGIN CERTIFICATE-----",
        )?);
    } else if !with_tls {
        // A system may have none, and none are needed.
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

fn text(pem: &Pem, name: &str) -> Result<Vec<u8>, String> {
    match pem {
        Pem::Text(text) => Ok(text.clone()),
        Pem::File(path) => fs::read(path)
            .map_err(|error| format!("`{name}`: {} cannot be read: {error}", path.display())),
    }
}
