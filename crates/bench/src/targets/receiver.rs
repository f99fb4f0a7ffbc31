//! An HTTP server that accepts every request, as the receiver of callbacks.

use axum::Router;
use axum::http::StatusCode;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// A running server on a free port. Dropping it ends the server.
pub(super) struct Receiver {
    url: String,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Receiver {
    /// Starts the server. It answers each request with 204.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/", listener.local_addr()?);
        let agree = Router::new().fallback(async || StatusCode::NO_CONTENT);
        let serving = tokio::spawn(axum::serve(listener, agree).into_future());
        Ok(Receiver { url, serving })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
