//! The audit of a ledger: searches its parts for wrong names and records, and repairs them.
//!
//! `lua/scan.lua` reads one part page by page and returns suspects; this file judges names and
//! records that Lua cannot judge; `lua/audit.lua` then names the flaw of each suspect and, on
//! request, mends it. A repair loses no job, and keeps the books balanced.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::flaw::Flaw;
use crate::key::{MAX_ID_BYTES, NAMES, check_segment, is_id_char};
use crate::record::{Record, RecordFault};
use crate::store::ledger::reply::{ReplyWord, unexpected};
use crate::store::ledger::script::{AUDIT, SCAN};
use crate::store::ledger::who;
use crate::store::{Ledger, from_value};

/// The parts of a ledger that are searched, by their names in `lua/scan.lua`. Dead letters come
/// first, because a repair adds dead letters with higher numbers.
pub(crate) const PARTS: [&str; 7] = ["dead", "grave", "due", "shadow", "leased", "lease", "next"];

/// About how many names one call looks at. Redis also reads their values, which may be large.
const COUNT: usize = 64;

/// The length of a lease whose deadline was lost: long enough for its holder to renew it.
const LEASE: Duration = Duration::from_secs(15);

/// A page of one part.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// The cursor of the next page; `0` at the end.
    pub(crate) cursor: String,
    /// How many names were looked at.
    pub(crate) looked: u64,
    /// The largest number of a dead letter among them.
    pub(crate) highest: u64,
    /// The names that may have a flaw.
    pub(crate) suspects: Vec<Suspect>,
}

/// A name that may have a flaw.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Suspect {
    /// An id, the `id:number` of a dead letter, or some other bytes in the place of one.
    pub(crate) name: Vec<u8>,
    /// The judgement of its name and its record.
    pub(crate) judged: Judged,
}

/// The judgement of a name and its record, which a script cannot make.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Judged {
    /// Both are valid, as far as this version can tell.
    Nothing,
    /// No job can have the name.
    NoJob,
    /// No dead letter can have the name.
    NoLetter,
    /// The record with this opening cannot be read, for this reason.
    Unreadable {
        /// The bytes before the payload, or the first 100 bytes of a record without such an
        /// opening.
        opening: Vec<u8>,
        /// The reason, for people.
        fault: String,
    },
}

impl Suspect {
    /// Judges a name of a part, and the opening of its record, as `lua/scan.lua` returns them.
    fn of_part(part: &str, name: Vec<u8>, opening: Vec<u8>) -> Self {
        let is_of_letters = matches!(part, "dead" | "grave");
        let text = std::str::from_utf8(&name).ok();
        let letter = text.filter(|_| is_of_letters).and_then(id_of_letter);
        let id = letter.or(text.filter(|_| part != "dead"));
        let fits = id.is_some_and(|id| check_segment(NAMES[3], id).is_ok());
        let judged = match Record::parse(opening.clone()) {
            _ if !fits && is_of_letters => Judged::NoLetter,
            _ if !fits => Judged::NoJob,
            Err(RecordFault::Damaged(fault)) => Judged::Unreadable { opening, fault },
            // A record of a newer version is left to the programs that can read it.
            _ => Judged::Nothing,
        };
        Suspect { name, judged }
    }

    /// A valid id for the dead letter that replaces an impossible name: the name, with `_` for each
    /// invalid character, cut to the longest length of an id. Empty for a valid name.
    fn id_to_keep(&self) -> String {
        let text = match &self.judged {
            Judged::NoJob => String::from_utf8_lossy(&self.name),
            Judged::NoLetter => {
                let text = String::from_utf8_lossy(&self.name);
                id_of_letter(&text).map_or(text.clone(), |id| id.to_owned().into())
            }
            _ => return String::new(),
        };
        let fitting = |c| if is_id_char(c) { c } else { '_' };
        let mut id: String = text.chars().map(fitting).collect();
        while id.len() > MAX_ID_BYTES {
            id.pop();
        }
        if id.is_empty() { "_".to_owned() } else { id }
    }

