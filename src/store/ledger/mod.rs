//! One ledger: its keys, the calls of its scripts, and the operations on it.
//!
//! A [`Ledger`] is a handle; it holds no state of jobs. Each operation is one call of one Lua
//! script, and so atomic. Operations take a deadline `until`, after which they fail. The batchers
//! and workers of the crate call the operations; `src/store/kinds` decides which ledger a job is
//! in.
//!
//! | file | contents |
//! |---|---|
//! | [`script`], [`reply`] | the Lua scripts, and the closed set of their answers |
//! | [`call`], [`lane`] | calls of scripts; numbered calls, which may be repeated, and pools of lanes |
//! | [`produce`], [`plan`], `work` | the operations of producers, on single jobs and on series, and of workers |
//! | [`inspect`], [`list`], [`letters`] | reads of one job; lists of jobs, page by page; dead letters |
//! | `limiting`, `aside` | the limit of a ledger; due jobs that wait for the turn of their group |
//! | `history` | the history of jobs, for people |
//! | `changes`, `ended` | the jobs that have changed, for a copy; the records of ended jobs, for an archive |
//! | `adopt`, `keyspace` | adoption of plain keys, and the search for such keys |
//! | [`triggers`], `touches`, `pace` | triggers in other slots than their ledger; touches of them; rounds of the pacer |
//! | [`audit`], [`mending`] | searches for wrong names and wrong keys, and their repair |
//! | [`counted`], `failures` | the counters of answers; the log of failed attempts |
//!
//! # Keys of a ledger
//!
//! All keys of a ledger share one hash tag, which is also the name of the ledger in wake-ups. Times
//! are Unix milliseconds.
//!
//! | key | type | contents |
//! |---|---|---|
//! | `due` | sorted set | ids of pending jobs, by due time |
//! | `leased` | sorted set | ids of leased jobs, by deadline |
//! | `dead` | sorted set | `id:number` of dead letters, by time of death |
//! | `lanes` | sorted set | lanes, by a time of use, to find silent ones |
//! | `adopted` | sorted set | ids of adopted keys, by their expiry |
//! | `shadow` | hash | records of pending and leased jobs, by id |
//! | `lease` | hash | leases, `token claims fence due flag`, by id |
//! | `next` | hash | successors, `due record`, by id |
//! | `grave` | hash | records of dead letters, by `id:number`; the last numbers, by id |
//! | `stats` | hash | counters, by name |
//! | `calls` | hash | last reply of each lane; fields such as `layout`, `paused`, `fence`, `history` |
//! | `leaving` | hash | the batch that moves to another ledger |
//! | `history` | stream | the last transitions, for people |
//! | `ended`, `died` | list | records of ended jobs that wait for an archive; only while there are some; `lua/lib/archive.lua` |
//! | `changes` | sorted set | ids of changed jobs that wait for a copy, by the version of their last change; `lua/lib/changes.lua` |
//! | `groups`, `turns`, `rates` | sorted sets | jobs, turns and rates of the groups of a limit; only while there are some; `lua/lib/groups.lua` |
//! | `shares` | hash | the shares of groups, if several ledgers share their limit |

#[cfg(feature = "worker")]
pub(super) mod adopt;
mod aside;
pub(super) mod audit;
pub(super) mod call;
pub(super) mod changes;
pub(super) mod counted;
pub(super) mod ended;
#[cfg(feature = "worker")]
pub(super) mod failures;
#[cfg(feature = "worker")]
pub(super) mod history;
pub(super) mod inspect;
#[cfg(feature = "worker")]
pub(super) mod keyspace;
pub(super) mod lane;
pub(super) mod letters;
pub(super) mod limiting;
pub(super) mod list;
pub(super) mod mending;
#[cfg(feature = "worker")]
pub(super) mod pace;
pub(super) mod plan;
pub(super) mod produce;
pub(super) mod reply;
pub(super) mod script;
#[cfg(feature = "worker")]
pub(super) mod touches;
pub(super) mod triggers;
#[cfg(feature = "worker")]
pub(super) mod work;

use std::fmt;
use std::sync::{Arc, LazyLock};
#[cfg(feature = "worker")]
use std::time::Duration;
use std::time::Instant;

use redis::Cmd;

