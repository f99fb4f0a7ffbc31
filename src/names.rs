//! Every Redis key and channel that Keyfall uses, one function each. No other module formats a
//! name.
//!
//! The keys of a ledger share the hash tag `{app:module:biz/shard}`, so they are in one slot and
//! one script can change them together. None of them expires but triggers, and `calls` and `lanes`
//! after the kind was dropped; scripts do the trimming. The activity of a kind expires as well.

use std::sync::Arc;

use crate::key::Kind;
use crate::shards;

/// The value of every trigger, which tells our own keys from foreign keys.
pub(crate) const MARKER: &str = "keyfall";

/// A part of the names of probe keys, whose events prove which changes Redis announces.
#[cfg(feature = "worker")]
const PROBE: &str = "{keyfall-probe}";

/// The last parts of the names of a ledger's keys, in the order of [`LedgerNames::all`].
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
    /// Names below this namespace.
    pub(crate) fn new(namespace: &str) -> Self {
        Names {
            namespace: namespace.into(),
        }
    }

    /// The namespace: the beginning of all names except plain triggers, which are named like their
    /// jobs.
    pub(crate) fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Hash: kind → number of shards, in the form of [`shards::Layout`]. A kind that was used stays
    /// listed until it is dropped. `=kind` → the mark of a drop under way.
    pub(crate) fn kinds(&self) -> String {
        format!("{}:kinds", self.namespace)
    }

    /// Hash: `schema` → version of the stored layout, written once; `functions` → `channel
    /// library`, the wake channel of this database, for the functions of that library; `server` →
    /// `1 of 2`, where several servers have the jobs; `emptied` → time at which the server came
    /// back without data although others had some, Unix ms, until an operator has taken note of it;
    /// `paused-by prefix` → `since who`, the time of a pause and the operator who made it; `limit kind`
    /// → `set jobs per-µs burst concurrency by`, the limit of a kind; `archive prefix` → `payload most
    /// keep keep-dead set by`, the archive of kinds; `copy prefix` → `most set by`, the copy of kinds;
    /// `data-set` → the id of the data set; `declared-limit kind` → the limit that a program declared last; `declared name key` → digest of a recurring job that a configuration declares.
    pub(crate) fn meta(&self) -> String {
        format!("{}:meta", self.namespace)
    }

    /// Hash: instance → `beat-ms room description`. Instances that live, and some that are gone.
    #[cfg(feature = "worker")]
    pub(crate) fn instances(&self) -> String {
        format!("{}:instances", self.namespace)
    }

    /// Channel on which an instance hears its own beats, which shows that its subscription lives.
    #[cfg(feature = "worker")]
    pub(crate) fn pulse(&self, database: i64, instance: &str) -> String {
        format!("{}:pulse:{database}:{instance}", self.namespace)
    }

    /// Hash: prefix of kinds → time at which it was paused, Unix ms; it also pauses kinds that come
    /// later. On several servers also `=prefix` → time at which it was last resumed.
    pub(crate) fn paused(&self) -> String {
        format!("{}:paused", self.namespace)
    }

    /// Stream, capped: what operators did, with the fields `what`, `on`, `who`, `by`, `count` and
    /// `note`.
    #[cfg(feature = "worker")]
    pub(crate) fn actions(&self) -> String {
        format!("{}:actions", self.namespace)
    }

    /// Hash: glob → `began-ms cursor`, the progress of the search for keys to adopt.
    #[cfg(feature = "worker")]
    pub(crate) fn search(&self) -> String {
        format!("{}:search", self.namespace)
    }

    /// String, which expires: the instance that searches.
    #[cfg(feature = "worker")]
    pub(crate) fn searching(&self) -> String {
        format!("{}:searching", self.namespace)
    }

    /// The name of a probe key, and a glob that matches it. The key is a string that expires at
    /// once; its events prove which changes Redis announces for keys of these globs. No job has its
    /// name, because names of jobs have no braces. The glob is one of `globs`, because a user who
    /// adopts such keys may subscribe to it; if each of `globs` is the name of a single key, the
    /// glob is one of our own.
    #[cfg(feature = "worker")]
    pub(crate) fn probe(&self, globs: &[String], unique: &str) -> (String, String) {
        let ours = format!("{}:probe:*", self.namespace);
        let glob = globs.iter().find(|glob| glob.contains('*'));
        let glob = glob.unwrap_or(&ours);
        (glob.replace('*', &format!("{PROBE}{unique}")), glob.clone())
    }

    /// Whether this is the name of a probe key.
    #[cfg(feature = "worker")]
    pub(crate) fn is_probe(name: &[u8]) -> bool {
        // Most names have no brace, which is quick to see.
        name.contains(&b'{') && name.windows(PROBE.len()).any(|it| it == PROBE.as_bytes())
    }

    /// Channel for messages to workers: `due ledger ms`, `now ledger id…`, `held ledger µs`, `turn
    /// ledger instance`, `late ledger id…`, `left ledger instance id…`, `flood ledger`, `kind kind`, `layout kind
    /// layout`, `cancel kind id`, `pause kind`, `resume kind`, `gone kind`, `instances`, `unheard
    /// instance`, `breaker host`. The name holds the number of the database, because all databases
    /// of a server share their channels.
    pub(crate) fn wake(&self, database: i64) -> String {
        format!("{}:wake:{database}", self.namespace)
    }

    /// Channel on which Redis announces the keys that it expired. See
    /// <https://redis.io/docs/latest/develop/pubsub/keyspace-notifications/>.
    #[cfg(feature = "worker")]
    pub(crate) fn expired(database: i64) -> String {
        format!("__keyevent@{database}__:expired")
    }

    /// List beside the list of a target, in the Redis of the target: leases that consumers have
    /// finished with.
    #[cfg(feature = "worker")]
    pub(crate) fn receipts(list: &str) -> String {
        format!("{list}:done")
    }

    /// String beside the stream of a target: an id; entries up to this one need no look any more.
    #[cfg(feature = "worker")]
    pub(crate) fn settled(stream: &str, group: &str) -> String {
        format!("{stream}:{group}:settled")
    }

    /// Hash beside the stream of a target: id → lease of each entry whose job has not ended;
    /// `oldest` → id of the oldest entry that the last trim has left; `consumer` → name of the
    /// consumer that ties this hash to the group.
    #[cfg(feature = "worker")]
    pub(crate) fn written(stream: &str, group: &str) -> String {
        format!("{stream}:{group}:written")
    }

    /// String beside the stream of a target, which expires: the mark of a worker that takes over
    /// the entries of workers that are gone.
    #[cfg(feature = "worker")]
    pub(crate) fn sweep(stream: &str, group: &str) -> String {
        format!("{stream}:{group}:sweep")
    }

    /// The beginning of the keys of a ledger; `subject` is its name, as in wake-ups.
    pub(crate) fn start_of_ledger(&self, subject: &str) -> String {
        format!("{}:{{{subject}}}:", self.namespace)
    }

    /// Splits a key of a ledger: the beginning that all keys of that ledger share, and one of
    /// [`LEDGER_PARTS`]. `None` for any other key.
    pub(crate) fn part_of_ledger<'a>(&self, key: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = key.strip_prefix(&*self.namespace)?.strip_prefix(":{")?;
        let (_, part) = rest.split_once("}:")?;
        let is_part = LEDGER_PARTS.contains(&part);
        is_part.then(|| (&key[..key.len() - part.len()], part))
    }

    /// The keys of the ledger of one shard. Rendered anew by each call, so callers keep them.
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
            #[cfg(feature = "worker")]
            minutes: self.activity(kind, "minutes"),
            #[cfg(feature = "worker")]
            quarters: self.activity(kind, "quarters"),
            subject,
        }
    }

    /// One of the two keys with the activity of a kind. Their hash tag belongs to no ledger, and
    /// begins with the application, so that a user who may write the application's ledgers may
    /// write them.
    #[cfg(feature = "worker")]
    fn activity(&self, kind: &Kind, part: &str) -> String {
        format!("{}:{{{kind}}}:{part}", self.namespace)
    }

    /// A glob of the ledger keys that can hold jobs. It also matches some other keys of ledgers,
    /// but no key without a hash tag.
    pub(crate) fn of_ledgers(&self) -> String {
        format!("{}:{{*}}:[dslng]*", self.namespace)
    }

    /// The kind of the ledger that a key belongs to. `None` for any other key.
    pub(crate) fn kind_of<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix(&*self.namespace)?.strip_prefix(":{")?;
        let (subject, part) = rest.split_once("}:")?;
        let (kind, _shard) = shards::of_subject(subject)?;
        // A part with a colon is a key that was moved out of the way.
        (!part.contains(':')).then_some(kind)
    }

    /// Hash: `last` → the last order number that was given out for this place of a set of jobs,
    /// `app:module`. Its hash tag belongs to no ledger, and begins with the application, so that a
    /// user who may write the application's ledgers may write it.
    pub(crate) fn order(&self, set: &str, place: u16) -> String {
        format!("{}:{{{set}/{place}}}:order", self.namespace)
    }

    /// The kind and the id of the job whose trigger has this name below our namespace. `None` for
    /// any other name.
    #[cfg(feature = "worker")]
    pub(crate) fn of_own_trigger<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        let rest = name.strip_prefix(&*self.namespace)?.strip_prefix(":{")?;
        let (subject, id) = rest.split_once("}:trigger:")?;
        let (kind, _shard) = shards::of_subject(subject)?;
        Some((kind, id))
    }

    /// Pattern of the channels on which Redis announces changes of the keys that match a glob.
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
    /// The keys that `schedule` and `cancel` take before the triggers, in order.
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

    /// The keys that can hold a job or its dead letters, in the order in which scripts take them.
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

    /// All keys, in the order in which `found` takes them: sorted sets, hashes, and the stream.
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

    /// The keys of groups, three sorted sets and a hash, which exist only while a limit has groups and
    /// jobs wait or run; `lua/lib/groups.lua` names them itself.
    pub(crate) fn of_groups(&self) -> [String; 4] {
        let ledger = self.due.strip_suffix("due").unwrap_or_default();
        ["groups", "turns", "rates", "shares"].map(|part| format!("{ledger}{part}"))
    }

    /// The records of ended jobs that wait for the archive, two lists, and the changed jobs that wait
    /// for the copy, a sorted set. They exist only while something waits; `lua/lib/archive.lua` and
    /// `lua/lib/changes.lua` name them themselves.
    pub(crate) fn of_waiting(&self) -> [String; 3] {
        let ledger = self.due.strip_suffix("due").unwrap_or_default();
        ["ended", "died", "changes"].map(|part| format!("{ledger}{part}"))
    }

    /// The keys that `get` takes, in order.
    pub(crate) fn of_reads(&self) -> [&str; 8] {
        let [due, shadow, leased, lease, next, dead, grave] = self.of_jobs();
        [due, shadow, leased, lease, next, dead, grave, &self.calls]
    }

    /// The keys that `limit` takes, in order.
    pub(crate) fn of_limit(&self) -> [&str; 7] {
        [
            &self.calls,
            &self.lanes,
            &self.history,
            &self.due,
            &self.shadow,
            &self.lease,
            &self.leased,
        ]
    }

    /// The keys that `idle` takes, in order.
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

    /// The keys that `take` takes, in order.
    pub(crate) fn of_leaving(&self) -> [&str; 9] {
        self.of_moving(&self.leaving)
    }

    /// The keys that `put` takes before the triggers, in order.
    pub(crate) fn of_arriving(&self) -> [&str; 9] {
        self.of_moving(&self.history)
    }

    /// The keys that both ends of a move take, in order, with `other`, the key in which they
    /// differ.
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

    /// The keys that `drop` takes, in order.
    pub(crate) fn of_dropping(&self) -> [&str; 2] {
        [&self.calls, &self.leaving]
    }

    /// The trigger of a job of a kind that adopts plain keys: the key with the job's own name is
    /// not ours to write.
    pub(crate) fn own_trigger(&self, id: &str) -> String {
        format!("{}:{id}", self.trigger)
    }
}

