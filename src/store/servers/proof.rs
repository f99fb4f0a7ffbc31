//! Proves that Redis announces changes of keys, where its settings cannot be read: sets a key, lets
//! it expire, and listens for all events of it.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::aio::PubSubStream;
use tokio::time::{sleep, timeout_at};

use crate::error::{Error, ErrorKind, Result};
use crate::names::{MARKER, Names};
use crate::store::connections::fault::Fault;
use crate::store::{Announced, Server, WantedEvents, from_value, unique_id};

/// Time to live of that key: short, since only the proof waits for it.
const LIFE: Duration = Duration::from_millis(20);

/// The longest wait for an event that should have come already. Redis sends events before it
/// answers; a proxy before it may pass on events by another way than answers.
const RELAYED: Duration = Duration::from_secs(1);

/// The events of the key that were heard.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Proof {
    /// `set`, on the channel of the key: flags `K` and `$`.
    set: bool,
    /// `expire`, on the channel of the key: `K` and `g`.
    expire: bool,
    /// `expired`, on the channel of the key: `K` and `x`.
    expired: bool,
    /// Its name, on the channel of all that expires: `E` and `x`.
    in_common: bool,
}

impl Proof {
    /// The events that were not heard, with the flags that announce them; nothing if all were.
    pub(crate) fn unheard(self) -> Option<String> {
        let events = [
            (self.set, "`set` (K$)"),
            (self.expire, "`expire` (Kg)"),
            (self.expired, "`expired` (Kx)"),
            (self.in_common, "`__keyevent…:expired` (Ex)"),
        ];
        let unheard = events.iter().filter(|(is_heard, _)| !is_heard);
        let unheard: Vec<&str> = unheard.map(|(_, event)| *event).collect();
        (!unheard.is_empty()).then(|| unheard.join(", "))
    }

    /// Notes an event from the channel of the key.
    fn note(&mut self, event: &[u8]) {
        match event {
            b"set" => self.set = true,
            b"expire" => self.expire = true,
            b"expired" => self.expired = true,
            _ => {}
        }
    }

    /// Notes the events of this key until all were heard, or [`RELAYED`] has passed. Events of
    /// other keys, of which there may be many, are passed over.
    async fn listen(&mut self, stream: &mut PubSubStream, key: &str, database: i64) {
        let until = Instant::now() + RELAYED;
        let in_common = Names::expired(database);
        while self.unheard().is_some() {
            let Ok(Some(message)) = timeout_at(until.into(), stream.next()).await else {
                return;
            };
            let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
            if channel == in_common {
                self.in_common |= payload == key.as_bytes();
            } else if Names::changed(channel) == Some(key) {
                self.note(payload);
            }
        }
    }
}

/// The fate of plain keys that routes adopt, while Redis does not announce changes of keys; part of
/// an error or warning.
pub(crate) const LOST: &str = "workers find plain keys only by a search every 15 s, keys that \
                               expire before are lost, a DEL cancels nothing, and on routes where \
                               a missing key means `cancel` no expired key runs its job";

impl Server {
    /// Verifies that this server announces changes of keys that match these globs; switches the
    /// notifications on if it may.
    ///
    /// # Errors
    /// [`ErrorKind::Incompatible`] if it does not announce them, or that can be neither read nor
    /// proved.
    pub(crate) async fn check_announced(&self, globs: &[String], until: Instant) -> Result<()> {
        let why = match self.announce(WantedEvents::Changes, until).await {
            Announced::Already => return Ok(()),
            Announced::FromNow { was, set } => {
                WantedEvents::Changes.say_set(&was, &set);
                // Other instances look from time to time, and would now find no flag missing.
                if let Err(error) = self.tell("unheard -", until).await {
                    tracing::debug!(%error, "the instances could not be told about a gap");
                }
                return Ok(());
            }
            Announced::Unanswered(error) => return Err(error),
            Announced::Never { error, .. } => error.to_string(),
            Announced::Unknown(_) => match self.prove(globs, until).await {
                Ok(proof) => match proof.unheard() {
                    None => return Ok(()),
                    Some(unheard) => {
                        format!("a test key expired, and these events did not arrive: {unheard}")
                    }
                },
                // The worker reports this until there is room: due jobs must not wait for it.
                Err(error) if error.kind() == ErrorKind::Full => return Ok(()),
                Err(error) if error.is_retryable() => return Err(error),
                Err(error) => format!("a test key cannot prove it either: {error}"),
            },
        };
        let accept = "; `worker.allow_unannounced` or `Worker::allow_unannounced` accepts the loss";
        let message = self.does_not_announce(&why) + accept;
        Err(Error::new(ErrorKind::Incompatible, message))
    }

    /// The error or warning that this server does not announce changes of keys: the consequences,
    /// and the setting that is missing.
    pub(crate) fn does_not_announce(&self, why: &str) -> String {
        format!(
            "Redis at {} does not announce changes of plain keys, which routes adopt: {LOST} \
             ({why}); set `notify-keyspace-events {}` in its configuration, docs/managed-redis.md \
             explains where",
            self.address(),
            WantedEvents::Changes.flags(),
        )
    }

    /// The events that this server announces of a key that looks like the adopted ones. The key
    /// holds our marker and has the name of no job, so that no instance adopts it.
    ///
    /// # Errors
    /// If the key could not be set, or the events not subscribed to, by `until`.
    pub(crate) async fn prove(&self, globs: &[String], until: Instant) -> Result<Proof> {
        let proof = self.prove_once(globs, until).await?;
        if proof.unheard().is_none() {
            return Ok(proof);
        }
        // Another server may have become the primary in between.
        self.prove_once(globs, until).await
    }

    /// One attempt of [`prove`](Self::prove).
    async fn prove_once(&self, globs: &[String], until: Instant) -> Result<Proof> {
        let address = self.address();
        let (key, glob) = self.names.probe(globs, &unique_id());
        let failed = |error| Fault::from_redis(error, &address);
        let proven = async {
            let (mut sink, mut stream) = self.open_pubsub().await?.split();
            let expired = Names::expired(self.database);
            sink.subscribe(&expired).await.map_err(failed)?;
            let changes = Names::changes(self.database, &glob);
            sink.psubscribe(&changes).await.map_err(failed)?;

            let mut set = redis::cmd("SET");
            let life = LIFE.as_millis() as u64;
            set.arg(&key).arg(MARKER).arg("PX").arg(life);
            self.command(&set, until).await?;
            let mut touch = redis::cmd("EXISTS");
            touch.arg(&key);
            loop {
                sleep(LIFE).await;
                if from_value::<u32>(self.command(&touch, until).await?)? == 0 {
                    break;
                }
            }
            // The answer follows all that was announced before.
            sink.ping::<redis::Value>().await.map_err(failed)?;
            let mut proof = Proof::default();
            proof.listen(&mut stream, &key, self.database).await;
            Ok(proof)
        };
        match timeout_at(until.into(), proven).await {
            Ok(proven) => proven,
            Err(_) => Err(Fault::unreachable(&address).into()),
        }
    }
}