    /// The judgement as `lua/lib/faults.lua` reads it: empty, `J`, `L`, or `R` and the opening of
    /// the record.
    fn verdict(&self) -> Vec<u8> {
        match &self.judged {
            Judged::Nothing => Vec::new(),
            Judged::NoJob => b"J".to_vec(),
            Judged::NoLetter => b"L".to_vec(),
            Judged::Unreadable { opening, .. } => [b"R", &opening[..]].concat(),
        }
    }
}

/// The id in `id:number`; `None` if the name has another form.
fn id_of_letter(name: &str) -> Option<&str> {
    let (id, number) = name.rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(id)
}

/// The flaw of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundFlaw {
    /// The flaw; the first one, if the name has several.
    pub(crate) flaw: Flaw,
    /// Whether a requested repair has left it as it was: a counter that it needs is not a number,
    /// or a worker will end the job.
    pub(crate) is_left: bool,
}

impl Ledger {
    /// Searches one page of a part; `lua/scan.lua`. The first cursor is `0`. It only reads.
    pub(crate) async fn scan(
        &self,
        part: &'static str,
        cursor: &str,
        until: Instant,
    ) -> Result<Scanned> {
        let keys = self.names.of_jobs();
        let mut cmd = self.call(&SCAN, &keys, [].into_iter());
        cmd.arg(part).arg(cursor).arg(COUNT);
        let mut reply = self.eval(&SCAN, &cmd, until).await?.reply;
        let mut scanned = Scanned {
            cursor: reply.text()?,
            looked: reply.number()?,
            highest: reply.number()?,
            suspects: Vec::new(),
        };
        while !reply.is_exhausted() {
            let (name, fault, opening) = (reply.bytes()?, reply.text()?, reply.bytes()?);
            let suspect = Suspect::of_part(part, name, opening);
            if fault != "sound" || suspect.judged != Judged::Nothing {
                scanned.suspects.push(suspect);
            }
        }
        Ok(scanned)
    }

    /// The flaw of each name, if it has one; `lua/audit.lua`. With `repair`, it is mended. Each
    /// suspect comes with the header of the dead letter that it becomes.
    pub(crate) async fn audit(
        &self,
        items: &[(Suspect, String)],
        repair: bool,
        until: Instant,
    ) -> Result<Vec<Option<FoundFlaw>>> {
        let n = &self.names;
        let keys: [&str; 10] = [
            &n.due, &n.shadow, &n.leased, &n.lease, &n.next, &n.dead, &n.grave, &n.stats, &n.calls,
            &n.history,
        ];
        let mut cmd = self.call(&AUDIT, &keys, [].into_iter());
        cmd.arg(u8::from(repair))
            .arg(LEASE.as_millis())
            .arg(&self.wake)
            .arg(&n.subject)
            .arg(who());
        for (suspect, header) in items {
            cmd.arg(&suspect.name).arg(header);
            cmd.arg(suspect.verdict()).arg(suspect.id_to_keep());
        }
        let answers = self.eval_items(&AUDIT, &cmd, items.len(), until).await?;
        answers
            .into_iter()
            .map(|answered| match answered.answer {
                ReplyWord::Sound => Ok(None),
                ReplyWord::Flawed(flaw) => Ok(Some(FoundFlaw {
                    flaw,
                    is_left: answered.unarmed,
                })),
                other => Err(unexpected(format!("{other:?}"))),
            })
            .collect()
    }

    /// The record that is stored under an id, in whatever state the job is; empty if there is none.
    pub(crate) async fn stored(&self, id: &[u8], until: Instant) -> Result<Vec<u8>> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.shadow).arg(id);
        let record: Option<Vec<u8>> = from_value(self.server.command(&get, until).await?)?;
        Ok(record.unwrap_or_default())
    }
}
