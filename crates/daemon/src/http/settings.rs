//! The settings of the HTTP API.

use std::num::NonZeroU32;
use std::time::Duration;

use axum_server::tls_rustls::RustlsConfig;

/// The settings of the section `http`.
#[derive(Debug, Clone)]
pub struct Settings {
    /// The certificate of HTTPS, which can be replaced meanwhile. Plain HTTP without it.
    pub tls: Option<RustlsConfig>,
    /// The largest body of a request, and the longest line of a batch, in bytes.
    pub body_limit: usize,
    /// The time in which a client must send the head of a request, and the longest time that a
    /// connection may be idle.
    pub header_timeout: Duration,
    /// The time in which a client must send the body of a request; for a batch and its answers, the
    /// longest time without progress.
    pub body_timeout: Duration,
    /// The most open connections.
    pub max_connections: usize,
    /// The most requests a second of one token, or of one address without a token, and the most
    /// jobs of these requests.
    pub requests_per_second: Option<NonZeroU32>,
    /// The address of a trace in another program, with `{trace_id}` in the place of its id.
    pub trace_url: Option<String>,
    /// Whether each request is logged.
    pub access_log: bool,
    /// How long a stop waits for requests in progress.
    pub grace: Duration,
}
