//! Redis functions: a library by which any client schedules, cancels and looks up, made of the
//! same scripts.

use std::collections::HashMap;
use std::time::Instant;

use redis::Value;

use crate::error::{Error, ErrorKind, Result};
use crate::key::{Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};
use crate::names::{MARKER, Names};
use crate::record;
use crate::settings::{MAX_DELAY, PAYLOAD_LIMIT};
use crate::shards::{MAX_SHARDS, SLOTS, TOLERANCE};
use crate::store::ledger::script::{CANCEL, DROP, FUNCTIONS, GET, LAYOUT, PUT, SCHEDULE, TAKE};
use crate::store::servers::requirements::{Info, SCHEMA};
use crate::store::{Server, Store, from_value};

/// The version of Keyfall that libraries say they are of.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The kind that stands for all others in the names of a library.
const EXAMPLE: &str = "app:module:biz";

/// A library that is loaded under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Loaded {
    /// Made by a Keyfall of this version, for this namespace.
    Ours {
        version: String,
        namespace: String,
        /// To the byte what this program would load.
        is_same: bool,
    },
    Foreign,
}

/// The library of this name, for the jobs of this namespace.
pub(crate) fn library(name: &str, names: &Names) -> String {
    let kind = Kind::parse(EXAMPLE).expect("it is one");
    let ledger = names.ledger(&kind, 0);
    // What stands before the subject of a ledger in the names of its keys is always the same.
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
         local NAMES = {{calls = {calls}, lanes = {lanes}, leaving = {leaving},\n  \
         schedule = {producers},\n  cancel = {producers},\n  get = {reads},\n  \
         take = {take},\n  put = {put},\n  drop = {drop}}}\n\
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
        leaving = part(&ledger.leaving),
        producers = list(&ledger.of_producers()),
        reads = list(&ledger.of_reads()),
        take = list(&ledger.of_leaving()),
        put = list(&ledger.of_arriving()),
        drop = list(&ledger.of_dropping()),
        delay = MAX_DELAY.as_millis(),
        plain = record::PLAIN,
        record = record::VERSION,
    );
    let scripts = [&SCHEDULE, &CANCEL, &GET, &TAKE, &PUT, &DROP, &LAYOUT];
    head + &scripts.map(|script| script.as_function()).concat() + FUNCTIONS
}

/// What the second line of a library of ours says: version and namespace.
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

/// One library, as `FUNCTION LIST` tells of it.
type LoadedLibrary = HashMap<String, Value>;

impl Store {
    /// The server, if it has functions and is no cluster: a function finds the keys of a ledger by
    /// the key of the job, which lies in another slot there.
    pub(crate) async fn check_functions(&self, until: Instant) -> Result<&Server> {
        let address = self.address();
        let Ok(server) = self.only() else {
            return Err(Error::new(
                ErrorKind::Incompatible,
                format!(
                    "there are several servers, {address}, and a function cannot know which of \
                     them has a job: schedule by HTTP (docs/daemon.md), or use a single Redis"
                ),
            ));
        };
        let text: String = from_value(server.command(&redis::cmd("INFO"), until).await?)?;
        let info = Info::parse(&text);
        let why = if !info.has_functions() {
            format!(
                "the server at {address} is Redis {:?}, and functions came with Redis 7.0: use \
                 plain keys (docs/adoption.md), HTTP (docs/daemon.md) or a newer server",
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
    /// What is loaded under this name.
    pub(crate) async fn loaded(&self, name: &str, until: Instant) -> Result<Option<Loaded>> {
        let mut list = redis::cmd("FUNCTION");
        // The name holds nothing that this would take for a pattern.
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

    /// Loads the library of this name, in the place of the one that is there if that `replaces`.
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

    /// The library that this database was prepared for, and the wake channel that its functions use.
    pub(crate) async fn prepared(&self, until: Instant) -> Result<Option<(String, String)>> {
        let mut get = redis::cmd("HGET");
        get.arg(self.names.meta()).arg("functions");
        let noted: Option<String> = from_value(self.command(&get, until).await?)?;
        let noted = noted.as_deref().and_then(|noted| noted.split_once(' '));
        Ok(noted.map(|(channel, name)| (name.to_owned(), channel.to_owned())))
    }

    /// Whether that is the channel of this database.
    pub(crate) fn is_wake(&self, channel: &str) -> bool {
        channel == self.names.wake(self.database)
    }

    /// Notes the wake channel of this database for the functions of a library: the number of the
    /// database is in it, which a function cannot know.
    pub(crate) async fn prepare(&self, name: &str, until: Instant) -> Result<()> {
        let noted = format!("{} {name}", self.names.wake(self.database));
        let mut set = redis::cmd("HSET");
        set.arg(self.names.meta()).arg("functions").arg(noted);
        self.command(&set, until).await.map(drop)
    }

    /// Takes that note away.
    pub(crate) async fn forget_functions(&self, until: Instant) -> Result<()> {
        let mut remove = redis::cmd("HDEL");
        remove.arg(self.names.meta()).arg("functions");
        self.command(&remove, until).await.map(drop)
    }
}
