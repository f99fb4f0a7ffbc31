//! The Lua scripts, one for each transition. They are compiled into the program, each with the
//! library parts that it uses. The files are in `lua/`, the parts in `lua/lib/`.

use std::collections::HashSet;
use std::sync::LazyLock;

use redis::Arg;

use crate::names::LedgerNames;
use crate::store::lua::lua;

/// One script. The head of its file in `lua/` describes its keys, arguments and answers.
pub(crate) struct Script {
    /// The name of its file, without `.lua`.
    pub(crate) name: &'static str,
    /// The number of keys before the triggers.
    pub(crate) fixed_keys: usize,
    /// The text, with what it needs of the library parts in front.
    source: String,
    /// The SHA-1 hash of the text, by which `EVALSHA` calls it.
    hash: String,
    /// The variant for a ledger on a cluster; it refuses the call if a part of the ledger is
    /// missing.
    whole: Text,
    /// The same variant, but it accepts a ledger of which all parts are missing.
    maybe_new: Text,
}

/// The text of a variant, and its hash.
struct Text {
    source: String,
    hash: String,
}

impl Text {
    /// Hashes a text; no server is asked.
    fn new(source: String) -> Self {
        let hash = redis::Script::new(&source).get_hash().to_owned();
        Text { source, hash }
    }
}

impl Script {
    /// Puts `body` behind what it needs of the library parts.
    fn new(name: &'static str, fixed_keys: usize, parts: &[&str], body: &str) -> Self {
        let source = needed(&parts.concat(), body) + body;
        // The beginning of the variants for ledgers on a cluster.
        let whole = lua!("cluster/whole.lua");
        Script {
            name,
            fixed_keys,
            hash: redis::Script::new(&source).get_hash().to_owned(),
            whole: Text::new(format!("local MAY_BE_NEW = false\n{whole}{source}")),
            maybe_new: Text::new(format!("local MAY_BE_NEW = true\n{whole}{source}")),
            source,
        }
    }

    /// Whether its calls are numbered and carry the place of the ledger.
    #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
    pub(crate) fn is_addressed(&self) -> bool {
        self.source.contains("3 who, 4 place,")
    }

    /// The SHA-1 hash of the text.
    #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
    pub(crate) fn hash(&self) -> &str {
        &self.hash
    }

    /// The command that calls the script on `keys` keys. The caller adds the keys and the
    /// arguments.
    pub(crate) fn call(&self, keys: usize) -> redis::Cmd {
        let mut cmd = redis::Cmd::with_capacity(64, 1024);
        cmd.arg("EVALSHA").arg(&self.hash).arg(keys);
        cmd
    }

    /// The command that calls the script on some keys of a ledger on a cluster. The caller adds the
    /// arguments. The server refuses the call if another part of the ledger is missing; see
    /// `lua/cluster/whole.lua`.
    pub(crate) fn call_on_whole(&self, keys: &[&str], ledger: &LedgerNames) -> redis::Cmd {
        let all = ledger.all();
        let mut cmd = redis::Cmd::with_capacity(64, 2048);
        cmd.arg("EVALSHA").arg(&self.whole.hash);
        cmd.arg(keys.len() + all.len()).arg(keys).arg(&all[..]);
        cmd
    }

    /// The same call of a ledger that may be missing as a whole. `call` comes from
    /// [`call_on_whole`](Self::call_on_whole).
    pub(crate) fn if_new(&self, call: &redis::Cmd) -> redis::Cmd {
        let mut cmd = redis::Cmd::new();
        for arg in call.args_iter() {
            match arg {
                Arg::Simple(word) if word == self.whole.hash.as_bytes() => {
                    cmd.arg(&self.maybe_new.hash)
                }
                Arg::Simple(word) => cmd.arg(word),
                _ => &mut cmd,
            };
        }
        cmd
    }

    /// The `SCRIPT LOAD` command for the variant that `call` calls.
    pub(crate) fn load_for(&self, call: &redis::Cmd) -> redis::Cmd {
        let called = call.args_iter().nth(1);
        let is_called = |text: &&Text| matches!(called, Some(Arg::Simple(hash)) if hash == text.hash.as_bytes());
        let mut texts = [&self.whole, &self.maybe_new].into_iter();
        let Some(text) = texts.find(is_called) else {
            return self.load();
        };
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(&text.source);
        cmd
    }

    /// The text as a function of KEYS and ARGV in the Lua table `scripts`, for the library of
    /// functions.
    pub(crate) fn as_function(&self) -> String {
        let Script { name, source, .. } = self;
        format!("function scripts.{name}(KEYS, ARGV)\n{source}end\n")
    }

    /// The `SCRIPT LOAD` command for the plain script.
    pub(crate) fn load(&self) -> redis::Cmd {
        let mut cmd = redis::cmd("SCRIPT");
        cmd.arg("LOAD").arg(&self.source);
        cmd
    }
}

