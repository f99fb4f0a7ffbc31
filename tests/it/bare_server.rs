//! A bare server: its commands, their answers, and its announcements.

use futures_util::StreamExt;
use keyfall::embedded::{Embedded, Options};
use redis::aio::{MultiplexedConnection, PubSubStream};
use redis::{Cmd, FromRedisValue, Pipeline, RedisResult};
use tokio::time::timeout;

use crate::runs::{PATIENCE, eventually};
use crate::site::{connect, redis_time};
use crate::version::ServerVersion;

/// A key `k` whose time is over, but which the server has not yet removed: a pause of writes also
/// holds expiry back.
pub(crate) const DIE: [&str; 2] = ["SET k v PX 1", "CLIENT PAUSE 100000 WRITE"];

/// A separate server, and a subscriber to all its announcements.
pub(crate) struct BareServer {
    pub(crate) version: ServerVersion,
    pub(crate) server: Embedded,
    pub(crate) redis: MultiplexedConnection,
    events: PubSubStream,
    /// The channel of its last message: one for each server, since replicas repeat published
    /// messages.
    over: String,
}

impl BareServer {
    pub(crate) async fn new() -> Self {
        BareServer::with(Embedded::options()).await
    }

    pub(crate) async fn with(options: Options) -> Self {
        let flags = ["--notify-keyspace-events", "KEA"];
        let server = options.args(flags).start().await.unwrap();
        let mut redis = connect(&server.url()).await;
        let client = redis::Client::open(server.url()).unwrap();
        let mut events = client.get_async_pubsub().await.unwrap();
        events.psubscribe("__keyevent@0__:*").await.unwrap();
        let over = format!("over:{}", server.pid().unwrap());
        events.subscribe(&["said", &over]).await.unwrap();
        BareServer {
            over,
            version: ServerVersion::of(&mut redis).await,
            events: events.into_on_message(),
            server,
            redis,
        }
    }

    /// A command, its words separated by blanks.
    pub(crate) async fn ask<T: FromRedisValue>(&mut self, text: &str) -> T {
        cmd(text).query_async(&mut self.redis).await.unwrap()
    }

    pub(crate) async fn eval<T: FromRedisValue>(&mut self, text: &str) -> RedisResult<T> {
        script(text).query_async(&mut self.redis).await
    }

    /// Makes `k` a key whose time is over, and runs this command on it first: the server reads a
    /// whole pipeline before it does its own work. Returns the answer and the announcements from
    /// then on.
    pub(crate) async fn with_dead<T: FromRedisValue>(&mut self, command: &Cmd) -> (T, Vec<String>) {
        self.heard().await;
        let () = pipeline(&DIE).query_async(&mut self.redis).await.unwrap();
        let until = redis_time(&mut self.redis).await + 2_000;
        eventually("its time is over", async || {
            (redis_time(&mut self.redis).await > until).then_some(())
        })
        .await;
        let mut both = pipeline(&["CLIENT UNPAUSE"]);
        both.add_command(command.clone());
        let (answer,): (T,) = both.query_async(&mut self.redis).await.unwrap();
        let mut heard = self.heard().await;
        let rest = heard.split_off(2);
        assert_eq!(heard, ["set k", "expire k"]);
        (answer, rest)
    }

    /// The announcements since the last call, as `event key`, and the messages that scripts `said`.
    pub(crate) async fn heard(&mut self) -> Vec<String> {
        let _: u64 = self.ask(&format!("PUBLISH {} .", self.over)).await;
        let mut heard = Vec::new();
        loop {
            let message = timeout(PATIENCE, self.events.next()).await;
            let message = message.unwrap().expect("a last word");
            let text: String = message.get_payload().unwrap();
            let channel = message.get_channel_name();
            if channel == self.over {
                return heard;
            }
            heard.push(match channel.strip_prefix("__keyevent@0__:") {
                Some(event) => format!("{event} {text}"),
                None => text,
            });
        }
    }

    pub(crate) async fn flags(&mut self) -> String {
        let (_, flags): (String, String) = self.ask("CONFIG GET notify-keyspace-events").await;
        flags
    }
}

pub(crate) fn pipeline(commands: &[&str]) -> Pipeline {
    let mut pipeline = redis::pipe();
    for command in commands {
        pipeline.add_command(cmd(command)).ignore();
    }
    pipeline
}

pub(crate) fn cmd(text: &str) -> Cmd {
    let mut cmd = Cmd::new();
    cmd.arg(text.split(' ').collect::<Vec<_>>());
    cmd
}

pub(crate) fn script(text: &str) -> Cmd {
    let mut cmd = redis::cmd("EVAL");
    cmd.arg(text).arg(0);
    cmd
}
