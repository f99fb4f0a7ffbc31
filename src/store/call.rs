//! How a script is called: loaded where the server does not know it, and for a worker until
//! it works.

use std::time::{Duration, Instant};

use redis::Cmd;

use super::Store;
use super::reply::Reply;
#[cfg(feature = "worker")]
use super::script::ADOPT;
use super::script::Script;
#[cfg(feature = "worker")]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
use crate::metrics;

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
            let hopeless = !fault.may_be_mended();
            let error = Error::from(fault);
            // What a full server has no room for is taken apart.
            #[cfg(feature = "worker")]
            let hopeless = hopeless || script.name == ADOPT.name && error.kind() == ErrorKind::Full;
            tracing::debug!(subject, script = script.name, %error, "not carried out");
            #[cfg(feature = "worker")]
            self.note(subject, script.name, Some(&error));
            if !self.insists || hopeless || again >= until {
                return Err(error);
            }
            tokio::time::sleep_until(again.into()).await;
        };
        #[cfg(feature = "worker")]
        self.note(subject, script.name, None);
        metrics::script_took(script.name, answer.received - answer.sent);
        let reply = Reply::parse(answer.value)?;
        self.clock.observe(answer.sent, answer.received, reply.now);
        Ok(Called {
            reply,
            #[cfg(feature = "worker")]
            sent: answer.sent,
        })
    }
}
