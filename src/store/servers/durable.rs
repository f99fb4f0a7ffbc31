//! Waits until replicas and disks have a write.
//!
//! `WAIT` counts the replicas that have the writes of *its own connection*, and all replicas if
//! that connection wrote nothing. So the call is [touched](../../lua/touch.lua) on a connection
//! that nothing else uses: if this data set holds the call, the touch writes once more, and a
//! replica that has this write has the call, too. If the data set does not hold the call, a
//! fail-over has lost it, and it must be made again. Callers that wait at the same time share a
//! `WAIT`, whatever they wrote.
//!
//! On a cluster the node that serves the ledger is asked. A node that hands the slot over during
//! the wait still counts its own replicas, which do not have the ledger any more. So behind each
//! `WAIT` it is asked whether it still has the ledger; if not, the wait begins again at the node
//! that has it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use redis::{Cmd, Pipeline, Value};
use tokio::sync::{mpsc, oneshot};

use crate::durable::{Durable, LONGEST, Reached};
use crate::error::{Error, ErrorKind, Result};
use crate::settings::{BATCH, LinkSettings, QUEUE};
use crate::store::connections::cluster::Node;
use crate::store::connections::fault::Fault;
use crate::store::connections::link::{Link, Request};
use crate::store::connections::origin::Origin;
use crate::store::ledger::reply::{Reply, ReplyWord, unexpected};
use crate::store::ledger::script::TOUCH;
use crate::store::{Lane, Ledger, from_value};

/// Number of connections to one server, or node, that wait at the same time.
const WAITERS: usize = 4;

/// The first pause before the ledger is looked for again; it doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause before the ledger is looked for again.
const LAST_PAUSE: Duration = Duration::from_millis(500);

/// All waits on one server.
pub(in crate::store) struct Waits {
    /// Finds the server for new connections.
    origin: Origin,
    /// For the connections of the waiters.
    settings: LinkSettings,
    /// The queue of each node; a single server has the key `None`.
    entrances: Mutex<HashMap<Option<Node>, mpsc::Sender<DurableWait>>>,
}

/// The touch of the call that must be durable: the last call of a lane.
struct Touch {
    /// The key that holds the lane.
    calls: String,
    /// The call of `lua/touch.lua`.
    cmd: Cmd,
}

/// A wait for one call.
struct DurableWait {
    /// Sent again in each round, until the wait is over.
    touch: Arc<Touch>,
    /// True if the slot is being moved to this node, which serves it only behind `ASKING`.
    is_asked: bool,
    /// The wanted number of replicas, and whether on disk.
    durable: Durable,
    /// When the state so far becomes the answer.
    ends: Instant,
    /// When the caller gives up if the server does not answer.
    until: Instant,
    /// Takes the answer; `None` if the data set does not hold the call.
    told: oneshot::Sender<Result<Option<Reached>, Fault>>,
}

/// The disks that a server reports on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Disks {
    /// None: it does not know `WAITAOF`, or does not allow it.
    Untold,
    /// The disks of its replicas; it has no append-only file itself.
    OfReplicas,
    /// Its own disk and the disks of its replicas.
    All,
}

/// Whether the data set holds a call.
enum Persistence {
    Yes,
    No,
    /// Its ledger is not on this node, or not any more.
    Unknown(Fault),
}

/// How far a server and its replicas are with the writes of a connection.
struct ReplicationState {
    /// The number of replicas that have them in memory.
    replicas: u32,
    disks: Disks,
    /// 1 if they are on the server's own disk, else 0.
    own: u32,
    /// The number of replicas that have them on disk.
    replicas_on_disk: u32,
}

impl Ledger {
    /// Waits until the last call of a lane is durable, for `durable.within` at most. Returns how
    /// far it got; `None` if the data set does not hold the call.
    ///
    /// # Errors
    /// Usually [`ErrorKind::OutcomeUnknown`]: the write was made, and it is unknown whether it is
    /// durable.
    pub(crate) async fn reached(
        &self,
        lane: &Lane,
        durable: Durable,
        until: Instant,
    ) -> Result<Option<Reached>> {
        let calls = self.names.calls.clone();
        let mut cmd = TOUCH.call(1);
        cmd.arg(&calls).arg(lane.id()).arg(lane.last());
        let touch = Arc::new(Touch { calls, cmd });
        let (waits, link) = (&self.server.waits, &self.server.link);
        let reached = waits.wait(link, touch, durable, until).await;
        reached.map_err(|fault| unknown(&Error::from(fault)))
    }
}

