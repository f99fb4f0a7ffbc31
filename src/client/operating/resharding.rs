//! Resharding: giving a kind another number of shards while work goes on.
//!
//! First, every ledger learns the new layout, and refuses clients with the old one. From then on no
//! job enters a wrong shard, so only the jobs that are already there have to move: this call moves
//! them, or a call that wants to change one of them. A running job moves when its run is settled.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::{Client, Pending};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::{Layout, MAX_SHARDS, shard_of};
use crate::store::{Away, COUNTERS, Ledger, Part, Word};

/// The number of names in one call.
const NAMES: usize = 128;

/// The pause before running jobs are checked again.
const PAUSE: Duration = Duration::from_millis(250);

/// A call to [`Client::reshard`]; carried out while it is awaited. Answers [`Resharded`].
#[must_use = "nothing is resharded until it is awaited"]
pub struct Reshard<'a> {
    client: &'a Client,
    kind: Result<Kind>,
    shards: u16,
    told: Box<dyn FnMut(Resharding) + Send + 'a>,
}

/// The progress of a [`Client::reshard`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resharding {
    /// Names moved so far: jobs, with or without dead letters, and dead letters alone.
    pub moved: u64,
    /// Running jobs that are still in a wrong shard, at the last count. They move when they are
    /// settled.
    pub running: u64,
}

/// The answer of [`Client::reshard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resharded {
    /// The number of shards before, by the list of kinds.
    pub from: u16,
    /// The number of shards now.
    pub to: u16,
    /// Names that this call moved. Other calls may have moved more.
    pub moved: u64,
}

impl Client {
    /// Gives a kind, `app:module:biz`, another number of shards, from 1 to
    /// [`MAX_SHARDS`](crate::MAX_SHARDS), while workers and producers run. Returns when every job
    /// is in its new shard. A running job moves when it is settled, so the call waits for long
    /// runs.
    ///
    /// The call may be dropped, or fail, at any time: nothing is lost, all calls still find their
    /// jobs, and a repeat continues. [Adopted](crate::Handler::adopt) keys stay where they are, and
    /// a job that moves to another server no longer follows its key.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// client.reshard("app1:trans:notice", 8).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the kind or the number is not valid, the kind was never used, the kind is being resharded
    /// to another number, or Redis does not answer in time.
    pub fn reshard(&self, kind: &str, shards: u16) -> Reshard<'_> {
        Reshard {
            client: self,
            kind: Kind::parse(kind),
            shards,
            told: Box::new(|_| {}),
        }
    }

    /// The number of shards of a kind, `app:module:biz`; while it is being resharded, also the
    /// number of shards before.
    ///
    /// # Errors
    /// If the kind is not valid, or Redis does not answer in time.
    pub async fn shards(&self, kind: &str) -> Result<(u16, Option<u16>)> {
        let kind = Kind::parse(kind)?;
        let layout = self.store().look_up(&kind, self.deadline()).await?;
        Ok((layout.shards, layout.from))
    }
}

impl<'a> Reshard<'a> {
    /// Sets a function that is called with the progress after each step. It runs inside the call:
    /// keep it short.
    pub fn on_progress(mut self, told: impl FnMut(Resharding) + Send + 'a) -> Self {
        self.told = Box::new(told);
        self
    }

