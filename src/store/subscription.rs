//! A subscription to one node: what expired there, and who calls for attention.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::time::{sleep, timeout};

use super::Store;
use super::fault::Fault;
use crate::error::Error;
use crate::metrics;
use crate::names::Names;
use crate::settings::{LinkSettings, SUBSCRIPTION_SILENCE};

const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LAST_PAUSE: Duration = Duration::from_secs(1);

/// What a subscription reports.
pub(crate) enum Signal<'a> {
    /// Events flow from now on; what happened before may have gone unheard.
    Up,
    /// Events are lost from now on, for this reason.
    Gap(Error),
    /// This key expired.
    Expired(&'a [u8]),
    /// A message on the wake channel.
    Wake(&'a [u8]),
}

/// Follows one node, for ever.
pub(crate) struct Subscription {
    store: Arc<Store>,
    expired: String,
    wake: String,
    pulse: String,
    patience: Duration,
}

impl Subscription {
    /// The subscription of an instance, which hears its own beats.
    pub(crate) fn new(store: Arc<Store>, instance: &str, settings: &LinkSettings) -> Self {
        Subscription {
            expired: Names::expired(store.database),
            wake: store.names.wake(store.database),
            pulse: store.names.pulse(store.database, instance),
            store,
            patience: settings.connect_timeout.max(settings.response_timeout),
        }
    }

    /// Subscribes, hands every signal to `hear`, and subscribes again whenever the
    /// connection breaks or hangs. Ends only when it is dropped.
    pub(crate) async fn run(&self, mut hear: impl AsyncFnMut(Signal<'_>)) {
        let mut pause = FIRST_PAUSE;
        let mut is_first = true;
        loop {
            let fault = match self.subscribe().await {
                Ok((sink, stream)) => {
                    pause = FIRST_PAUSE;
                    if !std::mem::take(&mut is_first) {
                        metrics::reconnected("events");
                    }
                    hear(Signal::Up).await;
                    self.follow(sink, stream, &mut hear).await
                }
                Err(fault) => fault,
            };
            hear(Signal::Gap(fault.into())).await;
            sleep(pause).await;
            pause = (pause * 2).min(LAST_PAUSE);
        }
    }

    async fn subscribe(&self) -> Result<(PubSubSink, PubSubStream), Fault> {
        let address = self.store.address();
        let subscribe = async {
            let pubsub = self.store.link.client().get_async_pubsub().await?;
            let (mut sink, stream) = pubsub.split();
            sink.subscribe(&[&self.expired, &self.wake, &self.pulse])
                .await?;
            Ok((sink, stream))
        };
        match timeout(self.patience, subscribe).await {
            Ok(result) => result.map_err(|error| Fault::from_connecting(error, &address)),
            Err(_) => Err(Fault::unreachable(&address)),
        }
    }

    async fn follow(
        &self,
        mut sink: PubSubSink,
        mut stream: PubSubStream,
        hear: &mut impl AsyncFnMut(Signal<'_>),
    ) -> Fault {
        let address = self.store.address();
        loop {
            let Ok(message) = timeout(SUBSCRIPTION_SILENCE, stream.next()).await else {
                // Not even a beat of our own: is anybody there? A wake-up is lost only with its
                // connection, so this bounds how long a lost one goes unnoticed.
                match timeout(self.patience, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => continue,
                    Ok(Err(error)) => return Fault::from_redis(error, &address),
                    Err(_) => return Fault::timed_out(&address, self.patience),
                }
            };
            let Some(message) = message else {
                return Fault::closed(&address);
            };
            let (channel, payload) = (message.get_channel_name(), message.get_payload_bytes());
            if channel == self.expired {
                hear(Signal::Expired(payload)).await;
            } else if channel == self.wake {
                hear(Signal::Wake(payload)).await;
            }
        }
    }
}
