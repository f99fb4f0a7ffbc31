//! Looking for what is wrong with the names in a ledger, and mending it.

use std::time::{Duration, Instant};

use crate::error::Result;
use crate::flaw::Flaw;
use crate::key::{MAX_ID_BYTES, NAMES, check_segment, is_id_char};
use crate::record::{Record, RecordFault};
use crate::store::ledger::reply::{ReplyWord, unexpected};
use crate::store::ledger::script::{AUDIT, SCAN};
use crate::store::ledger::who;
use crate::store::{Ledger, from_value};

/// The parts of a ledger that are looked through, by the names that `lua/scan.lua` has for them.
/// Dead letters first: what a repair buries is numbered behind them.
pub(crate) const PARTS: [&str; 7] = ["dead", "grave", "due", "shadow", "leased", "lease", "next"];

/// About how many names one call looks at. Redis reads their values too, which may be large.
const COUNT: usize = 64;

/// How long a lease lasts whose deadline was lost: long enough for its holder to renew it.
const LEASE: Duration = Duration::from_secs(15);

/// A page of one part.
#[derive(Debug)]
pub(crate) struct Scanned {
    /// Where the next page begins; `0` at the end.
    pub(crate) cursor: String,
    pub(crate) looked: u64,
    /// The largest number of a dead letter among them.
    pub(crate) highest: u64,
    /// Names with which something is wrong.
    pub(crate) suspects: Vec<Suspect>,
}

/// A name to look at.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Suspect {
    /// An id, the `id:number` of a dead letter, or what stands in the place of one.
    pub(crate) name: Vec<u8>,
    pub(crate) judged: Judged,
}

/// What a script cannot see for itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Judged {
    Nothing,
    /// No job can have the name.
    NoJob,
    /// No dead letter can have it.
    NoLetter,
    /// What begins so cannot be read as a record.
    Unreadable {
        opening: Vec<u8>,
        fault: String,
    },
}

impl Suspect {
    /// A name that a scan of a part tells of, with the opening of its record.
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
            // One of a newer version is left to those who know it.
            _ => Judged::Nothing,
        };
        Suspect { name, judged }
    }

    /// By which a letter is kept whose name none can have.
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

    /// As the script reads it.
    fn verdict(&self) -> Vec<u8> {
        match &self.judged {
            Judged::Nothing => Vec::new(),
            Judged::NoJob => b"J".to_vec(),
            Judged::NoLetter => b"L".to_vec(),
            Judged::Unreadable { opening, .. } => [b"R", &opening[..]].concat(),
        }
    }
}

/// The id in `id:number`.
fn id_of_letter(name: &str) -> Option<&str> {
    let (id, number) = name.rsplit_once(':')?;
    let is_number = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then_some(id)
}

/// What was found wrong with a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FoundFlaw {
    pub(crate) flaw: Flaw,
    /// It was to be mended, and is as it was.
    pub(crate) is_left: bool,
}

impl Ledger {
    /// Looks through a page of one part; `lua/scan.lua`.
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

    /// What is wrong with each of these names, if anything; mended, if asked for, with the
    /// header for the letter that comes of it; `lua/audit.lua`.
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

    /// What is stored under this id, whatever state it is in.
    pub(crate) async fn stored(&self, id: &[u8], until: Instant) -> Result<Vec<u8>> {
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.shadow).arg(id);
        let record: Option<Vec<u8>> = from_value(self.server.command(&get, until).await?)?;
        Ok(record.unwrap_or_default())
    }
}
