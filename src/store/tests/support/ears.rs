//! A subscription to the wake channel, beside the subscription of the crate.

use futures_util::StreamExt;
use redis::Client;
use redis::aio::PubSubStream;
use tokio::time::timeout;

use super::{Bench, PATIENCE};

/// Collects the messages about one ledger, or all messages.
pub(in crate::store::tests) struct Ears {
    channel: String,
    kind: String,
    all: bool,
    stream: PubSubStream,
}

impl Ears {
    pub(in crate::store::tests) async fn of(bench: &Bench) -> Self {
        let client = Client::open(bench.url.as_str()).unwrap();
        let mut pubsub = client.get_async_pubsub().await.unwrap();
        pubsub.subscribe(&bench.ledger.wake).await.unwrap();
        Ears {
            channel: bench.ledger.wake.clone(),
            kind: bench.ledger.kind().to_string(),
            all: false,
            stream: pubsub.into_on_message(),
        }
    }

    /// Collects all messages, on a server that no other test uses.
    pub(in crate::store::tests) async fn of_all(bench: &Bench) -> Self {
        let ears = Ears::of(bench).await;
        Ears { all: true, ..ears }
    }

    /// The messages since the last call. It publishes a message and returns those before it.
    pub(in crate::store::tests) async fn heard(&mut self, bench: &Bench) -> Vec<String> {
        let last = format!("end of {}", self.kind);
        let _: u64 = bench.ask(&["PUBLISH", &self.channel, &last]).await;
        let mut heard = Vec::new();
        loop {
            let message = timeout(PATIENCE, self.stream.next())
                .await
                .unwrap()
                .unwrap();
            let text: String = message.get_payload().unwrap();
            if text == last {
                return heard;
            }
            // Other tests use the same channel.
            if self.all || text.contains(&self.kind) {
                heard.push(text);
            }
        }
    }
}
