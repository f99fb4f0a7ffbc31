//! Redis functions: a library, made of the same scripts, with which any Redis client can schedule,
//! cancel and look up jobs.

use std::collections::HashMap;
use std::time::Instant;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::key::{Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
use crate::names::{MARKER, Names};
use crate::record;
use crate::settings::{MAX_DELAY, PAYLOAD_LIMIT};
use crate::shards::{MAX_SHARDS, SLOTS, TOLERANCE};
use crate::store::ledger::script::{CANCEL, GET, LIMIT, SCHEDULE, TERMS, functions};
use crate::store::servers::requirements::Info;
use crate::store::servers::schema::SCHEMA;
use crate::store::{Server, Store, from_value};

/// The version of Keyfall, which a library states in its head.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The kind that stands for all kinds in the key names of a library.
const EXAMPLE: &str = "app:module:biz";

/// A library that is loaded on a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// Made by a Keyfall of this version, for this namespace.
    Ours {
        /// The version of Keyfall that made it.
        version: String,
        /// The namespace whose jobs it schedules.
        namespace: String,
        /// True if its code equals, byte by byte, the library of this program.
        is_same: bool,
    },
    /// Made by another program.
    Foreign,
}

/// The Lua code of the library with this name, for the jobs of this namespace. Sends nothing.
pub(crate) fn library(name: &str, names: &Names) -> String {
    let kind = Kind::parse(EXAMPLE).expect("it is one");
    let ledger = names.ledger(&kind, 0);
    // The names of all keys of a ledger begin with the same text, before the subject.
    let split = |key: &str| -> [String; 2] {
        let parts = key.split_once(&ledger.subject).expect("it is in each");
        [parts.0, parts.1].map(|part| format!("'{part}'"))
    };
    let part = |key: &str| split(key)[1].clone();
    let list = |keys: &[&str]| {
        let parts: Vec<String> = keys.iter().map(|key| part(key)).collect();
        format!("{{{}}}", parts.join(", "))
    };
    let head = format!(
        "#!lua name={name}\n\
         -- keyfall {VERSION} schema {SCHEMA} namespace {namespace}\n\
         -- Printed by `keyfall functions show`, and loaded by `keyfall functions install`.\n\
         local LIBRARY, VERSION, SCHEMA = '{name}', '{VERSION}', '{SCHEMA}'\n\
         local META, KINDS, PAUSED = '{meta}', '{kinds}', '{paused}'\n\
         local LEDGER = {before}\n\
         local NAMES = {{calls = {calls}, lanes = {lanes}, due = {due}, lease = {lease},\n  \
         grave = {grave}, leaving = {leaving},\n  \
         schedule = {producers},\n  cancel = {producers},\n  get = {reads},\n  \
         limit = {limit},\n  terms = {terms}}}\n\
         local SEGMENT_BYTES, ID_BYTES = {MAX_SEGMENT_BYTES}, {MAX_ID_BYTES}\n\
         local PAYLOAD_BYTES, DELAY_MS = {PAYLOAD_LIMIT}, {delay}\n\
         local MOST_SHARDS, SLOTS, TOLERANCE = {MAX_SHARDS}, {SLOTS}, {TOLERANCE}\n\
         local MARKER, HEADER, RECORD = '{MARKER}', '{plain}', {record}\n\
         local scripts = {{}}\n",
        namespace = names.namespace(),
        meta = names.meta(),
        kinds = names.kinds(),
        paused = names.paused(),
        before = split(&ledger.calls)[0],
        calls = part(&ledger.calls),
        lanes = part(&ledger.lanes),
        due = part(&ledger.due),
        lease = part(&ledger.lease),
        grave = part(&ledger.grave),
        leaving = part(&ledger.leaving),
        producers = list(&ledger.of_producers()),
        reads = list(&ledger.of_reads()),
        limit = list(&ledger.of_limit()),
        terms = list(&[&*ledger.calls, &ledger.lanes]),
        delay = MAX_DELAY.as_millis(),
        plain = record::PLAIN,
        record = record::VERSION,
    );
    let scripts = [&SCHEDULE, &CANCEL, &GET, &LIMIT, &TERMS];
    head + &scripts.map(|script| script.as_function()).concat() + &functions()
}

/// Version and namespace in the head of a library, its second line; nothing for foreign code.
fn told(code: &str) -> Option<(&str, &str)> {
    let words: Vec<&str> = code.lines().nth(1)?.split(' ').collect();
    match words[..] {
        [
            "--",
            "keyfall",
            version,
            "schema",
            _,
            "namespace",
            namespace,
        ] => Some((version, namespace)),
        _ => None,
    }
}

