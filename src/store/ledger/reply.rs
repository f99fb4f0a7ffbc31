//! What scripts answer: a closed set of words, decoded here and nowhere else.

#[cfg(all(test, feature = "worker"))]
mod properties;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::flaw::Flaw;
use crate::time::{UnixMs, UnixUs};

/// What a script says of one item. The words are those of the headers in `lua/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ReplyWord {
    /// Pending from now on.
    Created(UnixMs),
    /// Pending in the place of an earlier schedule.
    Replaced(UnixMs),
    /// It will follow the run in progress.
    Succeeds(UnixMs),
    /// The mode forbade it: the job is there.
    Exists,
    /// What is there has this order number, which is higher than that of the call, or the same.
    Overtaken(u64),
    /// No such job or letter, or nobody has it leased.
    Absent,
    /// Pending, with another due time.
    Moved(UnixMs),
    /// Pending, with another payload.
    Updated(UnixMs),
    /// What will follow the run in progress was changed, and is due then.
    SuccessorMoved(UnixMs),
    /// A run is in progress.
    Running,
    /// It will not run, or not again.
    Cancelled,
    /// Not retried: its successor took its place.
    Superseded,
    /// Ended well.
    Done,
    /// Pending again.
    Later(UnixMs),
    /// A dead letter with this number.
    Buried(u64),
    /// A dead letter is pending again.
    Requeued(UnixMs),
    /// A job of the name is there, so the letter stays one; or the call is.
    Present,
    /// A dead letter is gone.
    Deleted,
    /// There is no lease.
    Gone,
    /// Somebody else holds the lease.
    Foreign,
    /// The lease runs on.
    Renewed,
    /// The job is among those handed out.
    Claimed,
    /// Not due for so many milliseconds.
    Early(u64),
    /// Somebody runs it.
    Leased,
    /// It could be claimed, but for its kind being paused; or the kind is paused.
    Paused,
    /// The kind is not paused any more.
    Resumed,
    /// The history keeps so much from now on.
    Kept,
    /// Its key is as it was adopted.
    Same,
    /// Its key was not looked at.
    Unread,
    /// Not here any more, by an old place.
    Elsewhere,
    /// The ledger goes by another layout.
    Stale,
    /// It, or letters of it, were taken out of the ledger.
    Taken,
    /// It was not taken out: what was before it was many bytes.
    NotYet,
    /// Its key is missing, and it is not noted that it expired.
    Missing,
    /// Its trigger expires when it is due.
    Armed,
    /// No trigger of ours is there.
    Disarmed,
    /// Nothing is wrong with it.
    Sound,
    /// This is wrong with it.
    Flawed(Flaw),
}

/// An [`ReplyWord`], and whether the job has to do without a trigger because its name holds a
/// foreign value; of an audit, whether what was to be mended is left as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Answered {
    pub(crate) answer: ReplyWord,
    pub(crate) unarmed: bool,
    /// Its kind is to be made known, if it was stored.
    pub(crate) unlisted: Option<Unlisted>,
}

/// The mark of a ledger whose kind nobody has made known since it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unlisted {
    pub(crate) shard: u16,
    pub(crate) since: UnixUs,
}

impl Answered {
    /// Of a ledger that goes by another layout.
    pub(crate) const STALE: Self = Answered::of(ReplyWord::Stale);

    /// That, and nothing more.
    pub(crate) const fn of(answer: ReplyWord) -> Self {
        Answered {
            answer,
            unarmed: false,
            unlisted: None,
        }
    }

    /// Decodes one word of a reply, `word`, `word:number`, either with `!` behind it.
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
            ("running", None) => ReplyWord::Running,
            ("cancelled", None) => ReplyWord::Cancelled,
            ("done", None) => ReplyWord::Done,
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
            ("kept", None) => ReplyWord::Kept,
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

/// The reply of a script: its time, and what follows, taken item by item.
#[derive(Debug, Clone)]
pub(crate) struct Reply {
    /// The server's time while the script ran.
    pub(crate) now: UnixUs,
    /// The first word: `ok`, `late`, or what the script's header names.
    pub(crate) status: String,
    rest: std::vec::IntoIter<Value>,
}

impl Reply {
    pub(crate) fn parse(value: Value) -> Result<Self> {
        let Value::Array(items) = value else {
            return Err(unexpected("something else than an array".into()));
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

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>> {
        match self.rest.next() {
            Some(Value::BulkString(bytes)) => Ok(bytes),
            Some(Value::Int(number)) => Ok(number.to_string().into_bytes()),
            Some(_) => Err(unexpected("something else than a string".into())),
            None => Err(unexpected("too little".into())),
        }
    }

    /// Text. What is not UTF-8 was not written by Keyfall; it must not spoil the rest.
    pub(crate) fn text(&mut self) -> Result<String> {
        let bytes = self.bytes()?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
    }

    pub(crate) fn number(&mut self) -> Result<u64> {
        let text = self.text()?;
        text.parse()
            .map_err(|_| unexpected(format!("{text:?} instead of a number")))
    }

    /// The score of a sorted set, which somebody may have put there who did not know that it
    /// is a time.
    pub(crate) fn score(&mut self) -> Result<UnixMs> {
        let text = self.text()?;
        let score: f64 = text
            .parse()
            .map_err(|_| unexpected(format!("{text:?} instead of a score")))?;
        Ok(UnixMs(score as u64))
    }

    /// A point in time, or `None` where the script answered with nothing.
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

    /// Words that are separated by blanks, such as ids.
    pub(crate) fn words(&mut self) -> Result<Vec<String>> {
        Ok(self
            .text()?
            .split_ascii_whitespace()
            .map(Into::into)
            .collect())
    }

    /// The answers, one for each item of the call.
    pub(crate) fn answers(&mut self) -> Result<Vec<Answered>> {
        let text = self.text()?;
        text.split_ascii_whitespace().map(Answered::parse).collect()
    }

    /// As [`answers`](Self::answers), of a numbered call with so many items.
    pub(crate) fn item_answers(&mut self, items: usize) -> Result<Vec<Answered>> {
        self.refuse_late()?;
        let answers = self.answers()?;
        if answers.len() != items {
            return Err(unexpected(format!("{} items of {items}", answers.len())));
        }
        Ok(answers)
    }

    /// Since when the kind of a ledger is to be made known, if it is.
    pub(in crate::store) fn mark(&mut self) -> Result<Option<UnixUs>> {
        if self.rest.len() == 0 {
            return Ok(None);
        }
        // The jobs are stored. What somebody else has put there is made known each time.
        let since = self.text()?.parse().unwrap_or_default();
        Ok(Some(UnixUs(since)))
    }

    /// A lane has one call at a time, so its own calls are never late: this one's reply came
    /// after a newer call, and what it did or not is what that one found.
    pub(crate) fn refuse_late(&self) -> Result<()> {
        if self.status == "late" {
            return Err(Error::new(
                ErrorKind::OutcomeUnknown,
                "the call was overtaken by a later one of the same lane; it may be repeated",
            ));
        }
        Ok(())
    }

    /// Whether the kind is paused, where a script tells so.
    pub(crate) fn is_paused(&self) -> bool {
        self.status == "paused"
    }

    pub(crate) fn is_exhausted(&self) -> bool {
        self.rest.len() == 0
    }
}

/// Reads bytes as the reply of whatever script, in each of the ways in which replies are read.
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

pub(crate) fn unexpected(found: String) -> Error {
    Error::new(
        ErrorKind::Damaged,
        format!("a script answered {found}: is another version of Keyfall at work on this data?"),
    )
}
