//! The writes of a server, as `MONITOR` shows them, those of scripts included; and what is present
//! in the end.

use std::fmt;

use keyfall::embedded::Embedded;
use keyfall_testing::server::socket_of;
use redis::aio::MultiplexedConnection;
use redis::{FromRedisValue, ToRedisArgs};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::runs::PATIENCE;
use crate::site::{command, connect};

/// The beginnings of keys that belong to the scene, and not to Keyfall.
pub(super) const FOREIGN: [&str; 3] = ["plain:", "work-list", "work-stream"];

/// One entry of a key.
#[derive(Default)]
pub(super) struct Stored {
    pub(super) key: Vec<u8>,
    /// The type of the key.
    pub(super) sort: &'static str,
    /// Field or member; empty for strings and lists.
    pub(super) field: Vec<u8>,
    pub(super) value: Vec<u8>,
}

impl fmt::Display for Stored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [key, field, value] =
            [&self.key, &self.field, &self.value].map(|text| text.escape_ascii().to_string());
        write!(f, "{} {key}: {field} → {value}", self.sort)
    }
}

/// The commands of a server from now on.
pub(super) struct Writes {
    url: String,
    told: mpsc::UnboundedReceiver<Vec<u8>>,
}

/// A key that marks the end of the scene.
const END: &str = "scene-end";

