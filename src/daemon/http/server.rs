//! Listens, and stops gracefully.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use axum_server::Handle;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioTimer;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::connections::Door;
use super::{Api, router};

/// What a connection buffers of what it reads; also the largest head of a request.
const BUFFER: usize = 64 * 1024;

/// Serves until told to stop, and until the calls that were under way have ended; pulls end at
/// once. `bound` is told where it listens.
pub(crate) async fn serve(api: Api, bound: impl FnOnce(SocketAddr)) -> anyhow::Result<()> {
    let settings = api.settings.clone();
    let listen = settings.listen;
    let tls = settings.tls.as_ref();
    let tls = tls.map(|(cert, key)| read_tls(cert, key)).transpose()?;
    let listener = std::net::TcpListener::bind(listen)
        .with_context(|| format!("http.listen: {listen} cannot be listened on"))?;
    listener.set_nonblocking(true)?;
    bound(listener.local_addr()?);
    let (handle, stopping) = (Handle::new(), api.stopping.clone());
    let stop = handle.clone();
    tokio::spawn(async move {
        stopping.cancelled().await;
        stop.graceful_shutdown(Some(settings.grace));
    });
    let service = router(Arc::new(api)).into_make_service_with_connect_info::<SocketAddr>();
    let door = Door::new(settings.max_connections, settings.body_timeout);
    // Without HTTP/2, whose preface would be waited for without a limit.
    let mut server = axum_server::from_tcp(listener)?.handle(handle).http1_only();
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(settings.header_timeout)
        .max_buf_size(BUFFER);
    match tls {
        None => server.acceptor(door).serve(service).await?,
        Some(tls) => {
            let acceptor = RustlsAcceptor::new(tls).handshake_timeout(settings.header_timeout);
            server
                .acceptor(acceptor.acceptor(door))
                .serve(service)
                .await?;
        }
    }
    Ok(())
}

/// What HTTPS is served with. Who renews a certificate restarts the daemon.
fn read_tls(cert: &Path, key: &Path) -> anyhow::Result<RustlsConfig> {
    let read = |name: &str, path: &Path| {
        fs::read(path).with_context(|| format!("http.{name}: {} cannot be read", path.display()))
    };
    let chain = CertificateDer::pem_slice_iter(&read("tls_cert_file", cert)?)
        .collect::<Result<Vec<_>, _>>()
        .ok()
        .filter(|chain| !chain.is_empty())
        .with_context(|| {
            format!(
                "http.tls_cert_file: {} holds no certificate as PEM",
                cert.display()
            )
        })?;
    let secret = PrivateKeyDer::from_pem_slice(&read("tls_key_file", key)?)
        .ok()
        .with_context(|| {
            format!(
                "http.tls_key_file: {} holds no private key as PEM",
                key.display()
            )
        })?;
    let provider = Arc::new(ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .context("http.tls_cert_file and http.tls_key_file do not belong together")?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(RustlsConfig::from_config(Arc::new(config)))
}
