//! The records of ended jobs that wait for an archive.

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures_util::future::join_all;

use super::changes::Shards;
use super::partial::PartialView;
use crate::client::{Client, Unseen};
use crate::error::Result;
use crate::headers::Headers;
use crate::key::{JobKey, Kind};
use crate::record::{Record, RecordFault};
use crate::store::{EndedPage, EndsList, EndsRead};
use crate::time::{UnixMs, UnixUs};

/// How a job ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum JobEnd {
    /// Its run ended well.
    Done,
    /// It ended without a run, because it was too late.
    Skipped,
    /// It was cancelled.
    Cancelled,
    /// A newer schedule of its name took its place.
    Replaced,
    /// It became a dead letter.
    Buried,
}

impl JobEnd {
    /// All of them.
    pub const ALL: [JobEnd; 5] = [
        JobEnd::Done,
        JobEnd::Skipped,
        JobEnd::Cancelled,
        JobEnd::Replaced,
        JobEnd::Buried,
    ];

    /// The word for it, such as `done`.
    pub fn as_str(self) -> &'static str {
        match self {
            JobEnd::Done => "done",
            JobEnd::Skipped => "skipped",
            JobEnd::Cancelled => "cancelled",
            JobEnd::Replaced => "replaced",
            JobEnd::Buried => "buried",
        }
    }

    /// The end with this word.
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|end| end.as_str() == word)
    }
}

/// The record that a job left when it ended; from [`Client::ended`].
///
/// [`ended_at`](Self::ended_at), [`key`](Self::key) and [`accepted_at`](Self::accepted_at) together
/// identify it: a job that was requeued ends twice, at different times.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct EndedJob {
    /// The key of the job.
    pub key: JobKey,
    /// How it ended.
    pub end: JobEnd,
    /// When it ended, to the microsecond, by Redis' clock.
    pub ended_at: SystemTime,
    /// When it was accepted, to the microsecond.
    pub accepted_at: SystemTime,
    /// When it was due, before its last run if it had one. `None` if an audit found no due time.
    pub due_at: Option<SystemTime>,
    /// When its last run was claimed; `None` without a run.
    pub begun_at: Option<SystemTime>,
    /// How many attempts were made.
    pub attempts: u32,
    /// The process that ended it, `host:process`: of a run, its worker.
    pub by: String,
    /// The reason why it became a dead letter, or the error of the last failed attempt.
    pub error: Option<String>,
    /// Its headers.
    pub headers: Headers,
    /// The payload; `None` if it was not asked for, or was longer than
    /// [asked for](crate::ArchiveTerms::payload).
    pub payload: Option<Bytes>,
    /// The length of the payload, in bytes.
    pub payload_bytes: u64,
    /// The [fencing value](crate::Job::fence) of its last run.
    pub fence: Option<u64>,
    /// The number of the dead letter that it became.
    pub letter: Option<u64>,
    /// The time that the rule of a recurring job named.
    pub occurrence_at: Option<SystemTime>,
    /// The first line of its stored record, JSON: policy, attempts, headers.
    pub header: String,
    /// For how many months an archive keeps it; 0 for ever.
    pub keep_months: u16,
}

/// The records of a kind that wait for an archive; from [`Client::ended`].
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct EndedJobs {
    /// The oldest records of each shard.
    pub jobs: Vec<EndedJob>,
    /// Records that another program has damaged. They are removed with the others.
    pub unreadable: Vec<Bytes>,
    /// Records of a newer version, one of each list that has any. What lies behind one is left for an
    /// archive of that version.
    pub newer: Vec<Bytes>,
    /// How many records wait in all.
    pub waiting: u64,
    /// Their size, in bytes.
    pub waiting_bytes: u64,
    /// How many records were dropped because too many waited, ever since the kind began.
    pub dropped: u64,
    /// Whether jobs of the kind leave records in each of its shards.
    pub is_archived: bool,
    /// The shards that could not be read, because one of several servers was away.
    pub unseen: Vec<Unseen>,
    /// How far each shard was read.
    read: Vec<(u16, [EndsRead; 2])>,
}

/// The most records of a list in a page, while jobs fall due.
const SMALL_PAGE: usize = 250;

