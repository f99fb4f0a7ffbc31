//! Servers that misbehave: each causes a failed attempt with its reason, and no call hangs.

use std::sync::Arc;
use std::time::Duration;

use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::routing::post;
use axum_server::tls_rustls::RustlsConfig;
use keyfall::{Outcome, target};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};

use super::receiver::{Receiver, Reply, says};
use super::{failure, job, outcome};
use crate::encrypted::{Authority, Identity};
use crate::runs::PATIENCE;

/// Short enough for a test, and long enough for a slow machine.
const SHORT: Duration = Duration::from_millis(400);

async fn fails(reply: impl Fn() -> Reply + Clone + Send + Sync + 'static) -> String {
    fails_within(PATIENCE, reply).await
}

async fn fails_within(
    timeout: Duration,
    reply: impl Fn() -> Reply + Clone + Send + Sync + 'static,
) -> String {
    let receiver = Receiver::start(move |_| reply()).await;
    let target = target::http(receiver.url("/")).connect_timeout(PATIENCE);
    let run = outcome(&target, job().timeout(timeout).build());
    let outcome = tokio::time::timeout(2 * PATIENCE, run)
        .await
        .expect("it ends");
    failure(outcome).replace(&receiver.address.to_string(), "HOST")
}

#[tokio::test]
async fn a_missing_or_truncated_answer_is_a_failure() {
    let told = fails_within(4 * SHORT, || Reply::Hangs).await;
    assert_eq!(told, "HOST did not answer within 1.6s");
    for cut in [
        "",
        "HTTP/1.1 20",
        "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nha",
        "what?\r\n\r\n",
    ] {
        let told = fails(move || Reply::Cuts(cut)).await;
        assert!(told.starts_with("HOST broke off: "), "{cut:?}: {told}");
    }
}

#[tokio::test]
async fn an_endless_answer_is_cut_and_its_status_counts() {
    let told = fails(|| Reply::Floods("500 Oh")).await;
    assert!(
        told.starts_with("HOST answered 500 Internal Server Error: xxx"),
        "{told}"
    );
    assert!(told.len() < 1200, "{}", told.len());
    let receiver = Receiver::start(|_| Reply::Floods("200 OK")).await;
    let target = target::http(receiver.url("/"));
    assert_eq!(outcome(&target, job().build()).await, Outcome::Done);
}

#[tokio::test]
async fn a_host_that_refuses_or_ignores_connections_is_unreachable() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let target = target::http(format!("http://{address}/"));
    let told = failure(outcome(&target, job().build()).await);
    assert!(
        told.starts_with(&format!("{address} cannot be reached: ")),
        "{told}"
    );
    assert!(told.contains("refused"), "{told}");
    let target = target::http("http://nobody.invalid/").connect_timeout(SHORT);
    let told = failure(outcome(&target, job().timeout(SHORT).build()).await);
    assert!(told.starts_with("nobody.invalid "), "{told}");
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_costs_no_attempt() {
    let receiver =
        Receiver::start(|_| Reply::Cuts("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")).await;
    let target = target::http(receiver.url("/"));
    for number in 1..=5 {
        assert_eq!(outcome(&target, job().build()).await, Outcome::Done);
        crate::runs::eventually("the end is seen", async || {
            tokio::task::yield_now().await;
            (receiver.connections() == number).then_some(())
        })
        .await;
        // The end of the connection must have reached this side, too.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn redirects_are_failures() {
    let told = fails(|| says("302 Found", "location: /else\r\n", "")).await;
    assert_eq!(
        told,
        "HOST answered 302 Found, a redirect that the route does not follow"
    );
    let told = fails(|| says("308 Permanent Redirect", "location: /else\r\n", "")).await;
    assert!(
        told.contains("308 Permanent Redirect, a redirect"),
        "{told}"
    );
}

/// A server that speaks TLS as `localhost`, and asks for a certificate if `clients` signs some.
async fn encrypted(identity: &Identity, clients: Option<&Authority>) -> u16 {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider.clone());
    let builder = builder.with_safe_default_protocol_versions().unwrap();
    let builder = match clients {
        None => builder.with_no_client_auth(),
        Some(authority) => {
            let mut roots = RootCertStore::empty();
            let ca = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
            roots.add(ca).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider);
            builder.with_client_cert_verifier(verifier.build().unwrap())
        }
    };
    let chain = CertificateDer::from_pem_slice(identity.chain.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
    let config = builder.with_single_cert(vec![chain], key).unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let port = listener.local_addr().unwrap().port();
    let down = (
        StatusCode::TEMPORARY_REDIRECT,
        [(LOCATION, "http://localhost/")],
    );
    let app = axum::Router::new()
        .route("/", post(async || ""))
        .route("/down", post(async move || down));
    let config = RustlsConfig::from_config(Arc::new(config));
    let server = axum_server::from_tcp_rustls(listener, config).unwrap();
    tokio::spawn(server.serve(app.into_make_service()));
    port
}

#[tokio::test]
async fn an_untrusted_server_gets_no_request() {
    let authority = Authority::new();
    let port = encrypted(&authority.signs("localhost"), None).await;
    let url = |host: &str| format!("https://{host}:{port}/");
    let trusting = |url: String| target::http(url).ca_certificate(authority.pem());
    let sent = outcome(&trusting(url("localhost")), job().build()).await;
    assert_eq!(sent, Outcome::Done);

    let told = async |target| failure(outcome(&target, job().build()).await);
    let bare = told(trusting(url("localhost") + "down").redirects(1)).await;
    assert!(bare.contains("not followed: it is without TLS"), "{bare}");
    let unknown = told(target::http(url("localhost")).ca_certificate(Authority::new().pem())).await;
    assert!(
        unknown.contains("cannot be reached: ") && unknown.contains("UnknownIssuer"),
        "{unknown}"
    );
    let other = told(trusting(url("127.0.0.1"))).await;
    assert!(other.contains("not valid for name"), "{other}");
    let old = encrypted(&authority.signed_once("localhost"), None).await;
    let expired = told(trusting(format!("https://localhost:{old}/"))).await;
    assert!(expired.contains("expired"), "{expired}");
    let plain = Receiver::start(|_| unreachable!("this is no HTTP")).await;
    let url = format!("https://localhost:{}/", plain.address.port());
    let silent = told(trusting(url).connect_timeout(SHORT)).await;
    assert!(
        silent.ends_with("did not accept a connection in time"),
        "{silent}"
    );
}

#[tokio::test]
async fn the_client_certificate_is_sent_when_the_server_asks() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let port = encrypted(&authority.signs("localhost"), Some(&clients)).await;
    let target = target::http(format!("https://localhost:{port}/")).ca_certificate(authority.pem());
    let without = failure(outcome(&target, job().build()).await);
    assert!(without.contains("CertificateRequired"), "{without}");
    let Identity { chain, key } = clients.signs("us");
    let sent = outcome(
        &target.clone().client_certificate(chain, key),
        job().build(),
    )
    .await;
    assert_eq!(sent, Outcome::Done);
    let Identity { chain, key } = Authority::new().signs("us");
    let others = failure(outcome(&target.client_certificate(chain, key), job().build()).await);
    assert!(others.contains("alert"), "{others}");
}
