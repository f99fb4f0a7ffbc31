//! The list of live instances, `keyfall:instances`: each writes its own row, again and again.

use std::time::{Duration, Instant};

use redis::Value;

use crate::error::Result;
use crate::store::ledger::script::BEAT;
use crate::store::servers::health::Ailment;
use crate::store::{Server, Store, from_value, texts};
use crate::time::{UnixMs, UnixUs};

/// The row of an instance, as it writes it.
pub(crate) struct Beat<'a> {
    /// Its id.
    pub(crate) id: &'a str,
    /// For each of its routes, in order, `1` if it can run another job, else `0`; then `/` and, with
    /// commas between, how many jobs of each can start, which older versions leave out; behind that
    /// `h` if it hears events, else `d` (deaf).
    pub(crate) room: &'a str,
    /// One line: the parts that stay the same for as long as the instance lives.
    pub(crate) description: &'a str,
    /// Another instance counts as gone if its row is older than this.
    pub(crate) silence: Duration,
}

/// An instance in the list.
#[derive(Debug)]
pub(crate) struct Alive {
    /// Its id.
    pub(crate) id: String,
    /// Time since its latest beat.
    pub(crate) age: Duration,
    /// As in [`Beat::room`].
    pub(crate) room: String,
}

impl Alive {
    /// The id, the room and the description of a row.
    pub(crate) fn row((alive, description): &(Alive, String)) -> (&str, &str, &str) {
        (&alive.id, &alive.room, description)
    }
}

impl Store {
    /// All live instances, with their descriptions. If several servers list an instance, its latest
    /// row counts.
    pub(crate) async fn instances(
        &self,
        silence: Duration,
        until: Instant,
    ) -> Result<Vec<(Alive, String)>> {
        let live = self.on_each(until, |it, until| Box::pin(it.instances(silence, until)));
        let mut live: Vec<_> = live.await.of_those_there()?.into_iter().flatten().collect();
        if self.is_several() {
            live.sort_by(|(one, _), (other, _)| (&one.id, one.age).cmp(&(&other.id, other.age)));
            live.dedup_by(|(one, _), (before, _)| one.id == before.id);
        }
        Ok(live)
    }
}

impl Server {
    /// Writes the row of this instance, and returns the other live ones; `lua/beat.lua`.
    pub(crate) async fn beat(&self, me: &Beat<'_>, until: Instant) -> Result<Vec<Alive>> {
        let mut cmd = BEAT.call(1);
        cmd.arg(self.names.instances())
            .arg(me.id)
            .arg(me.silence.as_millis() as u64)
            .arg(me.room)
            .arg(me.description)
            .arg(self.names.pulse(self.database, me.id))
            .arg(self.names.wake(self.database));
        let began = Instant::now();
        let called = self
            .eval(&BEAT, &cmd, &self.clock, "instances", until)
            .await;
        // The beat writes and never stops, so that it tells the health of the server.
        if let Some(health) = self.health() {
            if let (Err(error), true) = (&called, self.is_cluster()) {
                health.fails(Ailment::Away, began, error);
            }
            health.serves(called.as_ref().map_or(began, |called| called.sent.instant));
        }
        let mut reply = called?.reply;
        let mut seen = Vec::new();
        while !reply.is_exhausted() {
            seen.push(Alive {
                id: reply.text()?,
                age: Duration::from_millis(reply.number()?),
                room: reply.text()?,
            });
        }
        Ok(seen)
    }

    /// Removes this instance from the list, and wakes the others.
    pub(crate) async fn leave(&self, id: &str, until: Instant) -> Result<()> {
        let until = self.patience(until);
        let mut forget = redis::cmd("HDEL");
        forget.arg(self.names.instances()).arg(id);
        self.command(&forget, until).await?;
        self.tell("instances", until).await
    }

    /// The descriptions of these instances; `None` for one that is not in the list.
    pub(crate) async fn descriptions(
        &self,
        ids: &[&str],
        until: Instant,
    ) -> Result<Vec<Option<String>>> {
        let mut cmd = redis::cmd("HMGET");
        cmd.arg(self.names.instances()).arg(ids);
        let rows: Vec<Option<String>> = from_value(self.command(&cmd, until).await?)?;
        let description = |row: String| Some(Row::parse(&row)?.description.to_owned());
        Ok(rows
            .into_iter()
            .map(|row| row.and_then(description))
            .collect())
    }

    /// The live instances that this server lists.
    async fn instances(&self, silence: Duration, until: Instant) -> Result<Vec<(Alive, String)>> {
        let mut pipeline = redis::pipe();
        pipeline.cmd("TIME");
        pipeline.cmd("HGETALL").arg(self.names.instances());
        let [time, rows]: [Value; 2] = from_value(self.pipeline(&pipeline, until).await?)?;
        let (time, rows): ((u64, u64), _) = (from_value(time)?, texts(rows)?);
        let now = UnixUs(time.0 * 1_000_000 + time.1).floor_ms();
        let mut live = Vec::new();
        for (id, row) in rows {
            // A row that does not parse was written by another program.
            let Some(row) = Row::parse(&row) else {
                continue;
            };
            let age = Duration::from_millis(now.0.abs_diff(row.beat.0));
            if age <= silence {
                let room = row.room.to_owned();
                live.push((Alive { id, age, room }, row.description.to_owned()));
            }
        }
        Ok(live)
    }
}

/// True if this is the row of an instance.
pub(in crate::store) fn is_beat(row: &str) -> bool {
    Row::parse(row).is_some()
}

/// A value of `keyfall:instances`: beat, room and description, with blanks between.
struct Row<'a> {
    /// Time of the beat, by the clock of Redis.
    beat: UnixMs,
    /// As in [`Beat::room`].
    room: &'a str,
    /// As in [`Beat::description`].
    description: &'a str,
}

impl<'a> Row<'a> {
    /// Parses a row; nothing if it has another shape.
    fn parse(row: &'a str) -> Option<Self> {
        let (beat, rest) = row.split_once(' ')?;
        let (room, description) = rest.split_once(' ')?;
        Some(Row {
            beat: UnixMs(beat.parse().ok()?),
            room,
            description,
        })
    }
}
