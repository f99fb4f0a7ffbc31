//! Waiting until replicas, and disks, have what was written.
//!
//! `WAIT` counts the replicas that have what *its own connection* wrote, and all of them if that
//! wrote nothing. So the call is [touched](../../lua/touch.lua) on a connection that nothing else
//! uses: if this data set holds the call, it is written once more, and whoever has that write has
//! the call's. If it does not, a fail-over forgot the call meanwhile, and it is to be made again.
//! Those who wait at the same time share a `WAIT`, whatever they wrote.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::sync::{mpsc, oneshot};

use super::fault::Fault;
use super::link::{Link, Request};
use super::origin::Origin;
use super::reply::{Answer, Reply, unexpected};
use super::script::TOUCH;
use super::{Lane, Ledger, from_value};
use crate::durable::{Durable, LONGEST, Reached};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::{BATCH, LinkSettings, QUEUE};

/// How many connections wait at the same time.
const WAITERS: usize = 4;

/// Those who wait on one server.
pub(super) struct Waits {
    origin: Origin,
    settings: LinkSettings,
    entrance: Mutex<Option<mpsc::Sender<Wait>>>,
}

/// A call that is to be durable.
struct Wait {
    touch: Cmd,
    durable: Durable,
    /// Then it is answered, however far it got.
    ends: Instant,
    /// Then it is given up, if nobody answers.
    until: Instant,
    told: oneshot::Sender<Result<Option<Reached>>>,
}

/// What a server tells of disks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disks {
    /// Nothing: it does not know `WAITAOF`, or does not allow it.
    Untold,
    /// Those of its replicas; it has no log itself.
    OfReplicas,
    All,
}

/// How far a server and its replicas are.
struct State {
    replicas: u32,
    disks: Disks,
    own: u32,
    replicas_on_disk: u32,
}

impl Ledger {
    /// Refuses a cluster, of which each node would have to be waited for.
    pub(crate) fn check_durable(&self) -> Result<()> {
        if !self.store.is_cluster() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidSetting,
            "`durable` does not work on a cluster yet: leave it out, or use one primary with \
             replicas",
        ))
    }

    /// Waits until the last call of a lane is durable. `None` if the data set does not hold it.
    pub(crate) async fn reached(
        &self,
        lane: &Lane,
        durable: Durable,
        until: Instant,
    ) -> Result<Option<Reached>> {
        let mut touch = TOUCH.call(1);
        touch.arg(&self.names.calls).arg(lane.id()).arg(lane.last());
        self.store.waits.wait(touch, durable, until).await
    }
}

impl Waits {
    pub(super) fn new(origin: Origin, settings: &LinkSettings) -> Self {
        Waits {
            origin,
            settings: settings.clone(),
            entrance: Mutex::default(),
        }
    }

    async fn wait(&self, touch: Cmd, durable: Durable, until: Instant) -> Result<Option<Reached>> {
        let (told, answer) = oneshot::channel();
        let wait = Wait {
            touch,
            durable,
            ends: Instant::now() + durable.within,
            until,
            told,
        };
        let sent = self.entrance().send(wait).await;
        match (sent, answer.await) {
            (Ok(()), Ok(answer)) => answer,
            // The runtime on which the waiters were is gone, and so is whoever asked.
            _ => {
                let gone = "nobody waits for it any more";
                Err(unknown(&Error::new(ErrorKind::Unavailable, gone)))
            }
        }
    }

