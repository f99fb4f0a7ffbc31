//! Where the jobs are: what every command that looks at them or changes them is told, and
//! gets. A further way to them goes here.

use anyhow::Context;
use keyfall::{Client, ErrorKind};

/// Where a Redis is looked for if none is named.
const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

/// Whoever may type a command may store what Redis can carry. The limits of services are
/// those of their clients.
const PAYLOAD_LIMIT: usize = 256 * 1024 * 1024;

#[derive(clap::Args, Debug, Clone)]
#[command(next_help_heading = "Connection")]
pub(crate) struct Server {
    /// The Redis that has the jobs. Other users of this machine can read what is typed: a
    /// password goes into the variable
    #[arg(
        long,
        value_name = "URL",
        env = "KEYFALL_REDIS_URL",
        hide_env_values = true
    )]
    redis_url: Option<String>,

    /// What all keys of Keyfall begin with, beside those of the jobs
    #[arg(
        long,
        value_name = "NAME",
        env = "KEYFALL_NAMESPACE",
        default_value = "keyfall"
    )]
    namespace: String,
}

impl Server {
    pub(crate) async fn connect(&self) -> anyhow::Result<Client> {
        let connected = Client::builder(self.redis_url())
            .namespace(&self.namespace)
            .payload_limit(PAYLOAD_LIMIT)
            .connect()
            .await;
        explained(connected, self.redis_url.is_some())
    }

    pub(crate) fn redis_url(&self) -> &str {
        self.redis_url.as_deref().unwrap_or(DEFAULT_URL)
    }
}

/// Says what to do where nobody answers, if nobody has said whom to ask either.
pub(crate) fn explained(
    connected: keyfall::Result<Client>,
    is_named: bool,
) -> anyhow::Result<Client> {
    match connected {
        Err(error) if !is_named && error.kind() == ErrorKind::Unavailable => Err(error)
            .with_context(|| {
                format!(
                    "no Redis was named, and none answers at {DEFAULT_URL}: name one with \
                     `--redis-url` or KEYFALL_REDIS_URL, or start one with `keyfall dev`"
                )
            }),
        connected => Ok(connected?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn where_no_redis_was_named_one_is_offered() {
        // Nobody listens there.
        let connect = || Client::connect("redis://127.0.0.1:1");
        let said = async |is_named| {
            let error = explained(connect().await, is_named).unwrap_err();
            assert!(error.chain().any(|cause| cause.is::<keyfall::Error>()));
            format!("{error:#}")
        };
        assert!(said(false).await.contains("start one with `keyfall dev`"));
        let named = said(true).await;
        assert!(!named.contains("keyfall dev"), "{named}");
    }
}
