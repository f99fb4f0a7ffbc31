//! Checks of the keys that all kinds share: the list of kinds, the pause rules, the facts about the
//! server, the instances, and the counters of order numbers. Each finding is a [`Wrong`], with a
//! proposal to mend it; `keyfall audit` prints them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;

use crate::error::{ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::shards::{Layout, MAX_SHARDS};
use crate::store::kinds::switches::RESUMED;
use crate::store::ledger::mending::{Mend, Wrong, layout_in, number_in};
use crate::store::servers::fan_out::is_of_absence;
use crate::store::servers::membership::{EMPTIED, FIELD};
use crate::store::servers::schema::SCHEMA;
use crate::store::{Away, Server, Store, from_value};
use crate::time::UnixMs;

/// The fields of a hash, with their values.
type Fields = BTreeMap<Vec<u8>, Vec<u8>>;

/// The shared keys of one server.
#[derive(Default)]
struct CommonKeys {
    /// The place of the server among several; 0 if there is one.
    place: usize,
    address: String,
    /// The number that one of several servers has to have, such as `1 of 2`.
    wanted: Option<String>,
    /// The time of the server.
    now: UnixMs,
    /// The contents of the shared hashes.
    kinds: Fields,
    paused: Fields,
    meta: Fields,
    #[cfg(feature = "worker")]
    instances: Fields,
}

impl Store {
    /// The shared keys that have the wrong type, and the servers that are away.
    pub(crate) async fn wrong_types(&self, until: Instant) -> Result<(Vec<Wrong>, Vec<Away>)> {
        let looked = self.on_each(until, |it, until| Box::pin(it.wrong_types(until)));
        let (wrong, away) = looked.await.there()?;
        Ok((wrong.into_iter().flatten().collect(), away))
    }

    /// The shared keys with wrong or missing fields, on the servers that are there. It reads the
    /// shared hashes as a whole, so it is for audits, and not for every call.
    pub(crate) async fn wrong_fields(self: &Arc<Self>, until: Instant) -> Result<Vec<Wrong>> {
        let kept = self.on_each(until, |it, until| Box::pin(it.kept_in_common(until)));
        let kept = kept.await.of_those_there()?;
        let mut wrong = Vec::new();
        for one in &kept {
            wrong.extend(self.wrong_kinds(one, &kept));
            wrong.extend(self.wrong_rules(one));
            wrong.extend(self.wrong_meta(one, &kept));
            #[cfg(feature = "worker")]
            wrong.extend(self.wrong_instances(one));
        }
        wrong.extend(self.wrong_orders(&kept, until).await?);
        #[cfg(feature = "worker")]
        {
            let listed = kept.iter().flat_map(|one| one.kinds.keys());
            let kinds: BTreeSet<Kind> = listed.filter_map(|name| kind_in(name)).collect();
            let kinds = Vec::from_iter(kinds);
            wrong.extend(self.wrong_activity(&kinds, until).await?);
            for one in &self.servers {
                wrong.extend(one.wrong_turn(until).await?);
            }
        }
        Ok(wrong)
    }

    /// Counters of order numbers that do not hold a number, for the sets of jobs that have a kind
    /// on the list.
    async fn wrong_orders(&self, kept: &[CommonKeys], until: Instant) -> Result<Vec<Wrong>> {
        let kinds = kept.iter().flat_map(|one| one.kinds.keys());
        let sets = kinds.filter_map(|kind| {
            let kind = kind_in(kind)?;
            Some(kind.as_str().rsplit_once(':')?.0.to_owned())
        });
        let sets: BTreeSet<String> = sets.collect();
        let mut wrong = Vec::new();
        for set in &sets {
            for (server, key) in self.orders(set) {
                let mut get = redis::cmd("HGET");
                get.arg(&key).arg("last");
                let last: Option<Vec<u8>> = match server.command(&get, until).await {
                    Err(error) if error.kind() == ErrorKind::Damaged => {
                        wrong.extend(server.misfits(&[(&key, "hash")], until).await?);
                        continue;
                    }
                    Err(error) if error.kind() == ErrorKind::Denied => return Ok(wrong),
                    Err(error) if is_of_absence(&error) => continue,
                    told => from_value(told?)?,
                };
                // A lost counter does no harm: a caller that meets a higher number makes it skip.
                let strange = last.filter(|last| number_in(last).is_none());
                wrong.extend(strange.map(|last| {
                    let (at, should) = ((server.place(), &*key), "should be a number");
                    Wrong::value(at, (b"last", &last), should, None)
                }));
            }
        }
        Ok(wrong)
    }

    /// Fields that should hold the layout of this kind, and hold none.
    pub(crate) async fn wrong_layouts(
        self: &Arc<Self>,
        kind: &Kind,
        until: Instant,
    ) -> Result<Vec<Wrong>> {
        let (kinds, home) = (self.names.kinds(), self.home_of(kind, 0));
        let calls = home.names.ledger(kind, 0).calls;
        let mut places: Vec<(&Server, &str, &[u8])> = vec![(home, &calls, b"layout")];
        let listed = self.servers.iter();
        places.extend(listed.map(|it| (&**it, &*kinds, kind.as_str().as_bytes())));
        let mut wrong = Vec::new();
        for (it, key, field) in places {
            let mut get = redis::cmd("HGET");
            get.arg(key).arg(field);
            let found: Option<Vec<u8>> = match it.command(&get, it.patience(until)).await {
                // Servers that are away, and keys of another type, are reported elsewhere.
                Err(error) if self.is_several() && is_of_absence(&error) => continue,
                Err(error) if error.kind() == ErrorKind::Damaged => continue,
                told => from_value(told?)?,
            };
            let Some(found) = found.filter(|found| layout_in(found).is_none()) else {
                continue;
            };
            let new = match key == kinds {
                true => Some(self.layout_told(kind, until).await?),
                false => None,
            };
            let should = "should be a layout, such as \"4 1\"";
            wrong.push(Wrong::value(
                (it.place(), key),
                (field, &found),
                should,
                new,
            ));
        }
        Ok(wrong)
    }

    /// The newest layout in the ledgers of a kind, which holds for the kind.
    async fn layout_told(&self, kind: &Kind, until: Instant) -> Result<String> {
        let told = self.of_ledgers(kind, MAX_SHARDS, until).await?;
        Ok(told.unwrap_or(Layout::FIRST).to_string())
    }

    /// Entries of the list of kinds with an impossible name, and kinds that only other servers
    /// list.
    fn wrong_kinds(&self, one: &CommonKeys, all: &[CommonKeys]) -> Vec<Wrong> {
        let (place, key) = (one.place, self.names.kinds());
        let mut wrong = Vec::new();
        for (name, layout) in &one.kinds {
            // The mark of a kind that is about to be dropped.
            let is_mark = name
                .strip_prefix(b"=")
                .is_some_and(|kind| kind_in(kind).is_some());
            if kind_in(name).is_none() && !is_mark {
                let what = "no kind can have this name".to_owned();
                let found = layout.clone();
                let mend = Mend::Field { found, new: None };
                wrong.push(Wrong::field(place, &key, name, what, mend));
            }
        }
        let others = all.iter().flat_map(|other| &other.kinds);
        let missing: Fields = others
            .filter(|(name, layout)| {
                !one.kinds.contains_key(*name)
                    && kind_in(name).is_some()
                    && layout_in(layout).is_some()
            })
            .map(|(name, layout)| (name.clone(), layout.clone()))
            .collect();
        for (name, layout) in missing {
            let what = format!(
                "it is missing on {}, and other servers list it",
                one.address
            );
            let new = Some(String::from_utf8_lossy(&layout).into_owned());
            let found = Vec::new();
            wrong.push(Wrong::field(
                place,
                &key,
                &name,
                what,
                Mend::Field { found, new },
            ));
        }
        wrong
    }

    /// Entries of the pause rules with an impossible prefix, or a value that is not a time.
    fn wrong_rules(&self, one: &CommonKeys) -> Vec<Wrong> {
        let at = (one.place, &*self.names.paused());
        let mut wrong = Vec::new();
        for (field, since) in &one.paused {
            let text = String::from_utf8_lossy(field);
            let resumed = text.strip_prefix(RESUMED);
            let prefix = resumed.unwrap_or(&text);
            let is_rule = prefix.is_empty() || Prefix::parse(prefix).is_ok();
            if !is_rule {
                let what = "no kind can begin so".to_owned();
                let found = since.clone();
                let mend = Mend::Field { found, new: None };
                wrong.push(Wrong::field(at.0, at.1, field, what, mend));
            } else if number_in(since).is_none() {
                // A paused kind stays paused.
                let new = resumed.is_none().then(|| one.now.to_string());
                let should = "should be a time, Unix ms";
                wrong.push(Wrong::value(at, (field, since), should, new));
            }
        }
        wrong
    }

    /// Missing or wrong facts of a server about itself: its schema, its place among several
    /// servers, and the mark of a server that came without data.
    fn wrong_meta(&self, one: &CommonKeys, all: &[CommonKeys]) -> Vec<Wrong> {
        let (place, key) = (one.place, self.names.meta());
        let mut wrong = Vec::new();
        let schema = one.meta.get(&b"schema"[..]);
        if schema.is_none_or(|schema| number_in(schema).is_none()) {
            let found = schema.cloned().unwrap_or_default();
            let what = match schema {
                None => "it is missing".to_owned(),
                Some(_) => format!("it is {:?}, and should be a number", text(&found)),
            };
            let new = Some(SCHEMA.to_string());
            wrong.push(Wrong::field(
                place,
                &key,
                b"schema",
                what,
                Mend::Field { found, new },
            ));
        }
        let Some(wanted) = &one.wanted else {
            return wrong;
        };
        let is_known = |kept: &CommonKeys| kept.meta.contains_key(FIELD.as_bytes());
        if !is_known(one) && all.iter().any(is_known) {
            let what = format!(
                "{} does not know its number among the servers, and other servers do: it was \
                 emptied, and its jobs are lost",
                one.address
            );
            let (found, new) = (Vec::new(), Some(wanted.clone()));
            wrong.push(Wrong::field(
                place,
                &key,
                FIELD.as_bytes(),
                what,
                Mend::Field { found, new },
            ));
        }
        if let Some(since) = one.meta.get(EMPTIED.as_bytes()) {
            let at = text(since).parse().ok();
            let at = at.and_then(|ms| Timestamp::from_millisecond(ms).ok());
            let what = format!(
                "{}, server {wanted}, came up without data at {}, when other servers had data: its \
                 jobs are lost",
                one.address,
                at.unwrap_or_default(),
            );
            let (found, new) = (since.clone(), None);
            wrong.push(Wrong::field(
                place,
                &key,
                EMPTIED.as_bytes(),
                what,
                Mend::Field { found, new },
            ));
        }
        wrong
    }

    /// Rows of the instances that cannot be read.
    #[cfg(feature = "worker")]
    fn wrong_instances(&self, one: &CommonKeys) -> Vec<Wrong> {
        let at = (one.place, &*self.names.instances());
        let rows = one.instances.iter();
        let wrong = rows.filter(|(_, row)| !crate::store::servers::instances::is_beat(&text(row)));
        let should = "should be the record of an instance";
        wrong
            .map(|(id, row)| Wrong::value(at, (id, row), should, None))
            .collect()
    }
}

impl Server {
    /// The shared keys of this server that have the wrong type.
    async fn wrong_types(&self, until: Instant) -> Result<Vec<Wrong>> {
        let n = &self.names;
        let (kinds, paused, meta) = (n.kinds(), n.paused(), n.meta());
        #[cfg(feature = "worker")]
        let of_workers = [n.instances(), n.search(), n.searching(), n.actions()];
        #[cfg(not(feature = "worker"))]
        let of_workers: [String; 0] = [];
        let mut keys = vec![(&*kinds, "hash"), (&*paused, "hash"), (&*meta, "hash")];
        let types = ["hash", "hash", "string", "stream"];
        keys.extend(of_workers.iter().map(|key| &**key).zip(types));
        self.misfits(&keys, until).await
    }

    /// A lock of the search for plain keys that never expires, so that no instance searches.
    #[cfg(feature = "worker")]
    async fn wrong_turn(&self, until: Instant) -> Result<Option<Wrong>> {
        let key = self.names.searching();
        let left: i64 = match self.command(redis::cmd("PTTL").arg(&key), until).await {
            Err(error) if error.kind() == ErrorKind::Denied || is_of_absence(&error) => {
                return Ok(None);
            }
            told => from_value(told?)?,
        };
        // -1 stands for a key that does not expire. A key of another type is reported as such.
        let is_turn = left == -1 && self.misfits(&[(&key, "string")], until).await?.is_empty();
        Ok(is_turn.then(|| Wrong {
            place: self.place(),
            field: None,
            what: "it does not expire, and no worker searches for plain keys until it is gone"
                .to_owned(),
            mend: Mend::Person(format!("`redis-cli DEL '{key}'`")),
            key,
        }))
    }

    /// Reads the shared keys of this server.
    async fn kept_in_common(&self, until: Instant) -> Result<CommonKeys> {
        let n = &self.names;
        Ok(CommonKeys {
            place: self.place(),
            address: self.address(),
            wanted: self.link.membership().map(|it| it.wanted().to_owned()),
            now: self.time(until).await?.floor_ms(),
            kinds: self.fields_of(&n.kinds(), until).await?,
            paused: self.fields_of(&n.paused(), until).await?,
            meta: self.fields_of(&n.meta(), until).await?,
            #[cfg(feature = "worker")]
            instances: self.fields_of(&n.instances(), until).await?,
        })
    }

    /// The fields of a hash; none if the key has another type, or if this user may not read it.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    async fn fields_of(&self, key: &str, until: Instant) -> Result<Fields> {
        let mut get = redis::cmd("HGETALL");
        get.arg(key);
        match self.command(&get, until).await {
            Err(error) if matches!(error.kind(), ErrorKind::Damaged | ErrorKind::Denied) => {
                Ok(Fields::new())
            }
            told => from_value(told?),
        }
    }
}

/// The kind with this name, if it is a valid one.
fn kind_in(name: &[u8]) -> Option<Kind> {
    Kind::parse(std::str::from_utf8(name).ok()?).ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