    /// The way in. The waiters are started with the first call, and anew if the runtime that they
    /// ran on is gone.
    fn entrance(&self) -> mpsc::Sender<Wait> {
        let mut entrance = self.entrance.lock().expect("no panic while held");
        if let Some(open) = entrance.as_ref().filter(|open| !open.is_closed()) {
            return open.clone();
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        for _ in 0..WAITERS {
            let waiter = Waiter::new(self.origin.clone(), &self.settings);
            tokio::spawn(waiter.run(receiver.clone()));
        }
        entrance.insert(sender).clone()
    }
}

/// One connection that waits.
struct Waiter {
    link: Link,
    response_timeout: Duration,
    /// What the server tells of disks, and of which connection that is known.
    disks: Option<(u64, Disks)>,
}

impl Waiter {
    fn new(origin: Origin, settings: &LinkSettings) -> Self {
        let patient = LinkSettings {
            response_timeout: settings.response_timeout + LONGEST,
            ..settings.clone()
        };
        Waiter {
            link: Link::new(origin, &patient),
            response_timeout: settings.response_timeout,
            disks: None,
        }
    }

    async fn run(mut self, waiting: Arc<tokio::sync::Mutex<mpsc::Receiver<Wait>>>) {
        let mut waits = Vec::new();
        loop {
            if waiting.lock().await.recv_many(&mut waits, BATCH).await == 0 {
                return;
            }
            while !waits.is_empty() {
                waits = self.round(waits).await;
            }
        }
    }

    /// Waits for all of them together, until the first of them has to be answered. Returns those
    /// that go on.
    async fn round(&mut self, waits: Vec<Wait>) -> Vec<Wait> {
        match self.look(&waits).await {
            Ok((held, state)) => {
                let told = waits.into_iter().zip(held);
                told.filter_map(|(wait, is_held)| wait.told_of(is_held, &state))
                    .collect()
            }
            Err(fault) => {
                let (now, passes) = (Instant::now(), fault.is_passing());
                let goes_on = |wait: &Wait| passes && wait.until > now;
                let (on, over): (Vec<_>, Vec<_>) = waits.into_iter().partition(goes_on);
                let error = unknown(&Error::from(fault));
                for wait in over {
                    let _ = wait.told.send(Err(error.duplicate()));
                }
                on
            }
        }
    }

    /// Whether each of the calls is held, and how far the server was then; as soon as all is
    /// reached that any of them wants, or when the time of one is over.
    async fn look(&mut self, waits: &[Wait]) -> Result<(Vec<bool>, State), Fault> {
        let now = Instant::now();
        let ends = waits.iter().map(|wait| wait.ends).min().unwrap_or(now);
        // No time at all would mean for ever.
        let left = (ends - now).max(Duration::from_millis(1));
        let latest = waits.iter().map(|wait| wait.until).max().unwrap_or(now);
        let until = latest.min(now + left + self.response_timeout);
        let was_known = self.disks.is_some();
        match self.ask(waits, left, until).await {
            // A log may have been switched on or off.
            Err(fault) if !fault.is_passing() && was_known => {
                self.disks = None;
                self.ask(waits, left, until).await
            }
            told => told,
        }
    }

    async fn ask(
        &mut self,
        waits: &[Wait],
        left: Duration,
        until: Instant,
    ) -> Result<(Vec<bool>, State), Fault> {
        let disks = self.disks(until).await?;
        let most = |of: fn(&Wait) -> u32| waits.iter().map(of).max().unwrap_or(0);
        let replicas = most(|wait| wait.durable.replicas);
        let ms = left.as_millis() as u64;
        let mut pipeline = redis::pipe();
        for wait in waits {
            pipeline.add_command(wait.touch.clone());
        }
        let is_fsynced = |wait: &Wait| wait.durable.fsynced;
        if disks != Disks::Untold && waits.iter().any(is_fsynced) {
            let logs = most(|wait| match wait.durable.fsynced {
                true => wait.durable.replicas,
                false => 0,
            });
            let own = u8::from(disks == Disks::All);
            pipeline.cmd("WAITAOF").arg(own).arg(logs).arg(ms);
            // What is on disk is in memory.
            pipeline.cmd("WAIT").arg(0).arg(ms);
        } else {
            if disks != Disks::Untold {
                pipeline.cmd("WAITAOF").arg(0).arg(0).arg(ms);
            }
            pipeline.cmd("WAIT").arg(replicas).arg(ms);
        }
        let value = loop {
            match self.link.send(Request::Many(&pipeline), until).await {
                Err(fault) if fault.is_no_script() => {
                    self.link.send(Request::One(&TOUCH.load()), until).await?;
                }
                told => break told?.value,
            }
        };
        read(value, waits.len(), disks).map_err(Fault::refused)
    }

