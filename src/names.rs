//! Every Redis key and channel that Keyfall uses, one function each. No name is formatted
//! anywhere else.
//!
//! The keys of a ledger share the hash tag `{app:module:biz/shard}`, so they live in one
//! slot and one script can change them together. None of them expires; trimming is done by
//! the scripts.

use std::sync::Arc;

use crate::key::Kind;
use crate::shards;

/// The value of every trigger, by which our own keys are told from foreign ones.
pub(crate) const MARKER: &str = "keyfall";

/// What the names of keys contain by which it is proved what Redis announces.
#[cfg(feature = "worker")]
const PROBE: &str = "{keyfall-probe}";

/// What the keys of a ledger are called behind its name, as [`LedgerNames::all`] has them.
pub(crate) const LEDGER_PARTS: [&str; 13] = [
    "due", "leased", "dead", "lanes", "adopted", "shadow", "lease", "next", "grave", "stats",
    "calls", "leaving", "history",
];

/// The names below one namespace, `keyfall` by default.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    namespace: Arc<str>,
}

impl Names {
    pub(crate) fn new(namespace: &str) -> Self {
        Names {
            namespace: namespace.into(),
        }
    }

    /// What all names but those of triggers begin with.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Hash: kind → number of shards, as [`shards::Layout`] is written. Known kinds; a kind stays
    /// once it was used, until it is dropped. `=kind` → the mark of who is about to drop it.
    pub(crate) fn kinds(&self) -> String {
        format!("{}:kinds", self.namespace)
    }

    /// Hash: `schema` → version of the stored layout, written once; `functions` → `channel
    /// library`, the wake channel of this database, for the functions of that library; `server` →
    /// `1 of 2`, where several servers have the jobs; `emptied` → when it came back without any data
    /// although others had some, Unix ms, until somebody has taken note of it.
    pub(crate) fn meta(&self) -> String {
        format!("{}:meta", self.namespace)
    }

    /// Hash: instance → `beat-ms room description`. Instances that live, and some that do not
    /// any more.
    #[cfg(feature = "worker")]
    pub(crate) fn instances(&self) -> String {
        format!("{}:instances", self.namespace)
    }

    /// Channel on which an instance hears that its own beats arrive, and so that its
    /// subscription lives.
    #[cfg(feature = "worker")]
    pub(crate) fn pulse(&self, database: i64, instance: &str) -> String {
        format!("{}:pulse:{database}:{instance}", self.namespace)
    }

    /// Hash: prefix of kinds → since when it is paused, Unix ms. Kinds that come later are
    /// paused by it, too. On several servers also `=prefix` → when it was last resumed.
    pub(crate) fn paused(&self) -> String {
        format!("{}:paused", self.namespace)
    }

    /// Hash: glob → `began-ms cursor`, how far the search for keys to adopt has come.
    #[cfg(feature = "worker")]
    pub(crate) fn search(&self) -> String {
        format!("{}:search", self.namespace)
    }

    /// String, which expires: the instance that searches.
    #[cfg(feature = "worker")]
    pub(crate) fn searching(&self) -> String {
        format!("{}:searching", self.namespace)
    }

    /// String, which expires at once: what is announced of it proves what Redis announces of keys like
    /// these. Its name is that of no job, since those have no braces. Also a glob that matches it: one
    /// of those given, to which a user who adopts such keys may subscribe. Where each of them is the
    /// name of one key, it is a glob of ours.
    #[cfg(feature = "worker")]
    pub(crate) fn probe(&self, globs: &[String], unique: &str) -> (String, String) {
        let ours = format!("{}:probe:*", self.namespace);
        let glob = globs.iter().find(|glob| glob.contains('*'));
        let glob = glob.unwrap_or(&ours);
        (glob.replace('*', &format!("{PROBE}{unique}")), glob.clone())
    }

    /// Whether this is the name of such a key.
    #[cfg(feature = "worker")]
    pub(crate) fn is_probe(name: &[u8]) -> bool {
        // Most names have no brace, and are seen through at once.
        name.contains(&b'{') && name.windows(PROBE.len()).any(|it| it == PROBE.as_bytes())
    }

    /// Channel: `due ledger ms`, `now ledger id…`, `late ledger id…`, `flood ledger`,
    /// `kind kind`, `layout kind layout`, `cancel kind id`, `pause kind`, `resume kind`, `gone kind`,
    /// `instances`, `unheard instance`, `breaker host`. Channels are common to all databases of a
    /// server, hence the number.
    pub(crate) fn wake(&self, database: i64) -> String {
        format!("{}:wake:{database}", self.namespace)
    }

