//! The servers behind a URL, for commands that the benchmark itself sends: a single one, the
//! primary that sentinels name, each of several, or each primary of a cluster.

use anyhow::{Context, bail};
use crc::{CRC_16_XMODEM, Crc};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use super::ground::PATIENCE;

/// The checksum by which a cluster chooses the slot of a key.
const OF_SLOTS: Crc<u16> = Crc::<u16>::new(&CRC_16_XMODEM);

/// The number of slots of a cluster.
const SLOTS: usize = 16_384;

/// The servers behind a URL.
pub(super) struct Nodes {
    all: Vec<Node>,
    /// For each slot, the index of its server in `all`; empty with a single server.
    owners: Vec<usize>,
}

/// One server that takes writes.
pub(super) struct Node {
    url: String,
    redis: MultiplexedConnection,
}

impl Nodes {
    /// Finds the servers behind a URL of Keyfall, or several URLs separated by spaces, and connects
    /// to them.
    pub(super) async fn find(url: &str) -> anyhow::Result<Self> {
        let mut nodes = Nodes {
            all: Vec::new(),
            owners: Vec::new(),
        };
        for url in url.split_ascii_whitespace() {
            let mut found = Nodes::behind(url).await?;
            nodes.all.append(&mut found.all);
            nodes.owners = found.owners;
        }
        let count = nodes.all.len();
        if count > 1 && nodes.owners.is_empty() {
            // Several independent servers: the slots are spread over them, and with them the writes
            // of the benchmark itself.
            nodes.owners = (0..SLOTS).map(|slot| slot * count / SLOTS).collect();
        }
        Ok(nodes)
    }

    /// The servers behind one URL.
    async fn behind(url: &str) -> anyhow::Result<Self> {
        let (scheme, rest) = url.split_once("://").context("the URL has no scheme")?;
        if let Some(scheme) = scheme.strip_suffix("+cluster") {
            return Nodes::of_cluster(scheme, rest).await;
        }
        let url = match scheme.strip_suffix("+sentinel") {
            Some(scheme) => primary(scheme, rest).await?,
            None => url.to_owned(),
        };
        Ok(Nodes {
            all: vec![Node::connect(url).await?],
            owners: Vec::new(),
        })
    }

    /// The primaries of a cluster, as the first node that answers lists them.
    async fn of_cluster(scheme: &str, rest: &str) -> anyhow::Result<Self> {
        let (user, hosts) = user_and_hosts(rest.split('/').next().unwrap_or_default());
        let place = |host: &str| format!("{scheme}://{user}{host}");
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let ranges: Vec<Vec<Value>> = first_answer(hosts.split(',').map(place), &slots).await?;
        let mut nodes = Nodes {
            all: Vec::new(),
            owners: vec![0; SLOTS],
        };
        for range in ranges {
            let [first, last, primary, ..] = &range[..] else {
                bail!("the cluster's answer about its slots cannot be read");
            };
            let first: usize = redis::from_redis_value(first.clone())?;
            let last: usize = redis::from_redis_value(last.clone())?;
            let primary: Vec<Value> = redis::from_redis_value(primary.clone())?;
            let [host, port, ..] = &primary[..] else {
                bail!("the cluster's answer about its primaries cannot be read");
            };
            let host: String = redis::from_redis_value(host.clone())?;
            let port: u16 = redis::from_redis_value(port.clone())?;
            let url = place(&format!("{host}:{port}"));
            let known = nodes.all.iter().position(|node| node.url == url);
            let owner = match known {
                Some(known) => known,
                None => {
                    nodes.all.push(Node::connect(url).await?);
                    nodes.all.len() - 1
                }
            };
            nodes.owners[first..=last].fill(owner);
        }
        if nodes.all.is_empty() {
            bail!("no node serves the slots of this cluster");
        }
        Ok(nodes)
    }

    /// All servers; at least one.
    pub(super) fn all(&self) -> &[Node] {
        &self.all
    }

    /// The first server, for questions that any of them can answer.
    pub(super) fn first(&self) -> &Node {
        &self.all[0]
    }