impl Writes {
    pub(super) async fn of(server: &Embedded) -> Self {
        let mut socket = UnixStream::connect(socket_of(server)).await.unwrap();
        socket.write_all(b"MONITOR\r\n").await.unwrap();
        let mut lines = BufReader::new(socket).split(b'\n');
        lines.next_segment().await.unwrap().expect("it says OK");
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_segment().await {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Writes {
            url: server.url(),
            told,
        }
    }

    /// All that was written, one entry a field, member or value.
    pub(super) async fn end(mut self) -> Vec<Stored> {
        let mut redis = connect(&self.url).await;
        let _: Option<String> = command(&mut redis, &["GET", END]).await;
        let mut all = Vec::new();
        loop {
            let line = timeout(PATIENCE, self.told.recv()).await;
            let words = words(&line.expect("a command").expect("the server lives"));
            if words.get(1).is_some_and(|key| key == END.as_bytes()) {
                return all;
            }
            all.extend(written(&words).into_iter().filter(is_ours));
        }
    }
}

/// A key that Keyfall writes. A consumer writes to one of them: `…:done` beside a list.
fn is_ours(stored: &Stored) -> bool {
    let key = String::from_utf8_lossy(&stored.key);
    let is_foreign = FOREIGN.iter().any(|start| key.starts_with(start));
    !is_foreign
        || key.matches(':').count() == 1 && key.ends_with(":done")
        || key.starts_with("work-stream:")
}

/// The words of a line of `MONITOR`: `1763000000.123456 [0 lua] "HSET" "…" …`.
fn words(line: &[u8]) -> Vec<Vec<u8>> {
    let (mut words, mut word) = (Vec::new(), None::<Vec<u8>>);
    let mut bytes = line.iter().copied();
    while let Some(byte) = bytes.next() {
        match (byte, &mut word) {
            (b'"', None) => word = Some(Vec::new()),
            (b'"', Some(_)) => words.extend(word.take()),
            (_, None) => {}
            (b'\\', Some(word)) => word.push(match bytes.next() {
                Some(b'n') => b'\n',
                Some(b'r') => b'\r',
                Some(b't') => b'\t',
                Some(b'a') => 7,
                Some(b'b') => 8,
                Some(b'x') => {
                    let digits = [bytes.next().unwrap(), bytes.next().unwrap()];
                    let digits = std::str::from_utf8(&digits).unwrap();
                    u8::from_str_radix(digits, 16).unwrap()
                }
                other => other.unwrap(),
            }),
            (byte, Some(word)) => word.push(byte),
        }
    }
    words
}

/// What a command stores. A command that Redis refuses, such as a probe of rights, stores nothing.
fn written(words: &[Vec<u8>]) -> Vec<Stored> {
    let [name, key, args @ ..] = words else {
        return Vec::new();
    };
    let of = |sort, field: &[u8], value: &[u8]| Stored {
        key: key.clone(),
        sort,
        field: field.to_owned(),
        value: value.to_owned(),
    };
    let is_number = |text: &[u8]| {
        let text = std::str::from_utf8(text).ok();
        text.is_some_and(|text| text.parse::<f64>().is_ok())
    };
    match name.to_ascii_uppercase().as_slice() {
        b"SET" => vec![of("string", b"", &args[0])],
        b"HSET" | b"HSETNX" if args.len() % 2 == 0 => args
            .chunks(2)
            .map(|it| of("hash", &it[0], &it[1]))
            .collect(),
        b"HINCRBY" if is_number(&args[1]) => vec![of("hash", &args[0], &args[1])],
        b"ZADD" => {
            let scores = args.iter().position(|it| is_number(it));
            let scored = scores.map_or(&[][..], |at| &args[at..]);
            scored
                .chunks(2)
                .map(|it| of("sorted set", &it[1], &it[0]))
                .collect()
        }
        b"RPUSH" | b"LPUSH" => args.iter().map(|it| of("list", b"", it)).collect(),
        b"XADD" if args[0] != b"NOMKSTREAM" => {
            let id = args.iter().position(|it| it == b"*");
            let fields = id.map_or(&[][..], |at| &args[at + 1..]);
            fields
                .chunks(2)
                .map(|it| of("stream", &it[0], &it[1]))
                .collect()
        }
        _ => Vec::new(),
    }
}

/// All that a server stores now.
pub(super) async fn present(url: &str) -> Vec<Stored> {
    let mut redis = connect(url).await;
    let keys: Vec<Vec<u8>> = command(&mut redis, &["KEYS", "*"]).await;
    let mut all = Vec::new();
    for key in keys {
        // A key can expire at any time.
        let sort: String = ask(&mut redis, &[b"TYPE", &key[..]]).await;
        let of = |sort, field: Vec<u8>, value: Vec<u8>| Stored {
            key: key.clone(),
            sort,
            field,
            value,
        };
        match &*sort {
            "string" => {
                let value: Option<Vec<u8>> = ask(&mut redis, &[b"GET", &key[..]]).await;
                all.extend(value.map(|value| of("string", Vec::new(), value)));
            }
            "hash" => {
                let fields: Vec<(Vec<u8>, Vec<u8>)> =
                    ask(&mut redis, &[b"HGETALL", &key[..]]).await;
                all.extend(
                    fields
                        .into_iter()
                        .map(|(field, value)| of("hash", field, value)),
                );
            }
            "zset" => {
                let words = [b"ZRANGE", &key[..], b"0", b"-1", b"WITHSCORES"];
                let members: Vec<(Vec<u8>, Vec<u8>)> = ask(&mut redis, &words).await;
                let members = members.into_iter();
                all.extend(members.map(|(member, score)| of("sorted set", member, score)));
            }
            "list" => {
                let words = [b"LRANGE", &key[..], b"0", b"-1"];
                let values: Vec<Vec<u8>> = ask(&mut redis, &words).await;
                all.extend(values.into_iter().map(|it| of("list", Vec::new(), it)));
            }
            "stream" => {
                type Entry = (String, Vec<(Vec<u8>, Vec<u8>)>);
                let words = [b"XRANGE", &key[..], b"-", b"+"];
                let entries: Vec<Entry> = ask(&mut redis, &words).await;
                let fields = entries.into_iter().flat_map(|(_, fields)| fields);
                all.extend(fields.map(|(field, value)| of("stream", field, value)));
            }
            "none" => {}
            other => panic!("{} is a {other}", key.escape_ascii()),
        }
    }
    all.retain(is_ours);
    all
}

async fn ask<T: FromRedisValue>(
    redis: &mut MultiplexedConnection,
    words: &[impl ToRedisArgs],
) -> T {
    command(redis, words).await
}
