//! [`Client::declare`]: recurring jobs that a configuration names.
//!
//! A declared job carries the name of its declaration, so a job that was made elsewhere is never
//! touched. The digest of each definition is kept in Redis: it tells a job whose rule has ended
//! from one that was never stored, and names the jobs that were removed from the declaration.

use std::collections::BTreeMap;
use std::time::Instant;

use xxhash_rust::xxh3::xxh3_128;

use super::new_job::Placing;
use super::rule::{Present, Sought};
use crate::client::{Client, NewJob, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;
use crate::record::Header;
use crate::recurrence::{Recurring, Rule};
use crate::store::{
    Amendment, CancelIf, Condition, JobVersion, Mode, Placement, VersionState, When, Word,
};
use crate::time::UnixMs;

/// The most characters of the name of a declaration.
const NAME: usize = 64;

/// What [`Client::declare`] did, with the keys of the jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Declared {
    /// Did not exist.
    pub created: Vec<JobKey>,
    /// Had another rule, payload, headers or terms.
    pub changed: Vec<JobKey>,
    /// Were as they should be.
    pub unchanged: Vec<JobKey>,
    /// Have ended: their rules allow no further run, or somebody cancelled them. They stay so until
    /// their definition changes.
    pub ended: Vec<JobKey>,
    /// Are running, and their new rules allow no further run. The rules that they have go on until
    /// the next call.
    pub running: Vec<JobKey>,
    /// Were left alone, because jobs with these keys exist that were made elsewhere.
    pub foreign: Vec<JobKey>,
    /// Were declared before, and are no more: they were cancelled.
    pub removed: Vec<JobKey>,
}

/// A job of a declaration.
struct Definition {
    key: JobKey,
    rule: Rule,
    placement: Placement,
    /// The header without an occurrence.
    header: Header,
    digest: String,
}

impl Client {
    /// Makes the recurring jobs with this name of a declaration exactly these: creates what is
    /// missing, changes what differs, and cancels what was declared before and is no more. Numbers
    /// and pauses of jobs that are changed stay. Calls that are made at the same time with the same
    /// jobs agree. Jobs that were made elsewhere are left alone. A job whose new rule allows no
    /// further run is cancelled.
    ///
    /// A program calls this when it starts, with the jobs of its configuration. The name, of up to
    /// 64 letters, digits, `-` and `_`, tells the declarations of several programs apart.
    ///
    /// # Errors
    /// If a job has no rule or is not valid, two have one key, or the name is not valid: then
    /// nothing was done. Otherwise if Redis does not answer in time, is full, or denies the right:
    /// then some of the jobs may have been changed, and the next call does the rest.
    pub async fn declare(
        &self,
        name: &str,
        jobs: impl IntoIterator<Item = NewJob>,
    ) -> Result<Declared> {
        let is_named = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
        if name.is_empty() || name.len() > NAME || !name.chars().all(is_named) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{name:?} is no name of a declaration: write 1 to {NAME} letters, digits, `-` \
                     and `_`"
                ),
            ));
        }
        let mut wanted = BTreeMap::new();
        for job in jobs {
            let definition = self.definition(name, job)?;
            let key = definition.key.to_string();
            if wanted.insert(key.clone(), definition).is_some() {
                return Err(Error::new(
                    ErrorKind::InvalidSetting,
                    format!("{key} is declared twice: leave one of them out"),
                ));
            }
        }
        let before = self.store().declared(name, self.deadline()).await?;
        let mut declared = Declared::default();
        for (key, definition) in &wanted {
            let noted = before.get(key).map(String::as_str);
            self.declare_one(name, definition, noted, &mut declared)
                .await?;
        }
        for key in before.keys().filter(|key| !wanted.contains_key(*key)) {
            self.remove_declared(name, key, &mut declared).await?;
        }
        Ok(declared)
    }

    /// # Errors
    /// If the job is not valid, or has no rule.
    fn definition(&self, name: &str, job: NewJob) -> Result<Definition> {
        let NewJob { key, rule, .. } = job;
        let key = key?;
        let Some(rule) = rule else {
            return Err(Error::new(
                ErrorKind::InvalidRule,
                format!("{key} has no rule, and only recurring jobs can be declared"),
            ));
        };
        let rule = match job.quiet {
            Some(quiet) => rule.quiet(quiet),
            None => rule,
        };
        let single = NewJob {
            key: Ok(key.clone()),
            rule: None,
            quiet: None,
            mode: Mode::Absent,
            ..job
        };
        let now = self.now();
        let placing = single.into_placing(self.settings().payload_limit, now)?;
        let Placing::Send(placement) = placing else {
            unreachable!("it has no quiet hours of its own");
        };
        let header = Header::parse(placement.header.as_bytes()).expect("it was just written");
        let mut all = format!("{name}\n{}\n{}\n", rule.to_value(), placement.header).into_bytes();
        all.extend_from_slice(&placement.payload);
        Ok(Definition {
            digest: format!("{:032x}", xxh3_128(&all)),
            key,
            rule,
            placement,
            header,
        })
    }

    async fn declare_one(
        &self,
        name: &str,
        wanted: &Definition,
        noted: Option<&str>,
        declared: &mut Declared,
    ) -> Result<()> {
        let until = self.deadline();
        let (key, text) = (&wanted.key, wanted.key.as_str());
        // What was not stored when the note was written is stored by the next call.
        let planned = format!("?{}", wanted.digest);
        let list = loop {
            let now = self.now();
            let present = match Sought::read(key, self.find(key, until).await?)? {
                Sought::Recurring(present) if present.occurrence.is_declared_by(name) => present,
                Sought::Absent if noted == Some(&*wanted.digest) => break &mut declared.ended,
                Sought::Absent => {
                    let Some(first) = wanted.first(name, now) else {
                        break &mut declared.ended;
                    };
                    let store = self.store();
                    store
                        .note_declared(name, text, Some(&planned), until)
                        .await?;
                    match self.ask(first, until).await?.answer {
                        Word::Created(_) => break &mut declared.created,
                        Word::Exists if Instant::now() < until => continue,
                        Word::Exists => return Err(too_busy(key)),
                        other => return Err(out_of_place(other)),
                    }
                }
                _ => break &mut declared.foreign,
            };
            if wanted.is(&present) {
                break &mut declared.unchanged;
            }
            let is_pending = present.state() == VersionState::Pending;
            let seen = present.seen();
            let answered = match wanted.amendment(present, now) {
                Some(amendment) => self.ask(amendment, until).await?,
                None if is_pending => self.ask(cancel_if(key, seen), until).await?,
                None => break &mut declared.running,
            };
            match answered.answer {
                Word::Moved(_) | Word::SuccessorMoved(_) | Word::Succeeds(_) => {
                    break &mut declared.changed;
                }
                Word::Cancelled => break &mut declared.ended,
                Word::Absent | Word::Changed if Instant::now() < until => {}
                Word::Absent | Word::Changed => return Err(too_busy(key)),
                other => return Err(out_of_place(other)),
            }
        };
        list.push(key.clone());
        let is_settled = ![declared.foreign.last(), declared.running.last()].contains(&Some(key));
        if is_settled && noted != Some(&*wanted.digest) {
            let digest = Some(&*wanted.digest);
            self.store()
                .note_declared(name, text, digest, until)
                .await?;
        }
        Ok(())
    }

    /// Cancels a job that was declared before, unless it was made elsewhere since.
    async fn remove_declared(&self, name: &str, key: &str, declared: &mut Declared) -> Result<()> {
        let until = self.deadline();
        let key = JobKey::parse(key)?;
        loop {
            let present = match Sought::read(&key, self.find(&key, until).await?)? {
                Sought::Recurring(present) if present.occurrence.is_declared_by(name) => present,
                _ => break,
            };
            let cancel = cancel_if(&key, present.seen());
            match self.ask(cancel, until).await?.answer {
                Word::Cancelled | Word::Running => {
                    declared.removed.push(key.clone());
                    break;
                }
                Word::Absent | Word::Changed if Instant::now() < until => {}
                Word::Absent | Word::Changed => return Err(too_busy(&key)),
                other => return Err(out_of_place(other)),
            }
        }
        let store = self.store();
        store.note_declared(name, key.as_str(), None, until).await
    }
}

