//! The limits of routes: declared by a worker when it starts, before it claims a job. If one of
//! several servers is away, the worker starts, and declares them when it is back.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::Client;
use crate::error::Result;
use crate::limit::{Limit, LimitScope};
use crate::router::Routes;
use crate::store::is_of_absence;

/// How long to wait before a limit is declared again, while a server is away.
const AGAIN: Duration = Duration::from_secs(1);

/// Limits, each with the kind or the prefix of kinds that it is for.
pub(super) type Limits = BTreeMap<LimitScope, Limit>;

/// Declares the limits of these routes. Returns those that could not be declared, because a server
/// is away.
///
/// # Errors
/// If two routes limit the same kinds differently, or Redis refuses a limit: because it is full, for
/// example.
pub(super) async fn declare_limits(client: Client, routes: Arc<Routes>) -> Result<Limits> {
    let mut left = Limits::new();
    for (scope, limit) in routes.limits()? {
        match client.limit(scope.as_str(), limit.clone()).declared().await {
            Ok(_) => {}
            Err(error) if is_of_absence(&error) => {
                tracing::warn!(%scope, %error, "the limit of a route is not declared yet");
                left.insert(scope, limit);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}

/// Declares the rest when the server is back.
pub(super) async fn declare_later(client: Client, limits: Limits) {
    for (scope, limit) in limits {
        while let Err(error) = client.limit(scope.as_str(), limit.clone()).declared().await {
            if !is_of_absence(&error) {
                tracing::error!(%scope, %error, "the limit of a route could not be declared");
                break;
            }
            sleep(AGAIN).await;
        }
    }
}
