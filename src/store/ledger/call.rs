//! Calls of scripts: a server that does not know a script learns it, and for a worker a call is
//! repeated until it succeeds or cannot succeed.

use std::time::{Duration, Instant};

use redis::Cmd;

use crate::counters;
#[cfg(feature = "worker")]
use crate::error::ErrorKind;
use crate::error::{Error, Result};
#[cfg(feature = "worker")]
use crate::moment::Moment;
use crate::store::connections::cluster::Node;
use crate::store::connections::fault::Fault;
use crate::store::connections::link::{Request, ServerReply};
use crate::store::kinds::stray_slots::slot_of_ledger;
use crate::store::ledger::reply::Reply;
#[cfg(feature = "worker")]
use crate::store::ledger::script::ADOPT;
use crate::store::ledger::script::Script;
use crate::store::{RedisClock, Server};

/// The wait before a refused call is repeated.
const INSISTENCE: Duration = Duration::from_millis(500);

/// The least time for a further try. With less time, the try would end without an answer and leave
/// unknown whether it was carried out. The refusal of the try before, in contrast, has a reason
/// that can be reported.
const LEAST: Duration = Duration::from_millis(500);

/// How long a node of a cluster may take to learn a script.
const LOADING: Duration = Duration::from_secs(2);

/// The reply to a call.
pub(in crate::store) struct Called {
    /// The reply, with status and time already read.
    pub(in crate::store) reply: Reply,
    /// The moment at which the answered try was sent.
    #[cfg(feature = "worker")]
    pub(in crate::store) sent: Moment,
}

impl Server {
    /// Sends a call until it is answered, or until `until`, and sets `clock` by the answer.
    /// `subject` is the name of the ledger, for errors and for the search for missing parts.
    ///
    /// # Errors
    ///
    /// The fault of the last try. A store of a worker repeats calls that may succeed later; other
    /// stores repeat only calls on a ledger with missing parts.
    pub(in crate::store) async fn eval(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        clock: &RedisClock,
        subject: &str,
        until: Instant,
    ) -> Result<Called> {
        let mut if_new = None;
        // Whether an earlier try may have been carried out, although no answer came.
        let mut maybe_done = false;
        let answer = loop {
            let cmd = if_new.as_ref().unwrap_or(cmd);
            // A part of the ledger is elsewhere. That may pass, as when a slot is moving.
            let mut waits = false;
            let mut fault = match self.evaluate(script, cmd, until).await {
                Ok(answer) => break answer,
                Err(fault) => fault,
            };
            maybe_done |= fault.is_outcome_unknown();
            if fault.is_unfounded() {
                // The ledger is new, or its node was emptied, or it is elsewhere.
                waits = true;
                fault = match self.may_begin(subject, until).await {
                    Ok(()) => {
                        if_new = Some(script.if_new(cmd));
                        continue;
                    }
                    Err(elsewhere) => elsewhere,
                };
            }
            if fault.is_torn() {
                waits = true;
                self.warn_of_torn(subject, fault.missing().unwrap_or("all"), until)
                    .await;
                fault = fault.of_ledger(subject, slot_of_ledger(subject));
            }
            let again = Instant::now() + INSISTENCE;
            let hopeless = !fault.may_be_mended();
            let error = Error::from(fault.after_sending(maybe_done));
            // The caller splits a batch that a full server refuses.
            #[cfg(feature = "worker")]
            let hopeless = hopeless || script.name == ADOPT.name && error.kind() == ErrorKind::Full;
            tracing::debug!(subject, script = script.name, %error, "not carried out");
            #[cfg(feature = "worker")]
            self.note(subject, script.name, Some(&error));
            if !(self.insists || waits) || hopeless || again + LEAST >= until {
                return Err(error);
            }
            if_new = None;
            tokio::time::sleep_until(again.into()).await;
        };
        #[cfg(feature = "worker")]
        self.note(subject, script.name, None);
        let sent = answer.sent.instant;
        if self.is_cluster() {
            self.torn.forget(subject);
        }
        counters::script_took(script.name, answer.received - sent);
        let reply = Reply::parse(answer.value)?;
        clock.observe(sent, answer.received, reply.now);
        Ok(Called {
            reply,
            #[cfg(feature = "worker")]
            sent: answer.sent,
        })
    }

