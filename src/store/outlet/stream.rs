//! Streams: entries that others read and acknowledge, and what their group says of them.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use super::{EntryId, Outlet, Place, Writes};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Names;
use crate::store::from_value;

/// How many entries that are read and not acknowledged one look shows.
const PENDING: usize = 1000;

/// How an entry stands with its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Standing {
    Unread,
    /// By whom, and for how long.
    Read {
        consumer: String,
        idle: Duration,
    },
    /// Or whoever owns the stream has deleted it, which is as good.
    Acknowledged,
    /// Nobody can tell whether it was read.
    Trimmed,
}

/// What a group said of a range of entries.
pub(crate) struct Look {
    last_delivered: EntryId,
    pending: HashMap<EntryId, (String, Duration)>,
    /// Up to where it is known what is pending; no end, if it is `None`.
    known_to: Option<EntryId>,
    /// The oldest entry, where some may have been trimmed away.
    oldest: Option<EntryId>,
}

/// An entry of a stream: its id, and the lease that it holds, if it does.
pub(crate) type Entry = (EntryId, Option<String>);

impl Outlet {
    /// Appends an entry to a stream, of which about so many are kept.
    pub(crate) async fn add(
        &self,
        stream: &str,
        keep: u64,
        fields: &[(&str, Vec<u8>)],
        writes: Writes,
    ) -> Result<EntryId> {
        let mut cmd = redis::cmd("XADD");
        cmd.arg(stream).arg("MAXLEN").arg("~").arg(keep).arg("*");
        for (name, value) in fields {
            cmd.arg(name).arg(value);
        }
        let id: String = self.write(&place(stream), &cmd, writes).await?;
        parse(&id)
    }

    /// Makes the group, if there is none, and the stream with it. It begins where entries are
    /// that were not settled.
    pub(crate) async fn make_group(&self, stream: &str, group: &str) -> Result<()> {
        let begin = self.settled_to(stream, group).await?;
        let mut pipeline = redis::pipe();
        pipeline.ignore_errors().cmd("XGROUP");
        pipeline.arg("CREATE").arg(stream).arg(group);
        pipeline.arg(begin.to_string()).arg("MKSTREAM");
        let answers: Vec<Value> = self.ask_many(&place(stream), &pipeline).await?;
        match answers.into_iter().next() {
            Some(Value::ServerError(error)) if error.code() == "BUSYGROUP" => Ok(()),
            Some(answer) => self.refused(stream, answer).map(drop),
            None => Ok(()),
        }
    }

    /// What a group says of the entries from the first to the last; `None` if there is no such
    /// group, or no stream.
    pub(crate) async fn look(
        &self,
        stream: &str,
        group: &str,
        keep: u64,
        (first, last): (EntryId, EntryId),
    ) -> Result<Option<Look>> {
        let mut pipeline = redis::pipe();
        // In this order: what was delivered by then, and is not pending now, is acknowledged.
        pipeline.ignore_errors();
        pipeline.cmd("XINFO").arg("GROUPS").arg(stream);
        pipeline.cmd("XPENDING").arg(stream).arg(group);
        pipeline
            .arg(first.to_string())
            .arg(last.to_string())
            .arg(PENDING);
        pipeline.cmd("XLEN").arg(stream);
        let answers: [Value; 3] = self.ask_many(&place(stream), &pipeline).await?;
        let [groups, pending, length] = answers;
        if [&groups, &pending].into_iter().any(is_absent) {
            return Ok(None);
        }
        let groups: Vec<HashMap<String, Value>> = from_value(self.refused(stream, groups)?)?;
        let Some(last_delivered) = last_delivered(groups, group)? else {
            return Ok(None);
        };
        type Row = (String, String, u64, u64);
        let rows: Vec<Row> = from_value(self.refused(stream, pending)?)?;
        let is_all = rows.len() < PENDING;
        let mut pending = HashMap::with_capacity(rows.len());
        let mut known_to = first;
        for (id, consumer, idle, _) in rows {
            known_to = parse(&id)?;
            pending.insert(known_to, (consumer, Duration::from_millis(idle)));
        }
        let length: u64 = from_value(self.refused(stream, length)?)?;
        // Below that nothing was trimmed, and what is not there was deleted on purpose.
        let oldest = match length >= keep {
            true => self
                .entries(stream, None, 1)
                .await?
                .first()
                .map(|entry| entry.0),
            false => None,
        };
        Ok(Some(Look {
            last_delivered,
            pending,
            known_to: (!is_all).then_some(known_to),
            oldest,
        }))
    }

    /// The entries that follow this one, or the first ones.
    pub(crate) async fn entries(
        &self,
        stream: &str,
        after: Option<EntryId>,
        most: usize,
    ) -> Result<Vec<Entry>> {
        let from = after.map_or("-".to_owned(), |after| format!("({after}"));
        let mut cmd = redis::cmd("XRANGE");
        cmd.arg(stream).arg(from).arg("+").arg("COUNT").arg(most);
        type Row = (String, Vec<(Vec<u8>, Vec<u8>)>);
        let rows: Vec<Row> = self.ask(&place(stream), &cmd).await?;
        let entry = |(id, fields): Row| {
            let lease = fields.into_iter().find(|(name, _)| name == b"lease");
            let lease = lease.and_then(|(_, lease)| String::from_utf8(lease).ok());
            Ok((parse(&id)?, lease))
        };
        rows.into_iter().map(entry).collect()
    }