impl Waits {
    /// Waits on a server, with settings for connections of their own. Opens none yet.
    pub(in crate::store) fn new(origin: Origin, settings: &LinkSettings) -> Self {
        Waits {
            origin,
            settings: settings.clone(),
            entrances: Mutex::default(),
        }
    }

    /// Waits for one call, where its ledger is at present. `link` finds the node of the ledger.
    async fn wait(
        &self,
        link: &Link,
        touch: Arc<Touch>,
        durable: Durable,
        until: Instant,
    ) -> Result<Option<Reached>, Fault> {
        let ends = Instant::now() + durable.within;
        let mut pause = FIRST_PAUSE;
        let mut asked = None;
        loop {
            let is_asked = asked.is_some();
            let node = match asked.take() {
                Some(node) => Ok(Some(node)),
                None => link.home_of(&touch.cmd, until).await,
            };
            let told = async {
                let (told, answer) = oneshot::channel();
                let wait = DurableWait {
                    touch: touch.clone(),
                    is_asked,
                    durable,
                    ends,
                    until,
                    told,
                };
                let sent = self.entrance(&node?).send(wait).await;
                match (sent, answer.await) {
                    (Ok(()), Ok(answer)) => answer,
                    // The runtime of the waiters is gone, and so is the caller.
                    _ => Err(Fault::refused(Error::new(
                        ErrorKind::Unavailable,
                        "no caller waits for this write any more",
                    ))),
                }
            };
            let fault = match told.await {
                Ok(reached) => return Ok(reached),
                Err(fault) => fault,
            };
            let again = Instant::now() + pause;
            let passes = fault.is_passing() || fault.is_demoted() && self.origin.can_move();
            if !passes || again >= until {
                return Err(fault);
            }
            if let Some(cluster) = self.origin.cluster() {
                match fault.redirect() {
                    Some(to) if to.is_ask => asked = Some(to.node),
                    Some(to) => cluster.follow(to.slot, &to.node),
                    None => cluster.doubt(),
                }
            }
            tokio::time::sleep_until(again.into()).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    /// The queue of a node. Its waiters are started with the first call, and again if the runtime
    /// that they ran on is gone.
    fn entrance(&self, node: &Option<Node>) -> mpsc::Sender<DurableWait> {
        let mut entrances = self.entrances.lock().expect("no panic while held");
        if let Some(open) = entrances.get(node).filter(|open| !open.is_closed()) {
            return open.clone();
        }
        if let Some(cluster) = self.origin.cluster() {
            // The waiters of nodes that have left end when their queue is dropped.
            let (primaries, _) = cluster.nodes();
            let is_known =
                |node: &Option<Node>| node.as_ref().is_some_and(|it| primaries.contains(it));
            entrances.retain(|node, _| is_known(node));
        }
        let (sender, receiver) = mpsc::channel(QUEUE);
        let receiver = Arc::new(tokio::sync::Mutex::new(receiver));
        for _ in 0..WAITERS {
            let waiter = Waiter::new(self.origin.clone(), node.clone(), &self.settings);
            tokio::spawn(waiter.run(receiver.clone()));
        }
        entrances.insert(node.clone(), sender.clone());
        sender
    }
}

/// One connection that waits.
struct Waiter {
    /// Used by this waiter alone, so that its connection writes only touches.
    link: Link,
    /// A node of a cluster; nothing for a single server.
    node: Option<Node>,
    /// The longest that an answer may take beyond the time of the wait itself.
    response_timeout: Duration,
    /// The disks that the server reports on, as seen by the connection with this number.
    disks: Option<(u64, Disks)>,
}

impl Waiter {
    /// A waiter for a server or node. Its timeouts are longer by the longest wait.
    fn new(origin: Origin, node: Option<Node>, settings: &LinkSettings) -> Self {
        let patient = LinkSettings {
            response_timeout: settings.response_timeout + LONGEST,
            ..settings.clone()
        };
        Waiter {
            link: Link::new(origin, &patient),
            node,
            response_timeout: settings.response_timeout,
            disks: None,
        }
    }

    /// Takes waits from the queue, as many as there are, until the queue is dropped.
    async fn run(mut self, waiting: Arc<tokio::sync::Mutex<mpsc::Receiver<DurableWait>>>) {
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

    /// Waits for all calls together, until the first of them must be answered. Returns the waits
    /// that go on.
    async fn round(&mut self, waits: Vec<DurableWait>) -> Vec<DurableWait> {
        match self.look(&waits).await {
            Ok((held, state)) => {
                let told = waits.into_iter().zip(held);
                told.filter_map(|(wait, is_held)| wait.told_of(is_held, &state))
                    .collect()
            }
            Err(fault) => {
                for wait in waits {
                    // The caller may have stopped waiting.
                    let _ = wait.told.send(Err(fault.duplicate()));
                }
                Vec::new()
            }
        }
    }

    /// Reads for each call whether it is held, and the state of the server; returns when the state
    /// suffices for all calls, or the time of one is over.
    async fn look(
        &mut self,
        waits: &[DurableWait],
    ) -> Result<(Vec<Persistence>, ReplicationState), Fault> {
        let now = Instant::now();
        let ends = waits.iter().map(|wait| wait.ends).min().unwrap_or(now);
        // To `WAIT`, a time of 0 means for ever.
        let left = ends
            .saturating_duration_since(now)
            .max(Duration::from_millis(1));
        let latest = waits.iter().map(|wait| wait.until).max().unwrap_or(now);
        let until = latest.min(now + left + self.response_timeout);
        let was_known = self.disks.is_some();
        match self.ask(waits, left, until).await {
            // The append-only file may have been switched on or off.
            Err(fault) if !fault.is_passing() && was_known => {
                self.disks = None;
                self.ask(waits, left, until).await
            }
            told => told,
        }
    }

    /// Sends the touches, a `WAIT` or `WAITAOF`, and on a cluster the question for each ledger.
    async fn ask(
        &mut self,
        waits: &[DurableWait],
        left: Duration,
        until: Instant,
    ) -> Result<(Vec<Persistence>, ReplicationState), Fault> {
        let disks = self.disks(until).await?;
        let most = |of: fn(&DurableWait) -> u32| waits.iter().map(of).max().unwrap_or(0);
        let replicas = most(|wait| wait.durable.replicas);
        let ms = left.as_millis() as u64;
        let mut pipeline = redis::pipe();
        for wait in waits {
            wait.add(&mut pipeline, wait.touch.cmd.clone());
        }
        let is_fsynced = |wait: &DurableWait| wait.durable.fsynced;
        if disks != Disks::Untold && waits.iter().any(is_fsynced) {
            let logs = most(|wait| match wait.durable.fsynced {
                true => wait.durable.replicas,
                false => 0,
            });
            let own = u8::from(disks == Disks::All);
            pipeline.cmd("WAITAOF").arg(own).arg(logs).arg(ms);
            // A replica that has a write on disk has it in memory.
            pipeline.cmd("WAIT").arg(0).arg(ms);
        } else {
            if disks != Disks::Untold {
                pipeline.cmd("WAITAOF").arg(0).arg(0).arg(ms);
            }
            pipeline.cmd("WAIT").arg(replicas).arg(ms);
        }
        if self.node.is_some() {
            for wait in waits {
                let mut is_here = redis::cmd("HLEN");
                is_here.arg(&wait.touch.calls);
                wait.add(&mut pipeline, is_here);
            }
            // A ledger that has left must not hinder the others.
            pipeline.ignore_errors();
        }
        loop {
            let read = match self.send(Request::Many(&pipeline), until).await {
                Ok(value) => self.read(value, waits.len(), disks),
                Err(fault) => Err(fault),
            };
            match read {
                Err(fault) if fault.is_no_script() => {
                    self.send(Request::One(&TOUCH.load()), until).await?;
                }
                read => return read,
            }
        }
    }

    /// Sends to a single server until it answers; to a node once, since another node may have taken
    /// its place.
    async fn send(&self, request: Request<'_>, until: Instant) -> Result<Value, Fault> {
        let answer = match &self.node {
            None => self.link.send(request, until).await,
            Some(node) => self.link.try_at_once(node, request, until).await,
        };
        Ok(answer?.value)
    }

    /// Parses the answers to so many calls.
    fn read(
        &self,
        value: Value,
        calls: usize,
        disks: Disks,
    ) -> Result<(Vec<Persistence>, ReplicationState), Fault> {
        let Value::Array(mut values) = value else {
            return Err(Fault::refused(unexpected("not an array".into())));
        };
        let told_twice = if self.node.is_some() { 2 } else { 1 };
        let of_disks = usize::from(disks != Disks::Untold);
        if values.len() != told_twice * calls + of_disks + 1 {
            let text = format!("{} answers for {calls} calls", values.len());
            return Err(Fault::refused(unexpected(text)));
        }
        let left = values.split_off(calls + of_disks + 1);
        let number = |value: Option<Value>| -> Result<u32, Fault> {
            let value = self.sound(value.unwrap_or(Value::Nil))?;
            from_value(value).map_err(Fault::refused)
        };
        let replicas = number(values.pop())?;
        let (own, replicas_on_disk) = match disks {
            Disks::Untold => (0, 0),
            _ => {
                let both = self.sound(values.pop().unwrap_or(Value::Nil))?;
                from_value(both).map_err(Fault::refused)?
            }
        };
        let state = ReplicationState {
            replicas,
            disks,
            own,
            replicas_on_disk,
        };
        let mut held = Vec::with_capacity(calls);
        for touched in values {
            held.push(match self.sound(touched) {
                Err(fault) if fault.is_no_script() => return Err(fault),
                Err(fault) => Persistence::Unknown(fault),
                Ok(touched) => match is_present(touched).map_err(Fault::refused)? {
                    true => Persistence::Yes,
                    false => Persistence::No,
                },
            });
        }
        for (held, left) in held.iter_mut().zip(left) {
            if let Err(fault) = self.sound(left) {
                *held = Persistence::Unknown(fault);
            }
        }
        Ok((held, state))
    }

    /// An answer; an error in it becomes a fault.
    fn sound(&self, value: Value) -> Result<Value, Fault> {
        value.extract_error().map_err(|error| {
            let node = self.node.as_ref();
            Fault::from_redis(error, &self.link.address_of(node)).at_node(node)
        })
    }

    /// The disks that this server reports on. Asks once for each connection.
    async fn disks(&mut self, until: Instant) -> Result<Disks, Fault> {
        if let Some((connection, disks)) = self.disks
            && connection == self.link.opened()
        {
            return Ok(disks);
        }
        // A touch that fails would still be followed by the wait.
        self.send(Request::One(&TOUCH.load()), until).await?;
        let mut ask = redis::cmd("WAITAOF");
        ask.arg(1).arg(0).arg(1);
        let disks = match self.send(Request::One(&ask), until).await {
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

/// True if the data set holds the call that was touched.
fn is_present(touched: Value) -> Result<bool> {
    let answers = Reply::parse(touched)?.answers()?;
    let first = answers.first();
    Ok(first.is_some_and(|it| it.answer == ReplyWord::Present))
}

impl DurableWait {
    /// Adds a command on the ledger of this call.
    fn add(&self, pipeline: &mut Pipeline, cmd: Cmd) {
        if self.is_asked {
            pipeline.cmd("ASKING").ignore();
        }
        pipeline.add_command(cmd);
    }

    /// Answers the caller if the wait is over. Returns itself if it goes on.
    fn told_of(self, held: Persistence, state: &ReplicationState) -> Option<Self> {
        let answer = match held {
            Persistence::Unknown(fault) => Err(fault),
            Persistence::No => Ok(None),
            Persistence::Yes => {
                let (reached, is_all) = state.reached(&self.durable);
                if !is_all && Instant::now() < self.ends {
                    return Some(self);
                }
                Ok(Some(reached))
            }
        };
        // The caller may have stopped waiting.
        let _ = self.told.send(answer);
        None
    }
}

impl ReplicationState {
    /// How far the writes got, and true if waiting longer gains nothing.
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
        // Neither a missing report nor a missing append-only file comes by waiting.
        let own_comes = self.disks == Disks::All && self.own == 0;
        let is_rest_hopeless = !is_told || on_disks && !own_comes;
        let is_all = in_memory && (!durable.fsynced || is_rest_hopeless);
        (reached, is_all)
    }
}

/// The error of a wait that failed. The write itself was made.
fn unknown(why: &Error) -> Error {
    let kind = match why.kind() {
        kind @ (ErrorKind::Denied | ErrorKind::Damaged) => kind,
        _ => ErrorKind::OutcomeUnknown,
    };
    let why = format!(
        "the write was made, but it is unknown whether it is durable: {why}; the call may be \
         repeated"
    );
    Error::new(kind, why)
}
