//! Triggers in other slots than their ledger: calls move them after the ledger has answered.
//!
//! On a cluster no script can change a ledger and its triggers together. So a trigger is armed once
//! the call that made its job pending is answered, and the last write wins. A cancel that crosses a
//! schedule may leave a trigger without a job, or a job without a trigger. Neither does harm,
//! because an event only makes a worker ask the ledger; and the pacer, which touches each trigger
//! when its job is due, notices a trigger that is missing or expires at another time.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis::Cmd;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;
use crate::names::MARKER;
use crate::store::connections::link;
use crate::store::ledger::reply::{Answered, Reply, ReplyWord};
use crate::store::ledger::script::ARM;
use crate::store::{Ledger, Server};
use crate::time::UnixMs;

/// The time limit of a call to the node of a trigger.
const PATIENCE: Duration = Duration::from_secs(2);

/// How long an answer waits to learn that the name of a trigger holds a foreign value. A node that
/// hangs must not hold up calls on other nodes.
const WAIT: Duration = Duration::from_millis(100);

/// The name of a trigger, and the time at which it expires from now on; `None` deletes it.
pub(in crate::store) type Move = (String, Option<UnixMs>);

impl Ledger {
    /// Moves the triggers of these jobs as the answers of the ledger require, and marks the answers
    /// of jobs whose trigger names hold foreign values. It waits for [`WAIT`] at the most; the
    /// moves go on afterwards. Nothing happens where scripts have triggers.
    pub(in crate::store) async fn arm<'a>(
        &self,
        jobs: impl Iterator<Item = &'a JobKey>,
        answers: &mut [Answered],
    ) {
        let Some((places, arming)) = self.begin_arming(jobs, answers) else {
            return;
        };
        if let Ok(Ok(unarmed)) = timeout(WAIT, arming).await {
            for (place, unarmed) in places.into_iter().zip(unarmed) {
                answers[place].unarmed = unarmed;
            }
        }
    }

    /// As [`arm`](Self::arm), in the background. Returns the indexes of the answers that move a
    /// trigger, and a task that tells for each whether its name holds a foreign value. `None` if no
    /// trigger moves.
    pub(in crate::store) fn begin_arming<'a>(
        &self,
        jobs: impl Iterator<Item = &'a JobKey>,
        answers: &[Answered],
    ) -> Option<(Vec<usize>, JoinHandle<Vec<bool>>)> {
        if !self.has_triggers_elsewhere() {
            return None;
        }
        // If a job was named twice, its last answer counts.
        let mut moves: HashMap<&JobKey, (usize, Option<UnixMs>)> = HashMap::new();
        for (place, (job, answered)) in jobs.zip(answers).enumerate() {
            if let Some(due) = move_of(answered.answer) {
                moves.insert(job, (place, due));
            }
        }
        if moves.is_empty() {
            return None;
        }
        let (places, moves): (Vec<usize>, Vec<Move>) = moves
            .into_iter()
            .map(|(job, (place, due))| (place, (job.as_str().to_owned(), due)))
            .unzip();
        let server = self.server.clone();
        Some((places, tokio::spawn(async move { server.arm(moves).await })))
    }
}

impl Server {
    /// Moves triggers, each on its own node. Returns for each whether its name holds a foreign
    /// value, or may not be written by this user. Other failures are only logged.
    pub(in crate::store) async fn arm(self: Arc<Self>, moves: Vec<Move>) -> Vec<bool> {
        let until = Instant::now() + PATIENCE;
        let moves = moves.iter().map(|(trigger, due)| {
            let call = arming(trigger, *due);
            let server = &self;
            async move {
                let armed = server.evaluate(&ARM, &call, until).await;
                match armed.map_err(Error::from).and_then(is_foreign) {
                    Ok(foreign) => foreign,
                    Err(error) => {
                        tracing::debug!(trigger, %error, "a trigger could not be moved");
                        error.kind() == ErrorKind::Denied
                    }
                }
            }
        });
        join_all(moves).await
    }
}

/// The new due time of the trigger after this answer: `Some(None)` deletes it, `None` leaves it.
fn move_of(answer: ReplyWord) -> Option<Option<UnixMs>> {
    match answer {
        ReplyWord::Created(due)
        | ReplyWord::Replaced(due)
        | ReplyWord::Moved(due)
        | ReplyWord::Later(due)
        | ReplyWord::Requeued(due) => Some(Some(due)),
        ReplyWord::Cancelled => Some(None),
        _ => None,
    }
}

/// The call that moves a trigger; `lua/arm.lua`.
fn arming(trigger: &str, due: Option<UnixMs>) -> Cmd {
    let mut cmd = ARM.call(1);
    cmd.arg(trigger).arg(MARKER);
    cmd.arg(due.map_or(String::new(), |due| due.to_string()));
    cmd
}

/// Whether the name of the trigger holds a foreign value.
fn is_foreign(answer: link::ServerReply) -> Result<bool> {
    let answers = Reply::parse(answer.value)?.item_answers(1)?;
    Ok(answers[0].unarmed)
}
