//! Rounds of the pacer: touches triggers, reads the next due times, and checks jobs, in one round
//! trip.

use std::time::Instant;

use redis::{Pipeline, Value};

use crate::error::{ErrorKind, Result};
use crate::key::JobKey;
use crate::store::ledger::aside::{ASIDE, due_of};
use crate::store::{Ledger, from_value};
use crate::time::UnixMs;

/// The request of one round. Empty parts are not sent.
#[derive(Debug, Default)]
pub(crate) struct PaceRequest<'a> {
    /// The jobs whose triggers are touched, so that Redis expires those that are due.
    pub(crate) touch: Vec<JobKey>,
    /// Wake-up messages that all workers get before the events of the touched jobs from this place
    /// on, ordered by place. Not on a cluster.
    pub(crate) messages: Vec<(usize, String)>,
    /// The earliest due time to read, and the most jobs to read, the soonest first.
    pub(crate) read: Option<(UnixMs, usize)>,
    /// The ids of jobs whose due times are read if they are pending.
    pub(crate) check: &'a [String],
}

/// The answers to one round.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    /// How many of the touched triggers still exist.
    pub(crate) alive: u64,
    /// The ids and due times that were read, the soonest first.
    pub(crate) coming: Vec<(String, UnixMs)>,
    /// The due time of each checked job, or `None` if it is not pending, in the order of the
    /// request.
    pub(crate) dues: Vec<Option<UnixMs>>,
    /// Whether the messages were left out, because this user may not publish.
    pub(crate) is_mute: bool,
}

/// The commands of a round.
struct PaceCommands {
    pipeline: Pipeline,
    /// How many of them touch triggers; they come first.
    touches: usize,
}

impl Ledger {
    /// Carries out a round. On a cluster, the triggers are touched on their own nodes at the same
    /// time.
    ///
    /// # Errors
    ///
    /// If the ledger is not read before `until`. A node that does not answer a touch is no error:
    /// its triggers count as alive.
    pub(crate) async fn pace(&self, round: &PaceRequest<'_>, until: Instant) -> Result<Paced> {
        let mut paced = Paced::default();
        let touched = async {
            match self.has_triggers_elsewhere() {
                true => self.server.touch(&round.touch, until).await,
                false => 0,
            }
        };
        let all = self.commands(round, &round.messages);
        let (alive, answered) = tokio::join!(touched, self.answers(&all, until));
        let (commands, replies) = match answered {
            Err(error) if error.kind() == ErrorKind::Denied && !round.messages.is_empty() => {
                paced.is_mute = true;
                let silent = self.commands(round, &[]);
                let replies = self.answers(&silent, until).await?;
                (silent, replies)
            }
            answered => (all, answered?),
        };
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let ms = |score: f64| due_of(score as u64);
        self.meter().touched(round.touch.len() as u64);
        paced.alive = alive;
        for _ in 0..commands.touches {
            paced.alive += from_value::<u64>(next())?;
        }
        if round.read.is_some() {
            let coming: Vec<(String, f64)> = from_value(next())?;
            paced.coming = coming.into_iter().map(|(id, due)| (id, ms(due))).collect();
        }
        if !round.check.is_empty() {
            let dues: Vec<Option<f64>> = from_value(next())?;
            paced.dues = dues.into_iter().map(|due| due.map(ms)).collect();
        }
        Ok(paced)
    }

    /// The commands of a round: touches with these messages between them, then the reads.
    fn commands(&self, round: &PaceRequest<'_>, messages: &[(usize, String)]) -> PaceCommands {
        let mut pipeline = redis::pipe();
        let (mut touches, mut place) = (0, 0);
        let mut touch = |pipeline: &mut Pipeline, end| {
            let part = &round.touch[place..end];
            place = end;
            if part.is_empty() || self.has_triggers_elsewhere() {
                return;
            }
            touches += 1;
            pipeline.cmd("EXISTS");
            for key in part {
                pipeline.arg(key.as_str());
                // The trigger has one of the two names.
                pipeline.arg(self.own_trigger(key));
            }
        };
        for (place, message) in messages {
            touch(&mut pipeline, *place);
            pipeline.publish(&self.wake, message).ignore();
        }
        touch(&mut pipeline, round.touch.len());
        if let Some((since, limit)) = round.read {
            pipeline.cmd("ZRANGEBYSCORE").arg(&self.names.due);
            pipeline
                .arg(since.0)
                .arg(format!("({ASIDE}"))
                .arg("WITHSCORES");
            pipeline.arg("LIMIT").arg(0).arg(limit);
        }
        if !round.check.is_empty() {
            pipeline
                .cmd("ZMSCORE")
                .arg(&self.names.due)
                .arg(round.check);
        }
        PaceCommands { pipeline, touches }
    }

    /// Sends the commands of a round. The client library waits for the answers of a pipeline that
    /// has none, so such a pipeline is not sent.
    async fn answers(&self, commands: &PaceCommands, until: Instant) -> Result<Vec<Value>> {
        match commands.pipeline.is_empty() {
            true => Ok(Vec::new()),
            false => from_value(self.server.pipeline(&commands.pipeline, until).await?),
        }
    }
}
