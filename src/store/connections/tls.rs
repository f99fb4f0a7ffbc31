//! TLS: the CAs that are trusted, the certificate that this client shows, and remedies for failed
//! handshakes.

use std::error::Error as StdError;
use std::fs;
use std::io;
use std::sync::Arc;

use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription as Alert, CertificateError, RootCertStore};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::{Certificates, Pem};

/// Names of the settings in errors.
const CA: &str = "ca_certificate";
const CHAIN: &str = "the chain of client_certificate";
const KEY: &str = "the key of client_certificate";

/// A client whose connections all use these certificates. Reads the files now, once.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if a certificate or key cannot be read, the two do not belong
/// together, certificates are set for a URL without TLS, or the URL asks for unchecked
/// certificates.
pub(in crate::store) fn client(
    info: ConnectionInfo,
    certificates: &Certificates,
) -> Result<redis::Client> {
    let opened = match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            return Err(invalid(
                "the Redis URL is not valid: a certificate cannot be left unchecked, as #insecure \
                 asks: name its CA by `ClientBuilder::ca_certificate_file`"
                    .into(),
            ));
        }
        ConnectionAddr::TcpTls { .. } => {
            // Fails if the application has installed another provider; then that one is used.
            let _ = ring::default_provider().install_default();
            redis::Client::build_with_tls(info, read(certificates)?)
        }
        _ if certificates.ca.is_some() || certificates.client.is_some() => {
            return Err(invalid(
                "certificates are set, and the URL does not ask for TLS: write rediss://".into(),
            ));
        }
        _ => redis::Client::open(info),
    };
    opened.map_err(|error| invalid(format!("the Redis URL: {}", error.category())))
}

/// Reads the certificates and keys, and refuses any that would only fail with each connection.
fn read(certificates: &Certificates) -> Result<TlsCertificates> {
    let root_cert = match &certificates.ca {
        None => None,
        Some(pem) => {
            let (text, place) = text(pem, CA)?;
            let mut store = RootCertStore::empty();
            for certificate in chain(&text, &place)? {
                store
                    .add(certificate)
                    .map_err(|error| invalid(format!("{place} cannot be used: {error}")))?;
            }
            Some(text)
        }
    };
    let client_tls = match &certificates.client {
        None => None,
        Some((certificate, key)) => {
            let (client_cert, of_chain) = text(certificate, CHAIN)?;
            let (client_key, of_key) = text(key, KEY)?;
            let chain = chain(&client_cert, &of_chain)?;
            let key = PrivateKeyDer::from_pem_slice(&client_key)
                .map_err(|_| invalid(format!("{of_key} holds no private key as PEM")))?;
            let provider = CryptoProvider::get_default().expect("it was installed");
            CertifiedKey::from_der(chain, key, provider).map_err(|error| {
                invalid(format!(
                    "{of_chain} and {of_key} do not belong together: {error}"
                ))
            })?;
            Some(ClientTlsConfig {
                client_cert,
                client_key,
            })
        }
    };
    Ok(TlsCertificates {
        client_tls,
        root_cert,
    })
}

/// The content of a setting, and its name for errors.
fn text(pem: &Pem, name: &str) -> Result<(Vec<u8>, String)> {
    match pem {
        Pem::Text(text) => Ok((text.clone(), name.to_owned())),
        Pem::File(path) => {
            let place = format!("{name}, file {}", path.display());
            match fs::read(path) {
                Ok(text) => Ok((text, place)),
                Err(error) => Err(invalid(format!("{place}, cannot be read: {error}"))),
            }
        }
    }
}

/// All certificates of a PEM text; at least one.
fn chain(text: &[u8], place: &str) -> Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text).collect();
    match read {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        _ => Err(invalid(format!(
            "{place} holds no certificate as PEM, `-----BEGIN CERTIFICATE-----`"
        ))),
    }
}

/// An error of a setting.
fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidSetting, message)
}

/// The kind of error and the remedy for a connection that TLS refused; nothing if TLS was not the
/// cause.
pub(in crate::store) fn remedy(error: &RedisError) -> Option<(ErrorKind, &'static str)> {
    use CertificateError as Wrong;
    let remedy = match rustls_error(error)? {
        rustls::Error::InvalidMessage(_) => (
            ErrorKind::Incompatible,
            "what answers there does not speak TLS: write redis://, or the port that does",
        ),
        // A signature is bad where another CA has the same name.
        rustls::Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => (
            ErrorKind::Denied,
            "no CA that is trusted here has signed its certificate: name the one that has by \
             `ClientBuilder::ca_certificate_file`",
        ),
        rustls::Error::InvalidCertificate(
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. },
        ) => (
            ErrorKind::Denied,
            "its certificate is for another host: name it in the URL as its certificate does",
        ),
        rustls::Error::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => (
            ErrorKind::Denied,
            "its certificate is not valid at this time: renew it, or set the clock right",
        ),
        rustls::Error::InvalidCertificate(_) => (
            ErrorKind::Denied,
            "its certificate cannot be used: see what it was made for",
        ),
        rustls::Error::AlertReceived(Alert::CertificateRequired | Alert::HandshakeFailure) => (
            ErrorKind::Denied,
            "it asks for a certificate: show one by `ClientBuilder::client_certificate_files`, or \
             set `tls-auth-clients no` there",
        ),
        rustls::Error::AlertReceived(
            Alert::UnknownCA
            | Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::UnsupportedCertificate
            | Alert::DecryptError,
        ) => (
            ErrorKind::Denied,
            "it does not accept our certificate: show one that a CA it trusts has signed",
        ),
        rustls::Error::AlertReceived(Alert::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => (
            ErrorKind::Incompatible,
            "it offers no TLS that is spoken here: allow TLS 1.2 or 1.3 in `tls-protocols` there",
        ),
        _ => return None,
    };
    Some(remedy)
}

/// The error of rustls within an error of the client library.
fn rustls_error(error: &RedisError) -> Option<&rustls::Error> {
    type Shared = Arc<dyn StdError + Send + Sync>;
    let source = error.source()?;
    let source: &(dyn StdError + 'static) = match source.downcast_ref::<Shared>() {
        Some(shared) => &**shared,
        None => source,
    };
    // An I/O error does not give the error that it wraps as its source.
    match source.downcast_ref::<io::Error>() {
        Some(io) => io.get_ref()?.downcast_ref(),
        None => source.downcast_ref(),
    }
}