/// The keys of one ledger, rendered once. Scripts take subsets of them, in the orders of the
/// methods.
#[derive(Debug)]
pub(crate) struct LedgerNames {
    /// The name of the ledger, as in wake-ups: `app:module:biz/0`.
    pub(crate) subject: String,
    /// Sorted set: id → due time, Unix ms. Pending jobs, including jobs that wait for a retry.
    pub(crate) due: String,
    /// Hash: id → record.
    pub(crate) shadow: String,
    /// Sorted set: id → lease deadline, Unix ms.
    pub(crate) leased: String,
    /// Hash: id → `token claims fence due flag`, for leased jobs.
    pub(crate) lease: String,
    /// Hash: id → `due record`, the successors of running jobs.
    pub(crate) next: String,
    /// Sorted set: `id:number` → time of death, Unix ms.
    pub(crate) dead: String,
    /// Hash: `id:number` → record of a dead letter; id → numbers of its letters.
    pub(crate) grave: String,
    /// Hash: counter → value.
    pub(crate) stats: String,
    /// Hash: lane → `number ms reply`, the last call of each; `fence` → the largest fencing value
    /// given, or a larger one; `unlisted` → time since which its kind waits to be listed, Unix µs;
    /// `paused` → time of the pause, Unix ms, or 0; `history` → number of entries that the history
    /// keeps; `layout` → in the form of [`shards::Layout`]; `batch` → the batch that is on its way
    /// to another ledger; `from/subject` → the last batch that came from that ledger; `turn` → the
    /// number of the last pause or resume; `founding` → time since which the ledgers of its kind
    /// are being created, Unix µs; `archive` and `waiting` → as in `lua/lib/archive.lua`; `copy` → `most set by`,
    /// the terms of its copy; `changes` → as in `lua/lib/changes.lua`.
    pub(crate) calls: String,
    /// Sorted set: lane → time of the last look at it, Unix ms, so that silent lanes are found and
    /// `calls` stays small.
    pub(crate) lanes: String,
    /// Stream, capped: the steps of jobs, for people; `lua/lib/history.lua` has its layout.
    pub(crate) history: String,
    /// Hash: id → `due record`, `id:number` → `died record`; jobs that were taken out of the
    /// ledger, until they have arrived in another.
    pub(crate) leaving: String,
    /// The beginning of the names of own triggers: strings with an expiry, gone with it.
    trigger: String,
    /// Sorted set: id → expiry of its plain key when it was last seen, Unix ms. Jobs that were
    /// adopted from keys, until the key is gone.
    pub(crate) adopted: String,
    /// Hash beside the ledger, one for all shards of the kind: place in a ring → `minute counts`,
    /// the starts and ends of runs in each of the last 60 minutes; `lua/activity.lua` has the layout.
    /// Expires when nothing was counted for an hour.
    #[cfg(feature = "worker")]
    pub(crate) minutes: String,
    /// Hash beside the ledger: the same for each of the last 96 quarters of an hour. Expires when
    /// nothing was counted for a day.
    #[cfg(feature = "worker")]
    pub(crate) quarters: String,
}
