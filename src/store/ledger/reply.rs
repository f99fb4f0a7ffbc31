//! The replies of scripts: a closed set of words, decoded in this file only.
//!
//! A reply is an array: a status, the time of the server, and further values, which [`Reply`] hands
//! out one by one. Scripts that work on items answer one word for each, [`Answered`]. Any other
//! reply is an error of the kind `Damaged`, and never a panic.

#[cfg(all(test, feature = "worker"))]
mod properties;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::flaw::Flaw;
use crate::time::{UnixMs, UnixUs};

/// The answer of a script about one item. The words are described in the headers of the files in
/// `lua/`. A [`UnixMs`] is the due time of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyWord {
    /// A new job is pending.
    Created(UnixMs),
    /// The job is pending, and replaces an earlier schedule.
    Replaced(UnixMs),
    /// The job is stored as the successor of the run in progress.
    Succeeds(UnixMs),
    /// Nothing was done, because the mode forbids to replace a job, and it exists. For a restore
    /// also: the dead letter exists.
    Exists,
    /// Nothing was done: the stored job has this order number, which is not lower than the number
    /// of the call.
    Overtaken(u64),
    /// There is no such job, dead letter or lease. For `touch`: the data of this server do not hold
    /// the call.
    Absent,
    /// The job is pending with another due time.
    Moved(UnixMs),
    /// The job is pending with another payload.
    Updated(UnixMs),
    /// The successor of the run in progress was changed.
    SuccessorMoved(UnixMs),
    /// Nothing was done, because the job is not as the caller has seen it.
    Changed,
    /// All jobs of the series are as asked for.
    Planned,
    /// A run of the job is in progress.
    Running,
    /// The job will not run, or not again. For a renewal: the lease is extended, but the run should
    /// stop.
    Cancelled,
    /// The job is not retried, because its successor or its next occurrence took its place.
    Superseded,
    /// Nothing was done, because the job recurs, and the call does not say which occurrence follows.
    Recurs,
    /// The job ended well.
    Done,
    /// Gone for good without a run, because it was too late.
    Skipped,
    /// The job is pending again.
    Later(UnixMs),
    /// The job is a dead letter with this number.
    Buried(u64),
    /// The dead letter is a pending job again.
    Requeued(UnixMs),
    /// Nothing was done, because a job of the same name exists. For `touch`: the data of this
    /// server hold the call.
    Present,
    /// The dead letter is deleted.
    Deleted,
    /// There is no lease.
    Gone,
    /// Another worker holds the lease.
    Foreign,
    /// The lease is extended.
    Renewed,
    /// The job is among the claimed ones.
    Claimed,
    /// The job is due in this many milliseconds; 0 if the reply was full before it.
    Early(u64),
    /// A worker runs the job. For a reclaim also: the reply was full before it.
    Leased,
    /// The job is due, but its kind is paused; or the kind is now paused.
    Paused,
    /// The kind is not paused any more.
    Resumed,
    /// The job is due, and waits for the limit of its kind.
    Held,
    /// The ledger has this limit from now on.
    Limited,
    /// The history has its new length. For a limit: a newer one holds.
    Kept,
    /// What the ledger has of a limit over several ledgers follows.
    Shared,
    /// A look at a shared limit with this number was faster.
    Newer(u64),
    /// The key is as it was adopted.
    Same,
    /// The key was not looked at.
    Unread,
    /// The job belongs to another ledger by now.
    Elsewhere,
    /// The ledger has another layout.
    Stale,
    /// The job, or dead letters of it, were taken out of the ledger.
    Taken,
    /// The job was not taken out, because the batch was full before it.
    NotYet,
    /// The key is missing without a note that it expired.
    Missing,
    /// The trigger expires when the job is due.
    Armed,
    /// The job has no trigger of ours.
    Disarmed,
    /// The name has no flaw.
    Sound,
    /// The name has this flaw.
    Flawed(Flaw),
}

