//! The scripts that write and read a stream whose entries are acknowledged, each in one step on one
//! server.

use std::sync::LazyLock;

use redis::{FromRedisValue, ToRedisArgs};

use super::{KeyContext, TargetRedis, WriteRetry};
use crate::error::Result;
use crate::store::lua::lua;

/// One script. Its file in `lua/streams` begins with a header that gives its arguments and replies.
pub(super) struct StreamScript {
    /// The Lua code.
    source: LazyLock<&'static str>,
    /// Its SHA-1, for `EVALSHA`.
    hash: LazyLock<String>,
}

macro_rules! scripts {
    ($($name:ident = $file:literal;)*) => {$(
        pub(super) static $name: StreamScript = StreamScript {
            source: LazyLock::new(|| lua!("streams/", $file, ".lua")),
            hash: LazyLock::new(|| redis::Script::new(&$name.source).get_hash().to_owned()),
        };
    )*};
}

scripts! {
    APPEND = "append";
    JOIN = "join";
    LOOK = "look";
    PAGE = "page";
}

impl TargetRedis {
    /// Calls a script. A server that does not know it gets the source with a second call.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        place: &KeyContext<'_>,
        script: &StreamScript,
        keys: &[&str],
        args: &impl ToRedisArgs,
        writes: WriteRetry,
    ) -> Result<T> {
        let call = |how: &str, what: &str| {
            let mut cmd = redis::cmd(how);
            cmd.arg(what).arg(keys.len()).arg(keys).arg(args);
            cmd
        };
        match self.try_write(&call("EVALSHA", &script.hash), writes).await {
            Err(fault) if fault.is_no_script() => {
                let call = call("EVAL", &script.source);
                self.write(place, &call, writes).await
            }
            answer => self.answer(place, answer),
        }
    }
}
