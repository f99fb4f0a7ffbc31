//! Streams: entries that others read and acknowledge, and what their group says of them.

use std::time::Duration;

use redis::Value;

use super::script::{APPEND, JOIN, LOOK, PAGE};
use super::{EntryId, KeyContext, TargetRedis, WriteRetry};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Names;
use crate::store::from_value;

/// How many entries that are read and not acknowledged one look shows.
const PENDING: usize = 1000;

/// About how many notes one step of a scan shows.
const NOTES: usize = 100;

/// How an entry stands with its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryStatus {
    Unread,
    /// By whom, and for how long.
    Read {
        consumer: String,
        idle: Duration,
    },
    /// It may be deleted by now.
    Acknowledged,
    /// It was trimmed or deleted before anybody read it, or its server has forgotten it; or nobody
    /// can tell.
    Unproven,
}

/// What a look is to say of an entry.
pub(crate) struct EntryQuery {
    pub(crate) id: EntryId,
    pub(crate) lease: String,
    /// Whether it is looked for even if an older one is there that nobody has read either.
    pub(crate) is_sought: bool,
}

/// An entry of a stream: its id, and the lease that it holds, if it does and its job has not ended
/// as far as the group knows.
pub(crate) type StreamEntry = (EntryId, Option<String>);

impl TargetRedis {
    /// Appends an entry to a stream, of which about so many are kept.
    pub(crate) async fn add(
        &self,
        stream: &str,
        keep: u64,
        fields: &[(&str, Vec<u8>)],
    ) -> Result<()> {
        let added = self.append_entry(stream, None, keep, fields, WriteRetry::Again);
        added.await.map(drop)
    }

    /// The same with a lease that is ended in a group, and a note that it was written.
    pub(crate) async fn append(
        &self,
        stream: &str,
        group: &str,
        keep: u64,
        lease: &str,
        fields: &[(&str, Vec<u8>)],
    ) -> Result<EntryId> {
        let tied = Some((group, lease));
        loop {
            let added = self.append_entry(stream, tied, keep, fields, WriteRetry::Once);
            if let Some(id) = added.await? {
                return parse(&id);
            }
            self.make_group(stream, group).await?;
        }
    }

    /// `None` if there is no such group that has notes, and nothing was written.
    async fn append_entry(
        &self,
        stream: &str,
        tied: Option<(&str, &str)>,
        keep: u64,
        fields: &[(&str, Vec<u8>)],
        writes: WriteRetry,
    ) -> Result<Option<String>> {
        let (group, lease) = tied.unzip();
        let mut groups: Vec<Vec<u8>> = group.into_iter().map(Vec::from).collect();
        let others = self.groups.lock().expect("no panic while held").clone();
        groups.extend(
            others
                .into_iter()
                .filter(|name| Some(&**name) != group.map(str::as_bytes)),
        );
        // On a cluster nobody acknowledges in a stream whose notes are elsewhere. The names of our
        // groups are text.
        let written = groups
            .iter()
            .filter_map(|name| std::str::from_utf8(name).ok());
        let written: Vec<String> = written.map(|group| Names::written(stream, group)).collect();
        let beside = written.iter().map(|key| &**key);
        let beside = beside.filter(|key| self.keeps_together(&[stream, key]));
        let keys: Vec<&str> = [stream].into_iter().chain(beside).collect();
        let args = (keep, lease.unwrap_or(""), groups.len(), groups, fields);
        let added: Option<(String, Vec<Vec<u8>>)> = self
            .run(&place(stream), &APPEND, &keys, &args, writes)
            .await?;
        Ok(added.map(|(id, groups)| {
            if !groups.is_empty() {
                *self.groups.lock().expect("no panic while held") = groups;
            }
            id
        }))
    }

    /// Makes the group, if there is none, and the stream with it. It begins where entries are
    /// that were not settled.
    pub(crate) async fn make_group(&self, stream: &str, group: &str) -> Result<()> {
        let written = Names::written(stream, group);
        let settled = Names::settled(stream, group);
        let keys = [stream, &written, &settled];
        let consumer = format!("keyfall-{:016x}", rand::random::<u64>());
        let args = (group, consumer);
        self.run(&place(stream), &JOIN, &keys, &args, WriteRetry::Again)
            .await
    }

