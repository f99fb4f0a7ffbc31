//! Checks of whole keys of a ledger and of their fields, and their repair. `audit.rs` checks the
//! jobs in the keys.

use std::collections::HashMap;
use std::time::Instant;

use futures_util::future::join_all;

use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::names::LEDGER_PARTS;
use crate::shards::Layout;
use crate::store::ledger::script::{ASIDE, CURE};
use crate::store::{Ledger, Server, Store, from_value};

/// The fields of `calls` that hold a number in every version.
const NUMBERS: [&str; 4] = ["fence", "paused", "turn", "history"];

/// The names of the counters in `stats`.
const COUNTERS: [&str; 19] = [
    "accepted",
    "requeued",
    "done",
    "cancelled",
    "replaced",
    "buried",
    "deleted",
    "trimmed",
    "failed",
    "again",
    "snoozed",
    "returned",
    "lapsed",
    "moved_in",
    "moved_out",
    "letters_in",
    "letters_out",
    "skipped",
    "unrun",
];

/// The field that each hash of a ledger has on a cluster, so that the key exists even if it is
/// empty.
const PLACEHOLDER: &[u8] = b":";

/// A flaw of a key.
#[derive(Debug)]
pub(crate) struct Wrong {
    /// The place of its server among several; 0 if there is one.
    pub(crate) place: usize,
    /// The name of the key.
    pub(crate) key: String,
    /// The field with the flaw; `None` if the whole key is wrong.
    pub(crate) field: Option<Vec<u8>>,
    /// The description, for people.
    pub(crate) what: String,
    /// The repair.
    pub(crate) mend: Mend,
}

/// The repair of a flaw.
#[derive(Debug)]
pub(crate) enum Mend {
    /// The key is moved out of the way; it should have this type.
    Aside(&'static str),
    /// The field gets the value `new`, or is deleted without one, if it still holds `found`.
    Field { found: Vec<u8>, new: Option<String> },
    /// The ledgers of the kind are told its layout and its pause.
    Tell(Kind),
    /// A person has to do it; the text says how.
    Person(String),
}

impl Wrong {
    /// A flaw of one field.
    pub(in crate::store) fn field(
        place: usize,
        key: &str,
        field: &[u8],
        what: String,
        mend: Mend,
    ) -> Self {
        Wrong {
            place,
            key: key.to_owned(),
            field: Some(field.to_vec()),
            what,
            mend,
        }
    }

    /// A flaw of a value, which is deleted, or replaced by `new`.
    pub(in crate::store) fn value(
        (place, key): (usize, &str),
        (field, found): (&[u8], &[u8]),
        should: &str,
        new: Option<String>,
    ) -> Self {
        let what = format!("it is {:?}, and {should}", String::from_utf8_lossy(found));
        let found = found.to_vec();
        Wrong::field(place, key, field, what, Mend::Field { found, new })
    }

    /// Whether a repair mends it without a person.
    pub(crate) fn is_mendable(&self) -> bool {
        !matches!(self.mend, Mend::Person(_))
    }

    /// The text for people: the effect of a repair, or the steps that a person has to take.
    pub(crate) fn remedy(&self) -> String {
        match &self.mend {
            Mend::Aside(_) => "`keyfall audit --repair` moves it out of the way".to_owned(),
            Mend::Field { new: None, .. } => "`keyfall audit --repair` removes it".to_owned(),
            Mend::Field { new: Some(new), .. } => {
                format!("`keyfall audit --repair` sets it to {new:?}")
            }
            Mend::Tell(_) => {
                "`keyfall audit --repair` sends the current state to the ledger".to_owned()
            }
            Mend::Person(how) => how.clone(),
        }
    }