    /// The index of the server that has a key.
    pub(super) fn place_of(&self, key: &str) -> usize {
        match &self.owners[..] {
            [] => 0,
            owners => owners[usize::from(slot_of(key))],
        }
    }
}

impl Node {
    /// Opens a connection.
    async fn connect(url: String) -> anyhow::Result<Self> {
        let redis = connection(&url).await;
        let redis = redis.with_context(|| "a server cannot be reached that is to be measured")?;
        Ok(Node { url, redis })
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn redis(&self) -> MultiplexedConnection {
        self.redis.clone()
    }
}

/// A connection that waits up to [`PATIENCE`] for each answer.
async fn connection(url: &str) -> redis::RedisResult<MultiplexedConnection> {
    // A server under measurement may be slow to answer, and is not gone.
    let patient = AsyncConnectionConfig::new().set_response_timeout(Some(PATIENCE));
    let client = redis::Client::open(url)?;
    client
        .get_multiplexed_async_connection_with_config(&patient)
        .await
}

/// Splits the authority of a URL: user and password with their `@`, and the hosts.
fn user_and_hosts(text: &str) -> (&str, &str) {
    text.split_at(text.rfind('@').map_or(0, |at| at + 1))
}

/// Asks sentinels for the URL of the primary. `rest` is the URL behind the scheme:
/// `user:password@host,host/master/database?sentinel_user=…`.
async fn primary(scheme: &str, rest: &str) -> anyhow::Result<String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let mut parts = rest.split('/');
    let (user, hosts) = user_and_hosts(parts.next().unwrap_or_default());
    let master = parts.next().context("the URL names no primary")?;
    let database = parts.next().unwrap_or("0");
    let told = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.find_map(|(key, value)| (key == name).then_some(value))
    };
    let login = match (told("sentinel_user"), told("sentinel_password")) {
        (None, None) => String::new(),
        (user, password) => format!("{}:{}@", user.unwrap_or(""), password.unwrap_or("")),
    };
    let tls = match told("sentinel_tls") {
        Some("true") => "rediss",
        _ => "redis",
    };
    let place = |host: &str| match host.rsplit_once(':') {
        Some((_, port)) if !port.ends_with(']') => format!("{tls}://{login}{host}"),
        _ => format!("{tls}://{login}{host}:26379"),
    };
    let mut question = redis::cmd("SENTINEL");
    question.arg("GET-MASTER-ADDR-BY-NAME").arg(master);
    let (host, port): (String, u16) = first_answer(hosts.split(',').map(place), &question).await?;
    Ok(format!("{scheme}://{user}{host}:{port}/{database}"))
}

/// The answer of the first of these servers that answers.
async fn first_answer<T: redis::FromRedisValue>(
    urls: impl Iterator<Item = String>,
    question: &redis::Cmd,
) -> anyhow::Result<T> {
    let mut last = None;
    for url in urls {
        match connection(&url).await {
            Ok(mut redis) => match question.query_async(&mut redis).await {
                Ok(answer) => return Ok(answer),
                Err(error) => last = Some(error),
            },
            Err(error) => last = Some(error),
        }
    }
    let error = last.context("the URL names no host")?;
    Err(error).context("none of the servers that the URL names can be asked where to write")
}

/// The slot of a key, by its hash tag, if it has one.
fn slot_of(key: &str) -> u16 {
    let tag = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'))
        .map(|(tag, _)| tag)
        .filter(|tag| !tag.is_empty());
    OF_SLOTS.checksum(tag.unwrap_or(key).as_bytes()) % SLOTS as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_agree_with_redis() {
        // By CLUSTER KEYSLOT.
        for key in ["123456789", "a{123456789}b", "{123456789}{c"] {
            assert_eq!(slot_of(key), 12_739, "{key}");
        }
        assert_eq!(slot_of("foo"), 12_182);
        assert_ne!(slot_of("{}foo"), slot_of("{}bar"));
    }

    #[test]
    fn the_user_of_a_url_is_separated_from_the_hosts() {
        assert_eq!(user_and_hosts("u:p@a,b"), ("u:p@", "a,b"));
        assert_eq!(user_and_hosts("a:1"), ("", "a:1"));
    }
}