use super::{Lane, RedisClock, Server, Store};
#[cfg(feature = "worker")]
use crate::activity::LedgerSum;
use crate::counters::Meter;
use crate::error::Result;
use crate::key::{JobKey, Kind};
use crate::names::LedgerNames;
use crate::shards::{Layout, ShardRef};
use call::Called;
#[cfg(feature = "worker")]
use failures::Failures;
use reply::{Answered, Reply, Unlisted};
use script::Script;

/// The handle of one ledger: the truth about one kind in one shard. The operations are in
/// [`produce`](produce), [`work`](work), [`inspect`](inspect) and the other files of this folder.
pub(crate) struct Ledger {
    /// The store of all ledgers.
    pub(super) store: Arc<Store>,
    /// The server that has this ledger.
    pub(super) server: Arc<Server>,
    /// The names of its keys.
    pub(super) names: LedgerNames,
    /// The name of the wake channel of its server.
    pub(super) wake: String,
    kind: Kind,
    /// The shard, and the layout by which this handle addresses it.
    place: ShardRef,
    /// Whether the triggers have names of their own, because other programs use the names of the
    /// jobs.
    own_triggers: bool,
    meter: Meter,
    #[cfg(feature = "worker")]
    failures: Failures,
    /// The starts and ends of runs, for the activity of the kind.
    #[cfg(feature = "worker")]
    sum: Arc<LedgerSum>,
    /// The clock of its server or, on a cluster, of the node that has it.
    clock: Arc<RedisClock>,
}

impl Ledger {
    /// A handle of the ledger at `place`. No I/O; the ledger need not exist.
    pub(super) fn new(
        store: Arc<Store>,
        kind: Kind,
        place: ShardRef,
        own_triggers: bool,
    ) -> Arc<Self> {
        let server = store.home_of(&kind, place.shard).clone();
        Arc::new(Ledger {
            names: server.names.ledger(&kind, place.shard),
            wake: server.names.wake(server.database),
            meter: Meter::new(&kind),
            #[cfg(feature = "worker")]
            failures: Failures::new(),
            #[cfg(feature = "worker")]
            sum: LedgerSum::new(store.sums(), &kind),
            clock: match server.is_cluster() {
                // The clock of the node that has the ledger, whichever that is.
                true => Arc::default(),
                false => server.clock.clone(),
            },
            store,
            server,
            own_triggers,
            place,
            kind,
        })
    }

    /// The kind of its jobs.
    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// The shard, and the layout by which it is addressed.
    pub(crate) fn place(&self) -> ShardRef {
        self.place
    }

    /// The place of its server among several; 0 if there is one.
    pub(crate) fn server(&self) -> usize {
        self.server.place()
    }

