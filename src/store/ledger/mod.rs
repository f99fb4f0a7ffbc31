//! One ledger: its keys, how its scripts are called, and the operations on it.
//!
//! | file | contents |
//! |---|---|
//! | [`script`], [`reply`] | the Lua scripts, and the closed set of their answers |
//! | [`call`], [`lane`] | calls of scripts; numbered calls, which may be repeated |
//! | [`produce`], `work` | the operations of producers and of workers |
//! | [`inspect`], [`list`], [`letters`] | looks a job up, lists jobs page by page, reads dead letters |
//! | `history` | what was done, for people |
//! | `adopt`, `keyspace` | plain keys: their jobs, and the search for them |
//! | [`triggers`], `touches`, `pace` | triggers that are in other slots than their ledger; touching them; when the pacer has to |
//! | [`audit`], [`mending`] | looks for wrong names and wrong keys, and mends them |
//! | [`counted`], `failures` | what the answers are counted as; which failures were told of |

#[cfg(feature = "worker")]
pub(super) mod adopt;
pub(super) mod audit;
pub(super) mod call;
pub(super) mod counted;
#[cfg(feature = "worker")]
pub(super) mod failures;
#[cfg(feature = "worker")]
pub(super) mod history;
pub(super) mod inspect;
#[cfg(feature = "worker")]
pub(super) mod keyspace;
pub(super) mod lane;
pub(super) mod letters;
pub(super) mod list;
pub(super) mod mending;
#[cfg(feature = "worker")]
pub(super) mod pace;
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
use std::time::Instant;

use redis::Cmd;

use super::{Lane, RedisClock, Server, Store};
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

/// The truth about one kind in one shard. What can be done to it stands in
/// [`produce`](produce), [`work`](work) and [`inspect`](inspect).
pub(crate) struct Ledger {
    /// Where all ledgers are.
    pub(super) store: Arc<Store>,
    /// The server that has this one.
    pub(super) server: Arc<Server>,
    pub(super) names: LedgerNames,
    pub(super) wake: String,
    kind: Kind,
    place: ShardRef,
    /// Triggers have names of ours, because the names of jobs belong to others.
    own_triggers: bool,
    meter: Meter,
    #[cfg(feature = "worker")]
    failures: Failures,
    clock: Arc<RedisClock>,
}

impl Ledger {
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
            clock: match server.is_cluster() {
                // That of whichever node has the ledger.
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

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// Which of the ledgers of its kind it is, and by which layout.
    pub(crate) fn place(&self) -> ShardRef {
        self.place
    }

    /// Which of several servers has it; 0 if there is one.
    pub(crate) fn server(&self) -> usize {
        self.server.place()
    }

    /// Whether other ledgers may be on servers that are there while this one's is not.
    pub(crate) fn is_one_of_many(&self) -> bool {
        self.server.is_member()
    }

    /// Says something on the wake channel of its server.
    #[cfg(feature = "worker")]
    pub(crate) async fn tell(&self, message: &str, until: Instant) -> Result<()> {
        self.server.tell(message, until).await
    }

    /// Where its server is; without credentials.
    pub(crate) fn address_of_server(&self) -> String {
        self.server.address()
    }

    /// Its triggers have names of ours.
    pub(super) fn has_own_triggers(&self) -> bool {
        self.own_triggers
    }

    /// What is counted of it.
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// What was told of it.
    #[cfg(feature = "worker")]
    pub(super) fn failures(&self) -> &Failures {
        &self.failures
    }

    /// Where the clock stands by which its jobs are due.
    #[cfg(feature = "worker")]
    pub(crate) fn clock(&self) -> &RedisClock {
        &self.clock
    }

    /// How wake-ups call this ledger.
    #[cfg(feature = "worker")]
    pub(crate) fn subject(&self) -> &str {
        &self.names.subject
    }

    /// What became of a call to this ledger, for those who want to know how it is.
    #[cfg(feature = "worker")]
    pub(crate) fn note<T>(&self, call: &'static str, outcome: &Result<T>) {
        let subject = &self.names.subject;
        self.server.note(subject, call, outcome.as_ref().err());
    }

    /// The command that calls `script` on `keys`, and on the triggers of `jobs`.
    pub(super) fn call<'a>(
        &self,
        script: &'static Script,
        keys: &[&str],
        jobs: impl ExactSizeIterator<Item = &'a JobKey>,
    ) -> Cmd {
        debug_assert_eq!(keys.len(), script.fixed_keys, "{}", script.name);
        if self.has_triggers_elsewhere() {
            // They are for another call.
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

    /// Whether the triggers live in slots of their own, wherever their names hash to.
    pub(super) fn has_triggers_elsewhere(&self) -> bool {
        self.server.is_cluster()
    }

    /// The name of a job's trigger, where that is not the key of the job.
    pub(super) fn own_trigger(&self, job: &JobKey) -> Option<String> {
        self.own_triggers.then(|| self.names.own_trigger(job.id()))
    }

    /// Sends a call until it is answered, or until `until`.
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

    /// As [`eval`](Self::eval), for a script that answers item by item. If the ledger goes by another
    /// layout, the answers are [`Stale`](super::Word::Stale), and the layout is known from now on.
    pub(super) async fn eval_items(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        items: usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let mut called = self.eval(script, cmd, until).await?;
        if self.is_stale(&mut called.reply)? {
            return Ok(vec![Answered::STALE; items]);
        }
        called.reply.item_answers(items)
    }

    /// The same, for a script that stores jobs: the mark of the ledger goes to each answer.
    pub(super) async fn eval_storing(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        items: usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let mut called = self.eval(script, cmd, until).await?;
        if self.is_stale(&mut called.reply)? {
            return Ok(vec![Answered::STALE; items]);
        }
        let mut answers = called.reply.item_answers(items)?;
        if let Some(since) = called.reply.mark()? {
            let shard = self.place.shard;
            let unlisted = Some(Unlisted { shard, since });
            answers.iter_mut().for_each(|it| it.unlisted = unlisted);
        }
        Ok(answers)
    }

    /// Whether the ledger goes by another layout, which is known from now on.
    pub(super) fn is_stale(&self, reply: &mut Reply) -> Result<bool> {
        if reply.status != "stale" {
            return Ok(false);
        }
        if let Some(layout) = Layout::parse(&reply.text()?) {
            self.server.layouts.learn(&self.kind, layout);
        }
        Ok(true)
    }

    /// The arguments with which numbered calls on jobs by name begin.
    pub(super) fn address(&self, cmd: &mut Cmd, lane: &mut Lane) {
        number(cmd, lane);
        cmd.arg(self.place.to_string());
    }
}

/// The arguments with which every numbered call begins.
pub(super) fn number(cmd: &mut Cmd, lane: &mut Lane) {
    let number = lane.next();
    cmd.arg(lane.id()).arg(number).arg(who());
}

/// Who calls, for the history: the process, as an operator finds it.
pub(super) fn who() -> &'static str {
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