    /// The command for a person, where the user of this program may not run a repair.
    pub(crate) fn by_hand(&self) -> String {
        let Wrong { key, .. } = self;
        let field = String::from_utf8_lossy(self.field.as_deref().unwrap_or_default());
        match &self.mend {
            Mend::Aside(_) => format!("`redis-cli RENAMENX '{key}' '{}'`", aside(key, "by-hand")),
            Mend::Field { new: None, .. } => format!("`redis-cli HDEL '{key}' '{field}'`"),
            Mend::Field { new: Some(new), .. } => {
                format!("`redis-cli HSET '{key}' '{field}' '{new}'`")
            }
            Mend::Tell(_) | Mend::Person(_) => self.remedy(),
        }
    }
}

/// The new name of a key that is moved out of the way: in the same slot, and read by no program.
fn aside(key: &str, when: &str) -> String {
    match key.split_once(':') {
        Some((namespace, _)) if !key.contains('{') => {
            format!("{namespace}:aside:{{{key}}}:{when}")
        }
        _ => format!("{key}:aside:{when}"),
    }
}

/// The name of a Redis type, for sentences.
fn called(redis_type: &str) -> &str {
    match redis_type {
        "zset" => "a sorted set",
        "hash" => "a hash",
        "stream" => "a stream",
        "string" => "a string",
        "list" => "a list",
        "set" => "a set",
        other => other,
    }
}

/// The number that a value holds; `None` if it holds none.
pub(in crate::store) fn number_in(value: &[u8]) -> Option<u64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

impl Store {
    /// Repairs a flaw on the server that has it, and returns a text about the result. A value that
    /// has changed since the check stays.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Damaged`] if a person has to do it.
    pub(crate) async fn mend(&self, wrong: &Wrong, until: Instant) -> Result<String> {
        let it = &self.servers[wrong.place];
        match &wrong.mend {
            Mend::Aside(wanted) => {
                let to = aside(&wrong.key, &it.time(until).await?.floor_ms().to_string());
                let ledger = it.names.part_of_ledger(&wrong.key).into_iter();
                let keys =
                    ledger.flat_map(|(start, _)| LEDGER_PARTS.map(|it| format!("{start}{it}")));
                let keys: Vec<String> = keys.collect();
                let mut cmd = ASIDE.call(1 + keys.len());
                cmd.arg(&wrong.key).arg(keys).arg(wanted).arg(&to);
                it.eval(&ASIDE, &cmd, &it.clock, &wrong.key, until).await?;
                Ok(format!("moved to {to}"))
            }
            Mend::Field { found, new } => {
                let mut cmd = CURE.call(1);
                cmd.arg(&wrong.key)
                    .arg(wrong.field.as_deref().unwrap_or_default());
                cmd.arg(found).arg(new.as_deref().unwrap_or_default());
                it.eval(&CURE, &cmd, &it.clock, &wrong.key, until).await?;
                Ok(match new {
                    None => "removed".to_owned(),
                    Some(new) => format!("set to {new:?}"),
                })
            }
            Mend::Tell(kind) => {
                self.agree(kind, until).await?;
                self.apply_pause_rules(kind, until).await?;
                Ok("told".to_owned())
            }
            Mend::Person(how) => Err(Error::new(ErrorKind::Damaged, how.clone())),
        }
    }
}

impl Server {
    /// The keys among these that have another type than the given one. Keys that do not exist are
    /// fine, and keys that this user may not check are left out; calls that need them report the
    /// refusal.
    pub(in crate::store) async fn misfits(
        &self,
        keys: &[(&str, &'static str)],
        until: Instant,
    ) -> Result<Vec<Wrong>> {
        let asked = keys.iter().map(|(key, wanted)| async move {
            let mut ask = redis::cmd("TYPE");
            ask.arg(*key);
            let found: String = match self.command(&ask, until).await {
                Err(error) if error.kind() == ErrorKind::Denied => return Ok(None),
                told => from_value(told?)?,
            };
            Ok((found != "none" && found != *wanted).then(|| Wrong {
                place: self.place(),
                key: (*key).to_owned(),
                field: None,
                what: format!("it is {}, and should be {}", called(&found), called(wanted)),
                mend: Mend::Aside(wanted),
            }))
        });
        let told = join_all(asked).await.into_iter();
        told.filter_map(Result::transpose).collect()
    }
}

impl Ledger {
    /// The keys of this ledger that have the wrong type.
    pub(crate) async fn wrong_keys(&self, until: Instant) -> Result<Vec<Wrong>> {
        const TYPES: [(&str, usize); 3] = [("zset", 5), ("hash", 7), ("stream", 1)];
        let types = TYPES
            .iter()
            .flat_map(|(word, times)| std::iter::repeat_n(*word, *times));
        let groups = self.names.of_groups();
        let groups = groups.iter().map(String::as_str);
        let groups = groups.zip(["zset", "zset", "zset", "hash"]);
        let waiting = self.names.of_waiting();
        let changes = &waiting[2];
        let waiting = waiting.iter().map(String::as_str);
        let waiting = waiting.zip(["list", "list", "zset"]);
        let keys: Vec<_> = self
            .names
            .all()
            .into_iter()
            .zip(types)
            .chain(groups)
            .chain(waiting)
            .collect();
        let mut wrong = self.server.misfits(&keys, until).await?;
        if wrong.iter().any(|it| it.key == *changes) {
            // Before the key is moved: from then on changes could be noted again.
            let lost = self.lost_changes(until).await?;
            wrong.splice(0..0, lost);
        }
        Ok(wrong)
    }

    /// The field by which the ledger notes its changes for the copy, if those that it has noted are
    /// lost: with the new value a copier copies all jobs again.
    async fn lost_changes(&self, until: Instant) -> Result<Option<Wrong>> {
        const FIELD: &str = "changes";
        let mut get = redis::cmd("HGET");
        get.arg(&self.names.calls).arg(FIELD);
        let noted: Option<String> = match self.server.command(&get, until).await {
            // A key of another type is reported as such.
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Denied) => None,
            told => from_value(told?)?,
        };
        let Some(noted) = noted.filter(|noted| !noted.starts_with("over ")) else {
            return Ok(None);
        };
        let over = noted
            .split_once(' ')
            .map(|(_, last)| format!("over {last}"));
        let at = (self.server(), &*self.names.calls);
        let found = (FIELD.as_bytes(), noted.as_bytes());
        let lost = "the changes that it tells of are lost: the copy has to begin anew";
        Ok(Some(Wrong::value(at, found, lost, over)))
    }

    /// Whether the jobs cannot be checked while this key has the wrong type.
    pub(crate) fn needs(&self, key: &str) -> bool {
        let n = &self.names;
        self.names.of_jobs().contains(&key) || key == n.stats || key == n.calls
    }

    /// Flaws in the fields that this ledger keeps about its kind, and in the batch that is to leave
    /// it.
    pub(crate) async fn wrong_marks(&self, until: Instant) -> Result<Vec<Wrong>> {
        let mut wrong = self.wrong_leavers(until).await?;
        let marks = self.marks(until).await?;
        let at = (self.server(), &*self.names.calls);
        let numbers = NUMBERS.iter().zip(&marks);
        let numbers = numbers
            .filter_map(|(field, value)| Some((field, value.as_deref()?)))
            .filter(|(_, value)| number_in(value).is_none());
        wrong.extend(numbers.map(|(field, value)| {
            let should = "should be a number";
            Wrong::value(at, (field.as_bytes(), value), should, None)
        }));
        if let Some(batch) = marks[5].as_deref().filter(|it| number_in(it).is_none()) {
            // Numbers of batches are times in microseconds, and only grow.
            let next = self.server.time(until).await?.0.to_string();
            let should = "should be the number of a batch";
            wrong.push(Wrong::value(at, (b"batch", batch), should, Some(next)));
        }
        if let Some(layout) = marks[4].as_deref().filter(|text| layout_in(text).is_none()) {
            let should = "should be a layout, such as \"4 1\"";
            wrong.push(Wrong::value(at, (b"layout", layout), should, None));
        }
        Ok(wrong)
    }

    /// Facts about its kind that this ledger was not told, or has lost. `layout` is the layout of
    /// the kind.
    pub(crate) async fn untold(&self, layout: Layout, until: Instant) -> Result<Vec<Wrong>> {
        let marks = self.marks(until).await?;
        let (place, calls, kind) = (self.server(), &*self.names.calls, self.kind());
        let tell = || Mend::Tell(kind.clone());
        let mut wrong = Vec::new();
        // While the kind is resharded, some ledgers have not been told yet.
        if layout != Layout::FIRST && layout.from.is_none() && marks[4].is_none() {
            let what = format!("it is missing, and the kind has the layout \"{layout}\"");
            wrong.push(Wrong::field(place, calls, b"layout", what, tell()));
        }
        // Read after the marks, because a pause stores its rule first.
        let rule = match self.store.pause_rule_of(kind, until).await {
            // A damaged rule is reported with the keys that all kinds share.
            Err(error) if error.kind() == ErrorKind::Damaged => return Ok(wrong),
            rule => rule?,
        };
        let since = marks[1].as_deref().and_then(number_in);
        let paused = since.map(|since| since > 0);
        match (paused, rule) {
            (None, Some(_)) => {
                let what = "it is missing, and a pause covers the kind".to_owned();
                wrong.push(Wrong::field(place, calls, b"paused", what, tell()));
            }
            (Some(true), None) => {
                let (key, field) = (self.server.names.paused(), format!("{kind}:"));
                let what = "it is missing, and the kind is paused".to_owned();
                let mend = Mend::Person(format!(
                    "`keyfall pause {field}` adds it, `keyfall resume {field}` ends the pause"
                ));
                wrong.push(Wrong::field(place, &key, field.as_bytes(), what, mend));
            }
            _ => {}
        }
        Ok(wrong)
    }

    /// The fields that this ledger keeps about its kind: [`NUMBERS`], then `layout` and `batch`.
    async fn marks(&self, until: Instant) -> Result<Vec<Option<Vec<u8>>>> {
        let mut get = redis::cmd("HMGET");
        get.arg(&self.names.calls).arg(&NUMBERS);
        get.arg("layout").arg("batch");
        from_value(self.server.command(&get, until).await?)
    }

    /// Entries of the batch that is to leave which do not have the form of a time and a record.
    async fn wrong_leavers(&self, until: Instant) -> Result<Vec<Wrong>> {
        let mut get = redis::cmd("HGETALL");
        get.arg(&self.names.leaving);
        let leaving: HashMap<Vec<u8>, Vec<u8>> = match self.server.command(&get, until).await {
            // A key of another type is reported as such.
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Denied) => {
                return Ok(Vec::new());
            }
            told => from_value(told?)?,
        };
        let at = (self.server(), &*self.names.leaving);
        let strange = leaving.iter().filter(|(name, kept)| {
            let mut parts = kept.splitn(2, |byte| *byte == b' ');
            let has_time = parts.next().is_some_and(|time| number_in(time).is_some());
            *name != PLACEHOLDER && !(has_time && parts.next().is_some())
        });
        let should = "should be a time and a record";
        let wrong = strange.map(|(name, kept)| Wrong::value(at, (name, kept), should, None));
        Ok(wrong.collect())
    }

