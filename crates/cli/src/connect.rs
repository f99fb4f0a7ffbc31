//! Where the jobs are: what every command that looks at them or changes them is told, and
//! gets. A further way to them goes here.

use std::path::PathBuf;

use anyhow::{Context, bail};
use keyfall::{Client, ErrorKind};
use reqwest::Url;

use super::jobs::{Address, Jobs};
use super::stop::Stop;
use keyfall_daemon::config::{Origin, Redis, RedisFlags};

/// Whoever may type a command may store what Redis can carry. The limits of services are
/// those of their clients.
const PAYLOAD_LIMIT: usize = 256 * 1024 * 1024;

/// Where Redis is if nobody says.
const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

#[derive(clap::Args, Debug, Clone)]
pub(crate) struct Server {
    /// Ask the daemon at this URL, which `keyfall serve` prints, instead of Redis; also KEYFALL_API.
    /// Its token goes into KEYFALL_TOKEN
    #[arg(
        long,
        value_name = "URL",
        help_heading = "The daemon that has the jobs"
    )]
    api: Option<String>,

    /// A file that holds the token, instead of KEYFALL_TOKEN; also KEYFALL_TOKEN_FILE
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "The daemon that has the jobs"
    )]
    token_file: Option<PathBuf>,

    /// The certificates of the CA that signed that of the daemon, as PEM, where this system does not
    /// trust it; also KEYFALL_CA_FILE. No other is trusted then
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "The daemon that has the jobs"
    )]
    ca_file: Option<PathBuf>,

    #[command(flatten)]
    redis: RedisFlags,
}

/// Where the jobs are.
enum Place {
    Redis { redis: Box<Redis>, is_named: bool },
    Daemon(Address),
}

impl Server {
    pub(crate) async fn connect(&self) -> anyhow::Result<Jobs> {
        match self.place()? {
            Place::Daemon(address) => Jobs::behind(address),
            Place::Redis { redis, is_named } => {
                let client = client_of(&redis, is_named).await?;
                Ok(Jobs::on_redis(client))
            }
        }
    }

    /// A client of the Redis that has the jobs; `None` behind a daemon.
    pub(crate) async fn client(&self) -> anyhow::Result<Option<Client>> {
        Ok(match self.place()? {
            Place::Redis { redis, is_named } => Some(client_of(&redis, is_named).await?),
            Place::Daemon(_) => None,
        })
    }

    /// The Redis that has the jobs; `None` behind a daemon.
    pub(crate) fn redis(&self) -> anyhow::Result<Option<Redis>> {
        Ok(match self.place()? {
            Place::Redis { redis, .. } => Some(*redis),
            Place::Daemon(_) => None,
        })
    }

    /// Whether somebody has said where Redis is.
    pub(crate) fn names_redis(&self) -> anyhow::Result<bool> {
        Ok(match self.place()? {
            Place::Redis { is_named, .. } => is_named,
            Place::Daemon(_) => false,
        })
    }

    /// A flag beats the environment.
    fn place(&self) -> anyhow::Result<Place> {
        let api = match (&self.api, env("KEYFALL_API")) {
            (Some(url), _) => Some((url.clone(), Origin::Flag("--api".into()))),
            (None, Some(url)) => Some((url, Origin::Env("KEYFALL_API".into()))),
            (None, None) => None,
        };
        let redis = Redis::load(&self.redis);
        let Some((url, from)) = api else {
            let (redis, place) = redis.map_err(wrong)?;
            return Ok(Place::Redis {
                redis: Box::new(redis),
                is_named: place != Origin::Default,
            });
        };
        // What is wrong with a Redis that nobody asks for does not matter.
        if let Ok((redis, place)) = redis {
            if place.is_beside(&from) {
                bail!(Stop::wrong(format!(
                    "{place} and {from} name two places that have the jobs: leave one of them out"
                )));
            } else if place > from {
                return Ok(Place::Redis {
                    redis: Box::new(redis),
                    is_named: true,
                });
            }
        }
        self.address(&url, &from).map(Place::Daemon)
    }

    fn address(&self, url: &str, from: &Origin) -> anyhow::Result<Address> {
        let parsed = Url::parse(url).ok();
        let parsed = parsed.filter(|url| matches!(url.scheme(), "http" | "https"));
        let parsed = parsed.filter(|url| url.has_host() && url.query().is_none());
        let parsed = parsed.filter(|url| url.username().is_empty() && url.password().is_none());
        let url = parsed.ok_or_else(|| {
            Stop::wrong(format!(
                "{from} is no URL of a daemon: write it as `keyfall serve` prints it, \
                 http://127.0.0.1:9276, without a token"
            ))
        })?;
        let path = |flag: &Option<PathBuf>, name| flag.clone().or(env(name).map(Into::into));
        let token = match (
            path(&self.token_file, "KEYFALL_TOKEN_FILE"),
            env("KEYFALL_TOKEN"),
        ) {
            (Some(path), token) if self.token_file.is_some() || token.is_none() => {
                let text = std::fs::read_to_string(&path);
                let text = text.with_context(|| format!("{} cannot be read", path.display()))?;
                Some(text.trim_end().to_owned())
            }
            (Some(_), Some(_)) => bail!(Stop::wrong(
                "KEYFALL_TOKEN and KEYFALL_TOKEN_FILE name two tokens: leave one of them out"
            )),
            (_, token) => token,
        };
        Ok(Address {
            url,
            token,
            ca_file: path(&self.ca_file, "KEYFALL_CA_FILE"),
        })
    }
}

async fn client_of(redis: &Redis, is_named: bool) -> anyhow::Result<Client> {
    let client = redis.client().payload_limit(PAYLOAD_LIMIT);
    explained(client.connect().await, is_named)
}

/// One that is empty says nothing.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn wrong(faults: keyfall_daemon::config::Faults) -> Stop {
    Stop::wrong(faults.to_string())
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
                     `--redis-url` or KEYFALL_REDIS_URL, start one with `keyfall dev`, or name a \
                     daemon with `--api`"
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
