//! The headers of the scripts agree with the callers, the file names and the words of the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::Value;
use regex::Regex;

use super::support::{
    Bench, HOUR, KEPT, State, after, bury, key_called, keys_in_header, soon, suspect, word,
};
use crate::activity::{Activity, Minutes};
use crate::embedded::Embedded;
use crate::keeping::{ArchiveTerms, CopyTerms};
use crate::key::Kind;
use crate::limit::{GroupBy, Limit, Share};
use crate::names::{MARKER, Names};
use crate::shards::Layout;
use crate::store::ledger::limiting::{GroupCall, Look};
use crate::store::ledger::mending::{Mend, Wrong};
use crate::store::ledger::reply::{Answered, Reply, ReplyWord};
use crate::store::ledger::script::{self, Script};
use crate::store::{KeptAs, Part, Sought, Why};
use crate::time::UnixMs;

/// The parts of a header, in order.
const PARTS: [&str; 4] = ["KEYS", "ARGV", "Reply", "Holds"];

/// The header of a script: the comment at its beginning.
fn header(text: &str) -> String {
    let lines = text.lines().take_while(|line| line.starts_with("--"));
    lines.map(|line| format!("{line}\n")).collect()
}

/// One part of a header, without its name and the indentation.
fn part(text: &str, name: &str) -> String {
    let of_part = |line: &&str| {
        line.starts_with(&format!("-- {name}")) || line.starts_with("--  ") || line.len() == 2
    };
    let header = header(text);
    let lines = header
        .lines()
        .skip_while(|line| !line.starts_with(&format!("-- {name}")));
    let lines = lines
        .take_while(of_part)
        .map(|line| line.get(9..).unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// The words that a header gives as answers for one item, such as `created:due`.
fn words_in(text: &str) -> BTreeSet<String> {
    let line = Regex::new(r"(?m)^([a-z]+(?::[a-z]+)?(?: [a-z]+(?::[a-z]+)?)*) {2,}\S").unwrap();
    let reply = part(text, "Reply");
    let listed = line.captures_iter(&reply).map(|found| found[1].to_owned());
    let words = listed.flat_map(|words| words.split(' ').map(Into::into).collect::<Vec<_>>());
    words.collect()
}

/// The names of the files in a folder below `lua`, without their endings.
fn files(folder: &str) -> BTreeSet<String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(path)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let scripts = files.filter(|path| path.extension().is_some_and(|ending| ending == "lua"));
    scripts
        .map(|path| path.file_stem().unwrap().to_str().unwrap().into())
        .collect()
}

#[test]
fn every_file_is_compiled_in() {
    let named: BTreeSet<String> = script::all()
        .iter()
        .map(|(one, _)| one.name.into())
        .collect();
    let files_of_scripts = files("lua");
    let differing: Vec<_> = named.symmetric_difference(&files_of_scripts).collect();
    assert!(
        differing.is_empty(),
        "a script is a file in lua/ and a row in `scripts!` of src/store/ledger/script.rs: \
         {differing:?}"
    );
    let source = include_str!("../ledger/script.rs");
    for name in files("lua/lib") {
        assert!(
            source.contains(&format!("\"{name}\"")),
            "no script uses lua/lib/{name}.lua: name it in a row of `scripts!`, in \
             src/store/ledger/script.rs"
        );
    }
}

#[test]
fn every_call_of_producers_has_a_row_in_the_table_of_states() {
    let table = include_str!("../../../docs/states.md");
    for (script, _) in script::all() {
        let row = format!("\n| **{}", script.name.replace('_', " "));
        assert!(
            !script.is_addressed() || table.contains(&row),
            "docs/states.md has no row of lua/{}.lua that begins with {:?}",
            script.name,
            row.trim_start()
        );
    }
}

#[test]
fn every_header_has_the_same_parts() {
    let begin = Regex::new(r"(?m)^-- ([A-Z]\w+)(?: |:)").unwrap();
    for (script, text) in script::all() {
        let header = header(text);
        let purpose = header.lines().next().unwrap();
        assert!(
            purpose.starts_with(&format!("-- {}: ", script.name)),
            "lua/{0}.lua begins with `-- {0}: ` and its purpose, not with {purpose:?}",
            script.name
        );
        let parts = begin.captures_iter(&header);
        let parts: Vec<&str> = parts.map(|found| found.extract::<1>().1[0]).collect();
        assert_eq!(
            parts, PARTS,
            "the parts of the header of lua/{}.lua",
            script.name
        );
        for name in PARTS {
            assert!(
                !part(text, name).trim().is_empty(),
                "lua/{}.lua has nothing under {name}",
                script.name
            );
        }
        assert!(
            header.lines().all(|line| line.chars().count() <= 100),
            "a line in the header of lua/{}.lua has more than 100 characters",
            script.name
        );
    }
}

#[test]
fn headers_list_the_keys_that_scripts_take() {
    let kind = Kind::parse("app:module:biz").unwrap();
    let names = Names::new("keyfall").ledger(&kind, 0);
    let body = Regex::new(r"local FIXED\b.* = (\d+)").unwrap();
    for (script, text) in script::all() {
        let keys = keys_in_header(text);
        let (triggers, fixed): (Vec<_>, Vec<_>) =
            keys.into_iter().partition(|(_, name, _)| name == "trigger");
        assert_eq!(
            fixed.len(),
            script.fixed_keys,
            "the keys in the header of lua/{}.lua, and in its row of `scripts!`",
            script.name
        );
        for (at, (number, name, rendered)) in (1..).zip(&fixed) {
            assert_eq!(*number, at.to_string(), "{}", script.name);
            assert_eq!(rendered, key_called(&names, name), "{}", script.name);
        }
        // `FIXED` in the body of the script is the number of keys before the triggers.
        let begin = text
            .contains("FIXED")
            .then(|| body.captures(text).unwrap()[1].parse::<usize>().unwrap());
        assert_eq!(begin.is_some(), !triggers.is_empty(), "{}", script.name);
        for (number, _, rendered) in triggers {
            assert_eq!(number, format!("{}…", script.fixed_keys + 1));
            assert_eq!(rendered, "app:module:biz:id");
            assert_eq!(begin, Some(script.fixed_keys), "{}", script.name);
        }
    }
}

/// The keys and arguments of one call, from the log of a server that logs every command.
struct Sent {
    keys: Vec<String>,
    args: Vec<String>,
}

async fn calls_sent_by_callers(bench: &Bench) -> BTreeMap<&'static str, Sent> {
    let ledger = &bench.ledger;
    bench.bring("pending", State::Pending).await;
    bench.reschedule("pending", after(Duration::ZERO)).await;
    let items = [bench.update("pending", b"other")];
    let lane = &mut crate::store::Lane::new();
    ledger.update(lane, &items, soon()).await.unwrap();
    let items = [bench.amendment("pending", after(Duration::ZERO)).await];
    ledger.amend(lane, &items, soon()).await.unwrap();
    let jobs = vec![
        bench
            .of_series("pending", Some(after(Duration::ZERO)))
            .await,
    ];
    let key = bench.key("pending");
    let items = [crate::store::SeriesCall { key, jobs }];
    ledger.plan(lane, &items, soon()).await.unwrap();
    let job = bench.claim(&["pending"], 0).await.jobs.remove(0);
    bench.renew(&[("pending", &job.token)]).await;
    bench.cancel("pending").await;
    bench.reclaim(&["pending"]).await;
    let items = [bench.settlement("pending", &job.token, bury())];
    ledger.settle(lane, &items, KEPT, soon()).await.unwrap();
    let items = [bench.revival("pending", 1, after(HOUR))];
    ledger.requeue(lane, &items, soon()).await.unwrap();
    let items = [bench.kept("pending", KeptAs::Dead, 1)];
    ledger.restore(lane, &items, soon()).await.unwrap();
    let items = [bench.discard("pending", 1)];
    ledger.discard(lane, &items, soon()).await.unwrap();
    let letters = ledger.letters("pending", None, 16, soon()).await;
    letters.unwrap();
    ledger.sweep(HOUR, (0, 0), 10, soon()).await.unwrap();
    ledger.get("pending", soon()).await.unwrap();
    ledger.tally(soon()).await.unwrap();
    let now = UnixMs(bench.now().await);
    let counted = ledger.upcoming(now, now, HOUR, 3, soon());
    counted.await.unwrap();
    let minutes = Minutes::from([(1, Activity::parse(["1", "0", "0", "3", "1"].into_iter()))]);
    let added = ledger.store.add_activity(ledger.kind(), &minutes, soon());
    added.await.unwrap();
    bench.beat("pending", "1h").await;
    let items = [(bench.key("pending"), Why::Seen)];
    ledger.adopt(&items, |_| 9, soon()).await.unwrap();
    ledger.trim(KEPT, 10, soon()).await.unwrap();
    let sought = Sought {
        after: Some(("1".into(), "pen".into())),
        ..Sought::all_of("pending", "pen")
    };
    ledger.list(&sought, soon()).await.unwrap();
    ledger.scan("due", "0", soon()).await.unwrap();
    let items = [(suspect("pending"), String::new())];
    ledger.audit(&items, false, soon()).await.unwrap();
    let (found, new) = (b"x".to_vec(), None);
    for mend in [Mend::Aside("hash"), Mend::Field { found, new }] {
        let wrong = Wrong {
            place: 0,
            key: bench.names().calls.clone(),
            field: Some(b"fence".to_vec()),
            what: String::new(),
            mend,
        };
        ledger.store.mend(&wrong, soon()).await.unwrap();
    }
    let _ = ledger.reached(lane, 0.into(), soon()).await.unwrap();
    ledger.pause(lane, None, soon()).await.unwrap();
    ledger.resume(lane, None, soon()).await.unwrap();
    ledger.keep(lane, 10, soon()).await.unwrap();
    let tenants = Limit::new().per(GroupBy::header("tenant"));
    let limit = Some(tenants.total_concurrency(9).weight("acme", 2.0));
    bench.try_limit(lane, limit, 7).await.unwrap();
    ledger.admit(true, soon()).await.unwrap();
    let look = Look {
        epoch: 1,
        by: "me",
        rule: UnixMs(7),
    };
    let change = Some((Share::default(), 5));
    ledger.share(&look, change, soon()).await.unwrap();
    let group = GroupCall {
        name: "acme",
        change,
        forgets: true,
    };
    ledger.allot(&look, 9, &[group], soon()).await.unwrap();
    ledger.hold(Duration::from_millis(1), soon()).await.unwrap();
    ledger.story("pending", "+", soon()).await.unwrap();
    bench.archive(ArchiveTerms::new()).await.unwrap();
    let page = ledger.ended(10, soon()).await.unwrap();
    ledger.archived(&page.whole(), soon()).await.unwrap();
    let copy = ledger.copy(CopyTerms::new(), (0, 0), 0, None, soon());
    copy.await.unwrap();
    ledger.changes(10, &["pending"], soon()).await.unwrap();
    let read = [("pending", 7)].into_iter();
    ledger.copied(1, read, soon()).await.unwrap();
    ledger.names_in(Part::Jobs, "0", soon()).await.unwrap();
    // Moves jobs of this ledger to the ledger in which they are.
    bench.bring("pending", State::Pending).await;
    let layout = Layout::FIRST.to(1);
    let spread = ledger.store.spread(ledger.kind(), layout, 1, soon());
    spread.await.unwrap();
    let start = ledger.server.start(ledger.kind(), layout, soon());
    start.await.unwrap();
    let founded = ledger.server.found_one(ledger.kind(), 0, soon());
    founded.await.unwrap();
    let old = ledger.store.ledger(ledger.kind(), layout.place(0));
    let names = ["pending".to_owned()];
    old.move_out(&names, layout, soon()).await.unwrap();
    old.last_called(soon()).await.unwrap();
    old.raze(soon()).await.unwrap();
    let unlisted = ledger.store.unlist(ledger.kind(), "mark", soon());
    unlisted.await.unwrap();
    let moves = vec![(bench.key("pending").to_string(), None)];
    bench.ledger.server.clone().arm(moves).await;

    type Entry = (u64, u64, u64, Vec<String>, String, String);
    let log: Vec<Entry> = bench.ask(&["SLOWLOG", "GET", "1000"]).await;
    let find = |script: &Script| {
        let is_call = |cmd: &Vec<String>| cmd[0] == "EVALSHA" && cmd[1] == script.hash();
        let mut calls = log.iter().map(|entry| &entry.3).filter(|cmd| is_call(cmd));
        let cmd = calls
            .next()
            .unwrap_or_else(|| panic!("call {} in `calls_sent_by_callers`", script.name));
        let behind = 3 + cmd[2].parse::<usize>().unwrap();
        Sent {
            keys: cmd[3..behind].to_vec(),
            args: cmd[behind..].to_vec(),
        }
    };
    script::all()
        .iter()
        .map(|(script, _)| (script.name, find(script)))
        .collect()
}

