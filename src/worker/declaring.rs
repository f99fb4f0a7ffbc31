//! The limits of routes: declared by a worker when it starts, before it claims a job.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::Client;
use crate::error::Result;
use crate::router::Routes;
use crate::store::is_of_absence;

/// How long to wait before a server that was away is called again.
const AGAIN: Duration = Duration::from_secs(1);

/// Declares the limits of these routes. While Redis is away, waits for it.
///
/// # Errors
/// If two routes limit the same kinds differently, or Redis refuses a limit: because it is full, for
/// example.
pub(super) async fn declare_limits(client: Client, routes: Arc<Routes>) -> Result<()> {
    for (scope, limit) in routes.limits()? {
        loop {
            let declared = client.limit(scope.as_str(), limit.clone()).declared().await;
            match declared {
                Ok(_) => break,
                Err(error) if is_of_absence(&error) => {
                    tracing::warn!(%scope, %error, "the limit of a route could not be declared");
                    sleep(AGAIN).await;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}
