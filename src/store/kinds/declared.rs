//! The recurring jobs that a configuration declares: fields `declared name key` of `keyfall:meta`,
//! each with a digest of its definition. Every server has all of them.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::error::Result;
use crate::key::JobKey;
use crate::store::{Server, Store, from_value};

/// The field of a job. Neither a name nor a key contains a blank.
fn field(name: &str, key: &str) -> String {
    format!("declared {name} {key}")
}

impl Store {
    /// The digests by key of the jobs that were declared under this name, of the servers that are
    /// there.
    pub(crate) async fn declared(
        &self,
        name: &str,
        until: Instant,
    ) -> Result<BTreeMap<String, String>> {
        let prefix = field(name, "");
        let found = self.on_each(until, |it, until| {
            let prefix = prefix.clone();
            Box::pin(async move { it.declared(&prefix, until).await })
        });
        Ok(found
            .await
            .of_those_there()?
            .into_iter()
            .flatten()
            .collect())
    }

    /// Notes a declared job, or forgets it if there is no digest.
    pub(crate) async fn note_declared(
        &self,
        name: &str,
        key: &str,
        digest: Option<&str>,
        until: Instant,
    ) -> Result<()> {
        let field = field(name, key);
        let noted = self.on_each(until, |it, until| {
            let mut cmd = redis::cmd(if digest.is_some() { "HSET" } else { "HDEL" });
            cmd.arg(it.names.meta()).arg(&field).arg(digest);
            Box::pin(async move { it.command(&cmd, until).await })
        });
        noted.await.of_those_there().map(drop)
    }
}

impl Server {
    async fn declared(&self, prefix: &str, until: Instant) -> Result<Vec<(String, String)>> {
        let mut get = redis::cmd("HGETALL");
        get.arg(self.names.meta());
        let all: Vec<(Vec<u8>, Vec<u8>)> = from_value(self.command(&get, until).await?)?;
        let read = |(field, digest): (Vec<u8>, Vec<u8>)| {
            let key = std::str::from_utf8(&field).ok()?.strip_prefix(prefix)?;
            JobKey::parse(key).ok()?;
            Some((key.to_owned(), String::from_utf8(digest).ok()?))
        };
        Ok(all.into_iter().filter_map(read).collect())
    }
}
