//! The Lua scripts, one for each transition. They are compiled into the program, each with the
//! library parts that it uses. The files are in `lua/`, the parts in `lua/lib/`.

use std::collections::{BTreeSet, HashSet};
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
    /// Puts `body` behind the definitions that it needs: of the library parts, and of the parts that it
    /// opens.
    fn new(
        name: &'static str,
        fixed_keys: usize,
        parts: &[&str],
        opened: &[(&str, String)],
        body: &str,
    ) -> Self {
        let source = composed(&parts.concat(), opened, body);
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

/// The text of a script. Redis creates all functions of a script anew in each call, so a call gets few
/// that it does not use: of the library only what the script mentions, and of a part that it opens
/// nothing until then. If the script says `limits.read_limit`, the part `limits` has `read_limit`, and
/// `open_limits()` returns a table with it.
fn composed(library: &str, opened: &[(&str, String)], body: &str) -> String {
    let (mut mentioned, mut plain, mut parts) = (String::new(), body.to_owned(), String::new());
    for (part, library) in opened {
        let member = format!("{part}.");
        let after = code(body).flat_map(|line| line.split(&member).skip(1));
        let names: BTreeSet<&str> = after.filter_map(|it| words(it).next()).collect();
        let own = needed(library, names.clone().into_iter().collect());
        let defined: HashSet<&str> = own.iter().filter_map(|it| name_of(it)).collect();
        let is_whole = names.iter().all(|it| defined.contains(it));
        assert!(is_whole, "{part} has {defined:?}, and not all of {names:?}");
        let used = own.iter().flat_map(|it| code(it)).flat_map(words);
        mentioned.extend(
            used.filter(|it| !defined.contains(it))
                .flat_map(|it| [it, " "]),
        );
        let members: String = names.iter().map(|it| format!("{it} = {it}, ")).collect();
        let own = own.concat();
        parts += &format!("local function open_{part}()\n{own}return {{{members}}}\nend\n");
        for name in names {
            plain = plain.replace(&format!("{member}{name}"), part);
        }
    }
    let mentioned = code(&plain).chain([&*mentioned]).flat_map(words);
    needed(library, mentioned.collect()).concat() + &parts + body
}

/// The definitions of a library that are `mentioned`, and the definitions that these mention. A
/// definition begins with `local` at the start of a line.
fn needed(library: &str, mentioned: HashSet<&str>) -> Vec<String> {
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
    let mut mentioned: HashSet<String> = mentioned.into_iter().map(Into::into).collect();
    let mut kept = Vec::new();
    for definition in definitions.into_iter().rev() {
        if name_of(&definition).is_some_and(|it| mentioned.contains(it)) {
            mentioned.extend(words(&definition).map(Into::into));
            kept.push(definition);
        }
    }
    kept.reverse();
    kept
}

/// The name by which a definition goes: the first one that it defines.
fn name_of(definition: &str) -> Option<&str> {
    let name = definition
        .trim_start_matches("local ")
        .trim_start_matches("function ");
    words(name).next()
}

/// The lines of a Lua text that are more than a comment.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let lines = text.lines();
    lines.filter(|line| !line.trim_start().starts_with("--"))
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
        lua!("functions/rules.lua"),
        lua!("functions/answer.lua"),
        "end\n",
        lua!("functions/register.lua"),
    ]
    .concat()
}

