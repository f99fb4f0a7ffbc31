//! Listens, and stops gracefully.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use axum_server::Handle;

use super::{Api, router};

/// How long calls that are under way may take once the daemon is to stop. Pulls end at once.
const GRACE: Duration = Duration::from_secs(10);

/// Serves until told to stop, and until the calls that were under way have ended. `bound` is told
/// where it listens.
pub(crate) async fn serve(
    listen: SocketAddr,
    api: Api,
    bound: impl FnOnce(SocketAddr),
) -> anyhow::Result<()> {
    let listener = std::net::TcpListener::bind(listen)
        .with_context(|| format!("http.listen: {listen} cannot be listened on"))?;
    listener.set_nonblocking(true)?;
    bound(listener.local_addr()?);
    let (handle, stopping) = (Handle::new(), api.stopping.clone());
    let stop = handle.clone();
    tokio::spawn(async move {
        stopping.cancelled().await;
        stop.graceful_shutdown(Some(GRACE));
    });
    axum_server::from_tcp(listener)?
        .handle(handle)
        .serve(router(Arc::new(api)).into_make_service())
        .await?;
    Ok(())
}