/// The answer about one item, with its marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    /// The answer itself.
    pub(crate) answer: ReplyWord,
    /// Whether the job has no trigger because its name holds a foreign value. In an audit: whether
    /// a flaw that was to be mended is left.
    pub(crate) unarmed: bool,
    /// Set if the job was stored in a ledger whose kind has to be registered.
    pub(crate) unlisted: Option<Unlisted>,
}

/// The mark of a ledger whose kind was not registered since the ledger began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unlisted {
    /// The shard of the ledger.
    pub(crate) shard: u16,
    /// The time at which the ledger began; it tells this mark from a later one.
    pub(crate) since: UnixUs,
}

/// The cause of the error of a numbered call whose number the ledger knows, with the answer to other
/// items or to none.
#[derive(Debug)]
struct Known;

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the ledger has answered this number, or a higher one, of the lane before")
    }
}

impl std::error::Error for Known {}

/// Whether a call has failed because its ledger has carried it out before, and cannot repeat the
/// answer.
pub(crate) fn was_carried_out(error: &Error) -> bool {
    use std::error::Error as _;
    error.source().is_some_and(|cause| cause.is::<Known>())
}

impl Answered {
    /// The answer of a ledger with another layout.
    pub(crate) const STALE: Self = Answered::of(ReplyWord::Stale);

    /// An answer without marks.
    pub(crate) const fn of(answer: ReplyWord) -> Self {
        Answered {
            answer,
            unarmed: false,
            unlisted: None,
        }
    }

    /// Decodes one word of a reply: `word` or `word:number`, either with `!` at the end, which sets
    /// `unarmed`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if the word is unknown.
    pub(in crate::store) fn parse(text: &str) -> Result<Self> {
        let (text, unarmed) = match text.strip_suffix('!') {
            Some(word) => (word, true),
            None => (text, false),
        };
        let (word, number) = match text.split_once(':') {
            Some((word, number)) => (word, number.parse().ok()),
            None => (text, None),
        };
        let answer = match (word, number) {
            ("created", Some(n)) => ReplyWord::Created(UnixMs(n)),
            ("replaced", Some(n)) => ReplyWord::Replaced(UnixMs(n)),
            ("replaced", None) => ReplyWord::Superseded,
            ("succeeds", Some(n)) => ReplyWord::Succeeds(UnixMs(n)),
            ("exists", None) => ReplyWord::Exists,
            ("overtaken", Some(n)) => ReplyWord::Overtaken(n),
            ("absent", None) => ReplyWord::Absent,
            ("moved", Some(n)) => ReplyWord::Moved(UnixMs(n)),
            ("updated", Some(n)) => ReplyWord::Updated(UnixMs(n)),
            ("successor", Some(n)) => ReplyWord::SuccessorMoved(UnixMs(n)),
            ("changed", None) => ReplyWord::Changed,
            ("planned", None) => ReplyWord::Planned,
            ("running", None) => ReplyWord::Running,
            ("cancelled", None) => ReplyWord::Cancelled,
            ("done", None) => ReplyWord::Done,
            ("skipped", None) => ReplyWord::Skipped,
            ("recurs", None) => ReplyWord::Recurs,
            ("later", Some(n)) => ReplyWord::Later(UnixMs(n)),
            ("buried", Some(n)) => ReplyWord::Buried(n),
            ("requeued", Some(n)) => ReplyWord::Requeued(UnixMs(n)),
            ("present", None) => ReplyWord::Present,
            ("deleted", None) => ReplyWord::Deleted,
            ("gone", None) => ReplyWord::Gone,
            ("foreign", None) => ReplyWord::Foreign,
            ("renewed", None) => ReplyWord::Renewed,
            ("claimed", None) => ReplyWord::Claimed,
            ("early", Some(n)) => ReplyWord::Early(n),
            ("leased", None) => ReplyWord::Leased,
            ("paused", None) => ReplyWord::Paused,
            ("resumed", None) => ReplyWord::Resumed,
            ("held", None) => ReplyWord::Held,
            ("limited", None) => ReplyWord::Limited,
            ("kept", None) => ReplyWord::Kept,
            ("shared", None) => ReplyWord::Shared,
            ("newer", Some(n)) => ReplyWord::Newer(n),
            ("same", None) => ReplyWord::Same,
            ("unread", None) => ReplyWord::Unread,
            ("elsewhere", None) => ReplyWord::Elsewhere,
            ("taken", None) => ReplyWord::Taken,
            ("waits", None) => ReplyWord::NotYet,
            ("missing", None) => ReplyWord::Missing,
            ("armed", None) => ReplyWord::Armed,
            ("disarmed", None) => ReplyWord::Disarmed,
            ("sound", None) => ReplyWord::Sound,
            ("bare", None) => ReplyWord::Flawed(Flaw::DueWithoutRecord),
            ("stray", None) => ReplyWord::Flawed(Flaw::RecordAlone),
            ("twice", None) => ReplyWord::Flawed(Flaw::DueAndLeased),
            ("tokenless", None) => ReplyWord::Flawed(Flaw::LeaseWithoutHolder),
            ("timeless", None) => ReplyWord::Flawed(Flaw::LeaseWithoutDeadline),
            ("blank", None) => ReplyWord::Flawed(Flaw::LapsedWithoutRecord),
            ("blind", None) => ReplyWord::Flawed(Flaw::RunningWithoutRecord),
            ("headless", None) => ReplyWord::Flawed(Flaw::SuccessorAlone),
            ("wordless", None) => ReplyWord::Flawed(Flaw::LetterWithoutRecord),
            ("undead", None) => ReplyWord::Flawed(Flaw::LetterRecordAlone),
            ("misfiled", None) => ReplyWord::Flawed(Flaw::LetterMisfiled),
            ("untimely", None) => ReplyWord::Flawed(Flaw::DueAtNoTime),
            ("garbled", None) => ReplyWord::Flawed(Flaw::RecordUnreadable),
            ("illegible", None) => ReplyWord::Flawed(Flaw::LetterUnreadable),
            ("unfiled", None) => ReplyWord::Flawed(Flaw::LetterUnfiled),
            ("alien", None) => ReplyWord::Flawed(Flaw::NameOfNoJob),
            ("void", None) => ReplyWord::Flawed(Flaw::NameAlone),
            _ => return Err(unexpected(format!("the word {text:?}"))),
        };
        Ok(Answered {
            unarmed,
            ..Answered::of(answer)
        })
    }
}