    /// Sends a call once, and loads the script first if the server does not know it.
    pub(in crate::store) async fn evaluate(
        &self,
        script: &'static Script,
        cmd: &Cmd,
        until: Instant,
    ) -> Result<ServerReply, Fault> {
        // The node that has loaded the script; a single server has no name.
        let mut loaded: Option<Option<Node>> = None;
        // A server that restarts may have carried the call out, and has forgotten its scripts.
        let mut maybe_done = false;
        loop {
            let sent = self.link.send(Request::One(cmd), until).await;
            let fault = match sent {
                Err(fault) if is_to_learn(&fault, loaded.as_ref()) => fault,
                answered => return answered.map_err(|fault| fault.after_sending(maybe_done)),
            };
            tracing::debug!(script = script.name, "the server does not know the script");
            maybe_done |= fault.is_outcome_unknown();
            let load = script.load_for(cmd);
            let learnt = self.load_script(&load, fault.node(), until).await;
            learnt.map_err(|fault| fault.after_sending(maybe_done))?;
            loaded = Some(fault.node().clone());
        }
    }

    /// Loads a script on the node that did not know it.
    async fn load_script(
        &self,
        load: &Cmd,
        node: &Option<Node>,
        until: Instant,
    ) -> Result<(), Fault> {
        match node {
            // The script goes to this node by name: the key may be on another one a moment later.
            Some(node) => {
                let until = until.min(Instant::now() + LOADING);
                self.link.send(Request::At(node, load), until).await?;
            }
            None => {
                self.link.send(Request::One(load), until).await?;
            }
        }
        Ok(())
    }
}

/// Whether the node of this fault does not know the script, and has not learnt it just now. Each
/// node learns it alone, and a call may go from one to the other: its slot moves, or fails over.
fn is_to_learn(fault: &Fault, loaded: Option<&Option<Node>>) -> bool {
    fault.is_no_script() && loaded != Some(fault.node())
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::error::ErrorKind;
    use crate::names::Names;
    use crate::settings::LinkSettings;
    use crate::store::Store;
    use crate::store::ledger::script::IDLE;

    /// A server that goes away during the first call of a script. When it is back, it has forgotten
    /// its scripts, and is too busy to learn one.
    async fn restarting() -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        tokio::spawn(async move {
            let mut calls = 0;
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = vec![0; 64 * 1024];
                while let Ok(count @ 1..) = stream.read(&mut buffer).await {
                    let asked = String::from_utf8_lossy(&buffer[..count]);
                    let answer = if asked.contains("EVALSHA\r\n") {
                        calls += 1;
                        match calls {
                            1 => break,
                            _ => "-NOSCRIPT No matching script.\r\n".to_owned(),
                        }
                    } else if asked.contains("LOAD\r\n") {
                        "-BUSY Redis is busy running a script.\r\n".to_owned()
                    } else {
                        "+OK\r\n".repeat(asked.matches("CLIENT\r\n").count())
                    };
                    stream.write_all(answer.as_bytes()).await.unwrap();
                }
            }
        });
        url
    }

    #[tokio::test]
    async fn a_call_that_is_lost_in_a_restart_may_have_been_carried_out() {
        let settings = LinkSettings::default();
        let url = restarting().await;
        let store = Store::new(&url, Names::new("keyfall"), &settings).unwrap();
        let (server, until) = (&store.servers[0], Instant::now() + Duration::from_secs(2));
        let called = server
            .eval(&IDLE, &IDLE.call(0), &server.clock, "app:it:lost", until)
            .await;
        let error = called.err().expect("it has no answer");
        assert_eq!(error.kind(), ErrorKind::OutcomeUnknown, "{error}");
    }

    #[test]
    fn each_node_that_a_call_meets_learns_the_script_once() {
        let fault = |line: &[u8], node: Option<&Node>| {
            let Ok(redis::Value::ServerError(error)) = redis::parse_redis_value(line) else {
                panic!("no refusal");
            };
            Fault::from_redis(error.into(), "10.0.0.5:7001").at_node(node)
        };
        let unknown = b"-NOSCRIPT No matching script.\r\n";
        let [one, other] = ["10.0.0.5:7001", "10.0.0.6:7001"].map(Node::new);
        for (node, loaded, learns) in [
            (None, None, true),
            (None, Some(None), false),
            (Some(&one), None, true),
            (Some(&one), Some(Some(one.clone())), false),
            (Some(&other), Some(Some(one.clone())), true),
        ] {
            let learnt = is_to_learn(&fault(unknown, node), loaded.as_ref());
            assert_eq!(learnt, learns, "{node:?} after {loaded:?}");
        }
        assert!(!is_to_learn(&fault(b"-LOADING\r\n", None), None));
    }
}