    /// How entries, given in their order, stand with a group. The last ones are left out if too many
    /// are pending to tell. `None` if there is no such group, or no stream.
    pub(crate) async fn look(
        &self,
        stream: &str,
        group: &str,
        asked: &[EntryQuery],
    ) -> Result<Option<Vec<EntryStatus>>> {
        let written = Names::written(stream, group);
        let keys = [stream, &written];
        let each = |one: &EntryQuery| {
            let sought = u8::from(one.is_sought).to_string();
            [one.id.to_string(), one.lease.clone(), sought]
        };
        let asked: Vec<String> = asked.iter().flat_map(each).collect();
        let args = (group, PENDING, asked);
        let rows: Option<Vec<Vec<Value>>> = self
            .run(&place(stream), &LOOK, &keys, &args, WriteRetry::Again)
            .await?;
        rows.map(|rows| rows.into_iter().map(standing).collect())
            .transpose()
    }

    /// The entries that were written and whose jobs have not ended, as far as is noted, with their
    /// leases.
    pub(crate) async fn written(
        &self,
        stream: &str,
        group: &str,
    ) -> Result<Vec<(EntryId, String)>> {
        let key = Names::written(stream, group);
        let (mut notes, mut cursor) = (Vec::new(), 0_u64);
        loop {
            let mut cmd = redis::cmd("HSCAN");
            cmd.arg(&key).arg(cursor).arg("COUNT").arg(NOTES);
            let rows: Vec<(String, String)>;
            (cursor, rows) = self.ask(&hash(&key), &cmd).await?;
            // Two of them are no entries.
            let entries = rows.into_iter();
            notes.extend(entries.filter_map(|(id, lease)| Some((id.parse().ok()?, lease))));
            if cursor == 0 {
                notes.sort_unstable();
                notes.dedup();
                return Ok(notes);
            }
        }
    }

    /// The entries that follow this one, or the first ones.
    pub(crate) async fn entries(
        &self,
        stream: &str,
        group: &str,
        after: EntryId,
        most: usize,
    ) -> Result<Vec<StreamEntry>> {
        let written = Names::written(stream, group);
        let keys = [stream, &written];
        let args = (group, after.to_string(), most);
        let rows: Vec<(String, Vec<u8>)> = self
            .run(&place(stream), &PAGE, &keys, &args, WriteRetry::Again)
            .await?;
        let entry = |(id, lease): (String, Vec<u8>)| {
            let lease = String::from_utf8(lease).ok();
            Ok((parse(&id)?, lease.filter(|lease| !lease.is_empty())))
        };
        rows.into_iter().map(entry).collect()
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

    /// Deletes entries that nobody is to read. They are forgotten before, so that none is taken
    /// for one that was read.
    pub(crate) async fn withdraw(&self, stream: &str, group: &str, ids: &[EntryId]) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        self.forget_written(stream, group, ids).await?;
        let mut cmd = redis::cmd("XDEL");
        cmd.arg(stream).arg(texts(ids));
        self.ask(&place(stream), &cmd).await
    }

    /// Removes the notes of entries whose jobs have ended.
    pub(crate) async fn forget_written(
        &self,
        stream: &str,
        group: &str,
        ids: &[EntryId],
    ) -> Result<()> {
        if ids.is_empty() {
            return Ok(());
        }
        let key = Names::written(stream, group);
        let mut cmd = redis::cmd("HDEL");
        cmd.arg(&key).arg(texts(ids));
        self.ask(&hash(&key), &cmd).await
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
}

fn standing(row: Vec<Value>) -> Result<EntryStatus> {
    let mut row = row.into_iter();
    let word: String = from_value(row.next().unwrap_or(Value::Nil))?;
    match (&*word, row.next(), row.next()) {
        ("unread", ..) => Ok(EntryStatus::Unread),
        ("read", Some(consumer), Some(idle)) => Ok(EntryStatus::Read {
            consumer: from_value(consumer)?,
            idle: Duration::from_millis(from_value(idle)?),
        }),
        ("acknowledged", ..) => Ok(EntryStatus::Acknowledged),
        ("unproven", ..) => Ok(EntryStatus::Unproven),
        _ => {
            let text = format!("the stream answered {word:?}, which is no state of an entry");
            Err(Error::new(ErrorKind::Damaged, text))
        }
    }
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

fn place(key: &str) -> KeyContext<'_> {
    KeyContext {
        what: "stream",
        key,
    }
}

fn of_string(key: &str) -> KeyContext<'_> {
    KeyContext {
        what: "string",
        key,
    }
}

fn hash(key: &str) -> KeyContext<'_> {
    KeyContext { what: "hash", key }
}
