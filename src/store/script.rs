//! The Lua scripts: one transition each, compiled in, each with the library parts it uses.

use std::sync::LazyLock;

/// One script. The file in `lua/` begins with a header that says what it takes and answers.
pub(crate) struct Script {
    pub(crate) name: &'static str,
    /// How many keys come before the triggers.
    pub(crate) fixed_keys: usize,
    source: &'static str,
    hash: String,
}

impl Script {
    #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The command that calls it, but for its keys, of which there are so many, and arguments.
    pub(crate) fn call(&self, keys: usize) -> redis::Cmd {
        let mut cmd = redis::Cmd::with_capacity(64, 1024);
        cmd.arg("EVALSHA").arg(&self.hash).arg(keys);
        cmd
    }

    /// The command that makes the server learn this script.
    pub(crate) fn load(&self) -> redis::Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(self.source);
        cmd
    }
}

macro_rules! scripts {
    ($($(#[$gate:meta])* $name:ident = $file:literal, $keys:literal keys, [$($part:literal),*];)*) => {
        $(
            $(#[$gate])*
            pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
                let source = concat!(
                    $(include_str!(concat!("../../lua/lib/", $part, ".lua")),)*
                    include_str!(concat!("../../lua/", $file, ".lua")),
                );
                Script {
                    name: $file,
                    fixed_keys: $keys,
                    source,
                    hash: redis::Script::new(source).get_hash().to_owned(),
                }
            });
        )*

        /// Every script with the text of its file, for the tests that hold headers, callers
        /// and folder together.
        #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
        pub(crate) fn all() -> Vec<(&'static Script, &'static str)> {
            vec![$($(#[$gate])* (&*$name, include_str!(concat!("../../lua/", $file, ".lua"))),)*]
        }
    };
}

scripts! {
    SCHEDULE = "schedule", 7 keys, ["clock", "calls", "count", "record", "successor", "trigger"];
    RESCHEDULE = "reschedule", 6 keys, ["clock", "calls", "record", "trigger", "successor"];
    UPDATE = "update", 6 keys, ["clock", "calls", "record", "successor"];
    CANCEL = "cancel", 7 keys, ["clock", "calls", "count", "lease", "trigger", "successor"];
    #[cfg(feature = "worker")]
    CLAIM = "claim", 6 keys, ["clock", "calls", "count", "paused", "lease"];
    #[cfg(feature = "worker")]
    RECLAIM = "reclaim", 8 keys, ["clock", "calls", "count", "paused", "record", "lease", "trigger", "successor"];
    #[cfg(feature = "worker")]
    RENEW = "renew", 2 keys, ["clock", "lease"];
    #[cfg(feature = "worker")]
    SETTLE = "settle", 10 keys, ["clock", "calls", "count", "record", "lease", "trigger", "dead", "successor"];
    #[cfg(feature = "worker")]
    SWEEP = "sweep", 3 keys, ["clock", "paused"];
    REQUEUE = "requeue", 8 keys, ["clock", "calls", "count", "record", "trigger", "dead"];
    RESTORE = "restore", 8 keys, ["clock", "calls", "count", "record", "trigger", "dead"];
    DISCARD = "discard", 5 keys, ["clock", "calls", "count", "dead"];
    #[cfg(feature = "worker")]
    TRIM = "trim", 3 keys, ["clock", "dead"];
    LETTERS = "letters", 2 keys, ["clock"];
    #[cfg(feature = "worker")]
    BEAT = "beat", 1 keys, ["clock"];
    LIST = "list", 7 keys, ["clock", "order", "lease"];
    GET = "get", 7 keys, ["clock"];
    STATS = "stats", 8 keys, ["clock", "paused"];
    SCAN = "scan", 7 keys, ["clock", "faults"];
    AUDIT = "audit", 8 keys, ["clock", "faults", "record", "lease", "trigger", "dead", "successor"];
    PAUSE = "pause", 2 keys, ["clock", "calls", "paused"];
    RESUME = "resume", 2 keys, ["clock", "calls"];
}