    /// Channel on which Redis announces the keys that it expired.
    /// See <https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/>.
    #[cfg(feature = "worker")]
    pub(crate) fn expired(database: i64) -> String {
        format!("__keyevent@{database}__:expired")
    }

    /// List beside the list of a target: leases that consumers have done with, in the Redis of
    /// the target.
    #[cfg(feature = "worker")]
    pub(crate) fn receipts(list: &str) -> String {
        format!("{list}:done")
    }

    /// String beside the stream of a target: id; no entry up to this one has to be looked at any
    /// more.
    #[cfg(feature = "worker")]
    pub(crate) fn settled(stream: &str, group: &str) -> String {
        format!("{stream}:{group}:settled")
    }

    /// Hash beside the stream of a target: id → lease of each entry whose job has not ended;
    /// `oldest` → id of the oldest entry that the last trim has left; `consumer` → name of the
    /// consumer that ties this to the group.
    #[cfg(feature = "worker")]
    pub(crate) fn written(stream: &str, group: &str) -> String {
        format!("{stream}:{group}:written")
    }

    /// String beside the stream of a target, which expires: somebody looks after the entries of
    /// workers that are gone.
    #[cfg(feature = "worker")]
    pub(crate) fn sweep(stream: &str, group: &str) -> String {
        format!("{stream}:{group}:sweep")
    }

    /// What the keys of a ledger begin with, by what wake-ups call it.
    pub(crate) fn start_of_ledger(&self, subject: &str) -> String {
        format!("{}:{{{subject}}}:", self.namespace)
    }

    /// What the keys of the ledger begin with that this is one of, and which one it is.
    pub(crate) fn part_of_ledger<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(&*self.namespace)?.strip_prefix(":{")?;
        let (_, part) = rest.split_once("}:")?;
        let is_part = LEDGER_PARTS.contains(&part);
        is_part.then(|| (&key[..key.len() - part.len()], part))
    }

    /// The keys of the ledger of one shard.
    pub(crate) fn ledger(&self, kind: &Kind, shard: u16) -> LedgerNames {
        let subject = shards::subject(kind, shard);
        let start = self.start_of_ledger(&subject);
        let key = |part: &str| format!("{start}{part}");
        LedgerNames {
            due: key("due"),
            shadow: key("shadow"),
            leased: key("leased"),
            lease: key("lease"),
            next: key("next"),
            dead: key("dead"),
            grave: key("grave"),
            stats: key("stats"),
            calls: key("calls"),
            lanes: key("lanes"),
            history: key("history"),
            leaving: key("leaving"),
            adopted: key("adopted"),
            trigger: key("trigger"),
            subject,
        }
    }

    /// What the keys of ledgers look like that jobs can be in; a glob.
    pub(crate) fn of_ledgers(&self) -> String {
        format!("{}:{{*}}:[dslng]*", self.namespace)
    }

    /// The kind of a ledger, by one of its keys.
    pub(crate) fn kind_of<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix(&*self.namespace)?.strip_prefix(":{")?;
        let (subject, part) = rest.split_once("}:")?;
        let (kind, _shard) = shards::of_subject(subject)?;
        // Not what was moved out of the way.
        (!part.contains(':')).then_some(kind)
    }

    /// Hash: `last` → the last order number that was given out of this place of a set of jobs,
    /// `app:module`. The tag is that of no ledger, and of the application, so that whoever may write
    /// its ledgers may write it.
    pub(crate) fn order(&self, set: &str, place: u16) -> String {
        format!("{}:{{{set}/{place}}}:order", self.namespace)
    }

    /// The kind and the id of a job whose trigger has a name of ours.
    #[cfg(feature = "worker")]
    pub(crate) fn of_own_trigger<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = name.strip_prefix(&*self.namespace)?.strip_prefix(":{")?;
        let (subject, id) = rest.split_once("}:trigger:")?;
        let (kind, _shard) = shards::of_subject(subject)?;
        Some((kind, id))
    }

    /// Channels on which Redis announces what happens to the keys that match a glob.
    #[cfg(feature = "worker")]
    pub(crate) fn changes(database: i64, glob: &str) -> String {
        format!("__keyspace@{database}__:{glob}")
    }

    /// The key that such a channel belongs to.
    #[cfg(feature = "worker")]
    pub(crate) fn changed(channel: &str) -> Option<&str> {
        let (_database, key) = channel.strip_prefix("__keyspace@")?.split_once("__:")?;
        Some(key)
    }
}

