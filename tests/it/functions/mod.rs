//! Redis functions: any client schedules, cancels and looks up by `FCALL`.
//!
//! | module | content |
//! |---|---|
//! | [`states`] | functions act like the client in each state of a job |
//! | [`words`] | the words, times and keys that functions take, and their errors for all others |
//! | [`meeting`] | clients and workers run, see, cancel and pause the jobs that functions store |
//! | [`shards`] | the ledger for a job of a kind with several |
//! | [`resharding`] | answers and refusals while a kind is resharded |
//! | [`callers`] | many callers at once during reshards: no job is lost, and none exists twice |
//! | [`repeats`] | calls that are repeated under an id |
//! | [`trouble`] | a full Redis, names that are taken, databases that do not fit |
//! | [`library`] | the library: installed, compared, replaced, removed, refused |

mod callers;
mod library;
mod meeting;
mod repeats;
mod resharding;
mod shards;
mod states;
mod trouble;
mod words;

use keyfall::embedded::Embedded;
use keyfall::shard_of;
use redis::{FromRedisValue, RedisResult, Value};

use crate::site::{HOUR, Site};
use crate::version::ServerVersion;

/// A server; `None` if it does not have functions.
async fn server() -> Option<(Embedded, Site)> {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "fcall").await;
    let has_functions = ServerVersion::of(&mut site.redis()).await >= ServerVersion::Redis(7, 0);
    has_functions.then_some((server, site))
}

/// A server with our library.
async fn site() -> Option<(Embedded, Site)> {
    let (server, site) = server().await?;
    site.client.functions().install().await.unwrap();
    Some((server, site))
}

impl Site {
    async fn tries(&self, words: &[&str]) -> RedisResult<Value> {
        let mut cmd = redis::Cmd::new();
        cmd.arg(words).query_async(&mut self.redis()).await
    }

    /// The answer to a call of a function on one key.
    async fn try_fcall(&self, name: &str, key: &str, args: &[&str]) -> RedisResult<Value> {
        let name = format!("keyfall_{name}");
        self.tries(&[&["FCALL", &name, "1", key], args].concat())
            .await
    }

    async fn fcall<T: FromRedisValue>(&self, name: &str, id: &str, args: &[&str]) -> T {
        let answer = self.try_fcall(name, &self.key(id), args).await;
        let answer = answer.unwrap_or_else(|error| panic!("{name} {id} {args:?}: {error}"));
        redis::from_redis_value(answer).unwrap()
    }

    /// The word that schedule answers, and the due time if there is one.
    async fn placed(&self, id: &str, args: &[&str]) -> (String, Option<u64>) {
        let mut words: Vec<Value> = self.fcall("schedule", id, args).await;
        let due = (words.len() > 1).then(|| redis::from_redis_value(words.remove(1)).unwrap());
        assert_eq!(words.len(), 1, "unarmed");
        (redis::from_redis_value(words.remove(0)).unwrap(), due)
    }

    /// The error of a refused call.
    async fn refused(&self, name: &str, key: &str, args: &[&str]) -> String {
        let answer = self.try_fcall(name, key, args).await;
        let error = answer.expect_err(&format!("{name} {key} {args:?}"));
        // The error does not name the place in the Lua code.
        assert!(!error.to_string().contains("user_function"), "{error}");
        let detail = error.detail().unwrap_or_default();
        format!("{} {detail}", error.code().unwrap_or_default())
    }

    /// Gives the new kind this number of shards.
    async fn divide(&self, shards: u16) {
        let (kind, first) = (self.kind(), self.key("first"));
        self.client.schedule(&first, "").after(HOUR).await.unwrap();
        self.client.reshard(&kind, shards).await.unwrap();
        self.client.cancel(&first).await.unwrap();
    }

    /// The keys of the ledgers of the kind that hold this part, with the number of the shard.
    async fn ledgers(&self, part: &str) -> Vec<(u16, String)> {
        let pattern = format!("keyfall:{{{}/*}}:{part}", self.kind());
        let keys: Vec<String> = self.command(&["KEYS", &pattern]).await;
        let shard = |key: &String| {
            let (_, behind) = key.split_once('/').unwrap();
            behind.split(['.', '}']).next().unwrap().parse().unwrap()
        };
        keys.into_iter().map(|key| (shard(&key), key)).collect()
    }

    /// The key of this part of the ledger that a job belongs to. It has been used.
    async fn part_of(&self, id: &str, part: &str) -> String {
        let (shards, _) = self.client.shards(&self.kind()).await.unwrap();
        let ledgers = self.ledgers("calls").await;
        let is_meant = |(shard, _): &&(u16, String)| *shard == shard_of(id, shards);
        let (_, calls) = ledgers.iter().find(is_meant).expect(id);
        calls.replace("}:calls", &format!("}}:{part}"))
    }

    /// A command on this part of the ledger of a job.
    async fn by_hand(&self, id: &str, command: &str, part: &str, rest: &[&str]) {
        let key = self.part_of(id, part).await;
        let _: Value = self.command(&[&[command, &key], rest].concat()).await;
    }
}
