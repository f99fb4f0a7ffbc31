//! How a script is called: loaded where the server does not know it, and for a worker until
//! it works.

use std::collections::HashSet;
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use redis::Cmd;

use super::Store;
use super::reply::Reply;
use super::script::Script;
use crate::error::Result;

/// How long an insisting store waits before it asks a server again that has refused.
const INSISTENCE: Duration = Duration::from_millis(500);

/// The reply to a call, and when the try that it answers was sent.
pub(super) struct Called {
    pub(super) reply: Reply,
    #[cfg(feature = "worker")]
    pub(super) sent: Instant,
}

impl Store {
    /// Sends a call until it is answered, or until `until`.
    pub(super) async fn eval(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        subject: &str,
        until: Instant,
    ) -> Result<Called> {
        let mut loaded = false;
        let mut waiting = false;
        let answer = loop {
            let fault = match self.answer(cmd, until).await {
                Ok(answer) => break answer,
                Err(fault) if fault.is_no_script() && !loaded => {
                    tracing::debug!(script = script.name, "the server does not know the script");
                    match self.answer(&script.load(), until).await {
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
            if !self.insists || !fault.may_be_mended() || again >= until {
                return Err(fault.into());
            }
            waiting = true;
            // Once for all calls. What concerns all scripts is told by whoever hears of faults.
            if !fault.concerns_all() && self.refused().insert(script.name) {
                let error = fault.error();
                tracing::warn!(script = script.name, subject, %error, "tried until it works");
            }
            tokio::time::sleep_until(again.into()).await;
        };
        if waiting && self.refused().remove(script.name) {
            tracing::info!(script = script.name, subject, "it works again");
        }
        let reply = Reply::parse(answer.value)?;
        self.clock.observe(answer.sent, answer.received, reply.now);
        Ok(Called {
            reply,
            #[cfg(feature = "worker")]
            sent: answer.sent,
        })
    }

    fn refused(&self) -> MutexGuard<'_, HashSet<&'static str>> {
        self.refused.lock().expect("no panic while held")
    }
}
