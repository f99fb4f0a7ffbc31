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
                "the Redis URL is not valid: Keyfall always checks certificates, so #insecure is \
                 refused: name the CA of the certificate by `ClientBuilder::ca_certificate_file`"
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
                "certificates are set, but the URL does not use TLS: write rediss://".into(),
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
            "the server at this port does not speak TLS: write redis://, or name its port for TLS",
        ),
        // A signature is bad where another CA has the same name.
        rustls::Error::InvalidCertificate(Wrong::UnknownIssuer | Wrong::BadSignature) => (
            ErrorKind::Denied,
            "no trusted CA has signed the certificate of the server: name the CA that has signed \
             it by `ClientBuilder::ca_certificate_file`",
        ),
        rustls::Error::InvalidCertificate(
            Wrong::NotValidForName | Wrong::NotValidForNameContext { .. },
        ) => (
            ErrorKind::Denied,
            "the certificate of the server is for another host: write the host name of the \
             certificate in the URL",
        ),
        rustls::Error::InvalidCertificate(
            Wrong::Expired
            | Wrong::ExpiredContext { .. }
            | Wrong::NotValidYet
            | Wrong::NotValidYetContext { .. },
        ) => (
            ErrorKind::Denied,
            "the certificate of the server is not valid at this time: renew it, or correct the \
             clock",
        ),
        rustls::Error::InvalidCertificate(_) => (
            ErrorKind::Denied,
            "the certificate of the server cannot be used here: check the purpose that it was \
             issued for",
        ),
        rustls::Error::AlertReceived(Alert::CertificateRequired | Alert::HandshakeFailure) => (
            ErrorKind::Denied,
            "the server requires a client certificate: set one by \
             `ClientBuilder::client_certificate_files`, or set `tls-auth-clients no` on the server",
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
            "the server does not accept the client certificate: use one that is signed by a CA \
             that the server trusts",
        ),
        rustls::Error::AlertReceived(Alert::ProtocolVersion)
        | rustls::Error::PeerIncompatible(_) => (
            ErrorKind::Incompatible,
            "the server offers no TLS version that Keyfall supports: allow TLS 1.2 or 1.3 in \
             `tls-protocols` on the server",
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