    /// A counter that is not a number, with the value by which the books balance, if that is known.
    pub(crate) fn wrong_counter(&self, name: &str, found: &str, balances: Option<u64>) -> Wrong {
        let key = &self.names.stats;
        let how = match balances {
            _ if !COUNTERS.contains(&name) => format!("`redis-cli HDEL '{key}' '{name}'`"),
            Some(number) => {
                format!("`redis-cli HSET '{key}' '{name}' {number}`, so that the counters balance")
            }
            None => format!("`redis-cli HSET '{key}' '{name}' NUMBER`"),
        };
        let what = format!(
            "it is {found:?}, and should be a number: calls that change this counter are refused"
        );
        Wrong::field(self.server(), key, name.as_bytes(), what, Mend::Person(how))
    }

    /// A dead letter with a larger number than the ledger has given out: new ones would take
    /// numbers that are in use. The repair skips these numbers.
    pub(crate) fn wrong_numbers(&self, highest: u64, buried: u64, skipped: Option<u64>) -> Wrong {
        let given = buried + skipped.unwrap_or(0);
        let what = format!("{given} dead letters were numbered, but one has the number {highest}");
        let found = skipped.map_or_else(Vec::new, |skipped| skipped.to_string().into_bytes());
        let new = Some((highest - buried).to_string());
        let mend = Mend::Field { found, new };
        Wrong::field(self.server(), &self.names.stats, b"skipped", what, mend)
    }
}

/// The layout that a value holds; `None` if it holds none.
pub(in crate::store) fn layout_in(text: &[u8]) -> Option<Layout> {
    Layout::parse(std::str::from_utf8(text).ok()?)
}
