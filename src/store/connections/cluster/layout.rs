//! The layout of a cluster: the node that serves each slot.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use redis::Value;

use super::route::SLOTS;

/// A node, by `host:port`, as the other nodes call it. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Node(Arc<str>);

impl Node {
    /// A node by its address, `host:port`.
    pub(crate) fn new(address: &str) -> Self {
        Node(address.into())
    }

    /// A node by host and port; an IPv6 address gets brackets.
    pub(crate) fn of(host: &str, port: impl fmt::Display) -> Self {
        // An IPv6 address.
        match host.contains(':') && !host.starts_with('[') {
            true => Node(format!("[{host}]:{port}").into()),
            false => Node(format!("{host}:{port}").into()),
        }
    }

    /// The address, `host:port`.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// The host without the port; used for a node that does not know its own name.
    fn host(&self) -> &str {
        self.0.rsplit_once(':').map_or(&self.0, |(host, _)| host)
    }

    /// The node that a redirection or `CLUSTER NODES` names, where an IPv6 address has no brackets
    /// (`fd00::5:7001`). If the address leaves out the host, it means the host of the node that sent it.
    pub(crate) fn named_by(&self, address: &str) -> Self {
        match address.rsplit_once(':') {
            Some(("", port)) => Node::of(self.host(), port),
            Some((host, port)) => Node::of(host, port),
            None => Node::new(address),
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A layout of a cluster. Empty until it is read.
#[derive(Default)]
pub(super) struct SlotMap {
    /// For each slot the index of its primary in `primaries`, or [`NOBODY`].
    owners: Vec<u16>,
    /// Nodes that serve slots; the index of each stays the same while the layout lasts.
    pub(super) primaries: Vec<Node>,
    /// Replicas of all primaries.
    pub(super) replicas: BTreeSet<Node>,
    /// The time of the reading; nothing before the first one.
    pub(super) read: Option<Instant>,
}

/// The entry of a slot that no node serves.
const NOBODY: u16 = u16::MAX;

impl SlotMap {
    /// Parses the answer to `CLUSTER SLOTS`; nothing if it has another shape.
    /// See <https://redis.io/docs/latest/commands/cluster-slots/>.
    pub(super) fn parse(answer: Value, told_by: &Node) -> Option<Self> {
        let ranges: Vec<Vec<Value>> = redis::from_redis_value(answer).ok()?;
        let mut layout = SlotMap::default();
        for range in ranges {
            let mut range = range.into_iter();
            let first: u16 = redis::from_redis_value(range.next()?).ok()?;
            let last: u16 = redis::from_redis_value(range.next()?).ok()?;
            let primary = node_of(range.next()?, told_by);
            for slot in first..=last.min(SLOTS - 1) {
                if let Some(primary) = &primary {
                    layout.give(slot, primary);
                }
            }
            layout
                .replicas
                .extend(range.filter_map(|node| node_of(node, told_by)));
        }
        Some(layout)
    }

    /// The primary that serves a slot, if one does.
    pub(super) fn owner(&self, slot: u16) -> Option<&Node> {
        self.primaries
            .get(usize::from(*self.owners.get(usize::from(slot))?))
    }

    /// Assigns a slot to a node.
    pub(super) fn give(&mut self, slot: u16, node: &Node) {
        let known = self.primaries.iter().position(|one| one == node);
        let place = known.unwrap_or_else(|| {
            self.primaries.push(node.clone());
            self.primaries.len() - 1
        });
        self.owners.resize(usize::from(SLOTS), NOBODY);
        self.owners[usize::from(slot)] = place as u16;
    }

    /// True if a slot is served by no node.
    pub(super) fn has_gaps(&self) -> bool {
        self.owners.is_empty() || self.owners.contains(&NOBODY)
    }
}

/// Parses `[host, port, id, …]`. A node whose host is `?` cannot be reached by anybody yet; an
/// empty host means the host of the node that answered.
fn node_of(value: Value, told_by: &Node) -> Option<Node> {
    let Value::Array(parts) = value else {
        return None;
    };
    let mut parts = parts.into_iter();
    let host: Option<String> = redis::from_redis_value(parts.next()?).ok()?;
    let port: i64 = redis::from_redis_value(parts.next()?).ok()?;
    match host.as_deref().unwrap_or_default() {
        "?" => None,
        "" => Some(Node::of(told_by.host(), port)),
        host => Some(Node::of(host, port)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(host: Value, port: i64) -> Value {
        Value::Array(vec![host, Value::Int(port), text("id")])
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn the_layout_that_a_node_reports_is_read() {
        let range = |first, last, nodes: Vec<Value>| {
            Value::Array([vec![Value::Int(first), Value::Int(last)], nodes].concat())
        };
        let answer = Value::Array(vec![
            range(
                0,
                99,
                vec![node(text("a"), 1), node(text("b"), 2), node(text("?"), 3)],
            ),
            range(100, 16_383, vec![node(Value::Nil, 4), node(text("::1"), 5)]),
        ]);
        let mut layout = SlotMap::parse(answer, &Node::new("seed:9")).unwrap();
        assert_eq!(layout.owner(99), Some(&Node::new("a:1")));
        assert_eq!(layout.owner(100), Some(&Node::new("seed:4")));
        let replicas: Vec<&str> = layout.replicas.iter().map(Node::as_str).collect();
        assert_eq!(replicas, ["[::1]:5", "b:2"]);
        assert!(!layout.has_gaps());

        layout.give(99, &Node::new("c:6"));
        assert_eq!(layout.owner(99), Some(&Node::new("c:6")));
        assert_eq!(layout.owner(98), Some(&Node::new("a:1")));
        assert_eq!(SlotMap::default().owner(0), None);
        assert!(SlotMap::default().has_gaps());
    }

    #[test]
    fn a_redirection_may_leave_out_the_host() {
        let by = Node::new("here:1");
        assert_eq!(by.named_by(":2"), Node::new("here:2"));
        assert_eq!(by.named_by("there:3"), Node::new("there:3"));
        assert_eq!(by.named_by("fd00::5:7001"), Node::new("[fd00::5]:7001"));
        assert_eq!(by.named_by("::1:7001"), Node::new("[::1]:7001"));
        let by = Node::new("[fd00::5]:7001");
        assert_eq!(by.named_by(":7002"), Node::new("[fd00::5]:7002"));
    }
}
