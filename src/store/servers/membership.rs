//! Verifies that a server is number m of n.
//!
//! The server of a job follows from the number and the order of the servers, so all processes must
//! name them alike, or jobs would not be found. Each server stores its number and the number of
//! servers, and is asked for them with each new connection.

use std::sync::atomic::{AtomicBool, Ordering};

use redis::Cmd;
use redis::aio::MultiplexedConnection;

use crate::error::{Error, ErrorKind, Result};
use crate::names::Names;
use crate::store::connections::fault::Fault;

/// The field of `meta` with the server's number, such as `1 of 2`.
pub(in crate::store) const FIELD: &str = "server";

/// The field of `meta` with the time, in ms, at which a server was numbered that had no number
/// although all servers had been numbered: it has lost its data, or is new. The audit reports it
/// until an operator has taken note.
pub(in crate::store) const EMPTIED: &str = "emptied";

/// The number that a server must have.
pub(in crate::store) struct Membership {
    /// For the name of `meta`, where the number is stored.
    names: Names,
    /// Such as `1 of 2`.
    wanted: String,
    /// True once no server has contradicted, so that a new server may be given its number.
    is_agreed: AtomicBool,
}

impl Membership {
    /// Membership of the server at index `place`, from 0, of `of` servers.
    pub(in crate::store) fn new(names: Names, place: usize, of: usize) -> Self {
        Membership {
            names,
            wanted: format!("{} of {of}", place + 1),
            is_agreed: AtomicBool::new(false),
        }
    }

    /// From now on, a new server is given its number.
    pub(in crate::store) fn agree(&self) {
        self.is_agreed.store(true, Ordering::Relaxed);
    }

    /// Verifies the number of a server. Returns false if it has none and none was agreed on.
    ///
    /// # Errors
    /// A refusal if the server has another number, or has none but has jobs; a fault of the
    /// connection.
    pub(in crate::store) async fn check(
        &self,
        to: &mut MultiplexedConnection,
        address: &str,
    ) -> Result<bool, Fault> {
        let failed = |error| Fault::from_connecting(error, address);
        let mut look = redis::pipe();
        look.cmd("HMGET").arg(self.names.meta());
        look.arg(FIELD).arg("functions");
        look.cmd("HLEN").arg(self.names.kinds());
        look.cmd("TIME");
        type Told = ((Option<String>, Option<String>), u64, (u64, u64));
        let ((there, functions), kinds, now): Told = look.query_async(to).await.map_err(failed)?;
        let there = match there {
            Some(there) => there,
            None if kinds > 0 || functions.is_some() => {
                return Err(Fault::refused(self.is_in_use(address, kinds)));
            }
            None if !self.is_agreed.load(Ordering::Relaxed) => return Ok(false),
            None => {
                let [note, ask] = self.note();
                let emptied = self.note_emptied(now);
                emptied.query_async::<()>(to).await.map_err(failed)?;
                note.query_async::<()>(to).await.map_err(failed)?;
                ask.query_async(to).await.map_err(failed)?
            }
        };
        self.compare(&there, address).map_err(Fault::refused)?;
        Ok(true)
    }

    /// The commands that give a server its number, if it has none, and read it back, since another
    /// process may have been quicker.
    pub(in crate::store) fn note(&self) -> [Cmd; 2] {
        let (mut note, mut ask) = (redis::cmd("HSETNX"), redis::cmd("HGET"));
        note.arg(self.names.meta()).arg(FIELD).arg(&self.wanted);
        ask.arg(self.names.meta()).arg(FIELD);
        [note, ask]
    }

    /// The command that notes that a server came without data. It goes before the number, so that a
    /// process that stops in between does it again. `now` is the time of that server: seconds, and
    /// microseconds.
    pub(in crate::store) fn note_emptied(&self, now: (u64, u64)) -> Cmd {
        let mut note = redis::cmd("HSETNX");
        note.arg(self.names.meta()).arg(EMPTIED);
        note.arg(now.0 * 1000 + now.1 / 1000);
        note
    }

    /// The number that the server must have, such as `1 of 2`.
    pub(in crate::store) fn wanted(&self) -> &str {
        &self.wanted
    }

    /// Verifies the number that a server has.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] if it is another one.
    pub(in crate::store) fn compare(&self, there: &str, address: &str) -> Result<()> {
        if there != self.wanted {
            let wrong = format!(
                "Redis at {address} is server {there} of the namespace {}, but this process names \
                 it as server {}: name the same servers in the same order in every process",
                self.names.namespace(),
                self.wanted,
            );
            return Err(Error::new(ErrorKind::Incompatible, wrong));
        }
        Ok(())
    }

    /// The error of a server that has jobs but no number.
    fn is_in_use(&self, address: &str, kinds: u64) -> Error {
        let what = match kinds {
            0 => "functions that schedule jobs".to_owned(),
            1 => "jobs of 1 kind".to_owned(),
            kinds => format!("jobs of {kinds} kinds"),
        };
        Error::new(
            ErrorKind::Incompatible,
            format!(
                "Redis at {address} has {what} and was used as the only server so far, but this \
                 process names it as server {wanted}: clients would not find its jobs; begin with \
                 servers or a namespace without jobs, and move existing jobs with `keyfall export` \
                 and `keyfall import`. If it is the right server and has lost `{meta}`: `redis-cli \
                 HSET {meta} {FIELD} '{wanted}'`",
                wanted = self.wanted,
                meta = self.names.meta(),
            ),
        )
    }
}

/// The error of a server that is named alone, but has a number.
pub(in crate::store) fn is_not_alone(address: &str, there: &str) -> Error {
    Error::new(
        ErrorKind::Incompatible,
        format!(
            "Redis at {address} is server {there} of a group, but this process names it as the \
             only server: name all servers of the group in their order, with spaces between them"
        ),
    )
}