impl Client {
    /// The oldest records of ended jobs of a kind, up to `limit` of dead letters and of other ends in
    /// each shard, and about 1 MiB of each. While jobs fall due on the server, a list gives 250 at the most: a
    /// larger page would make the jobs late. The call changes nothing. Once the records are stored
    /// elsewhere, [`forget_ended`](Self::forget_ended) removes them.
    ///
    /// Several programs may read and store the same records at the same time: tell them apart by
    /// [their identity](EndedJob).
    ///
    /// # Errors
    /// If Redis does not answer in time.
    pub async fn ended(&self, kind: &Kind, shards: Shards, limit: usize) -> Result<EndedJobs> {
        let (store, until) = (self.store(), self.deadline());
        let layout = store.look_up(kind, until).await?;
        // Shards that a reshard has left keep their records.
        let ledgers = (0..shards.of(layout)).map(|shard| store.ledger(kind, layout.place(shard)));
        let ledgers: Vec<_> = ledgers.collect();
        let pages = ledgers.iter().map(|ledger| {
            let page = async move |jobs_fall_due: bool| {
                let limit = match jobs_fall_due {
                    true => limit.min(SMALL_PAGE),
                    false => limit,
                };
                ledger.ended(limit, self.deadline()).await
            };
            self.in_background(ledger, page)
        });
        let pages = join_all(pages).await;
        let mut view = PartialView::now(store);
        let mut ended = EndedJobs {
            is_archived: true,
            ..EndedJobs::default()
        };
        for (ledger, page) in ledgers.iter().zip(pages) {
            if let Some(page) = view.take(ledger, page)? {
                let shard = ledger.place().shard;
                ended.is_archived &= page.is_archived || shard >= layout.ledgers();
                ended.add(kind, shard, page);
            }
        }
        ended.unseen = view.unseen();
        Ok(ended)
    }

    /// Removes records that [`ended`](Self::ended) has returned. May be repeated, and be late: other
    /// records stay. Works while Redis is full. Returns how many were removed.
    ///
    /// # Errors
    /// If Redis does not answer in time, or one of several servers is away. Repeat the call, or read
    /// the records again.
    pub async fn forget_ended(&self, kind: &Kind, ended: &EndedJobs) -> Result<u64> {
        let (store, until) = (self.store(), self.deadline());
        let layout = store.look_up(kind, until).await?;
        let removed = ended.read.iter().map(async |(shard, read)| {
            let ledger = store.ledger(kind, layout.place(*shard));
            let removal = async { ledger.archived(read, self.deadline()).await };
            self.in_background(&ledger, |_| removal).await
        });
        let removed = join_all(removed).await.into_iter();
        removed.sum()
    }
}

impl EndedJobs {
    fn add(&mut self, kind: &Kind, shard: u16, page: EndedPage) {
        self.waiting += page.waiting;
        self.waiting_bytes += page.waiting_bytes;
        self.dropped += page.dropped;
        let read = page.lists.map(|list| {
            let count = self.read_list(kind, &list);
            (count, list.read(count))
        });
        if read.iter().any(|(count, _)| *count > 0) {
            self.read.push((shard, read.map(|(_, read)| read)));
        }
    }

    /// Reads a list up to a record of a newer version, and returns how many records these are.
    fn read_list(&mut self, kind: &Kind, list: &EndsList) -> usize {
        for (at, record) in list.records.iter().enumerate() {
            match EndedJob::parse(kind, record) {
                Some(job) => self.jobs.push(job),
                None if is_of_a_newer_version(record) => {
                    self.newer.push(record.clone());
                    return at;
                }
                None => self.unreadable.push(record.clone()),
            }
        }
        list.records.len()
    }
}

impl EndedJob {
    /// Reads `what at keep fence claims due letter cut id by`, and behind it the record of the job.
    pub(crate) fn parse(kind: &Kind, text: &Bytes) -> Option<Self> {
        let end = text.iter().position(|byte| *byte == b'\n')?;
        let mut words = std::str::from_utf8(&text[..end]).ok()?.splitn(10, ' ');
        let end_of_job = JobEnd::parse(words.next()?)?;
        let ended: u64 = words.next()?.parse().ok()?;
        // The end counts even if another program has broken the due time, or the terms.
        let mut number = || Some(words.next()?.parse::<u64>().unwrap_or(0));
        let (keep, fence, claims) = (number()?, number()?, number()?);
        let (due, letter, cut) = (number()?, number()?, number()?);
        let key = kind.key(words.next()?).ok()?;
        let by = words.next()?.to_owned();
        let ended_at = to_system(UnixUs(ended));
        let some = |number: u64| (number > 0).then_some(number);
        let mut job = EndedJob {
            key,
            end: end_of_job,
            ended_at,
            accepted_at: ended_at,
            due_at: some(due).map(|due| UnixMs(due).to_system()),
            begun_at: some(fence).map(|fence| to_system(UnixUs(fence))),
            attempts: u32::try_from(claims).unwrap_or(u32::MAX),
            by,
            error: None,
            headers: Headers::new(),
            payload: None,
            payload_bytes: cut,
            fence: some(fence),
            letter: some(letter),
            occurrence_at: None,
            header: "{}".to_owned(),
            keep_months: u16::try_from(keep).unwrap_or(0),
        };
        match Record::parse(text.slice(end + 1..)) {
            Ok(record) => job.fill(record),
            // The job had no record, or a damaged one. It has ended all the same.
            Err(RecordFault::Missing) => job.error = Some("its record was missing".to_owned()),
            Err(fault) => job.error = Some(fault.of(&job.key).to_string()),
        }
        Some(job)
    }

    fn fill(&mut self, record: Record) {
        self.accepted_at = record.first_scheduled_at();
        if self.payload_bytes == 0 {
            self.payload_bytes = record.payload.len() as u64;
            self.payload = Some(record.payload);
        }
        let header = record.header;
        self.attempts = self.attempts.saturating_add(header.attempts);
        self.occurrence_at = header.recur().map(|recur| recur.view().scheduled_for);
        self.header = header.to_line().into_owned();
        self.error = header.error;
        self.headers = header.headers;
    }
}

