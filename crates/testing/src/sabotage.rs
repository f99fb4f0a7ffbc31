//! Damage that an operator can do to each key of Keyfall, with the findings that an audit must
//! report, and the findings that remain after the repairs.
//!
//! The damage is done to a kind with two jobs that wait, `waits-1` and `waits-2`, one job that runs
//! and has a successor, `runs-1`, and two dead letters, `dies-1` and `dies-2`.

use keyfall::{AuditAllReport, AuditReport, Damage, Kind, Result};

/// One thing that is done to one key.
pub struct Sabotage {
    /// A part of a ledger, or a key that all kinds have in common.
    pub key: &'static str,
    /// Commands, their words separated by `|`. `$K` is the key, `$shadow` the part of that name,
    /// `$J` the kind.
    pub does: &'static [&'static str],
    /// The beginnings of all findings, in the form that [`findings`] gives them.
    pub says: &'static [&'static str],
    /// The beginnings of the findings that remain after the audit has repaired its part and a
    /// person has run the commands that it names.
    pub leaves: &'static [&'static str],
}

macro_rules! sabotage {
    ($($key:literal: $does:expr => $says:expr, $leaves:expr;)*) => {
        &[$(Sabotage { key: $key, does: &$does, says: &$says, leaves: &$leaves },)*]
    };
}

/// Each key is deleted, or gets another type, another value, or another element.
pub const JOBS: &[Sabotage] = sabotage! {
    "due": ["DEL|$K"] => ["waits-1 RecordAlone", "waits-2 RecordAlone", "books 2/0"], [];
    "due": ["SET|$K|theirs"] => ["due: it is a string, and should be a sorted set"], [];
    "due": ["ZADD|$K|inf|waits-1", "ZADD|$K|1e300|waits-2"] =>
        ["waits-1 DueAtNoTime", "waits-2 DueAtNoTime", "books 1/0"], [];
    "due": ["ZADD|$K|99999999999999|a b", "ZADD|$K|99999999999999|c:d"] =>
        ["a b NameAlone", "c:d NameAlone", "books -2/0"], [];
    "shadow": ["DEL|$K"] =>
        ["waits-1 DueWithoutRecord", "waits-2 DueWithoutRecord", "runs-1 RunningWithoutRecord"], [];
    "shadow": ["DEL|$K", "RPUSH|$K|theirs"] => ["shadow: it is a list, and should be a hash"], [];
    "shadow": ["HSET|$K|waits-1|not ours", "HSET|$K|waits-2|{\"v\":1}\nsoon\nkept"] =>
        ["waits-1 RecordUnreadable", "waits-2 RecordUnreadable"], [];
    "shadow": ["HSET|$K|stranger|not ours", "HSET|$K|a b|not ours"] =>
        ["stranger RecordAlone", "a b NameOfNoJob"], [];
    "leased": ["DEL|$K"] => ["runs-1 LeaseWithoutDeadline", "books 1/0"], [];
    "leased": ["SET|$K|theirs"] => ["leased: it is a string"], [];
    "leased": ["ZADD|$K|inf|runs-1"] => ["runs-1 LeaseWithoutDeadline", "books 1/0"], [];
    // It has no record, and no worker has its lease, until the lease lapses.
    "leased": ["ZADD|$K|99999999999999|stranger"] =>
        ["stranger LeaseWithoutHolder", "books -1/0"],
        ["stranger RunningWithoutRecord", "books -1/0"];
    "lease": ["DEL|$K"] => ["runs-1 LeaseWithoutHolder"], [];
    "lease": ["SET|$K|theirs"] => ["lease: it is a string"], [];
    "lease": ["HSET|$K|runs-1|no lease"] => ["runs-1 LeaseWithoutHolder"], [];
    "lease": ["HSET|$K|stranger|no lease"] => ["stranger LeaseWithoutDeadline"], [];
    "next": ["DEL|$K"] => ["books 1/0"], ["books 1/0"];
    "next": ["SET|$K|theirs"] => ["next: it is a string"], ["books 1/0"];
    "next": ["HSET|$K|runs-1|5 not ours"] => ["runs-1 RecordUnreadable"], [];
    "next": ["HSET|$K|stranger|99999999999999 not ours"] =>
        ["stranger RecordUnreadable", "books -1/0"], ["books -1/0"];
};