    /// Whether its server is one of several, so that other ledgers can be reached while this one
    /// cannot.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.server.is_member()
    }

    /// Publishes a message on the wake channel of its server.
    #[cfg(feature = "worker")]
    pub(crate) async fn tell(&self, message: &str, until: Instant) -> Result<()> {
        self.server.tell(message, until).await
    }

    /// The address of its server, without credentials.
    pub(crate) fn address_of_server(&self) -> String {
        self.server.address()
    }

    /// Whether its triggers have names of their own, instead of the names of the jobs.
    pub(super) fn has_own_triggers(&self) -> bool {
        self.own_triggers
    }

    /// The counters of this process for the kind.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Counts the start of a run in the activity of the kind.
    #[cfg(feature = "worker")]
    pub(crate) fn run_begins(&self, lag: Duration) {
        self.sum.begun(self.clock.now(), lag);
    }

    /// Counts the end of a run in the activity of the kind; `outcome` is a label of the metrics.
    #[cfg(feature = "worker")]
    pub(super) fn run_ended(&self, outcome: &str) {
        self.sum.ended(self.clock.now(), outcome);
    }

    /// The log of failed attempts, which limits its lines.
    #[cfg(feature = "worker")]
    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// The clock by which its jobs are due.
    #[cfg(feature = "worker")]
    pub(crate) fn clock(&self) -> &RedisClock {
        &self.clock
    }

    /// The name of this ledger in wake-ups, `app:module:biz/0` for the first shard, and
    /// `app:module:biz/3.17` for shard 3, with a number that places it in the slots of a cluster.
    pub(crate) fn subject(&self) -> &str {
        &self.names.subject
    }

    /// Records the outcome of a call for the health report of its server. `call` is the name of the
    /// operation; a success ends an earlier failure.
    #[cfg(feature = "worker")]
    pub(crate) fn note<T>(&self, call: &'static str, outcome: &Result<T>) {
        let subject = &self.names.subject;
        self.server.note(subject, call, outcome.as_ref().err());
    }

    /// The command that calls `script` on `keys` and on the triggers of `jobs`. The caller adds the
    /// arguments. On a cluster the triggers are left out, because they are in other slots;
    /// [`triggers`] moves them.
    pub(super) fn call<'a>(
        &self,
        script: &'static Script,
        keys: &[&str],
        jobs: impl ExactSizeIterator<Item = &'a JobKey>,
    ) -> Cmd {
        debug_assert_eq!(keys.len(), script.fixed_keys, "{}", script.name);
        if self.has_triggers_elsewhere() {
            // Another call moves the triggers.
            return script.call_on_whole(keys, &self.names);
        }
        let mut cmd = script.call(keys.len() + jobs.len());
        cmd.arg(keys);
        for job in jobs {
            match self.own_trigger(job) {
                None => cmd.arg(job.as_str()),
                Some(name) => cmd.arg(name),
            };
        }
        cmd
    }

    /// Whether the triggers are in other slots than the ledger, as on a cluster.
    pub(crate) fn has_triggers_elsewhere(&self) -> bool {
        self.server.is_cluster()
    }

    /// The name of the trigger of a job, if it is not the job key itself.
    pub(super) fn own_trigger(&self, job: &JobKey) -> Option<String> {
        self.own_triggers.then(|| self.names.own_trigger(job.id()))
    }

    /// Sends a call until it is answered, or until `until`. See [`call`] for repeats and for
    /// scripts that the server does not know.
    pub(super) async fn eval(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<Called> {
        self.server
            .eval(script, cmd, &self.clock, &self.names.subject, until)
            .await
    }

    /// As [`eval`](Self::eval), for a script with one answer for each of `items`. If the ledger has
    /// another layout, each answer is [`Stale`](super::Word::Stale), and the layout is noted. If the
    /// script has stored jobs and the kind has to be registered, each answer says so.
    pub(super) async fn eval_items(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        items: usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let mut reply = self.eval(script, cmd, until).await?.reply;
        if self.is_stale(&mut reply)? {
            return Ok(vec![Answered::STALE; items]);
        }
        let mut answers = reply.item_answers(items)?;
        if let Some(since) = reply.mark()? {
            let shard = self.place.shard;
            let unlisted = Some(Unlisted { shard, since });
            answers.iter_mut().for_each(|it| it.unlisted = unlisted);
        }
        Ok(answers)
    }

    /// Whether the ledger has refused a call because it has another layout, which is then noted.
    /// The caller sends the call again, to the ledger that has the job by the new layout.
    pub(super) fn is_stale(&self, reply: &mut Reply) -> Result<bool> {
        if reply.status != "stale" {
            return Ok(false);
        }
        if let Some(layout) = Layout::parse(&reply.text()?) {
            self.server.layouts.learn(&self.kind, layout);
        }
        Ok(true)
    }

    /// Adds the arguments with which a numbered call on jobs begins: lane, number, caller, place.
    pub(super) fn address(&self, cmd: &mut Cmd, lane: &mut Lane) {
        number(cmd, lane);
        cmd.arg(self.place.to_string());
    }
}

/// Adds the arguments with which every numbered call begins: lane, number, caller. This begins a
/// call in the lane.
pub(super) fn number(cmd: &mut Cmd, lane: &mut Lane) {
    let number = lane.next();
    cmd.arg(lane.id()).arg(number).arg(who());
}

/// The name of this process in the history, `host:pid`. It is read once.
pub(crate) fn who() -> &'static str {
    static WHO: LazyLock<String> = LazyLock::new(|| {
        let host = gethostname::gethostname();
        format!("{}:{}", host.to_string_lossy(), std::process::id())
    });
    &WHO
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger({})", self.names.subject)
    }
}