/// One library in the answer of `FUNCTION LIST`: fields and values.
type LoadedLibrary = HashMap<String, Value>;

impl Store {
    /// The server, if it has functions and is no cluster: a function derives the keys of a ledger
    /// from the key of the job, which on a cluster lies in another slot.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] for several servers, a cluster, or a Redis before 7.0.
    pub(crate) async fn check_functions(&self, until: Instant) -> Result<&Server> {
        let address = self.address();
        let Ok(server) = self.only() else {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "several servers are named, {address}, and a function cannot know which server \
                     has a job: schedule by HTTP (docs/daemon.md), or use a single Redis"
                ),
            ));
        };
        let text: String = from_value(server.command(&redis::cmd("INFO"), until).await?)?;
        let info = Info::parse(&text);
        let why = if !info.has_functions() {
            format!(
                "the server at {address} is Redis {:?}, and functions need Redis 7.0: use plain \
                 keys (docs/adoption.md), HTTP (docs/daemon.md) or a newer server",
                info.text("redis_version")
            )
        } else if info.is_cluster() {
            format!(
                "the server at {address} is part of a cluster, where a function may use the keys \
                 of one slot only: use a single Redis"
            )
        } else {
            return Ok(server);
        };
        Err(Error::new(ErrorKind::Incompatible, why))
    }
}

impl Server {
    /// The library that is loaded under this name; nothing if there is none.
    pub(crate) async fn loaded(&self, name: &str, until: Instant) -> Result<Option<Loaded>> {
        let mut list = redis::cmd("FUNCTION");
        // The name has no character that this command takes for a pattern.
        list.arg("LIST")
            .arg("LIBRARYNAME")
            .arg(name)
            .arg("WITHCODE");
        let entries: Vec<LoadedLibrary> = from_value(self.command(&list, until).await?)?;
        let Some(mut entry) = entries.into_iter().next() else {
            return Ok(None);
        };
        let code = entry.remove("library_code").unwrap_or(Value::Nil);
        let code: String = from_value(code).unwrap_or_default();
        Ok(Some(match told(&code) {
            None => Loaded::Foreign,
            Some((version, namespace)) => Loaded::Ours {
                version: version.to_owned(),
                namespace: namespace.to_owned(),
                is_same: code == library(name, &self.names),
            },
        }))
    }

    /// Loads the library under this name. If there is one already, it is replaced if `replaces`,
    /// and otherwise Redis refuses the call.
    pub(crate) async fn load(&self, name: &str, replaces: bool, until: Instant) -> Result<()> {
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg(replaces.then_some("REPLACE"));
        load.arg(library(name, &self.names));
        self.command(&load, until).await.map(drop)
    }

    /// Removes the library of this name.
    pub(crate) async fn unload(&self, name: &str, until: Instant) -> Result<()> {
        let mut delete = redis::cmd("FUNCTION");
        delete.arg("DELETE").arg(name);
        self.command(&delete, until).await.map(drop)
    }

    /// The name of the library that this database was prepared for, and the wake channel that its
    /// functions use; nothing if it was not prepared.
    pub(crate) async fn prepared(&self, until: Instant) -> Result<Option<(String, String)>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.meta()).arg("functions");
        let noted: Option<String> = from_value(self.command(&get, until).await?)?;
        let noted = noted.as_deref().and_then(|noted| noted.split_once(' '));
        Ok(noted.map(|(channel, name)| (name.to_owned(), channel.to_owned())))
    }

    /// True for the wake channel of this database.
    pub(crate) fn is_wake(&self, channel: &str) -> bool {
        channel == self.names.wake(self.database)
    }

    /// Stores the wake channel of this database for the functions of a library. The channel's name
    /// contains the number of the database, which a function cannot know.
    pub(crate) async fn prepare(&self, name: &str, until: Instant) -> Result<()> {
        let noted = format!("{} {name}", self.names.wake(self.database));
        let mut set = redis::cmd("HSET");
        set.arg(self.names.meta()).arg("functions").arg(noted);
        self.command(&set, until).await.map(drop)
    }

    /// Removes the note of [`prepare`](Self::prepare).
    pub(crate) async fn forget_functions(&self, until: Instant) -> Result<()> {
        let mut remove = redis::cmd("HDEL");
        remove.arg(self.names.meta()).arg("functions");
        self.command(&remove, until).await.map(drop)
    }
}