pub const LETTERS: &[Sabotage] = sabotage! {
    "dead": ["DEL|$K"] => ["dies-1:1 LetterRecordAlone", "dies-2:2 LetterRecordAlone",
        "dies-1 LetterMisfiled", "dies-2 LetterMisfiled", "books 0/2"], [];
    "dead": ["SET|$K|theirs"] => ["dead: it is a string"], [];
    "dead": ["ZADD|$K|inf|dies-1:1"] => ["dies-1:1 LetterRecordAlone", "books 0/1"], [];
    // Old ones would be trimmed at any time.
    "dead": ["ZADD|$K|99999999999999|stranger", "ZADD|$K|99999999999999|stranger:9"] =>
        ["stranger NameAlone", "stranger:9 LetterWithoutRecord", "stats skipped: 2 dead letters",
            "books 0/-2"], ["books 0/-1"];
    "grave": ["DEL|$K"] => ["dies-1:1 LetterWithoutRecord", "dies-2:2 LetterWithoutRecord"], [];
    "grave": ["SET|$K|theirs"] => ["grave: it is a string"], [];
    "grave": ["HSET|$K|dies-1:1|not ours", "HSET|$K|dies-2|7 x"] =>
        ["dies-1:1 LetterUnreadable", "dies-2 LetterMisfiled"], [];
    "grave": ["HDEL|$K|dies-1"] => ["dies-1:1 LetterUnfiled"], [];
    "grave": ["HSET|$K|a b|not ours", "HSET|$K|stranger:9|not ours"] =>
        ["a b NameOfNoJob", "stranger:9 LetterRecordAlone", "stats skipped: 2 dead letters"], [];
};

pub const BOOKS: &[Sabotage] = sabotage! {
    "stats": ["DEL|$K"] => ["stats skipped: 0 dead letters", "books -4/-2"], ["books -4/-2"];
    "stats": ["SET|$K|theirs"] => ["stats: it is a string, and should be a hash"], ["books -4/-2"];
    "stats": ["HSET|$K|accepted|many", "HDEL|$shadow|waits-1"] =>
        ["stats accepted: it is \"many\"", "waits-1 DueWithoutRecord", "books -6/0"], [];
    "stats": ["HSET|$K|buried|many", "HDEL|$shadow|waits-1"] =>
        ["stats buried: it is \"many\"", "waits-1 DueWithoutRecord", "books 2/-2"], [];
    "stats": ["HSET|$K|done|-3", "HSET|$K|stranger|theirs", "HSET|$K|strange|5"] =>
        ["stats done: it is \"-3\"", "stats stranger: it is \"theirs\""], [];
    "calls": ["DEL|$K"] => [], [];
    "calls": ["SET|$K|theirs"] => ["calls: it is a string, and should be a hash"], [];
    "calls": ["HSET|$K|paused|x|fence|x|turn|x|history|x"] =>
        ["calls paused: it is \"x\"", "calls fence: it is \"x\"", "calls turn: it is \"x\"",
            "calls history: it is \"x\""], [];
    "calls": ["HSET|$K|layout|x"] => ["calls layout: it is \"x\""], [];
    "calls": ["HSET|$K|stranger|theirs"] => [], [];
    "lanes": ["DEL|$K"] => [], [];
    "lanes": ["SET|$K|theirs"] => ["lanes: it is a string, and should be a sorted set"], [];
    "lanes": ["ZADD|$K|inf|stranger"] => [], [];
    "history": ["DEL|$K"] => [], [];
    "history": ["SET|$K|theirs"] => ["history: it is a string, and should be a stream"], [];
    "history": ["XADD|$K|*|stranger|theirs"] => [], [];
    // No key was adopted for these jobs, and none of them is on its way.
    "adopted": ["DEL|$K"] => [], [];
    "adopted": ["SET|$K|theirs"] => ["adopted: it is a string, and should be a sorted set"], [];
    "adopted": ["ZADD|$K|1|waits-1", "ZADD|$K|inf|waits-2"] => [], [];
    "adopted": ["ZADD|$K|inf|a b"] => [], [];
    "leaving": ["DEL|$K"] => [], [];
    "leaving": ["SET|$K|theirs"] => ["leaving: it is a string, and should be a hash"], [];
    "leaving": ["HSET|$K|stranger|theirs"] =>
        ["leaving stranger: it is \"theirs\", and should be a time and a record"], [];
    "calls": ["HSET|$K|batch|x"] =>
        ["calls batch: it is \"x\", and should be the number of a batch"], [];
};

