//! The nodes of a Redis Cluster, and the slots that each serves.
//!
//! The cluster connection of the client library is not used. It does not say which node has
//! answered, although the clock of a ledger is the clock of its node; it asks a node that hangs
//! again and again, and makes calls to the others wait meanwhile; and a request that each node must
//! get, such as a subscription, it sends to one. So [`Link`](super::link::Link) keeps a connection
//! to each node, like the one to a single server, and this module tells it which node a command
//! belongs to.
//!
//! See <https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/>.

mod layout;
mod route;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::LinkSettings;
use crate::store::connections::fault::Fault;
use crate::store::connections::url;
pub(crate) use layout::Node;
use layout::SlotMap;
#[cfg(feature = "worker")]
pub(in crate::store) use route::SLOTS;
pub(in crate::store) use route::slot_of;

/// Shortest time between two readings of the layout.
const AT_LEAST: Duration = Duration::from_millis(100);

/// Default port of a node.
const PORT: u16 = 6379;

/// The known layout of a cluster, and the URL of its nodes.
pub(crate) struct Cluster {
    /// The nodes of the URL: the only known ones until the layout is read.
    seeds: Vec<Node>,
    /// The URL of a node without its host and port.
    before: String,
    /// For connections to the nodes.
    settings: LinkSettings,
    /// The latest layout, with the redirections since.
    layout: Mutex<SlotMap>,
    /// Set if a node gave an unexpected answer, or none, which a new layout would explain.
    doubted: AtomicBool,
    /// Index of the node whose turn it is to answer a question that any node can answer.
    turn: AtomicUsize,
}

impl Cluster {
    /// Parses `redis+cluster://user:password@host:port,host:port`; nothing for a URL with another
    /// scheme.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] for a database other than 0, or a host that is not valid.
    pub(in crate::store) fn parse(url: &str, settings: &LinkSettings) -> Result<Option<Self>> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(None);
        };
        let Some(scheme) = scheme.strip_suffix("+cluster") else {
            return Ok(None);
        };
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (format!("{user}@"), rest),
            None => (String::new(), rest),
        };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        if !matches!(path, "" | "0") {
            return Err(wrong(
                "a cluster has only database 0; leave out the database behind the hosts, and \
                 separate applications by `ClientBuilder::namespace` or `redis.namespace`",
            ));
        }
        let before = format!("{scheme}://{user}");
        let seed = |host: &str| {
            if host.is_empty() {
                return Err(wrong("a host is missing"));
            }
            let address = match host.rsplit_once(':') {
                Some((_, port)) if !port.ends_with(']') => host.to_owned(),
                _ => format!("{host}:{PORT}"),
            };
            // Errors in these parts are reported as for any URL.
            url::client(&format!("{before}{address}"), settings)?;
            Ok(Node::new(&address))
        };
        Ok(Some(Cluster {
            seeds: hosts.split(',').map(seed).collect::<Result<_>>()?,
            before,
            settings: settings.clone(),
            layout: Mutex::default(),
            doubted: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
        }))
    }

    /// A client for connections to a node.
    pub(in crate::store) fn client(&self, node: &Node) -> Result<redis::Client, Fault> {
        url::client(&format!("{}{node}", self.before), &self.settings).map_err(Fault::refused)
    }

    /// The address of a node; without credentials.
    pub(in crate::store) fn address_of(&self, node: &Node) -> String {
        match self.client(node) {
            Ok(client) => url::address(client.get_connection_info().addr()),
            Err(_) => node.to_string(),
        }
    }

    /// The nodes of the URL, for errors; without credentials.
    pub(in crate::store) fn address(&self) -> String {
        let seeds: Vec<&str> = self.seeds.iter().map(Node::as_str).collect();
        format!("the cluster of {}", seeds.join(", "))
    }

    /// The primary that serves a slot; nothing if none is known.
    pub(in crate::store) fn owner(&self, slot: u16) -> Option<Node> {
        self.lock().owner(slot).cloned()
    }

    /// A primary for a question that each of them can answer. It is another one after each
    /// [doubt](Self::doubt).
    pub(in crate::store) fn any(&self) -> Option<Node> {
        let layout = self.lock();
        let count = layout.primaries.len();
        let turn = self.turn.load(Ordering::Relaxed);
        (count > 0).then(|| layout.primaries[turn % count].clone())
    }

    /// The known primaries, and the known replicas.
    pub(crate) fn nodes(&self) -> (Vec<Node>, Vec<Node>) {
        let layout = self.lock();
        let replicas = layout.replicas.iter().cloned().collect();
        (layout.primaries.clone(), replicas)
    }

    /// All nodes that can be asked for the layout, each once. Each call starts with another one.
    pub(in crate::store) fn informants(&self) -> Vec<Node> {
        let layout = self.lock();
        let mut all = layout.primaries.clone();
        all.extend(layout.replicas.iter().cloned());
        all.extend(self.seeds.iter().cloned());
        drop(layout);
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % all.len();
        all.rotate_left(turn);
        let mut seen = std::collections::HashSet::new();
        all.retain(|node| seen.insert(node.clone()));
        all
    }

    /// Notes that a node gave an unexpected answer, or none: the layout is read again soon.
    pub(in crate::store) fn doubt(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// True if the layout must be read before the next call.
    pub(in crate::store) fn is_stale(&self) -> bool {
        let read = self.lock().read;
        read.is_none_or(|read| self.doubted.load(Ordering::Relaxed) && read.elapsed() >= AT_LEAST)
    }

    /// True if the layout was read at `then` or later.
    pub(in crate::store) fn was_read_since(&self, then: Instant) -> bool {
        self.lock().read.is_some_and(|read| read >= then)
    }

    /// Takes in a node's answer to [`question`](Self::question).
    ///
    /// # Errors
    /// A refusal if the answer cannot be read; a fault that passes if the node knows no primary.
    pub(in crate::store) fn learn(&self, answer: Value, told_by: &Node) -> Result<(), Fault> {
        let Some(mut layout) = SlotMap::parse(answer, told_by) else {
            return Err(Fault::refused(Error::new(
                ErrorKind::Incompatible,
                format!("the cluster description of {told_by} cannot be read"),
            )));
        };
        if layout.primaries.is_empty() {
            return Err(Fault::uncovered(&self.address_of(told_by)));
        }
        layout.read = Some(Instant::now());
        self.doubted.store(layout.has_gaps(), Ordering::Relaxed);
        *self.lock() = layout;
        Ok(())
    }

    /// Assigns a slot to a node, as a redirection says.
    pub(in crate::store) fn follow(&self, slot: u16, node: &Node) {
        self.lock().give(slot, node);
    }

    /// The command that asks a node for the layout.
    pub(in crate::store) fn question() -> Cmd {
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        slots
    }

    /// The slot of a key.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn slot(key: &str) -> u16 {
        route::slot_of(key.as_bytes())
    }

    /// The slot of the key in a command; nothing if it has no key.
    pub(in crate::store) fn slot_of(cmd: &Cmd) -> Option<u16> {
        route::slot_of_command(cmd)
    }

    fn lock(&self) -> MutexGuard<'_, SlotMap> {
        self.layout.lock().expect("no panic while held")
    }
}

