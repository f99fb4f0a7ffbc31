//! The place of the jobs: the options of every command that reads or changes jobs, and the
//! connection that they describe. A further way to the jobs belongs here.

use std::path::PathBuf;

use anyhow::{Context, bail};
use keyfall::{Client, ErrorKind};
use reqwest::Url;

use super::jobs::{Address, Daemon, Jobs};
use super::stop::Stop;
use keyfall_daemon::config::{Origin, Redis, RedisFlags};

/// A person who runs commands may store the most that Redis can carry. The clients of services have
/// limits of their own.
const PAYLOAD_LIMIT: usize = 256 * 1024 * 1024;

/// The place of Redis, if nothing names one.
const DEFAULT_URL: &str = "redis://127.0.0.1:6379";

/// The place of the daemon that a probe asks, if nothing names one.
const DEFAULT_DAEMON: &str = "http://127.0.0.1:9276";

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

    /// The certificates of the CA that signed the daemon's certificate, as PEM, if this system does
    /// not trust it; also KEYFALL_CA_FILE. No other CA is trusted then
    #[arg(
        long,
        value_name = "PATH",
        help_heading = "The daemon that has the jobs"
    )]
    ca_file: Option<PathBuf>,

    #[command(flatten)]
    redis: RedisFlags,
}

/// The place of the jobs.
enum Backend {
    Redis { redis: Box<Redis>, is_named: bool },
    Daemon(Address),
}

impl Server {
    pub(crate) async fn connect(&self) -> anyhow::Result<Jobs> {
        match self.place()? {
            Backend::Daemon(address) => Jobs::behind(address),
            Backend::Redis { redis, is_named } => {
                let client = client_of(&redis, is_named, Remedy::Any).await?;
                Ok(Jobs::on_redis(client))
            }
        }
    }

    /// A client of the Redis with the jobs, if the command asks it directly; `None` behind a
    /// daemon.
    pub(crate) async fn client(&self, remedy: Remedy) -> anyhow::Result<Option<Client>> {
        Ok(match self.place()? {
            Backend::Redis { redis, is_named } => Some(client_of(&redis, is_named, remedy).await?),
            Backend::Daemon(_) => None,
        })
    }

    /// The result of a call on the Redis with the jobs; its error names the remedy if nobody
    /// answers.
    pub(crate) fn explained<T>(
        &self,
        called: keyfall::Result<T>,
        remedy: Remedy,
    ) -> anyhow::Result<T> {
        match self.place()? {
            Backend::Redis { is_named, .. } => explained(called, is_named, remedy),
            Backend::Daemon(_) => Ok(called?),
        }
    }

    /// The Redis that has the jobs; `None` behind a daemon.
    pub(crate) fn redis(&self) -> anyhow::Result<Option<Redis>> {
        Ok(match self.place()? {
            Backend::Redis { redis, .. } => Some(*redis),
            Backend::Daemon(_) => None,
        })
    }

    /// The place of the jobs in messages: without passwords.
    pub(crate) fn shown(&self) -> anyhow::Result<String> {
        Ok(match self.place()? {
            Backend::Redis { redis, .. } => redis.url.to_string(),
            Backend::Daemon(address) => address.url.to_string(),
        })
    }

    /// A flag beats the environment.
    fn place(&self) -> anyhow::Result<Backend> {
        let api = match (&self.api, env("KEYFALL_API")) {
            (Some(url), _) => Some((url.clone(), Origin::Flag("--api".into()))),
            (None, Some(url)) => Some((url, Origin::Env("KEYFALL_API".into()))),
            (None, None) => None,
        };
        let redis = Redis::load(&self.redis);
        let Some((url, from)) = api else {
            let (redis, place) = redis.map_err(wrong)?;
            return Ok(Backend::Redis {
                redis: Box::new(redis),
                is_named: place != Origin::Default,
            });
        };
        // The faults of a Redis that is not used do not matter.
        if let Ok((redis, place)) = redis {
            if place.is_beside(&from) {
                bail!(Stop::wrong(format!(
                    "{place} and {from} both name a place of the jobs: leave one of them out"
                )));
            } else if place > from {
                return Ok(Backend::Redis {
                    redis: Box::new(redis),
                    is_named: true,
                });
            }
        }
        self.address(&url, &from).map(Backend::Daemon)
    }