/// Damage to the keys that all kinds share.
pub const COMMON: &[Sabotage] = sabotage! {
    "kinds": ["DEL|$K"] => ["kinds $J: it is missing", "kinds $O: it is missing"], [];
    "kinds": ["HDEL|$K|$J"] => ["kinds $J: it is missing"], [];
    "kinds": ["SET|$K|theirs"] => ["kinds: it is a string, and should be a hash",
        "kinds $J: it is missing", "kinds $O: it is missing"], [];
    "kinds": ["HSET|$K|$J|x y"] => ["kinds $J: it is \"x y\", and should be a layout"], [];
    "kinds": ["HSET|$K|no kind|1"] => ["kinds no kind: no kind can have this name"], [];
    "paused": ["DEL|$K"] => [], [];
    "paused": ["SET|$K|theirs"] => ["paused: it is a string, and should be a hash"], [];
    "paused": ["HSET|$K|zzz:|soon"] => ["paused zzz:: it is \"soon\", and should be a time"], [];
    "paused": ["HSET|$K|a b|5"] => ["paused a b: no kind can begin so"], [];
    "meta": ["DEL|$K"] => ["meta schema: it is missing"], [];
    "meta": ["SET|$K|theirs"] =>
        ["meta: it is a string, and should be a hash", "meta schema: it is missing"], [];
    "meta": ["HSET|$K|schema|x"] => ["meta schema: it is \"x\", and should be a number"], [];
    "meta": ["HSET|$K|stranger|theirs"] => [], [];
    "instances": ["DEL|$K"] => [], [];
    // Any live instance removes other values from it; a test of its own has none.
    "instances": ["SET|$K|theirs"] => ["instances: it is a string, and should be a hash"], [];
    // The next search starts from the beginning.
    "search": ["DEL|$K"] => [], [];
    "search": ["SET|$K|theirs"] => ["search: it is a string, and should be a hash"], [];
    "search": ["HSET|$K|$J:*|soon", "HSET|$K|$O:*|99999999999999 0"] => [], [];
    "search": ["HSET|$K|stranger|theirs"] => [], [];
    // Then two instances may search; or none does until the key has expired.
    "searching": ["DEL|$K"] => [], [];
    "searching": ["RPUSH|$K|theirs"] => ["searching: it is a list, and should be a string"], [];
    "searching": ["SET|$K|theirs|PX|500"] => [], [];
    "searching": ["SET|$K|theirs"] => ["searching: it does not expire"], [];
    "actions": ["DEL|$K"] => [], [];
    "actions": ["SET|$K|theirs"] => ["actions: it is a string, and should be a stream"], [];
    "actions": ["XADD|$K|*|stranger|theirs"] => [], [];
    // The charts begin anew.
    "minutes": ["DEL|$K"] => [], [];
    "minutes": ["SET|$K|theirs"] => ["minutes: it is a string, and should be a hash"], [];
    "minutes": ["HSET|$K|5|theirs|stranger|theirs"] => [], [];
    "quarters": ["DEL|$K"] => [], [];
    "quarters": ["SET|$K|theirs"] => ["quarters: it is a string, and should be a hash"], [];
    "quarters": ["HSET|$K|5|theirs|stranger|theirs"] => [], [];
    // One of the counters of a set of jobs.
    "order": ["HSET|$K|last|x"] => ["order last: it is \"x\", and should be a number"], [];
    "order": ["SET|$K|theirs"] => ["order: it is a string, and should be a hash"], [];
    "order": ["HSET|$K|stranger|theirs"] => [], [];
};

/// Damage to the key of a job that waits. Its job runs all the same, some ms late.
pub const TRIGGERS: &[Sabotage] = sabotage! {
    "trigger": ["DEL|$K"] => [], [];
    "trigger": ["SET|$K|theirs"] => [], [];
    "trigger": ["DEL|$K", "RPUSH|$K|theirs"] => [], [];
    "trigger": ["PERSIST|$K"] => [], [];
    // Redis announces that it expires, and its job is not due.
    "trigger": ["PEXPIRE|$K|1"] => [], [];
};

/// All damage.
pub fn all() -> impl Iterator<Item = &'static Sabotage> {
    [JOBS, LETTERS, BOOKS, COMMON, TRIGGERS]
        .into_iter()
        .flatten()
}