/// The reply of a script. Its values are taken one by one, in order.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// The server's time while the script ran.
    pub(crate) now: UnixUs,
    /// The first word: `ok`, `late`, `stale`, or another one that the header of the script names.
    pub(crate) status: String,
    /// The values that were not taken yet.
    rest: std::vec::IntoIter<Value>,
}

impl Reply {
    /// Reads status and time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if the value is no array, or does not begin with a status and a time.
    pub(crate) fn parse(value: Value) -> Result<Self> {
        let Value::Array(items) = value else {
            return Err(unexpected("a reply that is not an array".into()));
        };
        let mut reply = Reply {
            now: UnixUs(0),
            status: String::new(),
            rest: items.into_iter(),
        };
        reply.status = reply.text()?;
        reply.now = UnixUs(reply.number()?);
        Ok(reply)
    }

    /// The next value as bytes; an integer as its decimal digits.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if no value is left, or it is of another type.
    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.rest.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            Some(Value::Int(number)) => Ok(number.to_string().into_bytes()),
            Some(_) => Err(unexpected("a reply that is not a string".into())),
            None => Err(unexpected("too few items".into())),
        }
    }

    /// The next value as text. Bytes that are not UTF-8 come from other programs; they are
    /// replaced, so that the rest of the reply can be read.
    pub(crate) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    /// The next value as a whole number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if it is none, or if no value is left.
    pub(crate) fn number(&mut self) -> Result<u64> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| unexpected(format!("{text:?} instead of a number")))
    }

    /// The next value as a time. It comes from a sorted set, where another program may have stored
    /// a score that is no time; such a score is cut to whole milliseconds.
    pub(crate) fn score(&mut self) -> Result<UnixMs> {
        let text = self.text()?;
        let score: f64 = text
            .parse()
            .map_err(|_| unexpected(format!("{text:?} instead of a score")))?;
        Ok(UnixMs(score as u64))
    }

    /// The next value as a time, or `None` if it is empty.
    #[cfg(feature = "worker")]
    pub(crate) fn time(&mut self) -> Result<Option<UnixMs>> {
        let text = self.text()?;
        if text.is_empty() {
            return Ok(None);
        }
        text.parse()
            .map(|ms| Some(UnixMs(ms)))
            .map_err(|_| unexpected(format!("{text:?} instead of a time")))
    }

    /// The next value as words separated by blanks, such as ids.
    #[cfg(feature = "worker")]
    pub(crate) fn words(&mut self) -> Result<Vec<String>> {
        Ok(self
            .text()?
            .split_ascii_whitespace()
            .map(Into::into)
            .collect())
    }

    /// The next value as answers, one for each item of the call, in order. The word `=` repeats the
    /// answer before it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if one of the words is unknown.
    pub(crate) fn answers(&mut self) -> Result<Vec<Answered>> {
        let text = self.text()?;
        let mut answers: Vec<Answered> = Vec::new();
        for word in text.split_ascii_whitespace() {
            let answered = match (word, answers.last()) {
                ("=" | "=!", Some(before)) => Answered {
                    unarmed: word.ends_with('!'),
                    ..Answered::of(before.answer)
                },
                _ => Answered::parse(word)?,
            };
            answers.push(answered);
        }
        Ok(answers)
    }

    /// As [`answers`](Self::answers), of a numbered call with this many items.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutcomeUnknown`] if the call is late, and [`ErrorKind::Damaged`] if the number
    /// of answers differs.
    pub(crate) fn item_answers(&mut self, items: usize) -> Result<Vec<Answered>> {
        self.refuse_late()?;
        let answers = self.answers()?;
        if answers.len() != items {
            let error = unexpected(format!("{} items of {items}", answers.len()));
            return Err(error.because(Known));
        }
        Ok(answers)
    }

    /// The time since which the kind of the ledger has to be registered; `None` if it need not be.
    pub(in crate::store) fn mark(&mut self) -> Result<Option<UnixUs>> {
        if self.rest.len() == 0 {
            return Ok(None);
        }
        // The jobs are stored, so a value that is no time is not an error; the kind is then
        // registered with each call.
        let since = self.text()?.parse().unwrap_or_default();
        Ok(Some(UnixUs(since)))
    }

    /// Fails if the ledger has answered `late`: it had answered a newer call of the lane before. If
    /// this call had any effect, it had it before the newer call, since a lane has one call at a
    /// time.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::OutcomeUnknown`] if the call is late.
    pub(crate) fn refuse_late(&self) -> Result<()> {
        if self.status == "late" {
            return Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the call was overtaken by a later one of the same lane; it may be repeated",
            )
            .because(Known));
        }
        Ok(())
    }

    /// Whether the kind is paused, for scripts that answer so.
    pub(crate) fn is_paused(&self) -> bool {
        self.status == "paused"
    }

    /// Whether all values were taken.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.rest.len() == 0
    }
}

/// Reads bytes as a reply, in each way in which replies are read. For fuzz tests: it must not
/// panic.
#[cfg(feature = "internals")]
pub(crate) fn read_any_reply(bytes: &[u8]) {
    type Read = fn(&mut Reply) -> bool;
    let ways: [Read; 5] = [
        |reply| reply.bytes().is_ok(),
        |reply| reply.score().is_ok(),
        |reply| reply.time().is_ok(),
        |reply| reply.words().is_ok(),
        |reply| reply.answers().is_ok(),
    ];
    let value = redis::parse_redis_value(bytes);
    let Ok(reply) = value
        .map_err(drop)
        .and_then(|value| Reply::parse(value).map_err(drop))
    else {
        return;
    };
    for way in ways {
        let mut reply = reply.clone();
        while way(&mut reply) {}
    }
}

/// The error for a reply that no script of this version gives.
pub(crate) fn unexpected(found: String) -> Error {
    Error::new(
        ErrorKind::Damaged,
        format!("a script answered {found}: is another version of Keyfall at work on this data?"),
    )
}