macro_rules! scripts {
    ($($(#[$gate:meta])* $name:ident = $file:literal, $keys:literal keys, [$($part:literal),*]
        $(, $opened:ident: [$($its_part:literal),*])*;)*) => {
        $(
            $(#[$gate])*
            pub(crate) static $name: LazyLock<Script> = LazyLock::new(|| {
                let parts = [$(lua!("lib/", $part, ".lua"),)*];
                let opened = [$((stringify!($opened), [$(lua!("lib/", $its_part, ".lua"),)*].concat()),)*];
                Script::new($file, $keys, &parts, &opened, lua!($file, ".lua"))
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
    SCHEDULE = "schedule", 8 keys, ["clock", "lasting", "calls", "history", "count", "record", "successor", "spacing", "trigger", "changes"],
        archiving: ["lease", "successor", "waiting", "archive"], ordering: ["successor", "overtaken"],
        spacings: ["successor", "waiting", "spacing"];
    RESCHEDULE = "reschedule", 7 keys, ["clock", "lasting", "calls", "history", "count", "record", "trigger", "successor", "waiting", "changes"];
    UPDATE = "update", 7 keys, ["clock", "lasting", "calls", "history", "count", "record", "successor", "waiting", "changes"];
    AMEND = "amend", 8 keys, ["clock", "lasting", "calls", "history", "count", "record", "successor", "version", "trigger", "lease", "changes"];
    PLAN = "plan", 7 keys, ["clock", "lasting", "calls", "history", "count", "record", "trigger", "waiting", "lease", "archive", "changes"];
    CANCEL = "cancel", 8 keys, ["clock", "lasting", "calls", "history", "count", "lease", "trigger", "successor", "overtaken", "version", "record", "waiting", "archive", "changes"];
    #[cfg(feature = "worker")]
    CLAIM = "claim", 7 keys, ["clock", "lasting", "calls", "history", "count", "paused", "lease", "waiting"],
        limits: ["limit", "waiting", "groups", "starts", "entries", "at_once", "turns"];
    #[cfg(feature = "worker")]
    RECLAIM = "reclaim", 9 keys, ["clock", "lasting", "calls", "history", "count", "paused", "record", "lease", "trigger", "successor", "limit", "waiting", "groups", "starts", "entries", "news", "archive", "changes"];
    #[cfg(feature = "worker")]
    RENEW = "renew", 2 keys, ["clock", "lease"];
    #[cfg(feature = "worker")]
    SETTLE = "settle", 11 keys, ["clock", "lasting", "calls", "history", "count", "lease", "trigger", "successor", "changes"],
        limits: ["limit", "waiting", "groups", "entries", "news"], archiving: ["archive"],
        again: ["clock", "record", "trigger", "successor"], letters: ["placeholder", "dead"];
    #[cfg(feature = "worker")]
    SWEEP = "sweep", 3 keys, ["clock", "paused", "lease", "limit", "waiting", "groups", "entries", "news"];
    #[cfg(feature = "worker")]
    ADOPT = "adopt", 8 keys, ["clock", "lasting", "calls", "history", "count", "record", "lease", "successor", "trigger", "waiting", "archive", "changes"];
    REQUEUE = "requeue", 9 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "record", "trigger", "dead", "changes"];
    RESTORE = "restore", 9 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "record", "trigger", "dead", "waiting", "lease", "archive", "changes"];
    DISCARD = "discard", 6 keys, ["clock", "lasting", "placeholder", "calls", "history", "count", "dead"];
    #[cfg(feature = "worker")]
    TRIM = "trim", 3 keys, ["clock", "placeholder", "dead"];
    ARM = "arm", 0 keys, ["clock", "record", "trigger"];
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
        let text = composed(library, &[], body);
        assert!(text.contains("local LIMIT, REST = 7, 8\n"), "{text}");
        assert!(text.contains("function inner()") && text.contains("function outer()"));
        assert!(!text.contains("function unused()"), "{text}");
        let others = ["return outer_unused\n", "-- unused\n"];
        for body in others {
            assert_eq!(composed(library, &[], body), body);
        }
    }

    /// Lua takes a name that is not defined yet for a global one, and fails when it gets there.
    #[test]
    #[cfg(all(feature = "embedded", feature = "worker", unix))]
    fn functions_are_defined_before_they_are_called() {
        let defined_by = |line: &str| {
            let name = line.strip_prefix("local function ")?;
            Some(name[..name.find('(')?].to_owned())
        };
        let sources = || all().into_iter().map(|(script, _)| script);
        let lines = sources().flat_map(|it| it.source.lines());
        let functions: HashSet<String> = lines.filter_map(defined_by).collect();
        for script in sources() {
            let (mut known, mut opened) = (HashSet::new(), None);
            let mut lines = script.source.lines().peekable();
            while let Some(line) = lines.next() {
                if let Some(name) = defined_by(line) {
                    known.insert(name);
                    // The functions of a part are not indented.
                    if lines.peek().is_some_and(|next| next.starts_with("local ")) {
                        opened = Some(known.clone());
                    }
                }
                for (at, _) in line
                    .match_indices('(')
                    .filter(|_| code(line).next().is_some())
                {
                    let name = line[..at].rsplit(|it: char| !it.is_alphanumeric() && it != '_');
                    let name = name.into_iter().next().unwrap_or_default();
                    let is_member = line[..at - name.len()].ends_with(['.', ':']);
                    let is_known = is_member || known.contains(name) || !functions.contains(name);
                    assert!(
                        is_known,
                        "{}: {name} is not defined before: {line}",
                        script.name
                    );
                }
                if line.starts_with("return {") && opened.is_some() {
                    known = opened.take().unwrap_or_default();
                }
            }
        }
    }

    #[test]
    fn a_part_that_is_opened_has_the_functions_that_are_mentioned_as_its_own() {
        let library = "local function common()\nend\n\
                       local function inner()\nend\n\
                       local function outer()\n  inner()\n  common()\nend\n\
                       local function unused()\nend\n";
        let part = "local function inner()\nend\n\
                    local function outer()\n  inner()\n  common()\nend\n\
                    local function unused()\nend\n";
        let opened = [("part", part.to_owned())];
        let body = "local part = ARGV[1] and open_part()\nreturn part and part.outer()\n";
        let text = composed(library, &opened, body);
        let before = "local function common()\nend\nlocal function open_part()\n";
        assert!(text.starts_with(before), "{text}");
        assert_eq!(text.matches("function inner()").count(), 1, "{text}");
        assert_eq!(text.matches("function outer()").count(), 1, "{text}");
        assert!(!text.contains("function unused()"), "{text}");
        assert!(text.contains("return {outer = outer, }\nend\n"), "{text}");
        assert!(text.ends_with(body), "{text}");
    }
}
