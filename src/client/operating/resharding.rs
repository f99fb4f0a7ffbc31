//! Giving a kind another number of shards, while work goes on.
//!
//! First all learn of it: each ledger refuses who goes by the layout of before. From then on no job
//! comes where it does not belong any more, so what is left there is only to be moved: by this call,
//! or by whoever wants to change one of those jobs. What runs is moved when it has been settled.

use std::future::IntoFuture;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use crate::client::{Client, Pending};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::shards::{Layout, MAX_SHARDS, shard_of};
use crate::store::{Away, COUNTERS, Ledger, Part, Word};

/// How many names go into one call.
const NAMES: usize = 128;

/// How long it is waited for runs to end before they are looked at again.
const PAUSE: Duration = Duration::from_millis(250);

/// A call to [`Client::reshard`]; carried out while it is awaited.
#[must_use = "nothing is resharded until it is awaited"]
pub struct Reshard<'a> {
    client: &'a Client,
    kind: Result<Kind>,
    shards: u16,
    told: Box<dyn FnMut(Resharding) + Send + 'a>,
}

/// How far a [`Client::reshard`] has come.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resharding {
    /// Names of jobs that were moved so far, with or without dead letters, and names of dead letters
    /// that were moved by themselves.
    pub moved: u64,
    /// Jobs that run where they do not belong any more, and are moved when they have been settled, as
    /// they were last counted.
    pub running: u64,
}

/// What became of a [`Client::reshard`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resharded {
    /// How many shards the kind had, by the list of kinds.
    pub from: u16,
    /// How many it has.
    pub to: u16,
    /// Names that this call moved; others may have moved more.
    pub moved: u64,
}

impl Client {
    /// Gives a kind, `app:module:biz`, another number of shards, from 1 to
    /// [`MAX_SHARDS`](crate::MAX_SHARDS), while workers and producers run. Returns when all jobs are
    /// where they belong; a run that takes long is waited for, since it is moved when it is settled.
    ///
    /// It may be dropped, or fail, at any time: nothing is lost, all calls go on finding their jobs,
    /// and the same call goes on where it was. Keys that were [adopted](crate::Handler::adopt) stay
    /// where they are, and a job that moves to another server follows its key no more.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// client.reshard("app1:trans:notice", 8).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the kind or the number is not valid, the kind was never used or is on its way to another
    /// number, or Redis does not answer in time.
    pub fn reshard(&self, kind: &str, shards: u16) -> Reshard<'_> {
        Reshard {
            client: self,
            kind: Kind::parse(kind),
            shards,
            told: Box::new(|_| {}),
        }
    }

    /// How many shards a kind, `app:module:biz`, has; and how many it had, while jobs are still moved
    /// from there.
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
    /// Called after each step with how far it has come.
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
        loop {
            let was = progress.moved;
            self.pass(&kind, layout, &mut progress).await?;
            if progress.running > 0 {
                sleep(PAUSE).await;
            } else if progress.moved == was {
                break;
            }
        }
        self.end(&kind, layout).await?;
        Ok(done(progress.moved))
    }

    /// Refuses what cannot be resharded. Returns the layout that the kind has.
    async fn check(&mut self, kind: &Kind) -> Result<Layout> {
        let (client, until) = (self.client, self.client.deadline());
        // Each of the servers has to learn of it before a job is moved.
        if let Some(Away { error, .. }) = client.store().kinds_seen(until).await?.1.pop() {
            return Err(error);
        }
        if !client.store().knows(kind, until).await? {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("{kind} was never used: is it spelt as its jobs are?"),
            ));
        }
        let layout = client.store().agree(kind, until).await?;
        if layout.from.is_some() && layout.shards != self.shards {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "{kind} is on its way to {0} shards, and has to arrive before it leaves for \
                     {1}: `keyfall reshard {kind} --to {0}` goes on",
                    layout.shards, self.shards
                ),
            ));
        }
        Ok(layout)
    }

    /// Makes all ledgers refuse who goes by the layout of before.
    async fn begin(&mut self, kind: &Kind, before: Layout) -> Result<Layout> {
        let (store, until) = (self.client.store(), self.client.deadline());
        let wanted = match before.from {
            Some(_) => before,
            None => before.to_at(self.shards, store.time(until).await?),
        };
        let written = store.propose(kind, before, wanted, until).await?;
        if written != wanted {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("somebody else has just begun to reshard {kind}: wait for that"),
            ));
        }
        store.spread(kind, wanted, wanted.ledgers(), until).await?;
        store.apply_pause_rules(kind, until).await?;
        self.tell(kind, wanted).await?;
        Ok(wanted)
    }

    /// Moves what is not where it belongs.
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
            // Behind the look at it: what somebody took out before that, and did not come to put
            // anywhere, was not to be seen. From now on there is nothing left to be taken.
            while !ledger.push_on(layout, self.client.deadline()).await? {
                self.catch_up(kind, layout).await?;
            }
        }
        (self.told)(*progress);
        Ok(())
    }

    /// A ledger goes by another layout: it is behind, after a rollback of its server; or ahead, by
    /// somebody else's doing.
    async fn catch_up(&mut self, kind: &Kind, layout: Layout) -> Result<()> {
        let until = self.client.deadline();
        if self.client.store().agree(kind, until).await? != layout {
            return Err(Error::new(
                ErrorKind::Unavailable,
                format!("the layout of {kind} has changed meanwhile: look, and try again"),
            ));
        }
        Ok(())
    }

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

    /// All jobs are where they belong.
    async fn end(&mut self, kind: &Kind, layout: Layout) -> Result<()> {
        let (store, until) = (self.client.store(), self.client.deadline());
        // What is given up leaves its counters to the first.
        for shard in layout.shards..layout.from.unwrap_or(0) {
            let ledger = store.ledger(kind, layout.old_place(shard));
            ledger
                .move_out(&[COUNTERS.to_owned()], layout, until)
                .await?;
        }
        let settled = layout.settled();
        store.spread(kind, settled, layout.ledgers(), until).await?;
        self.tell(kind, settled).await
    }

    /// A hint: who does not hear it finds out when a ledger refuses a call, or within a minute.
    async fn tell(&mut self, kind: &Kind, layout: Layout) -> Result<()> {
        let message = format!("layout {kind} {layout}");
        let until = self.client.deadline();
        self.client.store().tell(&message, until).await
    }
}

/// Of a job, or of a letter, `id:number`.
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
