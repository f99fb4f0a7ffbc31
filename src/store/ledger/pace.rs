//! What the pacer does to a ledger, in one round trip.

use std::time::Instant;

use redis::Value;

use crate::error::Result;
use crate::key::JobKey;
use crate::store::{Ledger, from_value};
use crate::time::UnixMs;

/// What the pacer asks. Whatever is empty is not sent.
#[derive(Debug, Default)]
pub(crate) struct PaceRequest<'a> {
    /// The jobs whose triggers are to be touched, so that Redis expires those that are due.
    pub(crate) touch: Vec<JobKey>,
    /// Read what falls due from then on, the soonest first, so many.
    pub(crate) read: Option<(UnixMs, usize)>,
    /// Which of these jobs are pending, and since when they are due.
    pub(crate) check: &'a [String],
}

/// What it is answered.
#[derive(Debug, Default)]
pub(crate) struct Paced {
    /// How many of the triggers are still there.
    pub(crate) alive: u64,
    /// What was read.
    pub(crate) coming: Vec<(String, UnixMs)>,
    /// The due time of each job to check that is pending.
    pub(crate) dues: Vec<Option<UnixMs>>,
}

impl Ledger {
    /// Carries out a round.
    pub(crate) async fn pace(&self, round: &PaceRequest<'_>, until: Instant) -> Result<Paced> {
        let mut pipeline = redis::pipe();
        let elsewhere = self.has_triggers_elsewhere();
        let touches = !round.touch.is_empty() && !elsewhere;
        if touches {
            pipeline.cmd("EXISTS");
            for key in &round.touch {
                pipeline.arg(key.as_str());
                // Whichever of the two it has.
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
