//! The topologies.

use std::sync::OnceLock;

use keyfall::JobKey;
use keyfall::embedded::Embedded;

use super::place::Place;
use crate::outages::KEEPS_ALL;
use crate::site::{command, connect};
use crate::topology::clusters::{Clustered, ledger_of};
use crate::topology::nodes::Node;
use crate::topology::sentinels::{SentinelTerms, Sentineled};

/// A static of its own for each place.
macro_rules! shared {
    () => {
        fn shared() -> &'static OnceLock<String> {
            static URL: OnceLock<String> = OnceLock::new();
            &URL
        }
    };
}

async fn again(server: &mut Embedded) {
    server.kill_server().await.unwrap();
    server.restart().await.unwrap();
}

/// A single Redis at a port.
pub(super) struct Tcp(Node);

impl Place for Tcp {
    const NAME: &'static str = "tcp";
    shared!();

    async fn start() -> Self {
        Tcp(Node::with(None, &KEEPS_ALL).await)
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.0.port)
    }

    async fn start_again(&mut self, _: &str) {
        again(&mut self.0.server).await;
    }
}

/// A single Redis at a socket.
pub(super) struct UnixSocket(Embedded);

impl Place for UnixSocket {
    const NAME: &'static str = "unix";
    shared!();

    async fn start() -> Self {
        let options = Embedded::options().args(KEEPS_ALL);
        UnixSocket(options.start().await.unwrap())
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn start_again(&mut self, _: &str) {
        again(&mut self.0).await;
    }
}

/// A database other than the first.
pub(super) struct Database(Node);

impl Place for Database {
    const NAME: &'static str = "db";
    shared!();

    async fn start() -> Self {
        Database(Node::with(None, &KEEPS_ALL).await)
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/5", self.0.port)
    }

    async fn start_again(&mut self, _: &str) {
        again(&mut self.0.server).await;
    }
}

/// A primary with two replicas, and three sentinels.
pub(super) struct SentinelPlace(Sentineled);

impl Place for SentinelPlace {
    const NAME: &'static str = "sentinel";
    shared!();

    async fn start() -> Self {
        let terms = SentinelTerms {
            is_steady: true,
            args: &KEEPS_ALL,
            ..SentinelTerms::default()
        };
        SentinelPlace(Sentineled::with(terms).await)
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn server_of(url: &str, _: &str) -> String {
        let (seats, master) = url.split_once("//").unwrap().1.split_once('/').unwrap();
        let seat = seats.split(',').next().unwrap();
        let mut sentinel = connect(&format!("redis://{seat}")).await;
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", master];
        let (host, port): (String, u16) = command(&mut sentinel, &ask).await;
        format!("redis://{host}:{port}")
    }

    async fn start_again(&mut self, _: &str) {
        again(&mut self.0.nodes[0].server).await;
    }
}

/// Three primaries, each with a replica.
pub(super) struct ClusterPlace(Clustered);

impl Place for ClusterPlace {
    const NAME: &'static str = "cluster";
    const ADOPTS: bool = false;
    shared!();

    async fn start() -> Self {
        ClusterPlace(Clustered::steady(&KEEPS_ALL).await)
    }

    fn url(&self) -> String {
        self.0.url()
    }

    async fn start_again(&mut self, kind: &str) {
        let slot = self.0.slot_of(&ledger_of(kind), 0).await;
        let owner = self.0.owner_of(slot, 0).await.unwrap();
        again(&mut self.0.nodes[owner].server).await;
    }
}

/// Two servers that do not know each other.
pub(super) struct SeveralPlace([Node; 2]);

impl Place for SeveralPlace {
    const NAME: &'static str = "several";
    shared!();

    async fn start() -> Self {
        SeveralPlace([
            Node::with(None, &KEEPS_ALL).await,
            Node::with(None, &KEEPS_ALL).await,
        ])
    }

    fn url(&self) -> String {
        let url = |node: &Node| format!("redis://127.0.0.1:{}", node.port);
        self.0.each_ref().map(url).join(" ")
    }

    async fn server_of(url: &str, key: &str) -> String {
        let key: JobKey = key.parse().unwrap();
        let place = usize::from(keyfall::server_of(key.kind(), 0, 2));
        url.split(' ').nth(place).unwrap().to_owned()
    }

    async fn start_again(&mut self, kind: &str) {
        let owner = usize::from(keyfall::server_of(kind, 0, 2));
        again(&mut self.0[owner].server).await;
    }
}