/// The definitions of a library that a script mentions, and the definitions that these mention: in
/// each call of a script, Redis creates all of its functions anew. A definition begins with `local`
/// at the start of a line, and goes by the first name that it defines.
fn needed(library: &str, body: &str) -> String {
    let lines = library
        .split_inclusive('\n')
        .filter(|line| !line.starts_with("--"));
    let mut definitions: Vec<String> = Vec::new();
    for line in lines {
        match definitions.last_mut() {
            Some(definition) if !line.starts_with("local ") => *definition += line,
            _ => definitions.push(line.to_owned()),
        }
    }
    let is_code = |line: &&str| !line.trim_start().starts_with("--");
    let mut mentioned: HashSet<&str> = body.lines().filter(is_code).flat_map(words).collect();
    let mut kept = Vec::new();
    for definition in definitions.iter().rev() {
        let name = definition
            .trim_start_matches("local ")
            .trim_start_matches("function ");
        if words(name).next().is_some_and(|it| mentioned.contains(it)) {
            mentioned.extend(words(definition));
            kept.push(definition.as_str());
        }
    }
    kept.into_iter().rev().collect()
}

/// The words of a Lua text that can be names.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_of_a_name = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let words = text.split(move |letter| !is_of_a_name(letter));
    words.filter(|word| !word.is_empty())
}

/// The last part of the code of a library: a Lua function that creates the functions, with the
/// library parts that they use, and the code that registers them. The functions call the scripts.
pub(crate) fn functions() -> String {
    [
        lua!("functions/shards.lua"),
        "local function answers()\n",
        lua!("lib/clock.lua"),
        lua!("lib/lasting.lua"),
        lua!("lib/calls.lua"),
        lua!("lib/record.lua"),
        lua!("lib/lease.lua"),
        lua!("lib/successor.lua"),
        lua!("functions/ledgers.lua"),
        lua!("functions/answer.lua"),
        "end\n",
        lua!("functions/register.lua"),
    ]
    .concat()
}

