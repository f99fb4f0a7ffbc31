//! Hosts as settings, which become part of the URL.

use super::fault::Wrong;
use super::redis_url::RedisUrl;
use super::settings::{Redis, setting};
use super::sources::Sources;
use super::value::{Form, Value, cut};

/// The addresses of sentinels, or of nodes of a cluster: hosts, each with or without a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hosts(String);

impl Hosts {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Value for Hosts {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "HOSTS";

    fn parse(text: &str) -> Result<Self, Wrong> {
        let hosts: Vec<&str> = text.split(',').map(str::trim).collect();
        let is_wrong = |host: &&&str| {
            host.is_empty() || host.contains(|c: char| c.is_whitespace() || "/@?#&".contains(c))
        };
        match hosts.iter().find(is_wrong) {
            None => Ok(Hosts(hosts.join(","))),
            Some(host) => Err(Wrong::new(
                format_args!("{} is not a host", cut(host)),
                "write one or more, with commas between: 10.0.0.5:26379, 10.0.0.6:26379",
            )),
        }
    }
}

/// The URL that hosts are put into.
pub(super) fn without_host(redis: &Redis) -> RedisUrl {
    // The default URL may stand in the file, and then counts as absent.
    let is_default = Some(redis.url.reveal()) == setting("redis", "url").default;
    match is_default {
        true => RedisUrl::new("redis://".to_owned()),
        false => redis.url.clone(),
    }
}

/// Writes the nodes of a cluster into the URL. Returns the setting that names the place of Redis.
pub(super) fn put_nodes_into_url(
    redis: &mut Redis,
    name: &'static str,
    sources: &mut Sources<'_>,
) -> &'static str {
    let Some(hosts) = redis.nodes.clone() else {
        return name;
    };
    if redis.sentinels.is_some() {
        let wrong = Wrong::new(
            "a cluster has no sentinels, and `redis.sentinels` is set",
            "leave this or `redis.sentinels` out",
        );
        sources.fault("redis", "nodes", wrong);
        return name;
    }
    match without_host(redis).of_cluster(hosts.as_str()) {
        Some(url) => redis.url = url,
        None => {
            let wrong = Wrong::new(
                "it says where Redis is, and so do `redis.nodes`",
                "leave its host and database out, redis://user@ or rediss://, or the nodes",
            );
            sources.fault("redis", name, wrong);
            return name;
        }
    }
    "nodes"
}
