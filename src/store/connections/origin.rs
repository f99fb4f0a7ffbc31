//! Where a server is.

use std::sync::Arc;

use futures_util::future::BoxFuture;

use crate::error::{Error, ErrorKind, Result};
use crate::settings::LinkSettings;
use crate::store::connections::cluster::{Cluster, Node};
use crate::store::connections::fault::Fault;
use crate::store::connections::sentinel::Sentinels;
use crate::store::connections::url;

/// Where a server is: always in one place, or where sentinels say that the primary is. Or the
/// nodes of a cluster.
#[derive(Clone)]
pub(crate) enum Origin {
    Fixed(Box<redis::Client>),
    Sentinel(Arc<Sentinels>),
    Cluster(Arc<Cluster>),
}

impl Origin {
    /// The same for one of several servers.
    pub(in crate::store) fn parse_member(url: &str, settings: &LinkSettings) -> Result<Self> {
        match Origin::parse(url, settings)? {
            Origin::Cluster(_) => Err(Error::new(
                ErrorKind::InvalidSetting,
                "several Redis URLs are given, and one of them is that of a cluster, which takes \
                 no other servers beside it: name the cluster alone",
            )),
            origin => Ok(origin),
        }
    }

    /// Where `url` says. Opens nothing yet.
    pub(in crate::store) fn parse(url: &str, settings: &LinkSettings) -> Result<Self> {
        if let Some(cluster) = Cluster::parse(url, settings)? {
            return Ok(Origin::Cluster(Arc::new(cluster)));
        }
        Ok(match Sentinels::parse(url, settings)? {
            Some(sentinels) => Origin::Sentinel(Arc::new(sentinels)),
            None => Origin::Fixed(Box::new(url::client(url, settings)?)),
        })
    }

    /// By which connections are opened now; of a cluster, those to this node, or else to some
    /// node. What was opened before is to be used no more if it
    /// has moved since; [`moves`](Self::moves) says so.
    pub(crate) async fn client(&self, node: Option<&Node>) -> Result<redis::Client, Fault> {
        match self {
            Origin::Fixed(client) => Ok((**client).clone()),
            Origin::Sentinel(sentinels) => {
                // Its type is not to be a part of that of every future that calls Redis.
                let find: BoxFuture<'_, _> = Box::pin(sentinels.find());
                find.await
            }
            Origin::Cluster(cluster) => match node {
                Some(node) => cluster.client(node),
                None => cluster.client(&cluster.informants()[0]),
            },
        }
    }

    /// The same place, for a runtime of its own: one that is blocked must not keep another one
    /// from hearing that it has moved.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn apart(&self) -> Self {
        match self {
            Origin::Fixed(client) => Origin::Fixed(client.clone()),
            Origin::Sentinel(sentinels) => Origin::Sentinel(Arc::new(sentinels.apart())),
            // What it knows of the nodes is no business of a runtime.
            Origin::Cluster(cluster) => Origin::Cluster(cluster.clone()),
        }
    }

    /// How often it was heard so far that the server is somewhere else.
    pub(crate) fn moves(&self) -> u64 {
        match self {
            Origin::Fixed(_) | Origin::Cluster(_) => 0,
            Origin::Sentinel(sentinels) => sentinels.moves(),
        }
    }

    /// The cluster, if it is one.
    pub(in crate::store) fn cluster(&self) -> Option<&Arc<Cluster>> {
        match self {
            Origin::Cluster(cluster) => Some(cluster),
            Origin::Fixed(_) | Origin::Sentinel(_) => None,
        }
    }

    /// Returns when it has moved since it had moved so often.
    pub(crate) async fn moved(&self, since: u64) {
        match self {
            Origin::Fixed(_) | Origin::Cluster(_) => std::future::pending().await,
            Origin::Sentinel(sentinels) => sentinels.moved(since).await,
        }
    }

    /// Whether somebody says where the primary is.
    pub(crate) fn can_move(&self) -> bool {
        !matches!(self, Origin::Fixed(_))
    }

    /// Where it is, or was the last time; without credentials.
    pub(crate) fn address(&self) -> String {
        match self {
            Origin::Fixed(client) => url::address(client.get_connection_info().addr()),
            Origin::Sentinel(sentinels) => sentinels.address(),
            Origin::Cluster(cluster) => cluster.address(),
        }
    }

    /// The number of the database.
    pub(in crate::store) fn database(&self) -> i64 {
        match self {
            Origin::Fixed(client) => client.get_connection_info().redis_settings().db(),
            Origin::Sentinel(sentinels) => sentinels.database(),
            Origin::Cluster(_) => 0,
        }
    }
}