macro_rules! scripts {
    ($($(#[$gate:meta])* $name:ident = $file:literal, $keys:literal keys, [$($part:literal),*];)*) => {
        $(
            $(#[$gate])*
            pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
                Script::new($file, $keys, &[$(lua!("lib/", $part, ".lua"),)*], lua!($file, ".lua"))
            });
        )*

        /// Every script with the text of its file, for the tests that hold headers, callers
        /// and folder together.
        #[cfg(all(test, feature = "embedded", feature = "worker", unix))]
        pub(crate) fn all() -> Vec<(&'static Script, &'static str)> {
            vec![$($(#[$gate])* (&*$name, include_str!(concat!("../../../lua/", $file, ".lua"))),)*]
        }
    };
}

scripts! {
    SCHEDULE = "schedule", 8 keys, ["clock", "lasting", "calls", "history", "count", "record", "successor", "overtaken", "waiting", "spacing", "trigger", "lease", "archive", "changes"];
    RESCHEDULE = "reschedule", 7 keys, ["clock", "lasting", "calls", "history", "count", "record", "trigger", "successor", "waiting", "changes"];
    UPDATE = "update", 7 keys, ["clock", "lasting", "calls", "history", "count", "record", "successor", "waiting", "changes"];
    AMEND = "amend", 8 keys, ["clock", "lasting", "calls", "history", "count", "record", "successor", "version", "trigger", "changes"];
    PLAN = "plan", 7 keys, ["clock", "lasting", "calls", "history", "count", "record", "trigger", "waiting", "lease", "archive", "changes"];
    CANCEL = "cancel", 8 keys, ["clock", "lasting", "calls", "history", "count", "lease", "trigger", "successor", "overtaken", "version", "record", "waiting", "archive", "changes"];
    #[cfg(feature = "worker")]
    CLAIM = "claim", 7 keys, ["clock", "lasting", "calls", "history", "count", "paused", "lease", "limit", "waiting", "groups", "at_once", "starts", "entries", "turns"];
    #[cfg(feature = "worker")]
    RECLAIM = "reclaim", 9 keys, ["clock", "lasting", "calls", "history", "count", "paused", "record", "lease", "trigger", "successor", "limit", "waiting", "groups", "starts", "entries", "news", "archive", "changes"];
    #[cfg(feature = "worker")]
    RENEW = "renew", 2 keys, ["clock", "lease"];
    #[cfg(feature = "worker")]
    SETTLE = "settle", 11 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "record", "lease", "trigger", "dead", "successor", "limit", "waiting", "groups", "entries", "news", "archive", "changes"];
    #[cfg(feature = "worker")]
    SWEEP = "sweep", 3 keys, ["clock", "paused", "lease", "limit", "waiting", "groups", "entries", "news"];
    #[cfg(feature = "worker")]
    ADOPT = "adopt", 8 keys, ["clock", "lasting", "calls", "history", "count", "record", "lease", "successor", "trigger", "waiting", "archive", "changes"];
    REQUEUE = "requeue", 9 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "record", "trigger", "dead", "changes"];
    RESTORE = "restore", 9 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "record", "trigger", "dead", "waiting", "lease", "archive", "changes"];
    DISCARD = "discard", 6 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "dead"];
    #[cfg(feature = "worker")]
    TRIM = "trim", 3 keys, ["clock", "placeholder", "dead"];
    ARM = "arm", 0 keys, ["clock", "trigger"];
    LETTERS = "letters", 3 keys, ["clock", "lasting", "calls"];
    #[cfg(feature = "worker")]
    BEAT = "beat", 1 keys, ["clock"];
    LIST = "list", 7 keys, ["clock", "placeholder", "order", "lease", "waiting"];
    GET = "get", 8 keys, ["clock", "lasting", "calls", "waiting"];
    STATS = "stats", 8 keys, ["clock", "placeholder", "paused", "limit", "waiting"];
    #[cfg(feature = "worker")]
    ACTIVITY = "activity", 2 keys, ["clock"];
    UPCOMING = "upcoming", 1 keys, ["clock", "placeholder", "waiting"];
    SCAN = "scan", 7 keys, ["clock", "placeholder", "successor", "faults"];
    AUDIT = "audit", 10 keys, ["clock", "placeholder", "history", "count", "successor", "faults", "record", "lease", "trigger", "dead", "limit", "waiting", "groups", "entries", "news", "archive", "changes"];
    ASIDE = "aside", 1 keys, ["clock", "placeholder"];
    CURE = "cure", 1 keys, ["clock"];
    LAYOUT = "layout", 1 keys, ["clock", "lasting"];
    START = "start", 2 keys, ["clock", "lasting"];
    TAKE = "take", 9 keys, ["clock", "lasting", "placeholder", "calls", "count", "dead", "waiting"];
    PUT = "put", 9 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "record", "trigger", "dead", "waiting", "lease", "archive", "changes"];
    #[cfg(feature = "worker")]
    NAMES = "names", 1 keys, ["clock", "placeholder"];
    IDLE = "idle", 7 keys, ["clock", "lasting", "calls"];
    #[cfg(feature = "worker")]
    RAZE = "raze", 13 keys, ["clock", "lasting", "placeholder", "calls", "paused"];
    UNMARK = "unmark", 1 keys, ["clock"];
    FOUND = "found", 13 keys, ["clock", "lasting", "placeholder"];
    DROP = "drop", 2 keys, ["clock", "placeholder"];
    TOUCH = "touch", 1 keys, ["clock"];
    PAUSE = "pause", 3 keys, ["clock", "lasting", "calls", "history", "paused", "turn"];
    #[cfg(feature = "worker")]
    KEEP = "keep", 3 keys, ["clock", "lasting", "calls"];
    TERMS = "terms", 2 keys, ["clock", "lasting"];
    ENDED = "ended", 1 keys, ["clock"];
    ARCHIVED = "archived", 1 keys, ["clock"];
    COPY = "copy", 4 keys, ["clock", "lasting", "placeholder"];
    CHANGES = "changes", 5 keys, ["clock", "lease", "successor", "waiting"];
    COPIED = "copied", 1 keys, ["clock"];
    #[cfg(feature = "worker")]
    STORY = "story", 2 keys, ["clock", "history"];
    RESUME = "resume", 3 keys, ["clock", "lasting", "calls", "history", "paused", "turn"];
    LIMIT = "limit", 7 keys, ["clock", "lasting", "calls", "history", "lease", "trigger", "limit", "share", "waiting", "groups", "entries"];
    SHARE = "share", 3 keys, ["clock", "paused", "trigger", "limit", "share", "lease", "waiting", "groups", "entries", "news"];
    ALLOT = "allot", 5 keys, ["clock", "paused", "trigger", "limit", "share", "lease", "waiting", "groups", "entries"];
    ADMIT = "admit", 3 keys, ["clock", "trigger", "lease", "limit", "waiting", "groups", "entries", "news"];
    HOLD = "hold", 1 keys, ["clock", "limit"];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_gets_the_definitions_that_it_mentions_and_no_others() {
        let library = "-- A comment mentions unused.\n\
                       local LIMIT, REST = 7, 8\n\n\
                       local function inner()\n  local unused = LIMIT\nend\n\
                       local function unused()\nend\n\
                       local function outer()\n  inner()\nend\n";
        let body = "-- unused\nreturn outer() -- at the end\n";
        let kept = needed(library, body);
        assert!(kept.contains("local LIMIT, REST = 7, 8\n"), "{kept}");
        assert!(kept.contains("function inner()") && kept.contains("function outer()"));
        assert!(needed(library, "return outer_unused\n").is_empty());
        assert!(needed(library, "-- unused\n").is_empty());
    }
}