/// The error of a URL that is not valid, with the right form.
fn wrong(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidSetting,
        format!(
            "the Redis URL is not valid: {what}; write \
             redis+cluster://[user:password@]host:port,host:port, and rediss+cluster:// for TLS"
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Option<Cluster>> {
        Cluster::parse(url, &LinkSettings::default())
    }

    #[test]
    fn a_url_names_some_nodes() {
        let cluster = parse("redis+cluster://u:p%2F@a,b:1,[::1]:2,[::2]/0").unwrap();
        let cluster = cluster.unwrap();
        let seeds: Vec<&str> = cluster.seeds.iter().map(Node::as_str).collect();
        assert_eq!(seeds, ["a:6379", "b:1", "[::1]:2", "[::2]:6379"]);
        let client = cluster.client(&Node::new("c:3")).unwrap();
        let info = client.get_connection_info();
        assert_eq!(info.addr().to_string(), "c:3");
        assert_eq!(info.redis_settings().password(), Some("p/"));
        assert!(parse("redis://a:1").unwrap().is_none());
    }

    #[test]
    fn the_fault_of_a_url_is_reported_without_its_password() {
        for (url, part) in [
            ("redis+cluster://", "a host is missing"),
            ("redis+cluster://:geheim@a,", "a host is missing"),
            ("redis+cluster://:geheim@a/3", "only database 0"),
            ("redis+cluster://a:geheim", "the port is not a number"),
            ("redis+cluster://u:geheim/x@a", "user or password"),
            ("http+cluster://a", "http:// is not known"),
        ] {
            let error = parse(url).err().expect(url);
            assert_eq!(error.kind(), ErrorKind::InvalidSetting);
            let text = format!("{error} {error:?}");
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("heim"), "{url}: {text}");
        }
    }
}