    async fn run(mut self) -> Result<Resharded> {
        let shards = self.shards;
        let kind = self.kind.as_ref().map_err(Error::duplicate)?.clone();
        if !(1..=MAX_SHARDS).contains(&shards) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("a kind has from 1 to {MAX_SHARDS} shards, not {shards}"),
            ));
        }
        let before = self.check(&kind).await?;
        let from = before.from.unwrap_or(before.shards);
        let done = |moved| Resharded {
            from,
            to: shards,
            moved,
        };
        if before == before.settled() && before.shards == shards {
            return Ok(done(0));
        }
        let layout = self.begin(&kind, before).await?;
        let mut progress = Resharding::default();
        // A scan that goes on at another Redis, after a fail-over or as its slot moves, misses some
        // jobs there, because its cursor is that of the first one.
        let mut without_jobs = 0;
        while without_jobs < 2 {
            let was = progress.moved;
            self.pass(&kind, layout, &mut progress).await?;
            if progress.running > 0 {
                sleep(PAUSE).await;
            }
            let is_done = progress.running == 0 && progress.moved == was;
            without_jobs = if is_done { without_jobs + 1 } else { 0 };
        }
        self.end(&kind, layout).await?;
        Ok(done(progress.moved))
    }

    /// Checks that the kind can be resharded, and returns its present layout.
    async fn check(&mut self, kind: &Kind) -> Result<Layout> {
        let (client, until) = (self.client, self.client.deadline());
        // Every server has to learn the layout before a job moves.
        if let Some(Away { error, .. }) = client.store().kinds_seen(until).await?.1.pop() {
            return Err(error);
        }
        if !client.store().knows(kind, until).await? {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("{kind} was never used: is it spelt correctly?"),
            ));
        }
        let layout = client.store().agree(kind, until).await?;
        if layout.from.is_some() && layout.shards != self.shards {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{kind} is being resharded to {0} shards: finish that with `keyfall reshard \
                     {kind} --to {0}`, and then reshard it to {1}",
                    layout.shards, self.shards
                ),
            ));
        }
        Ok(layout)
    }

    /// Makes all ledgers refuse clients with the old layout.
    async fn begin(&mut self, kind: &Kind, before: Layout) -> Result<Layout> {
        let (store, until) = (self.client.store(), self.client.deadline());
        let wanted = match before.from {
            Some(_) => before,
            None => before.to_at(self.shards, store.time(until).await?),
        };
        // Before any client can use the new ledgers.
        store.limit_shards(kind, before, wanted, until).await?;
        if let Some(away) = store.apply_kept_terms(kind, wanted, until).await? {
            return Err(away);
        }
        let written = store.propose(kind, before, wanted, until).await?;
        if written != wanted {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("another client is resharding {kind}: wait until it has finished"),
            ));
        }
        store.spread(kind, wanted, wanted.ledgers(), until).await?;
        store.apply_pause_rules(kind, until).await?;
        self.tell(kind, wanted).await?;
        Ok(wanted)
    }

    /// Moves every job that is in a wrong shard, once through all old shards.
    async fn pass(&mut self, kind: &Kind, layout: Layout, progress: &mut Resharding) -> Result<()> {
        progress.running = 0;
        for shard in 0..layout.from.unwrap_or(0) {
            let ledger = self.client.store().ledger(kind, layout.old_place(shard));
            for part in [Part::Jobs, Part::Letters, Part::Keys] {
                let mut cursor = "0".to_owned();
                loop {
                    let until = self.client.deadline();
                    let (next, mut names) = ledger.names_in(part, &cursor, until).await?;
                    names.retain(|name| shard_of(id_of(name), layout.shards) != shard);
                    self.move_all(&ledger, layout, names, progress).await?;
                    if next == "0" {
                        break;
                    }
                    cursor = next;
                }
            }
            // After the scan, which does not see a job that another client took out of this shard
            // and failed to put into its new one. From now on this shard has no job that a client
            // could take out.
            while !ledger.push_on(layout, self.client.deadline()).await? {
                self.catch_up(kind, layout).await?;
            }
        }
        (self.told)(*progress);
        Ok(())
    }

    /// Deals with a ledger that has another layout: an older one after a rollback of its server, or
    /// a newer one by another client.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the layout has changed.
    async fn catch_up(&mut self, kind: &Kind, layout: Layout) -> Result<()> {
        let until = self.client.deadline();
        if self.client.store().agree(kind, until).await? != layout {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the layout of {kind} has changed meanwhile: check it, and try again"),
            ));
        }
        Ok(())
    }

    /// Moves these names, some at a time, until each is moved, running or gone.
    async fn move_all(
        &mut self,
        ledger: &Arc<Ledger>,
        layout: Layout,
        mut names: Vec<String>,
        progress: &mut Resharding,
    ) -> Result<()> {
        while !names.is_empty() {
            let rest = names.split_off(names.len().min(NAMES));
            let until = self.client.deadline();
            let Some(answers) = ledger.move_out(&names, layout, until).await? else {
                self.catch_up(ledger.kind(), layout).await?;
                names.extend(rest);
                continue;
            };
            let mut again = Vec::new();
            for (name, answered) in names.into_iter().zip(answers) {
                match answered.answer {
                    Word::Taken => progress.moved += 1,
                    Word::Leased => progress.running += 1,
                    Word::NotYet => again.push(name),
                    _ => {}
                }
            }
            (self.told)(*progress);
            again.extend(rest);
            names = again;
        }
        Ok(())
    }

    /// Ends the reshard, after every job is in its new shard.
    async fn end(&mut self, kind: &Kind, layout: Layout) -> Result<()> {
        let (store, until) = (self.client.store(), self.client.deadline());
        // A shard that is given up hands its counters to the first.
        for shard in layout.shards..layout.from.unwrap_or(0) {
            let ledger = store.ledger(kind, layout.old_place(shard));
            while ledger
                .move_out(&[COUNTERS.to_owned()], layout, until)
                .await?
                .is_none()
            {
                self.catch_up(kind, layout).await?;
            }
        }
        store.note_leaving(kind, until).await?;
        let settled = layout.settled();
        store.spread(kind, settled, layout.ledgers(), until).await?;
        self.tell(kind, settled).await
    }

    /// Tells all clients the layout. This is a hint: a client that misses it learns the layout when
    /// a ledger refuses a call, or within a minute.
    async fn tell(&mut self, kind: &Kind, layout: Layout) -> Result<()> {
        let message = format!("layout {kind} {layout}");
        let until = self.client.deadline();
        self.client.store().tell(&message, until).await
    }
}

/// The id in the name of a job, or of a letter, `id:number`.
fn id_of(name: &str) -> &str {
    name.split_once(':').map_or(name, |(id, _)| id)
}

impl<'a> IntoFuture for Reshard<'a> {
    type Output = Result<Resharded>;
    type IntoFuture = Pending<'a, Resharded>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}
