//! The nodes of a Redis Cluster, and which slots are whose.
//!
//! The cluster connection of the client library is not used. It does not say which node has
//! answered, whose clock that of a ledger is; it asks a node that hangs again and again, and makes
//! calls to the others wait meanwhile; and what is to be asked of each node, such as a subscription,
//! it sends to one. So there is a connection to each node, like the one to a single server, and
//! here is known which of them a command belongs to.
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

/// How often the layout is read anew at the most, whoever doubts it.
const AT_LEAST: Duration = Duration::from_millis(100);

/// The port of a node that names none.
const PORT: u16 = 6379;

/// What is known of a cluster.
pub(crate) struct Cluster {
    seeds: Vec<Node>,
    /// A URL of a node, but for its host and port.
    before: String,
    settings: LinkSettings,
    layout: Mutex<SlotMap>,
    /// Something happened that another layout would explain.
    doubted: AtomicBool,
    /// Whose turn it is of those that can answer what any of them can.
    turn: AtomicUsize,
}

impl Cluster {
    /// `redis+cluster://user:password@host:port,host:port`; nothing for a URL with another scheme.
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
                "a cluster has no database but 0; leave out what stands behind the hosts, and \
                 keep applications apart by `ClientBuilder::namespace` or `redis.namespace`",
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
            // Wrong parts of it are told as those of any URL.
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

    /// A client of a node.
    pub(in crate::store) fn client(&self, node: &Node) -> Result<redis::Client, Fault> {
        url::client(&format!("{}{node}", self.before), &self.settings).map_err(Fault::refused)
    }

    /// Where a node is; without credentials.
    pub(in crate::store) fn address_of(&self, node: &Node) -> String {
        match self.client(node) {
            Ok(client) => url::address(client.get_connection_info().addr()),
            Err(_) => node.to_string(),
        }
    }

    pub(in crate::store) fn address(&self) -> String {
        let seeds: Vec<&str> = self.seeds.iter().map(Node::as_str).collect();
        format!("the cluster of {}", seeds.join(", "))
    }

    /// The primary that serves a slot.
    pub(in crate::store) fn owner(&self, slot: u16) -> Option<Node> {
        self.lock().owner(slot).cloned()
    }

    /// Some primary, for what each of them can answer. Another one after each
    /// [doubt](Self::doubt).
    pub(in crate::store) fn any(&self) -> Option<Node> {
        let layout = self.lock();
        let count = layout.primaries.len();
        let turn = self.turn.load(Ordering::Relaxed);
        (count > 0).then(|| layout.primaries[turn % count].clone())
    }

    /// The primaries, as far as they are known, and behind them the replicas.
    pub(crate) fn nodes(&self) -> (Vec<Node>, Vec<Node>) {
        let layout = self.lock();
        let replicas = layout.replicas.iter().cloned().collect();
        (layout.primaries.clone(), replicas)
    }

    /// Who can be asked for the layout, in turns.
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

    /// A node answered what it was not expected to, or not at all.
    pub(in crate::store) fn doubt(&self) {
        self.turn.fetch_add(1, Ordering::Relaxed);
        self.doubted.store(true, Ordering::Relaxed);
    }

    /// Whether the layout is to be read anew before the next call.
    pub(in crate::store) fn is_stale(&self) -> bool {
        let read = self.lock().read;
        read.is_none_or(|read| self.doubted.load(Ordering::Relaxed) && read.elapsed() >= AT_LEAST)
    }

    /// Whether it was read since then.
    pub(in crate::store) fn was_read_since(&self, then: Instant) -> bool {
        self.lock().read.is_some_and(|read| read >= then)
    }

    /// What a node answered to [`question`](Self::question).
    pub(in crate::store) fn learn(&self, answer: Value, told_by: &Node) -> Result<(), Fault> {
        let Some(mut layout) = SlotMap::parse(answer, told_by) else {
            return Err(Fault::refused(Error::new(
                ErrorKind::Incompatible,
                format!("what {told_by} says of its cluster cannot be read"),
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

    /// A node says that a slot is this node's.
    pub(in crate::store) fn follow(&self, slot: u16, node: &Node) {
        self.lock().give(slot, node);
    }

    /// What a node is asked for the layout.
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

    /// The slot that a command goes to.
    pub(in crate::store) fn slot_of(cmd: &Cmd) -> Option<u16> {
        route::slot_of_command(cmd)
    }

    fn lock(&self) -> MutexGuard<'_, SlotMap> {
        self.layout.lock().expect("no panic while held")
    }
}

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
    fn what_is_wrong_with_a_url_is_said_without_its_password() {
        for (url, part) in [
            ("redis+cluster://", "a host is missing"),
            ("redis+cluster://:geheim@a,", "a host is missing"),
            ("redis+cluster://:geheim@a/3", "no database but 0"),
            ("redis+cluster://a:geheim", "the port is no number"),
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
