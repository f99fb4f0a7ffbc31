//! The certificate of the HTTP API.

use std::path::Path;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::fault::Wrong;
use super::redis_url::alone;
use super::settings::Http;
use super::sources::Sources;

/// The certificate and key of HTTPS, if it is asked for.
pub(super) fn read(http: &Http, sources: &mut Sources<'_>) -> Option<Arc<ServerConfig>> {
    let (name, wrong) = match (&http.tls_cert_file, &http.tls_key_file) {
        (None, None) => return None,
        (Some(_), None) => ("tls_cert_file", alone("http.tls_key_file")),
        (None, Some(_)) => ("tls_key_file", alone("http.tls_cert_file")),
        (Some(chain), Some(key)) => match (chain_in(chain), key_in(key)) {
            (Ok(chain), Ok(key)) => match server(chain, key) {
                Ok(server) => return Some(server),
                Err(wrong) => ("tls_cert_file", wrong),
            },
            (Err(wrong), _) => ("tls_cert_file", wrong),
            (_, Err(wrong)) => ("tls_key_file", wrong),
        },
    };
    sources.fault("http", name, wrong);
    None
}

fn server(
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, Wrong> {
    ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key))
        .map(|mut config| {
            config.alpn_protocols = vec![b"http/1.1".to_vec()];
            Arc::new(config)
        })
        .map_err(|error| {
            Wrong::new(
                format_args!("it cannot be used with `http.tls_key_file`: {error}"),
                "name a certificate and the key that belongs to it",
            )
        })
}

fn chain_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, Wrong> {
    let text = contents(path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    match read {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(Wrong::new(
            format_args!("{} holds no certificate", path.display()),
            "write it as PEM, which begins with -----BEGIN CERTIFICATE-----",
        )),
    }
}

fn key_in(path: &Path) -> Result<PrivateKeyDer<'static>, Wrong> {
    PrivateKeyDer::from_pem_slice(&contents(path)?).map_err(|_| {
        Wrong::new(
            format_args!("{} holds no private key", path.display()),
            "write it as PEM, which begins with -----BEGIN PRIVATE KEY-----",
        )
    })
}

fn contents(path: &Path) -> Result<Vec<u8>, Wrong> {
    std::fs::read(path)
        .map_err(|error| Wrong(format!("{} cannot be read: {error}", path.display())))
}