impl Definition {
    /// The job at the first time of its rule; `None` if the rule has ended.
    fn first(&self, name: &str, now: UnixMs) -> Option<Placement> {
        let first = Recurring::first(&self.rule, now, rand::random())?.declared_by(name);
        let when = When::At(first.due());
        let header = self.header.clone().with_recur(Some(first)).to_line();
        Some(Placement {
            when,
            header,
            ..self.placement.clone()
        })
    }

    /// Whether a job is as it is defined.
    fn is(&self, present: &Present) -> bool {
        present.occurrence.has_rule(&self.rule) && self.has_content_of(present)
    }

    fn has_content_of(&self, present: &Present) -> bool {
        present.header.headers == self.header.headers
            && present.header.terms == self.header.terms
            && present.payload == self.placement.payload
    }

    /// The call that makes a job as it is defined; `None` if its rule allows no further run.
    fn amendment(&self, present: Box<Present>, now: UnixMs) -> Option<Amendment> {
        let is_kept = present.occurrence.has_rule(&self.rule)
            // During a run the occurrence after it is written, which has no time yet.
            && present.state() != VersionState::Leased;
        let occurrence = match is_kept {
            true => present.occurrence.clone(),
            false => present.by_rule(&self.rule, now)?,
        };
        let due = present.due;
        let mut amendment = present.amendment(self.key.clone(), occurrence, now);
        if is_kept {
            // An occurrence that was postponed, or fired, stays where it is.
            amendment.when = When::At(due);
        }
        let mut header = Header::parse(amendment.header.as_bytes()).ok()?;
        header.headers.clone_from(&self.header.headers);
        header.terms.clone_from(&self.header.terms);
        amendment.header = header.to_line();
        amendment.payload = Some(self.placement.payload.clone());
        Some(amendment)
    }
}

/// Cancels a job if it is still as it was read.
fn cancel_if(key: &JobKey, seen: JobVersion) -> CancelIf {
    CancelIf {
        key: key.clone(),
        condition: Condition::Seen(seen),
    }
}

fn too_busy(key: &JobKey) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("{key} changed for as long as the call may take: try again"),
    )
}