/// The keys of Keyfall among these that no damage is done to.
pub fn spared(keys: &[String]) -> Vec<&String> {
    let is_spared = |key: &&String| {
        let Some(rest) = key.strip_prefix("keyfall:") else {
            return false;
        };
        let part = rest.rsplit_once("}:").map_or(rest, |(_, part)| part);
        // Keys that a repair has moved out of the way have a colon in this part.
        !part.contains(':') && all().all(|row| row.key != part)
    };
    keys.iter().filter(is_spared).collect()
}

impl Sabotage {
    /// The words of its commands, for a kind and another one beside it.
    pub fn commands(&self, kind: &str, other: &str) -> Vec<Vec<String>> {
        let part = |part: &str| format!("keyfall:{{{kind}/0}}:{part}");
        let key = match self.key {
            "kinds" | "paused" | "meta" | "instances" | "search" | "searching" | "actions" => {
                format!("keyfall:{}", self.key)
            }
            "order" => {
                let (set, _) = kind.rsplit_once(':').unwrap_or((kind, ""));
                format!("keyfall:{{{set}/3}}:order")
            }
            "minutes" | "quarters" => format!("keyfall:{{{kind}}}:{}", self.key),
            "trigger" => format!("{kind}:waits-1"),
            of_ledger => part(of_ledger),
        };
        let word = |word: &str| {
            let word = word.replace("$K", &key).replace("$shadow", &part("shadow"));
            word.replace("$J", kind).replace("$O", other)
        };
        let command = |text: &&str| text.split('|').map(word).collect();
        self.does.iter().map(command).collect()
    }
}

/// The findings of an audit, sorted, one line for each: the id and the flaw; the part, its field
/// and its fault; and the difference of the books.
///
/// `is_meant` selects the kinds.
pub fn findings(report: &AuditAllReport, is_meant: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found: Vec<String> = report.damaged.iter().map(of_damage).collect();
    for (kind, audited) in &report.kinds {
        if is_meant(kind.as_str()) {
            found.extend(of_kind(kind, audited));
        }
    }
    found.sort_unstable();
    found
}

fn of_kind(kind: &Kind, audited: &Result<AuditReport>) -> Vec<String> {
    let report = match audited {
        Ok(report) => report,
        Err(error) => return vec![format!("{kind} is not audited: {error}")],
    };
    let mut found: Vec<String> = report.damaged.iter().map(of_damage).collect();
    found.extend(report.flawed.iter().map(|flawed| {
        let id = flawed.name.strip_prefix(&format!("{kind}:"));
        format!("{} {:?}", id.expect("it begins with its kind"), flawed.flaw)
    }));
    if !report.stats.is_balanced() {
        let (jobs, letters) = (report.stats.difference(), report.stats.letters_difference());
        found.push(format!("books {jobs}/{letters}"));
    }
    found
}

fn of_damage(damage: &Damage) -> String {
    let part = damage.key.rsplit(':').next().unwrap_or_default();
    let field = damage.field.as_deref().map(|field| format!(" {field}"));
    format!("{part}{}: {}", field.unwrap_or_default(), damage.what)
}

/// Whether the findings are exactly the expected ones.
pub fn are(found: &[String], expected: &[&str], kind: &str, other: &str) -> bool {
    let mut left: Vec<&String> = found.iter().collect();
    let is_there = |begin: &&str| {
        let begin = begin.replace("$J", kind).replace("$O", other);
        let at = left.iter().position(|line| line.starts_with(&begin));
        at.map(|at| left.swap_remove(at)).is_some()
    };
    expected.iter().all(is_there) && left.is_empty()
}

/// The commands for `redis-cli` that the audit recommends, as lists of words.
pub fn commands_told(report: &AuditAllReport) -> Vec<Vec<String>> {
    let of_kinds = report.kinds.iter().filter_map(|(_, it)| it.as_ref().ok());
    let damaged = of_kinds.flat_map(|it| &it.damaged).chain(&report.damaged);
    let told = damaged.filter(|it| !it.repaired);
    let quoted = told.filter_map(|it| {
        let (_, rest) = it.remedy.split_once("`redis-cli ")?;
        Some(rest.split_once('`')?.0)
    });
    quoted
        .map(|text| text.split(' ').map(|word| word.replace('\'', "")).collect())
        .collect()
}
