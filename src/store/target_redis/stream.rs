//! Streams: entries that consumers read and acknowledge through a group, and the state of each
//! entry in that group.
//!
//! A group of ours has a hash beside the stream, which notes the lease of each entry until the job
//! has ended.

use std::time::Duration;

use redis::Value;

use super::script::{APPEND, JOIN, LOOK, PAGE};
use super::{EntryId, KeyContext, TargetRedis, WriteRetry};
use crate::error::{Error, ErrorKind, Result};
use crate::names::Names;
use crate::store::from_value;

/// The most pending entries, read and not acknowledged, that one look returns.
const PENDING: usize = 1000;

/// About how many notes one step of a scan returns.
const NOTES: usize = 100;

/// The state of an entry in its group. `Unread` means that it is there and that no consumer has read
/// it, as far as was looked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum EntryStatus {
    Unread,
    /// A consumer has read it, and not acknowledged it for this long.
    Read {
        consumer: String,
        idle: Duration,
    },
    /// A consumer has acknowledged it. It may be deleted by now.
    Acknowledged,
    /// Nothing shows that it was read, and no consumer will read it: it was trimmed or deleted
    /// before, or its server has lost it.
    Unproven,
}

/// A question about one entry.
pub(crate) struct EntryQuery {
    /// The id of the entry.
    pub(crate) id: EntryId,
    /// The lease that the entry holds.
    pub(crate) lease: String,
    /// True to search for it even behind an older unread entry.
    pub(crate) is_sought: bool,
}

/// An entry of a stream: its id, and the lease that it holds; no lease if it never had one, or the
/// group has noted that its job has ended.
pub(crate) type StreamEntry = (EntryId, Option<String>);

impl TargetRedis {
    /// Appends an entry to a stream, which is trimmed to roughly `keep` entries.
    pub(crate) async fn add(
        &self,
        stream: &str,
        keep: u64,
        fields: &[(&str, Vec<u8>)],
    ) -> Result<()> {
        let added = self.append_entry(stream, None, keep, fields, WriteRetry::Again);
        added.await.map(drop)
    }

    /// As [`add`](Self::add), for an entry that ends its job when a consumer of the group
    /// acknowledges it. Notes the entry as written, and creates the group if there is none. Returns
    /// the id of the entry.
    ///
    /// # Errors
    /// [`OutcomeUnknown`](ErrorKind::OutcomeUnknown) if the entry may have been written.
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

    /// Returns the id of the entry; `None` if the group has no hash of notes, and nothing was
    /// written.
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
        // On a cluster no consumer acknowledges in a stream whose notes are on another node. The
        // names of our groups are text.
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

    /// Makes the group if there is none, and the stream with it. It begins at the first entry that
    /// was not settled.
    pub(crate) async fn make_group(&self, stream: &str, group: &str) -> Result<()> {
        let written = Names::written(stream, group);
        let settled = Names::settled(stream, group);
        let keys = [stream, &written, &settled];
        let consumer = format!("keyfall-{:016x}", rand::random::<u64>());
        let args = (group, consumer);
        self.run(&place(stream), &JOIN, &keys, &args, WriteRetry::Again)
            .await
    }

    /// The states of entries. `asked` and the result are in the order of the ids. If too many
    /// entries are pending, the last entries are left out. `None` if there is no such group, or no
    /// stream.
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

    /// The entries that are noted as written, whose jobs have not ended, with their leases; by id.
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
            // Two of the fields are not entries.
            let entries = rows.into_iter();
            notes.extend(entries.filter_map(|(id, lease)| Some((id.parse().ok()?, lease))));
            if cursor == 0 {
                notes.sort_unstable();
                notes.dedup();
                return Ok(notes);
            }
        }
    }

    /// At most `most` entries behind the entry `after`; the default id means the first ones.
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

    /// Acknowledges entries in place of their consumers.
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

    /// Deletes entries that no consumer is to read. Their notes are removed first, so that none of
    /// them is taken for an entry that was read.
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

    /// The id up to which no entry has to be looked at any more.
    pub(crate) async fn settled_to(&self, stream: &str, group: &str) -> Result<EntryId> {
        let key = Names::settled(stream, group);
        let id: Option<String> = self
            .ask(&of_string(&key), redis::cmd("GET").arg(&key))
            .await?;
        // Other programs may write to this key; then all entries are looked at again.
        Ok(id.and_then(|id| id.parse().ok()).unwrap_or_default())
    }

    /// Stores that id.
    pub(crate) async fn settle_to(&self, stream: &str, group: &str, id: EntryId) -> Result<()> {
        let key = Names::settled(stream, group);
        let mut cmd = redis::cmd("SET");
        cmd.arg(&key).arg(id.to_string());
        self.ask(&of_string(&key), &cmd).await
    }

    /// Takes the turn to look after all entries, for `length`. Returns true if this instance got
    /// it; no other instance gets it meanwhile.
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

/// Decodes the state of one entry.
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
            let text = format!("the stream answered {word:?}, which is not a state of an entry");
            Err(Error::new(ErrorKind::Damaged, text))
        }
    }
}

/// Parses an id from the server.
fn parse(id: &str) -> Result<EntryId> {
    id.parse().map_err(|()| {
        let text = format!("the stream answered {id:?}, which is not an id of an entry");
        Error::new(ErrorKind::Damaged, text)
    })
}

fn texts(ids: &[EntryId]) -> Vec<String> {
    ids.iter().map(EntryId::to_string).collect()
}

/// Names a stream in errors.
fn place(key: &str) -> KeyContext<'_> {
    KeyContext {
        what: "stream",
        key,
    }
}

/// Names a string in errors.
fn of_string(key: &str) -> KeyContext<'_> {
    KeyContext {
        what: "string",
        key,
    }
}

/// Names a hash in errors.
fn hash(key: &str) -> KeyContext<'_> {
    KeyContext { what: "hash", key }
}