    /// What this server tells of disks.
    async fn disks(&mut self, until: Instant) -> Result<Disks, Fault> {
        if let Some((connection, disks)) = self.disks
            && connection == self.link.opened()
        {
            return Ok(disks);
        }
        let mut ask = redis::cmd("WAITAOF");
        ask.arg(1).arg(0).arg(1);
        let disks = match self.link.send(Request::One(&ask), until).await {
            Ok(_) => Disks::All,
            Err(fault) if fault.is_passing() || fault.is_demoted() => return Err(fault),
            Err(fault) => match Error::from(fault).to_string().contains("appendonly") {
                true => Disks::OfReplicas,
                false => Disks::Untold,
            },
        };
        self.disks = Some((self.link.opened(), disks));
        Ok(disks)
    }
}

fn read(value: Value, calls: usize, disks: Disks) -> Result<(Vec<bool>, State)> {
    let mut values: Vec<Value> = from_value(value)?;
    let mut next = || values.pop().ok_or_else(|| unexpected("too little".into()));
    let replicas: u32 = from_value(next()?)?;
    let (own, replicas_on_disk) = match disks {
        Disks::Untold => (0, 0),
        _ => from_value(next()?)?,
    };
    let state = State {
        replicas,
        disks,
        own,
        replicas_on_disk,
    };
    let is_held = |touched| {
        let answers = Reply::parse(touched)?.answers()?;
        Ok(answers
            .first()
            .is_some_and(|it| it.answer == Answer::Present))
    };
    let held: Vec<bool> = values.into_iter().map(is_held).collect::<Result<_>>()?;
    if held.len() != calls {
        return Err(unexpected(format!("{} calls of {calls}", held.len())));
    }
    Ok((held, state))
}

impl Wait {
    /// Answers if it is over. Returns itself if it goes on.
    fn told_of(self, is_held: bool, state: &State) -> Option<Self> {
        let answer = match is_held {
            false => None,
            true => {
                let (reached, is_all) = state.reached(&self.durable);
                if !is_all && Instant::now() < self.ends {
                    return Some(self);
                }
                Some(reached)
            }
        };
        // The caller may have stopped waiting.
        let _ = self.told.send(Ok(answer));
        None
    }
}

impl State {
    /// How far it got, and whether there is nothing more to wait for.
    fn reached(&self, durable: &Durable) -> (Reached, bool) {
        let is_told = self.disks != Disks::Untold;
        let in_memory = self.replicas >= durable.replicas;
        let on_disks = is_told && self.replicas_on_disk >= durable.replicas;
        let reached = Reached {
            is_met: in_memory && (!durable.fsynced || self.own > 0 && on_disks),
            replicas: self.replicas,
            on_disk: is_told.then_some(self.own > 0),
            replicas_on_disk: is_told.then_some(self.replicas_on_disk),
        };
        // Neither what is not told nor a log that is not there comes by waiting.
        let own_comes = self.disks == Disks::All && self.own == 0;
        let is_rest_hopeless = !is_told || on_disks && !own_comes;
        let is_all = in_memory && (!durable.fsynced || is_rest_hopeless);
        (reached, is_all)
    }
}

/// The write was made, whatever became of the wait.
fn unknown(why: &Error) -> Error {
    let kind = match why.kind() {
        kind @ (ErrorKind::Denied | ErrorKind::Damaged) => kind,
        _ => ErrorKind::OutcomeUnknown,
    };
    let why = format!(
        "the write was made, and whether it is durable cannot be told: {why}; the call may be repeated"
    );
    Error::new(kind, why)
}
