//! What the HTTP API is run with.

use std::num::NonZeroU32;
use std::time::Duration;

use axum_server::tls_rustls::RustlsConfig;

/// The settings of the section `http`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What HTTPS is served with, which can be replaced meanwhile. Plain HTTP without it.
    pub tls: Option<RustlsConfig>,
    /// The largest body of a request, and the longest line of a batch, in bytes.
    pub body_limit: usize,
    /// How long a client may take for the head of a request, and how long a connection may be
    /// idle.
    pub header_timeout: Duration,
    /// How long a client may take for the body of a request; and, of a batch and of what it is
    /// sent, for how long nothing may move.
    pub body_timeout: Duration,
    /// How many connections may be open.
    pub max_connections: usize,
    /// How many requests a second one token may make, or one address without a token, and how many
    /// jobs they may be about.
    pub requests_per_second: Option<NonZeroU32>,
    /// Whether each request is logged.
    pub access_log: bool,
    /// How long a stop lets requests end that have begun.
    pub grace: Duration,
}
