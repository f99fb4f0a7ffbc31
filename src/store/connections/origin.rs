//! The address of a server: fixed by its URL, or looked up from sentinels or the nodes of a
//! cluster.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::error::{Error, ErrorKind, Result};
use crate::settings::LinkSettings;
use crate::store::connections::cluster::{Cluster, Node};
use crate::store::connections::fault::Fault;
use crate::store::connections::sentinel::Sentinels;
use crate::store::connections::url;

/// Finds the server for new connections. A clone shares the knowledge of the original.
#[derive(Clone)]
pub(crate) enum Origin {
    /// One address that never changes.
    Fixed(Box<redis::Client>),
    /// The primary that sentinels name; it moves at a fail-over.
    Sentinel(Arc<Sentinels>),
    /// The nodes of a cluster.
    Cluster(Arc<Cluster>),
    /// None: the jobs of this client are in memory.
    #[cfg(feature = "worker")]
    Absent,
}

/// The error of calls that need a Redis, on a client without one.
#[cfg(feature = "worker")]
pub(crate) fn no_redis() -> Error {
    Error::new(
        ErrorKind::Incompatible,
        "this client has its jobs in memory, for a rehearsal, and this call needs a Redis: test it \
         with the private one of `keyfall::embedded`",
    )
}

impl Origin {
    /// Parses the URL of one of several servers.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] as for [`parse`](Self::parse), and for a cluster.
    pub(in crate::store) fn parse_member(url: &str, settings: &LinkSettings) -> Result<Self> {
        match Origin::parse(url, settings)? {
            Origin::Cluster(_) => Err(Error::new(
                ErrorKind::InvalidSetting,
                "several Redis URLs are given, and one of them names a cluster; a cluster cannot \
                 be combined with other servers: name the cluster alone",
            )),
            origin => Ok(origin),
        }
    }

    /// Parses a URL. Opens no connection yet.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the URL is not valid.
    pub(in crate::store) fn parse(url: &str, settings: &LinkSettings) -> Result<Self> {
        if let Some(cluster) = Cluster::parse(url, settings)? {
            return Ok(Origin::Cluster(Arc::new(cluster)));
        }
        Ok(match Sentinels::parse(url, settings)? {
            Some(sentinels) => Origin::Sentinel(Arc::new(sentinels)),
            None => Origin::Fixed(Box::new(url::client(url, settings)?)),
        })
    }

    /// The client that opens new connections; on a cluster, connections to this node, or else to
    /// any node. Asks the sentinels at each call. Connections that were opened before the server
    /// has moved must not be used any more; [`moves`](Self::moves) tells.
    pub(crate) async fn client(&self, node: Option<&Node>) -> Result<redis::Client, Fault> {
        match self {
            Origin::Fixed(client) => Ok((**client).clone()),
            Origin::Sentinel(sentinels) => {
                // Boxed: else its type becomes part of the type of each future that calls Redis.
                let find: BoxFuture<'_, _> = Box::pin(sentinels.find());
                find.await
            }
            Origin::Cluster(cluster) => match node {
                Some(node) => cluster.client(node),
                None => cluster.client(&cluster.informants()[0]),
            },
            #[cfg(feature = "worker")]
            Origin::Absent => Err(Fault::refused(no_redis())),
        }
    }

    /// The same place, for use on another tokio runtime: a runtime that is blocked must not keep
    /// another one from hearing that the server has moved.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn apart(&self) -> Self {
        match self {
            Origin::Fixed(client) => Origin::Fixed(client.clone()),
            Origin::Sentinel(sentinels) => Origin::Sentinel(Arc::new(sentinels.apart())),
            // Its knowledge of the nodes is tied to no runtime.
            Origin::Cluster(cluster) => Origin::Cluster(cluster.clone()),
            Origin::Absent => Origin::Absent,
        }
    }

    /// How many times the server has moved, as far as sentinels said; always 0 without sentinels.
    pub(crate) fn moves(&self) -> u64 {
        match self {
            Origin::Sentinel(sentinels) => sentinels.moves(),
            _ => 0,
        }
    }

    /// The cluster, if it is one.
    pub(in crate::store) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Origin::Cluster(cluster) => Some(cluster),
            _ => None,
        }
    }

    /// Returns when [`moves`](Self::moves) differs from `since`; never without sentinels.
    pub(crate) async fn moved(&self, since: u64) {
        match self {
            Origin::Sentinel(sentinels) => sentinels.moved(since).await,
            _ => std::future::pending().await,
        }
    }

    /// True if another node can become the primary and be found: by sentinels, or on a cluster.
    pub(crate) fn can_move(&self) -> bool {
        matches!(self, Origin::Sentinel(_) | Origin::Cluster(_))
    }

    /// The current address, or the latest known one; without credentials.
    pub(crate) fn address(&self) -> String {
        match self {
            Origin::Fixed(client) => url::address(client.get_connection_info().addr()),
            Origin::Sentinel(sentinels) => sentinels.address(),
            Origin::Cluster(cluster) => cluster.address(),
            #[cfg(feature = "worker")]
            Origin::Absent => "memory".to_owned(),
        }
    }

    /// The number of the database; 0 on a cluster.
    pub(in crate::store) fn database(&self) -> i64 {
        match self {
            Origin::Fixed(client) => client.get_connection_info().redis_settings().db(),
            Origin::Sentinel(sentinels) => sentinels.database(),
            _ => 0,
        }
    }
}