#[tokio::test]
async fn callers_pass_the_keys_and_arguments_that_headers_list() {
    let options = Embedded::options().args(["--slowlog-log-slower-than", "0"]);
    let server = options
        .args(["--slowlog-max-len", "1000"])
        .start()
        .await
        .unwrap();
    let bench = Bench::on(&server).await;
    let sent = calls_sent_by_callers(&bench).await;
    let numbered = Regex::new(r"(\d+) ([a-z ]+)").unwrap();
    let is_number = Regex::new(r"^\d+$").unwrap();
    let body = Regex::new(r"local .*HEAD.* = .*").unwrap();
    let is_lane = Regex::new(r"^[0-9a-f]{24}$").unwrap();
    for (script, text) in script::all() {
        let Sent { keys, args } = &sent[script.name];
        let mut listed: Vec<String> = bench.keys_of(script).into_iter().map(Into::into).collect();
        if keys_in_header(text)
            .iter()
            .any(|(_, name, _)| name == "trigger")
        {
            listed.push(bench.key("pending").to_string());
        }
        if part(text, "KEYS").contains("behind one of a ledger all keys") {
            listed.extend(bench.ledger.names.all().map(str::to_owned));
        }
        assert_eq!(
            *keys, listed,
            "the keys that the caller of lua/{}.lua passes, and the keys in its header",
            script.name
        );

        let argv = part(text, "ARGV");
        let fixed = argv.split("then ").next().unwrap();
        let mut last = 0;
        for found in numbered.captures_iter(fixed) {
            let at: usize = found[1].parse().unwrap();
            assert_eq!(at, last + 1, "ARGV of lua/{}.lua: {argv}", script.name);
            last = at;
            let arg = args[at - 1].as_str();
            let fits = match found[2].trim() {
                "lane" => is_lane.is_match(arg),
                "wake channel" => arg == bench.ledger.wake,
                "subject" => arg == bench.ledger.subject(),
                "kind" => arg == bench.ledger.kind().as_str(),
                "marker" => arg == MARKER,
                "id" => arg == "pending",
                "who" => arg == crate::store::ledger::who(),
                "before" => arg == "+",
                "place" => arg == "0" || arg == "1",
                "field" => ["layout", "archive"].contains(&arg),
                "cursor" if script.name == "copy" => arg == "due 0",
                "marked field" => arg == format!("={}", bench.ledger.kind()),
                "mark" => arg == "mark",
                "type" => arg == "hash",
                "name of ours" => arg.contains(":calls:aside:"),
                "name of the field" => arg == "fence",
                "found" => arg == "x",
                "value that it gets" => arg.is_empty(),
                "layout" => Layout::parse(arg).is_some(),
                "expected" => arg.is_empty(),
                "late" | "above" => arg == "0",
                "subject of the other ledger" => arg == bench.ledger.subject(),
                "sources" => arg == "e",
                "room" => arg == "1h",
                "description" => arg == "{}",
                "pulse channel" => arg == "keyfall:pulse:0:pending",
                "part" => arg == "due",
                "state" | "order" | "mode" => ["pending", "up", "set", "oldest"].contains(&arg),
                "rule" => arg.contains(" anna\t"),
                "terms" => arg.ends_with(" anna"),
                "last ended" | "last died" => arg.is_empty(),
                "by" => arg == "header=tenant",
                "units" | "leases" if script.name == "limit" => arg.is_empty(),
                "whole" => arg.is_empty(),
                "caller" => arg == "me",
                "weights" => arg == "acme=2",
                "counts" => arg == "1 0 0 3 1",
                "scan" => ["HSCAN", "ZSCAN"].contains(&arg),
                "prefix of the ids" | "member" => "pending".starts_with(arg),
                _ => is_number.is_match(arg),
            };
            assert!(
                fits,
                "lua/{}.lua lists {:?} as argument {at}, and its caller passes {arg:?}: correct \
                 one of them, or, if the word is new, add it to the words in this test",
                script.name,
                found[2].trim()
            );
        }
        // `HEAD` in the body of the script is the number of arguments before the items.
        if let Some(head) = body.find(text) {
            let names: Vec<&str> = head.as_str()[6..].split(" = ").collect();
            let at = names[0]
                .split(", ")
                .position(|name| name == "HEAD")
                .unwrap();
            let value = names[1].split(", ").nth(at).unwrap();
            assert_eq!(
                value.parse(),
                Ok(last),
                "HEAD of lua/{}.lua is the number of arguments before `then`",
                script.name
            );
        }
    }
    bench.balanced().await;
}

