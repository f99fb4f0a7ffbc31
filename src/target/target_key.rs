//! What lists and streams have in common: a Redis, a key, and perhaps somebody who acknowledges.

use std::sync::Arc;

use crate::client::ClientBuilder;
use crate::error::{Error, ErrorKind};
use crate::store::TargetRedis;

/// How many jobs of a route are handed over and not ended, where the route does not say. Each is
/// an entry that is looked after.
pub(super) const HANDED_OVER: usize = 1000;

/// A key in a Redis that others read.
#[derive(Clone)]
pub(super) struct TargetKey {
    /// Or what is wrong with it.
    target_redis: Result<Arc<TargetRedis>, Arc<str>>,
    pub(super) key: Arc<str>,
}

impl TargetKey {
    /// Opens nothing yet. What is wrong is told by the router.
    pub(super) fn new(server: &ClientBuilder, what: &str, key: &str) -> Self {
        let target_redis = if key.is_empty() {
            Err(format!("its {what} has no name: name its key").into())
        } else {
            let opened = server.target_redis().map(Arc::new);
            opened.map_err(|error| format!("its {what} `{key}` cannot be reached: {error}").into())
        };
        TargetKey {
            target_redis,
            key: key.into(),
        }
    }

    /// What is wrong with it, for a `what` with these keys beside it.
    pub(super) fn fault(&self, what: &str, beside: &[String]) -> Option<String> {
        let target_redis = match &self.target_redis {
            Ok(target_redis) => target_redis,
            Err(fault) => return Some(fault.to_string()),
        };
        let keys: Vec<&str> = [&*self.key]
            .into_iter()
            .chain(beside.iter().map(|key| &**key))
            .collect();
        if target_redis.keeps_together(&keys) {
            return None;
        }
        let key = &self.key;
        Some(format!(
            "its {what} `{key}` would be in another slot of the cluster than what is kept beside it, \
             such as `{}`: name it with a hash tag, as in `{{{}}}`",
            keys[1],
            key.replace(['{', '}'], ""),
        ))
    }

    /// # Panics
    /// If it has a fault: a router refuses a route that has one.
    pub(super) fn target_redis(&self) -> &TargetRedis {
        self.target_redis
            .as_ref()
            .expect("the router refuses what has a fault")
    }

    /// Whether what could not be written for this reason may be there all the same.
    pub(super) fn may_be_there(&self, error: &Error) -> bool {
        let may_be = error.kind() == ErrorKind::OutcomeUnknown;
        if may_be {
            tracing::info!(way = %self, %error, "a job may have been handed over, or not");
        }
        may_be
    }
}

/// Whether a job can never be ended, because of what is stored of it. Anything else can pass: even
/// a Redis that refuses us will let us in again, and an acknowledgement is worth waiting for.
pub(super) fn is_hopeless(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Damaged | ErrorKind::Incompatible | ErrorKind::InvalidKey
    )
}

/// For messages: the key, and where it is.
impl std::fmt::Display for TargetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.target_redis {
            Ok(target_redis) => write!(f, "{} at {}", self.key, target_redis.address()),
            Err(_) => f.write_str(&self.key),
        }
    }
}
