//! The common parts of lists and streams as targets: a key on some Redis, and rules for errors.
//!
//! The Redis of a target need not be the Redis of the worker. Nothing connects before the first
//! job.

use std::sync::Arc;

use crate::client::ClientBuilder;
use crate::error::{Error, ErrorKind};
use crate::store::TargetRedis;

/// Default limit of the jobs of a route that are handed over and have not ended. The worker watches
/// each of them.
pub(super) const HANDED_OVER: usize = 1000;

/// A key, and the Redis that has it, for consumers to read.
#[derive(Clone)]
pub(super) struct TargetKey {
    /// The connection, or the fault of the settings, which the router reports.
    target_redis: Result<Arc<TargetRedis>, Arc<str>>,
    /// The name of the list or stream.
    pub(super) key: Arc<str>,
}

impl TargetKey {
    /// Connects to nothing yet. `what` is the noun for error texts, "list" or "stream". Wrong
    /// settings are kept for [`fault`](Self::fault).
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

    /// The fault of the settings, with its remedy; `None` if they are valid. `what` is "list" or
    /// "stream"; on a cluster, the keys in `beside` must be in the same slot as this key.
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
            "its {what} `{key}` would be in another slot of the cluster than the keys beside it, \
             such as `{}`: name it with a hash tag, as in `{{{}}}`",
            keys[1],
            key.replace(['{', '}'], ""),
        ))
    }

    /// The Redis of this target.
    ///
    /// # Panics
    /// If the settings have a fault: a router refuses such a route, so no job gets here.
    pub(super) fn target_redis(&self) -> &TargetRedis {
        self.target_redis
            .as_ref()
            .expect("the router refuses a target with a fault")
    }

    /// Whether a job may have been written although the write failed with `error`: its outcome is
    /// unknown. Logs it then.
    pub(super) fn may_be_there(&self, error: &Error) -> bool {
        let may_be = error.kind() == ErrorKind::OutcomeUnknown;
        if may_be {
            tracing::info!(way = %self, %error, "a job may have been handed over, or not");
        }
        may_be
    }
}

/// Whether a job can never be settled, because its stored data are damaged, unknown or misnamed.
/// All other errors can pass: even a Redis that refuses this client may accept it later, and an
/// acknowledgement is worth waiting for.
pub(super) fn is_hopeless(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Damaged | ErrorKind::Incompatible | ErrorKind::InvalidKey
    )
}

/// For messages: the key, and the address of its Redis.
impl std::fmt::Display for TargetKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.target_redis {
            Ok(target_redis) => write!(f, "{} at {}", self.key, target_redis.address()),
            Err(_) => f.write_str(&self.key),
        }
    }
}