#[test]
fn every_word_of_a_header_is_decoded_and_every_decoded_word_is_in_a_header() {
    let mut listed = BTreeSet::new();
    for (script, text) in script::all() {
        for entry in words_in(text) {
            let (bare, number) = match entry.split_once(':') {
                Some((bare, _)) => (bare.to_owned(), true),
                None => (entry.clone(), false),
            };
            let reply = if number {
                format!("{bare}:7")
            } else {
                bare.clone()
            };
            let read = Answered::parse(&reply).unwrap_or_else(|error| {
                panic!(
                    "`Answered::parse` in src/store/ledger/reply.rs lacks {entry:?}, a word of \
                     lua/{}.lua: {error}",
                    script.name
                )
            });
            assert_eq!((word(read.answer), read.unarmed), (bare.as_str(), false));
            assert!(Answered::parse(&format!("{reply}!")).unwrap().unarmed);
            // A word that has a number is unknown without it, and a word that has none is unknown
            // with one. Only `replaced` has both forms.
            let other = if number {
                bare.clone()
            } else {
                format!("{bare}:7")
            };
            assert_eq!(
                Answered::parse(&other).is_ok(),
                bare == "replaced",
                "{other}"
            );
            listed.insert((bare, number));
        }
    }
    let source = include_str!("../ledger/reply.rs");
    let arm = Regex::new(r#"\("(\w+)", (Some\(n\)|None)\) => ReplyWord::"#).unwrap();
    let decoded = arm
        .captures_iter(source)
        .map(|found| (found[1].into(), &found[2] != "None"));
    assert_eq!(
        decoded.collect::<BTreeSet<(String, bool)>>(),
        listed,
        "the words that src/store/ledger/reply.rs decodes, and the words under Reply in lua/"
    );
}

#[test]
fn scripts_answer_with_the_words_of_their_headers() {
    let answer = r"(?m)^ *(?:answers\[[^=]*\]|misses\[[^=]*\]|created) = (.*)$";
    let answer = Regex::new(answer).unwrap();
    let literal = Regex::new(r"'([a-z]+:?)'").unwrap();
    // Words in comparisons are not answers.
    let compared = Regex::new(r"[=~]= '\w+'").unwrap();
    // The words of an audit are in a part that it shares with `scan`.
    let faults = include_str!("../../../lua/lib/faults.lua");
    for (script, text) in script::all() {
        let mut said = BTreeSet::new();
        if script.name == "audit" {
            said.extend(literal.captures_iter(faults).map(|word| word[1].to_owned()));
        }
        for found in answer.captures_iter(text) {
            let value = compared.replace_all(&found[1], "");
            said.extend(literal.captures_iter(&value).map(|word| word[1].to_owned()));
        }
        let with_colon = |word: &String| match word.split_once(':') {
            Some((bare, _)) => format!("{bare}:"),
            None => word.clone(),
        };
        let listed: BTreeSet<String> = words_in(text).iter().map(with_colon).collect();
        assert_eq!(
            said, listed,
            "the words that lua/{}.lua answers, and the words in its header under Reply",
            script.name
        );
    }
}

#[test]
fn an_equals_sign_repeats_the_answer_before_it() {
    let answers = |text: &str| {
        let texts = ["ok", "1", text].map(|text| Value::BulkString(text.into()));
        Reply::parse(Value::Array(texts.into())).unwrap().answers()
    };
    let said = answers("created:7! = =! exists").unwrap();
    let stored = Answered::of(ReplyWord::Created(UnixMs(7)));
    let unarmed = Answered {
        unarmed: true,
        ..stored
    };
    assert_eq!(
        said,
        [unarmed, stored, unarmed, Answered::of(ReplyWord::Exists)]
    );
    assert!(answers("= exists").is_err());
}

#[test]
fn a_malformed_word_is_refused() {
    for text in [
        "",
        "!",
        "created",
        "created:",
        "created:x",
        "done:1",
        "Done",
        "done!!",
        "created:-1",
    ] {
        assert!(Answered::parse(text).is_err(), "{text:?}");
    }
}
