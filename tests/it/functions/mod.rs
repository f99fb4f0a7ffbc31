//! Redis functions: any client schedules, cancels and looks up by `FCALL`.
//!
//! | module | what it proves |
//! |---|---|
//! | [`states`] | what functions do in each state of a job is what the client does |
//! | [`words`] | which words, times and keys they take, and what they say of others |
//! | [`meeting`] | what they store runs, is seen, cancelled and paused by clients and workers |
//! | [`repeats`] | calls that are repeated under an id |
//! | [`trouble`] | a full Redis, names that are taken, databases that do not fit |
//! | [`library`] | the library: installed, compared, replaced, removed, refused |

mod library;
mod meeting;
mod repeats;
mod states;
mod trouble;
mod words;

use keyfall::embedded::Embedded;
use redis::{FromRedisValue, RedisResult, Value};

use crate::site::Site;
use crate::version::Version;

/// A server; `None` where it knows no functions.
async fn server() -> Option<(Embedded, Site)> {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "fcall").await;
    let has_functions = Version::of(&mut site.redis()).await >= Version::Redis(7, 0);
    has_functions.then_some((server, site))
}

/// One that has ours.
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

    /// What a call of a function on one key answers.
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

    /// The words that scheduling answers, and the due time if there is one.
    async fn placed(&self, id: &str, args: &[&str]) -> (String, Option<u64>) {
        let mut words: Vec<Value> = self.fcall("schedule", id, args).await;
        let due = (words.len() > 1).then(|| redis::from_redis_value(words.remove(1)).unwrap());
        assert_eq!(words.len(), 1, "unarmed");
        (redis::from_redis_value(words.remove(0)).unwrap(), due)
    }

    /// What somebody is told whose call is refused.
    async fn refused(&self, name: &str, key: &str, args: &[&str]) -> String {
        let answer = self.try_fcall(name, key, args).await;
        let error = answer.expect_err(&format!("{name} {key} {args:?}"));
        // Not where in the Lua it was found.
        assert!(!error.to_string().contains("user_function"), "{error}");
        let detail = error.detail().unwrap_or_default();
        format!("{} {detail}", error.code().unwrap_or_default())
    }

    /// A command on a key of the first ledger.
    async fn by_hand(&self, command: &str, part: &str, rest: &[&str]) {
        let key = format!("keyfall:{{{}/0}}:{part}", self.kind());
        let _: Value = self.command(&[&[command, &key], rest].concat()).await;
    }
}
