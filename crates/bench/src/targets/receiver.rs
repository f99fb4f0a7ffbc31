//! An HTTP server that agrees to everything.

use axum::Router;
use axum::http::StatusCode;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Dropped, it is gone.
pub(super) struct Receiver {
    url: String,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Receiver {
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
