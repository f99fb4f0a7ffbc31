//! One ledger: its keys, and how its scripts are called.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Cmd;

use super::reply::{Answered, Reply};
use super::script::Script;
use super::{Lane, Store};
use crate::error::{Error, Result};
use crate::key::{JobKey, Kind};
use crate::names::LedgerNames;

/// How long an insisting store waits before it asks a server again that has refused.
const INSISTENCE: Duration = Duration::from_millis(500);

/// The truth about one kind. What can be done to it stands in
/// [`produce`](super::produce), [`work`](super::work) and [`inspect`](super::inspect).
pub(crate) struct Ledger {
    pub(super) store: Arc<Store>,
    pub(super) names: LedgerNames,
    pub(super) wake: String,
    kind: Kind,
}

/// The reply to a call, and when the try that it answers was sent.
pub(super) struct Called {
    pub(super) reply: Reply,
    #[cfg(feature = "worker")]
    pub(super) sent: Instant,
}

impl Ledger {
    pub(super) fn new(store: Arc<Store>, kind: Kind) -> Arc<Self> {
        Arc::new(Ledger {
            names: store.names.ledger(&kind),
            wake: store.names.wake(store.database),
            store,
            kind,
        })
    }

    pub(crate) fn kind(&self) -> &Kind {
        &self.kind
    }

    /// How wake-ups call this ledger.
    #[cfg(feature = "worker")]
    pub(crate) fn subject(&self) -> &str {
        &self.names.subject
    }

    /// The command that calls `script` on `keys`, and on the triggers of `jobs`.
    pub(super) fn call<'a>(
        &self,
        script: &'static Script,
        keys: &[&str],
        jobs: impl ExactSizeIterator<Item = &'a JobKey>,
    ) -> Cmd {
        debug_assert_eq!(keys.len(), script.fixed_keys, "{}", script.name);
        let mut cmd = Cmd::with_capacity(64, 1024);
        cmd.arg("EVALSHA")
            .arg(script.hash())
            .arg(keys.len() + jobs.len());
        for key in keys {
            cmd.arg(*key);
        }
        for job in jobs {
            cmd.arg(job.as_str());
        }
        cmd
    }

    /// Sends a call until it is answered, or until `until`.
    pub(super) async fn eval(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<Called> {
        let store = &self.store;
        let mut loaded = false;
        let mut waiting = false;
        let answer = loop {
            let fault = match store.answer(cmd, until).await {
                Ok(answer) => break answer,
                Err(fault) if fault.is_no_script() && !loaded => {
                    tracing::debug!(script = script.name, "the server does not know the script");
                    match store.answer(&script.load(), until).await {
                        Ok(_) => {
                            loaded = true;
                            continue;
                        }
                        Err(fault) => fault,
                    }
                }
                Err(fault) => fault,
            };
            loaded = false;
            let again = Instant::now() + INSISTENCE;
            if !store.insists || !fault.may_be_mended() || again >= until {
                return Err(fault.into());
            }
            if !std::mem::replace(&mut waiting, true) {
                let error = Error::from(fault);
                tracing::warn!(script = script.name, ledger = ?self, %error, "tried until it works");
            }
            tokio::time::sleep_until(again.into()).await;
        };
        if waiting {
            tracing::info!(script = script.name, ledger = ?self, "it works again");
        }
        let reply = Reply::parse(answer.value)?;
        store.clock.observe(answer.sent, answer.received, reply.now);
        Ok(Called {
            reply,
            #[cfg(feature = "worker")]
            sent: answer.sent,
        })
    }

    /// As [`eval`](Self::eval), for a script that answers item by item.
    pub(super) async fn eval_items(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        items: usize,
        until: Instant,
    ) -> Result<Vec<Answered>> {
        let mut called = self.eval(script, cmd, until).await?;
        called.reply.item_answers(items)
    }
}

/// The arguments with which every numbered call begins.
pub(super) fn number(cmd: &mut Cmd, lane: &mut Lane) {
    let number = lane.next();
    cmd.arg(lane.id()).arg(number);
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ledger({})", self.names.subject)
    }
}