    /// Which of these entries are there.
    pub(crate) async fn present(&self, stream: &str, ids: &[EntryId]) -> Result<Vec<bool>> {
        // Nothing answers an empty pipeline.
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipeline = redis::pipe();
        for id in ids {
            let id = id.to_string();
            pipeline.cmd("XRANGE").arg(stream).arg(&id).arg(&id);
        }
        let rows: Vec<Vec<Value>> = self.ask_many(&place(stream), &pipeline).await?;
        Ok(rows.iter().map(|row| !row.is_empty()).collect())
    }

    /// Acknowledges entries on behalf of whoever read them.
    pub(crate) async fn acknowledge(
        &self,
        stream: &str,
        group: &str,
        ids: &[EntryId],
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("XACK");
        cmd.arg(stream).arg(group).arg(texts(ids));
        self.ask(&place(stream), &cmd).await
    }

    /// Deletes entries that nobody is to read.
    pub(crate) async fn withdraw(&self, stream: &str, ids: &[EntryId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let mut cmd = redis::cmd("XDEL");
        cmd.arg(stream).arg(texts(ids));
        self.ask(&place(stream), &cmd).await
    }

    /// No entry up to this one has to be looked at any more.
    pub(crate) async fn settled_to(&self, stream: &str, group: &str) -> Result<EntryId> {
        let key = Names::settled(stream, group);
        let id: Option<String> = self
            .ask(&of_string(&key), redis::cmd("GET").arg(&key))
            .await?;
        // What does not parse was put there by somebody else, and all is looked at again.
        Ok(id.and_then(|id| id.parse().ok()).unwrap_or_default())
    }

    pub(crate) async fn settle_to(&self, stream: &str, group: &str, id: EntryId) -> Result<()> {
        let key = Names::settled(stream, group);
        let mut cmd = redis::cmd("SET");
        cmd.arg(&key).arg(id.to_string());
        self.ask(&of_string(&key), &cmd).await
    }

    /// Whether it is up to this caller to look after all entries, for so long; if others want to
    /// as well, it is one of them.
    pub(crate) async fn takes_turn(
        &self,
        stream: &str,
        group: &str,
        length: Duration,
    ) -> Result<bool> {
        let key = Names::sweep(stream, group);
        let mut cmd = redis::cmd("SET");
        let ms = length.as_millis() as u64;
        cmd.arg(&key).arg(1).arg("NX").arg("PX").arg(ms);
        let taken: Option<String> = self.ask(&of_string(&key), &cmd).await?;
        Ok(taken.is_some())
    }

    /// An answer within a pipeline whose errors were not looked at so far.
    fn refused(&self, stream: &str, answer: Value) -> Result<Value> {
        answer.extract_error().map_err(|error| {
            let fault = super::Fault::from_redis(error, &self.address());
            self.explained(&place(stream), fault)
        })
    }
}

impl Look {
    /// How an entry of that range stands; `None` if too many are pending to tell.
    pub(crate) fn standing(&self, id: EntryId) -> Option<Standing> {
        if id > self.last_delivered {
            return Some(Standing::Unread);
        }
        if let Some((consumer, idle)) = self.pending.get(&id) {
            return Some(Standing::Read {
                consumer: consumer.clone(),
                idle: *idle,
            });
        }
        if self.known_to.is_some_and(|end| id > end) {
            return None;
        }
        if self.oldest.is_some_and(|oldest| id < oldest) {
            return Some(Standing::Trimmed);
        }
        Some(Standing::Acknowledged)
    }
}

/// How far a group has read; `None` if there is no such group.
fn last_delivered(groups: Vec<HashMap<String, Value>>, name: &str) -> Result<Option<EntryId>> {
    for mut group in groups {
        let mut text =
            |field: &str| from_value::<String>(group.remove(field).unwrap_or(Value::Nil));
        if text("name")? == name {
            return parse(&text("last-delivered-id")?).map(Some);
        }
    }
    Ok(None)
}

/// There is no such group, or no such key.
fn is_absent(answer: &Value) -> bool {
    let Value::ServerError(error) = answer else {
        return false;
    };
    let is_missing_key = |text: &str| text.contains("no such key");
    error.code() == "NOGROUP" || error.details().is_some_and(is_missing_key)
}

fn parse(id: &str) -> Result<EntryId> {
    id.parse().map_err(|()| {
        let text = format!("the stream answered {id:?}, which is no id of an entry");
        Error::new(ErrorKind::Damaged, text)
    })
}

fn texts(ids: &[EntryId]) -> Vec<String> {
    ids.iter().map(EntryId::to_string).collect()
}

fn place(key: &str) -> Place<'_> {
    Place {
        what: "stream",
        key,
    }
}

fn of_string(key: &str) -> Place<'_> {
    Place {
        what: "string",
        key,
    }
}