impl LedgerNames {
    /// What `schedule` and `cancel` take before the triggers, in order.
    pub(crate) fn of_producers(&self) -> [&str; 8] {
        [
            &self.due,
            &self.shadow,
            &self.lease,
            &self.next,
            &self.stats,
            &self.calls,
            &self.lanes,
            &self.history,
        ]
    }

    /// Where a job or its letters can be, in the order in which scripts take them.
    pub(crate) fn of_jobs(&self) -> [&str; 7] {
        [
            &self.due,
            &self.shadow,
            &self.leased,
            &self.lease,
            &self.next,
            &self.dead,
            &self.grave,
        ]
    }

    /// What `found` takes: sorted sets, hashes, and the stream.
    pub(crate) fn all(&self) -> [&str; 13] {
        [
            &self.due,
            &self.leased,
            &self.dead,
            &self.lanes,
            &self.adopted,
            &self.shadow,
            &self.lease,
            &self.next,
            &self.grave,
            &self.stats,
            &self.calls,
            &self.leaving,
            &self.history,
        ]
    }

    /// What `get` takes.
    pub(crate) fn of_reads(&self) -> [&str; 8] {
        let [due, shadow, leased, lease, next, dead, grave] = self.of_jobs();
        [due, shadow, leased, lease, next, dead, grave, &self.calls]
    }

    /// What `idle` takes.
    pub(crate) fn of_looks(&self) -> [&str; 7] {
        [
            &self.due,
            &self.shadow,
            &self.lease,
            &self.next,
            &self.grave,
            &self.stats,
            &self.calls,
        ]
    }

    /// What `take` takes.
    pub(crate) fn of_leaving(&self) -> [&str; 9] {
        self.of_moving(&self.leaving)
    }

    /// What `put` takes before the triggers.
    pub(crate) fn of_arriving(&self) -> [&str; 9] {
        self.of_moving(&self.history)
    }

    fn of_moving<'a>(&'a self, other: &'a str) -> [&'a str; 9] {
        [
            &self.due,
            &self.shadow,
            &self.lease,
            &self.dead,
            &self.grave,
            &self.stats,
            &self.calls,
            other,
            &self.adopted,
        ]
    }

    /// What `drop` takes.
    pub(crate) fn of_dropping(&self) -> [&str; 2] {
        [&self.calls, &self.leaving]
    }

    /// The trigger of a job whose key is not ours to write: its kind adopts keys.
    pub(crate) fn own_trigger(&self, id: &str) -> String {
        format!("{}:{id}", self.trigger)
    }
}

/// The keys of one ledger, rendered once. Scripts get them in this order.
#[derive(Debug)]
pub(crate) struct LedgerNames {
    /// What wake-ups call the ledger: `app:module:biz/0`.
    pub(crate) subject: String,
    /// Sorted set: id → due, Unix ms. Pending jobs, those waiting to be retried included.
    pub(crate) due: String,
    /// Hash: id → record.
    pub(crate) shadow: String,
    /// Sorted set: id → lease deadline, Unix ms.
    pub(crate) leased: String,
    /// Hash: id → `token claims fence due flag`, for those leased.
    pub(crate) lease: String,
    /// Hash: id → `due record`, the successors of running jobs.
    pub(crate) next: String,
    /// Sorted set: `id:number` → time of death, Unix ms.
    pub(crate) dead: String,
    /// Hash: `id:number` → record of a dead letter; id → numbers of its letters.
    pub(crate) grave: String,
    /// Hash: counter → value.
    pub(crate) stats: String,
    /// Hash: lane → `number ms reply`, the last call of each; `fence` → largest value given, or a
    /// larger one; `unlisted` → since when its kind is to be made known, Unix µs;
    /// `paused` → since when, Unix ms, or 0; `history` → how many entries that keeps; `layout` → as
    /// [`shards::Layout`] is written; `leaving` → what is on its way to another ledger;
    /// `from/subject` → the last batch that came from that one.
    pub(crate) calls: String,
    /// Sorted set: lane → when it was last looked at, Unix ms, so that `calls` stays small.
    pub(crate) lanes: String,
    /// Stream, capped: what was done, for people; `lua/lib/history.lua` has its layout.
    pub(crate) history: String,
    /// Hash: id → `due record`, `id:number` → `died record`; what was taken out of the ledger, until
    /// it has arrived in another.
    pub(crate) leaving: String,
    /// What the names of own triggers begin with: strings with an expiry, gone with it.
    trigger: String,
    /// Sorted set: id → when its key expires, as it was last seen, Unix ms. Of keys that were
    /// adopted, until then.
    pub(crate) adopted: String,
}