/// Whether a record that cannot be read begins as one does: with a word for the end, and a time.
fn is_of_a_newer_version(record: &[u8]) -> bool {
    let line = record
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let is_word = |word: &[u8]| !word.is_empty() && word.iter().all(u8::is_ascii_lowercase);
    let is_time = |word: &[u8]| word.len() > 15 && word.iter().all(u8::is_ascii_digit);
    words.next().is_some_and(is_word) && words.next().is_some_and(is_time) && words.count() >= 8
}

fn to_system(time: UnixUs) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_micros(time.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<EndedJob> {
        let kind = Kind::parse("app1:mail:send").unwrap();
        EndedJob::parse(&kind, &Bytes::from(text.to_owned()))
    }

    #[test]
    fn a_record_is_read_as_the_script_writes_it() {
        let job = parsed(
            "done 1795000000123456 24 1795000000100000 2 1795000000099 0 0 42 host a:7\n\
             {\"v\":1,\"us\":7,\"attempts\":1,\"error\":\"no\",\"headers\":{\"tenant\":\"acme\"}}\n\
             1795000000000 failed@1795000000050\nhello",
        );
        let job = job.unwrap();
        assert_eq!(job.key.as_str(), "app1:mail:send:42");
        assert_eq!(
            (job.end, job.attempts, job.keep_months),
            (JobEnd::Done, 3, 24)
        );
        assert_eq!(job.by, "host a:7");
        let since = |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(since(job.ended_at).as_micros(), 1_795_000_000_123_456);
        assert_eq!(since(job.accepted_at).as_micros(), 1_795_000_000_000_007);
        assert_eq!(since(job.due_at.unwrap()).as_millis(), 1_795_000_000_099);
        assert_eq!(job.fence, Some(1_795_000_000_100_000));
        assert_eq!((job.letter, job.error.as_deref()), (None, Some("no")));
        assert_eq!(job.headers.get("tenant"), Some("acme"));
        assert_eq!(job.payload.as_deref(), Some(&b"hello"[..]));
    }

    #[test]
    fn a_payload_that_is_left_out_keeps_its_length() {
        let text = "cancelled 2000000 0 0 0 1000 0 9 a b:1\n{\"v\":1}\n1795000000000\n";
        let job = parsed(text).unwrap();
        assert_eq!((job.payload, job.payload_bytes), (None, 9));
        assert_eq!((job.begun_at, job.fence, job.attempts), (None, None, 0));
    }

    #[test]
    fn an_empty_payload_is_there() {
        let text = "replaced 2000000 0 0 0 1000 0 0 a b:1\n{\"v\":1}\n1795000000000\n";
        assert_eq!(parsed(text).unwrap().payload, Some(Bytes::new()));
    }

    #[test]
    fn the_end_of_a_job_without_a_record_is_kept() {
        for record in ["\n\n", "{\"v\":1\n\nx", "{\"v\":99}\n1795000000000\nx"] {
            let job = parsed(&format!("buried 2000000 0 0 1 0 3 0 a b:1\n{record}")).unwrap();
            assert_eq!((job.letter, job.due_at), (Some(3), None));
            assert_eq!(job.accepted_at, job.ended_at);
            assert!(job.error.is_some(), "{record:?}");
        }
    }

    #[test]
    fn a_broken_number_loses_no_end() {
        let text = "cancelled 2000000 70000 0 0 inf 0 0 a b:1\n{\"v\":1}\n1795000000000\n";
        let job = parsed(text).unwrap();
        assert_eq!((job.due_at, job.keep_months), (None, 0));
    }

    #[test]
    fn a_list_is_read_up_to_a_record_of_a_newer_version() {
        let kind = Kind::parse("app1:mail:send").unwrap();
        let done = "done 1795000000123456 0 0 0 1000 0 0 a b:1\n{\"v\":1}\n1795000000000\n";
        let newer = done.replace("done", "dissolved");
        let records = [done, "garbage", done, &newer, done].map(|it| Bytes::from(it.to_owned()));
        let list = EndsList {
            first: 7,
            records: records.to_vec(),
        };
        let mut ended = EndedJobs::default();
        let count = ended.read_list(&kind, &list);
        assert_eq!((count, ended.jobs.len(), ended.unreadable.len()), (3, 2, 1));
        assert_eq!(ended.newer, [newer]);
    }

    #[test]
    fn other_texts_are_no_records() {
        for text in [
            "",
            "done",
            "done 1 2 3\n",
            "lost 2000000 0 0 0 1000 0 0 a b:1\n{\"v\":1}\n1795000000000\n",
            "done soon 0 0 0 1000 0 0 a b:1\n{\"v\":1}\n1795000000000\n",
            "done 2000000 0 0 0 1000 0 0 a:b b:1\n{\"v\":1}\n1795000000000\n",
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }
}
