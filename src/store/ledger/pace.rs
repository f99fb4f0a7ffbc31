//! Rounds of the pacer: touches triggers, reads the next due times, and checks jobs, in one round
//! trip.

use std::time::Instant;

use redis::Value;

use crate::error::Result;
use crate::key::JobKey;
use crate::store::{Ledger, from_value};
use crate::time::UnixMs;

/// The request of one round. Empty parts are not sent.
#[derive(Debug, Default)]
pub(crate) struct PaceRequest<'a> {
    /// The jobs whose triggers are touched, so that Redis expires those that are due.
    pub(crate) touch: Vec<JobKey>,
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
        let mut pipeline = redis::pipe();
        let elsewhere = self.has_triggers_elsewhere();
        let touches = !round.touch.is_empty() && !elsewhere;
        if touches {
            pipeline.cmd("EXISTS");
            for key in &round.touch {
                pipeline.arg(key.as_str());
                // The trigger has one of the two names.
                pipeline.arg(self.own_trigger(key));
            }
        }
        if let Some((since, limit)) = round.read {
            pipeline.cmd("ZRANGEBYSCORE").arg(&self.names.due);
            pipeline.arg(since.0).arg("(inf").arg("WITHSCORES");
            pipeline.arg("LIMIT").arg(0).arg(limit);
        }
        if !round.check.is_empty() {
            pipeline
                .cmd("ZMSCORE")
                .arg(&self.names.due)
                .arg(round.check);
        }
        let mut paced = Paced::default();
        let touched = async {
            match elsewhere {
                true => self.server.touch(&round.touch, until).await,
                false => 0,
            }
        };
        let answered = async {
            // The client library waits for the answers of a pipeline that has none.
            match pipeline.is_empty() {
                true => Ok(Vec::new()),
                false => from_value(self.server.pipeline(&pipeline, until).await?),
            }
        };
        let (alive, replies) = tokio::join!(touched, answered);
        let replies: Vec<Value> = replies?;
        let mut replies = replies.into_iter();
        let mut next = || replies.next().unwrap_or(Value::Nil);
        let ms = |due: f64| UnixMs(due as u64);
        self.meter().touched(round.touch.len() as u64);
        paced.alive = match touches {
            true => from_value(next())?,
            false => alive,
        };
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
}
