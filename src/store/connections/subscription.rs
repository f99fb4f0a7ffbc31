//! A subscription to one node: its expired keys, wake-ups, and changes of keys. It is opened again
//! whenever it breaks or hangs.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt};
use redis::aio::{PubSubSink, PubSubStream};
use tokio::sync::Notify;
use tokio::task::{unconstrained, yield_now};
use tokio::time::{sleep, timeout};

use crate::counters;
use crate::error::Error;
use crate::names::Names;
use crate::settings::{LinkSettings, SUBSCRIPTION_SILENCE};
use crate::store::Server;
use crate::store::connections::cluster::Node;
use crate::store::connections::fault::Fault;
use crate::store::connections::in_time::in_time;

/// After this many messages in a row other futures of the same task get a turn.
const TURN: usize = 32;

/// A subscriber that has read for longer than this without a pause, and more messages than this,
/// does not keep up: its unread messages take memory, and are old.
const BEHIND: (Duration, usize) = (Duration::from_secs(2), 16_384);

/// The first pause before it subscribes again; it doubles up to [`LAST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause before it subscribes again.
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// A report of a subscription.
pub(crate) enum Signal<'a> {
    /// Events flow from now on; earlier events may have gone unheard.
    Up,
    /// Events are lost from now on, for this reason.
    Gap(Error),
    /// The key with this name expired.
    Expired(&'a [u8]),
    /// A message on the wake channel.
    Wake(&'a [u8]),
    /// The key was changed, by the event of this name, such as `set`.
    Changed { key: &'a str, event: &'a [u8] },
    /// All events announced before this instant were heard.
    HeardUntil(Instant),
}

/// Follows one node until it is dropped.
pub(crate) struct Subscription {
    server: Arc<Server>,
    /// The node of a cluster; if none is given, any node that can be reached.
    node: Option<Node>,
    /// Messages come all the time on a healthy node, so that silence means that it is cut off.
    is_never_silent: bool,
    /// The channels that it subscribes to by name.
    channels: Vec<String>,
    /// The channels that it subscribes to by glob.
    patterns: Vec<String>,
    /// The channel of expired keys.
    expired: String,
    /// The wake channel.
    wake: String,
    /// Each notification asks for one [`Signal::HeardUntil`].
    asked: Arc<Notify>,
    /// The longest that subscribing, or the answer to a ping, may take.
    patience: Duration,
    /// Its purpose, for errors and the counter of reconnections.
    name: &'static str,
}

impl Subscription {
    /// Expired keys and wake-ups, for an instance, which also hears its own beats.
    pub(in crate::store) fn to_events(
        server: Arc<Server>,
        instance: &str,
        settings: &LinkSettings,
    ) -> Self {
        let mut it = Subscription::to_wakes(server, instance, settings);
        it.channels.push(it.expired.clone());
        it.is_never_silent = false;
        it
    }

    /// Wake-ups and beats, which pass through all nodes of a cluster.
    pub(in crate::store) fn to_wakes(
        server: Arc<Server>,
        instance: &str,
        settings: &LinkSettings,
    ) -> Self {
        let pulse = server.names.pulse(server.database, instance);
        let mut it = Subscription::new(server, settings, "events");
        it.channels = vec![it.wake.clone(), pulse];
        it.is_never_silent = true;
        it
    }

    /// Expired keys of one node of a cluster.
    pub(in crate::store) fn to_expiry(
        server: Arc<Server>,
        node: Node,
        settings: &LinkSettings,
    ) -> Self {
        let mut it = Subscription::new(server, settings, "events");
        it.channels = vec![it.expired.clone()];
        it.node = Some(node);
        it
    }

    /// Changes of keys that match one of these globs. A separate connection, since there can be
    /// more changes than can be heard, and expired keys must not wait behind them. A notification
    /// of `asked` is answered by [`Signal::HeardUntil`].
    pub(crate) fn to_changes(
        server: Arc<Server>,
        globs: impl IntoIterator<Item = String>,
        asked: Arc<Notify>,
        settings: &LinkSettings,
    ) -> Self {
        let mut it = Subscription::new(server, settings, "changes");
        let database = it.server.database;
        let globs = globs.into_iter();
        it.asked = asked;
        it.patterns = globs.map(|glob| Names::changes(database, &glob)).collect();
        it
    }

    /// A subscription to no channel yet.
    fn new(server: Arc<Server>, settings: &LinkSettings, name: &'static str) -> Self {
        Subscription {
            channels: Vec::new(),
            patterns: Vec::new(),
            expired: Names::expired(server.database),
            wake: server.names.wake(server.database),
            asked: Arc::default(),
            patience: settings.connect_timeout.max(settings.response_timeout),
            server,
            node: None,
            is_never_silent: false,
            name,
        }
    }

    /// The address of the node that it follows.
    fn address(&self) -> String {
        self.server.address_of(&self.node)
    }

    /// Subscribes, hands every signal to `hear`, and subscribes again whenever the connection
    /// breaks or hangs. Ends only when it is dropped.
    pub(crate) async fn run(&self, mut hear: impl AsyncFnMut(Signal<'_>)) {
        let mut pause = FIRST_PAUSE;
        let mut is_first = true;
        loop {
            let moves = self.server.link.origin().moves();
            let moved = || self.server.link.origin().moved(moves);
            let subscribed = tokio::select! {
                subscribed = self.subscribe() => subscribed,
                // A server that was replaced may hang.
                () = moved() => Err(Fault::moved(&self.address())),
            };
            let fault = match subscribed {
                Ok((sink, stream)) => {
                    pause = FIRST_PAUSE;
                    if !std::mem::take(&mut is_first) {
                        counters::reconnected(self.name);
                    }
                    hear(Signal::Up).await;
                    tokio::select! {
                        fault = self.follow(sink, stream, &mut hear) => fault,
                        () = moved() => Fault::moved(&self.address()),
                    }
                }
                Err(fault) => fault,
            };
            hear(Signal::Gap(fault.into())).await;
            tokio::select! {
                () = sleep(pause) => pause = (pause * 2).min(LAST_PAUSE),
                // The new primary can be reached at once.
                () = moved() => pause = FIRST_PAUSE,
            }
        }
    }

    /// Opens a connection and subscribes to all channels and patterns.
    async fn subscribe(&self) -> Result<(PubSubSink, PubSubStream), Fault> {
        let subscribe = pin!(async {
            let client = self.server.link.origin().client(self.node.as_ref()).await?;
            let pubsub = client.get_async_pubsub().await;
            let (mut sink, stream) = pubsub.map_err(|error| self.failed(error))?.split();
            let subscribed = async {
                // A server that loads its data refuses this. It would accept a subscription, and
                // announce once more what it replays: keys that expired long ago as deleted. A user
                // without the right to ask gets another refusal, and subscribes at once.
                match sink.ping::<redis::Value>().await?.extract_error() {
                    Err(error) if error.code() == Some("LOADING") => return Err(error),
                    _ => {}
                }
                if !self.channels.is_empty() {
                    sink.subscribe(&self.channels).await?;
                }
                match &*self.patterns {
                    [] => Ok(()),
                    patterns => sink.psubscribe(patterns).await,
                }
            };
            subscribed.await.map_err(|error| self.failed(error))?;
            Ok((sink, stream))
        });
        let subscribed = in_time(Instant::now() + self.patience, subscribe).await;
        subscribed.unwrap_or_else(|| Err(Fault::unreachable(&self.address())))
    }

    /// The fault of a failed attempt to subscribe.
    fn failed(&self, error: redis::RedisError) -> Fault {
        Fault::from_connecting(error, &self.address())
    }

    /// Hands messages to `hear` until the connection fails; returns the reason.
    async fn follow(
        &self,
        mut sink: PubSubSink,
        mut stream: PubSubStream,
        hear: &mut impl AsyncFnMut(Signal<'_>),
    ) -> Fault {
        let address = self.address();
        let mut last_pause = Instant::now();
        let mut in_a_row = 0;
        let mut asked_at = None;
        loop {
            // Outside of tokio's budget: only an empty stream is a pause, an exhausted budget is
            // not.
            let message = match unconstrained(stream.next()).now_or_never() {
                Some(message) => Some(message),
                None => {
                    if let Some(at) = asked_at.take() {
                        hear(Signal::HeardUntil(at)).await;
                    }
                    let message = tokio::select! {
                        message = timeout(SUBSCRIPTION_SILENCE, stream.next()) => message.ok(),
                        () = self.asked.notified() => None,
                    };
                    (last_pause, in_a_row) = (Instant::now(), 0);
                    message
                }
            };
            let Some(message) = message else {
                if self.is_never_silent {
                    return Fault::silent(&address);
                }
                // Not even a beat of our own came, so the server is asked for a sign of life. A
                // wake-up is lost only with its connection, so this bounds how long a loss goes
                // unnoticed. The answer follows all that was announced before.
                let now = Instant::now();
                match in_time(now + self.patience, pin!(sink.ping::<redis::Value>())).await {
                    Some(Ok(_)) => asked_at = Some(now),
                    Some(Err(error)) => return Fault::from_redis(error, &address),
                    None => return Fault::timed_out(&address, self.patience),
                }
                continue;
            };
            let Some(message) = message else {
                return Fault::closed(&address);
            };
            in_a_row += 1;
            if in_a_row % TURN == 0 {
                if last_pause.elapsed() > BEHIND.0 && in_a_row > BEHIND.1 {
                    return Fault::behind(&address, self.name);
                }
                yield_now().await;
            }
            let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
            if channel == self.expired {
                hear(Signal::Expired(payload)).await;
            } else if channel == self.wake {
                hear(Signal::Wake(payload)).await;
            } else if let Some(key) = Names::changed(channel) {
                let event = payload;
                hear(Signal::Changed { key, event }).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;
    use crate::store::Store;

    /// The next command of a client, in upper case; `None` at the end of the connection.
    async fn command(stream: &mut BufReader<TcpStream>) -> Option<String> {
        let mut line = String::new();
        let mut number = async |stream: &mut BufReader<TcpStream>| {
            line.clear();
            stream.read_line(&mut line).await.ok()?;
            line.get(1..)?.trim_end().parse::<usize>().ok()
        };
        let words = number(stream).await?;
        let mut name = String::new();
        for at in 0..words {
            let mut word = vec![0; number(stream).await? + 2];
            stream.read_exact(&mut word).await.ok()?;
            if at == 0 {
                name = String::from_utf8_lossy(&word).trim_end().to_uppercase();
            }
        }
        Some(name)
    }

    /// A server that loads its data until it was asked twice. It notes the commands.
    async fn loading(listener: TcpListener, told: Arc<Mutex<Vec<String>>>) {
        let mut pings = 0;
        while let Ok((stream, _)) = listener.accept().await {
            let mut stream = BufReader::new(stream);
            while let Some(name) = command(&mut stream).await {
                told.lock().unwrap().push(name.clone());
                let answer = match name.as_str() {
                    "PING" => {
                        pings += 1;
                        match pings {
                            1 | 2 => "-LOADING Redis is loading the dataset in memory\r\n",
                            _ => "+PONG\r\n",
                        }
                    }
                    "SUBSCRIBE" => "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n",
                    _ => "+OK\r\n",
                };
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    }

    #[tokio::test]
    async fn nobody_listens_to_a_server_that_loads_its_data() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let told = Arc::new(Mutex::new(Vec::new()));
        let server = tokio::spawn(loading(listener, told.clone()));
        let settings = LinkSettings::default();
        let store = Store::new(&url, Names::new("keyfall"), &settings).unwrap();
        let mut subscription = Subscription::to_events(store.servers()[0].clone(), "a", &settings);
        subscription.channels = vec!["c".to_owned()];
        let (up, mut is_up) = tokio::sync::mpsc::channel(1);
        let listens = subscription.run(async |signal| {
            if matches!(signal, Signal::Up) {
                let _ = up.try_send(());
            }
        });
        tokio::select! {
            () = listens => unreachable!("it listens for ever"),
            it = tokio::time::timeout(std::time::Duration::from_secs(30), is_up.recv()) => {
                it.expect("it subscribes at last");
            }
        }
        let told = told.lock().unwrap();
        let asked = told
            .iter()
            .filter(|name| *name == "PING" || *name == "SUBSCRIBE");
        let asked: Vec<&str> = asked.map(String::as_str).collect();
        assert_eq!(asked, ["PING", "PING", "PING", "SUBSCRIBE"]);
        server.abort();
    }
}
