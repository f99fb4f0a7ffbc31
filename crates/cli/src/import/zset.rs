//! Jobs in a common layout: a sorted set of due times, and further data in other keys. The import
//! only reads them.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use redis::AsyncConnectionConfig;
use redis::aio::MultiplexedConnection;

use super::foreign::Fields;
use super::layout::Layout;
use super::{Batch, Read};
use crate::stop::Stop;

/// The time limit of the source: it may be busy, and the calls are large.
const PATIENCE: Duration = Duration::from_secs(30);

/// The approximate number of members of one read.
const MEMBERS: usize = 500;

pub(super) struct Zset {
    redis: MultiplexedConnection,
    due_key: String,
    layout: Layout,
    /// The cursor of `ZSCAN`; `None` when all members were read.
    cursor: Option<u64>,
    /// The number of members at the start of the import.
    pub(super) size: u64,
}

impl Zset {
    pub(super) async fn open(
        source: &redis::Client,
        due_key: String,
        layout: Layout,
        after: Option<&str>,
    ) -> anyhow::Result<Self> {
        let cursor = match after {
            Some("end") => None,
            text => Some(text.unwrap_or("0").parse().map_err(|_| {
                Stop::wrong("`--cursor` is not a place: use one that such an import printed")
            })?),
        };
        let mut redis = connect(source).await?;
        for (key, wanted) in [(&*due_key, "zset")].into_iter().chain(layout.needs()) {
            let found: String = redis::cmd("TYPE").arg(key).query_async(&mut redis).await?;
            match found.as_str() {
                "none" => bail!(Stop::absent(format!(
                    "there is no key {key} to import from"
                ))),
                found if found != wanted => {
                    bail!("the key {key} is a {found}, and it has to be a {wanted}")
                }
                _ => {}
            }
        }
        let size = redis::cmd("ZCARD")
            .arg(&due_key)
            .query_async(&mut redis)
            .await?;
        Ok(Zset {
            redis,
            due_key,
            layout,
            cursor,
            size,
        })
    }

    /// `ZSCAN` returns all members that stay during the scan; some come twice, and their jobs exist
    /// by then.
    pub(super) async fn next(&mut self) -> anyhow::Result<Option<Batch>> {
        let Some(cursor) = self.cursor else {
            return Ok(None);
        };
        let (next, members): (u64, Vec<(Vec<u8>, f64)>) = redis::cmd("ZSCAN")
            .arg(&self.due_key)
            .arg(cursor)
            .arg("COUNT")
            .arg(MEMBERS)
            .query_async(&mut self.redis)
            .await?;
        let mut calls = redis::pipe();
        for (member, _) in &members {
            if let Some(call) = self.layout.ask(member) {
                calls.add_command(call);
            }
        }
        let mut kept = vec![Fields::new(); members.len()];
        if !calls.is_empty() {
            kept = calls.query_async(&mut self.redis).await?;
        }
        self.cursor = (next != 0).then_some(next);
        let size = members.len();
        let read = |((member, score), kept): ((Vec<u8>, f64), Fields)| {
            Some(Read {
                place: format!(
                    "the member {}",
                    String::from_utf8_lossy(&member).escape_debug()
                ),
                job: self.layout.entry(&member, score, &kept)?,
            })
        };
        Ok(Some(Batch {
            jobs: members.into_iter().zip(kept).filter_map(read).collect(),
            after: self
                .cursor
                .map_or("end".to_owned(), |next| next.to_string()),
            size,
        }))
    }

    /// The number of jobs beside the sorted set, by the reason why they are left out.
    pub(super) async fn others(&mut self) -> anyhow::Result<BTreeMap<String, u64>> {
        match &self.layout {
            Layout::Foreign(delayed) => delayed.others(&mut self.redis).await,
            Layout::Hash { .. } | Layout::Classic(_) => Ok(BTreeMap::new()),
        }
    }
}

pub(super) async fn connect(source: &redis::Client) -> anyhow::Result<MultiplexedConnection> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(PATIENCE))
        .set_response_timeout(Some(PATIENCE));
    let connected = source.get_multiplexed_async_connection_with_config(&config);
    connected
        .await
        .context("the Redis to import from cannot be reached")
}