    fn address(&self, url: &str, from: &Origin) -> anyhow::Result<Address> {
        let url = daemon_url(url, from)?;
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

/// The daemon at this URL, at the one of the environment, or on this machine; without a token.
pub(crate) fn daemon_at(api: Option<String>, ca_file: Option<PathBuf>) -> anyhow::Result<Daemon> {
    let (url, from) = match (api, env("KEYFALL_API")) {
        (Some(url), _) => (url, Origin::Flag("--api".into())),
        (None, Some(url)) => (url, Origin::Env("KEYFALL_API".into())),
        (None, None) => (DEFAULT_DAEMON.to_owned(), Origin::Default),
    };
    Daemon::new(Address {
        url: daemon_url(&url, &from)?,
        token: None,
        ca_file: ca_file.or(env("KEYFALL_CA_FILE").map(Into::into)),
    })
}

fn daemon_url(url: &str, from: &Origin) -> Result<Url, Stop> {
    let parsed = Url::parse(url).ok();
    let parsed = parsed.filter(|url| matches!(url.scheme(), "http" | "https"));
    let parsed = parsed.filter(|url| url.has_host() && url.query().is_none());
    let parsed = parsed.filter(|url| url.username().is_empty() && url.password().is_none());
    parsed.ok_or_else(|| {
        Stop::wrong(format!(
            "{from} is not the URL of a daemon: write it as `keyfall serve` prints it, \
             {DEFAULT_DAEMON}, without a token"
        ))
    })
}

pub(crate) async fn client_of(
    redis: &Redis,
    is_named: bool,
    remedy: Remedy,
) -> anyhow::Result<Client> {
    let client = redis.client().payload_limit(PAYLOAD_LIMIT);
    explained(client.connect().await, is_named, remedy)
}

/// The value of a variable; `None` if it is empty.
fn env(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

fn wrong(faults: keyfall_daemon::config::Faults) -> Stop {
    Stop::wrong(faults.to_string())
}

/// The remedy that fits a command if no Redis answers.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Remedy {
    /// A Redis, or a daemon.
    Any,
    /// A Redis: no daemon does this.
    Redis,
    /// A cluster.
    Cluster,
}

/// Adds the remedy to an error of connecting, if no Redis was named.
fn explained<T>(called: keyfall::Result<T>, is_named: bool, remedy: Remedy) -> anyhow::Result<T> {
    let remedy = match remedy {
        Remedy::Any => {
            "name one with `--redis-url` or KEYFALL_REDIS_URL, name a daemon with `--api` or \
             KEYFALL_API, or start a Redis with `keyfall dev`"
        }
        Remedy::Redis => {
            "name one with `--redis-url` or KEYFALL_REDIS_URL, or start one with `keyfall dev`"
        }
        Remedy::Cluster => {
            "name a node of the cluster with `--redis-url redis+cluster://…` or KEYFALL_REDIS_URL"
        }
    };
    match called {
        Err(error) if !is_named && error.kind() == ErrorKind::Unavailable => Err(error)
            .with_context(|| {
                format!("no Redis was named, and none answers at {DEFAULT_URL}: {remedy}")
            }),
        called => Ok(called?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn without_a_named_redis_the_error_offers_one() {
        // No server listens there.
        let connect = || Client::connect("redis://127.0.0.1:1");
        let said = async |is_named, remedy| {
            let error = explained(connect().await, is_named, remedy).unwrap_err();
            assert!(error.chain().any(|cause| cause.is::<keyfall::Error>()));
            format!("{error:#}")
        };
        let any = said(false, Remedy::Any).await;
        assert!(
            any.contains("`keyfall dev`") && any.contains("`--api`"),
            "{any}"
        );
        let redis = said(false, Remedy::Redis).await;
        assert!(
            redis.contains("`keyfall dev`") && !redis.contains("--api"),
            "{redis}"
        );
        let cluster = said(false, Remedy::Cluster).await;
        assert!(!cluster.contains("keyfall dev"), "{cluster}");
        let named = said(true, Remedy::Any).await;
        assert!(!named.contains("keyfall dev"), "{named}");
    }
}
