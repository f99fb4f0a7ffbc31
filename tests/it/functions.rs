//! Redis functions: any client schedules, cancels and looks up by `FCALL`.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use futures_util::StreamExt;
use keyfall::doctor::Severity;
use keyfall::embedded::Embedded;
use keyfall::{
    Cancelled, Client, ErrorKind, JobKey, JobState, JobView, LibraryState, Outcome, Router,
};
use redis::{FromRedisValue, RedisResult, Value};

use crate::monitor::{Monitor, beats_until_the_last_claim};
use crate::runs::{PATIENCE, Runs, recorder};
use crate::site::{HOUR, Site, assert_about, ms};
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

    async fn by_hand(&self, command: &str, part: &str, rest: &[&str]) {
        let key = format!("keyfall:{{{}/0}}:{part}", self.kind());
        let _: Value = self.command(&[&[command, &key], rest].concat()).await;
    }

    /// Schedules a job an hour ahead.
    async fn hour(&self, id: &str, payload: &str) {
        let call = self.client.schedule(self.key(id), payload).after(HOUR);
        call.await.unwrap();
    }

    /// Makes a pending job one that somebody claimed.
    async fn lease(&self, id: &str, ends: &str) {
        self.by_hand("ZREM", "due", &[id]).await;
        self.by_hand("ZADD", "leased", &[ends, id]).await;
        let lease = "token 1 1 1763712345678 -";
        self.by_hand("HSET", "lease", &[id, lease]).await;
    }

    /// Brings a job that is absent into a state.
    async fn bring(&self, id: &str, state: &str) {
        let far = "99999999999999";
        if !["absent", "dead"].contains(&state) {
            self.hour(id, "first").await;
        }
        match state {
            "absent" | "pending" => {}
            "retrying" => {
                let record = "{\"v\":1,\"attempts\":2,\"error\":\"no\"}\n1 failed@2\n\"first\"";
                self.by_hand("HSET", "shadow", &[id, record]).await;
            }
            "running" => self.lease(id, far).await,
            "lapsed" => self.lease(id, "1").await,
            "stopping" => {
                self.lease(id, far).await;
                self.client.cancel(self.key(id)).await.unwrap();
            }
            "followed" => {
                self.lease(id, far).await;
                self.hour(id, "second").await;
            }
            "dead" => {
                let handler = async || Outcome::bury("no use");
                let worker = self.serve(Router::new().route(&self.key(id), handler));
                self.client.schedule(self.key(id), "first").await.unwrap();
                self.reaches(&self.key(id), JobState::Dead).await;
                worker.stop().await;
            }
            other => panic!("{other}"),
        }
    }
}

const STATES: [&str; 8] = [
    "absent", "pending", "retrying", "running", "stopping", "lapsed", "followed", "dead",
];

/// What became of a job that was there, or not.
async fn seen(site: &Site, id: &str) -> Option<(JobState, Vec<u8>, bool, bool)> {
    let view = site.client.get(site.key(id)).await.unwrap()?;
    let followed = view.successor_due().is_some();
    let payload = match view.successor() {
        Some(next) => next.payload().to_vec(),
        None => view.payload().to_vec(),
    };
    Some((view.state(), payload, followed, view.is_cancelled()))
}

#[tokio::test]
async fn each_function_does_in_each_state_what_the_client_does() {
    let Some((_server, site)) = site().await else {
        return;
    };
    for state in STATES {
        for mode in ["", "NX", "XX"] {
            let (ours, theirs) = (format!("{state}-{mode}-1"), format!("{state}-{mode}-2"));
            site.bring(&ours, state).await;
            site.bring(&theirs, state).await;
            let args = format!("\"x\" EX 7200 {mode}");
            let args: Vec<&str> = args.split_whitespace().collect();
            let (word, due) = site.placed(&ours, &args).await;
            let call = site.client.schedule(site.key(&theirs), "x").after(2 * HOUR);
            let expected = match mode {
                "NX" => format!("{:?}", call.if_absent().await.unwrap()),
                "XX" => format!("{:?}", call.if_present().await.unwrap()),
                _ => format!("{:?}", call.await.unwrap()),
            };
            let said = expected.to_lowercase().replace("present(", "exists(");
            assert!(said.contains(&word), "{state} {mode}: {word}, {expected}");
            assert_eq!(seen(&site, &ours).await, seen(&site, &theirs).await);
            if let Some(due) = due {
                let due = SystemTime::UNIX_EPOCH + ms(due);
                assert_about(due, 2 * HOUR);
                let view = site.view(&site.key(&ours)).await;
                assert!([Some(view.due()), view.successor_due()].contains(&Some(due)));
            }
        }
        let (ours, theirs) = (format!("{state}-cancel-1"), format!("{state}-cancel-2"));
        site.bring(&ours, state).await;
        site.bring(&theirs, state).await;
        let word: String = site.fcall("cancel", &ours, &[]).await;
        let expected = site.client.cancel(site.key(&theirs)).await.unwrap();
        assert_eq!(word, format!("{expected:?}").to_lowercase(), "{state}");
        assert_eq!(seen(&site, &ours).await, seen(&site, &theirs).await);
    }
    site.assert_balanced().await;
}

/// The fields of a view that `get` answers, as text.
fn fields(view: &JobView) -> HashMap<String, String> {
    let time = |time: SystemTime| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
        since.as_millis().to_string()
    };
    let text = |payload: &[u8]| String::from_utf8(payload.to_vec()).unwrap();
    let all = [
        ("state", Some(format!("{:?}", view.state()).to_lowercase())),
        ("due", Some(time(view.due()))),
        ("attempts", Some(view.attempts().to_string())),
        ("payload", Some(text(view.payload()))),
        ("first_scheduled_at", Some(time(view.first_scheduled_at()))),
        ("last_error", view.last_error().map(str::to_owned)),
        ("letter", view.letter().map(|number| number.to_string())),
        ("lease_ends", view.lease_ends().map(time)),
        ("successor_due", view.successor_due().map(time)),
        ("cancelled", view.is_cancelled().then(|| "1".to_owned())),
    ];
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some((name.to_owned(), value?)))
        .collect()
}

#[tokio::test]
async fn what_get_answers_is_what_the_client_sees() {
    let Some((_server, site)) = site().await else {
        return;
    };
    for state in STATES {
        site.bring(state, state).await;
        let key = site.key(state);
        let answer = site.tries(&["FCALL_RO", "keyfall_get", "1", &key]).await;
        let answer = answer.unwrap();
        let Some(view) = site.client.get(&key).await.unwrap() else {
            assert_eq!((state, answer), ("absent", Value::Nil));
            continue;
        };
        let told: HashMap<String, String> = redis::from_redis_value(answer).unwrap();
        assert_eq!(told, fields(&view), "{state}");
    }
    // With headers, of which there is a map in the map.
    let call = site.client.schedule(site.key("headers"), "");
    call.header("a", "1").after(HOUR).await.unwrap();
    let told: HashMap<String, Value> = site.fcall("get", "headers", &[]).await;
    let headers: HashMap<String, String> =
        redis::from_redis_value(told["headers"].clone()).unwrap();
    assert_eq!(headers, HashMap::from([("a".into(), "1".into())]));
    // What a newer version wrote, and what nobody did.
    site.bring("odd", "pending").await;
    for (record, code) in [
        ("{\"v\":2}\n1\nx", "INCOMPATIBLE"),
        ("x", "DAMAGED"),
        ("{}\n1\nx", "DAMAGED"),
    ] {
        site.by_hand("HSET", "shadow", &["odd", record]).await;
        let told = site.refused("get", &site.key("odd"), &[]).await;
        assert!(told.starts_with(code), "{told}");
    }
    site.assert_balanced().await;
}

/// The lines with which the page begins.
#[tokio::test]
async fn the_manual_says_what_is_answered() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let page = include_str!("../../docs/functions.md");
    let lines = page
        .lines()
        .filter_map(|line| line.strip_prefix("redis-cli "));
    let mut tried = 0;
    for line in lines {
        let (command, said) = line.split_once(" # ").expect(line);
        // A payload in quotation marks is one word, and holds no blank.
        let command = command.replace('\'', "");
        let words: Vec<&str> = command.split_whitespace().collect();
        let answer = format!("{:?}", site.tries(&words).await.unwrap());
        let word = said.split_whitespace().next().unwrap();
        assert!(answer.contains(word), "{line}: {answer}");
        tried += 1;
    }
    assert_eq!(tried, 3);
    let stats = site.client.stats("app1:trans:notice").await.unwrap();
    assert!(stats.is_balanced() && stats.cancelled == 1, "{stats:?}");
}

#[tokio::test]
async fn times_are_those_that_set_takes() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (seconds, _): (u64, u64) = site.command(&["TIME"]).await;
    let at = seconds + 3600;
    for (word, value) in [
        ("EX", 3600),
        ("PX", 3_600_000),
        ("EXAT", at),
        ("pxat", at * 1000),
    ] {
        let (_, due) = site.placed(word, &["", word, &value.to_string()]).await;
        let due = due.unwrap();
        assert_about(SystemTime::UNIX_EPOCH + ms(due), HOUR);
        if word.to_lowercase().ends_with("at") {
            assert_eq!(due, at * 1000);
        }
        let trigger: u64 = site.command(&["PEXPIRETIME", &site.key(word)]).await;
        assert_eq!(trigger, due);
    }
    // The past is now, as everywhere.
    for when in [["EXAT", "1"], ["PX", "0"]] {
        let (_, due) = site.placed(when[0], &["", when[0], when[1]]).await;
        assert_about(SystemTime::UNIX_EPOCH + ms(due.unwrap()), Duration::ZERO);
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn what_is_wrong_is_refused_with_field_rule_and_remedy_and_nothing_is_written() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let key = site.key("1");
    let long = format!("x EX 1 CALL {}", "x".repeat(65));
    for (name, args, code, hint) in [
        ("schedule", "", "SYNTAX", "there is no payload"),
        ("schedule", "x", "INVALIDTIME", "PX 0 is now"),
        ("schedule", "x EX", "SYNTAX", "EX has no value"),
        ("schedule", "x EX 1.5", "INVALIDTIME", "EX \"1.5\""),
        ("schedule", "x PX -1", "INVALIDTIME", "whole number"),
        ("schedule", "x PXAT 9e15", "INVALIDTIME", "whole number"),
        (
            "schedule",
            "x EX 315619201",
            "INVALIDTIME",
            "the unit right",
        ),
        (
            "schedule",
            "x PXAT 9999999999999",
            "INVALIDTIME",
            "10 years",
        ),
        ("schedule", "x EX 1 PX 1", "SYNTAX", "four ways"),
        ("schedule", "x EX 1 ex 1", "SYNTAX", "twice"),
        ("schedule", "x EX 1 NX XX", "SYNTAX", "NX and XX"),
        ("schedule", "x EX 1 GET", "SYNTAX", "\"GET\" is no option"),
        ("schedule", &*long, "SYNTAX", "1 to 64"),
        ("schedule", "x EX 1 CALL a:b", "SYNTAX", "ASCII letters"),
        ("cancel", "now", "SYNTAX", "no option"),
        ("cancel", "CALL", "SYNTAX", "no value"),
        ("cancel", "CALL {}", "SYNTAX", "ASCII letters"),
        ("get", "now", "SYNTAX", "too much"),
    ] {
        let args: Vec<&str> = args.split_whitespace().collect();
        let told = site.refused(name, &key, &args).await;
        let is_told = told.starts_with(code) && told.contains(hint);
        assert!(is_told, "{told:?}, not {code} … {hint}");
    }
    let large = "x".repeat(1024 * 1024 + 1);
    let told = site.refused("schedule", &key, &[&large, "EX", "1"]).await;
    assert!(told.starts_with("INVALIDPAYLOAD") && told.contains("1048576"));
    for keys in ["0", "2 a:b:c:d a:b:c:e"] {
        for name in ["schedule", "cancel", "get"] {
            let words = format!("FCALL keyfall_{name} {keys}");
            let words: Vec<&str> = words.split(' ').collect();
            let error = site.tries(&words).await.unwrap_err().to_string();
            assert!(error.contains("takes one key: FCALL"), "{error}");
        }
    }
    // A text of any bytes cannot spoil the line that tells of it.
    let told = site.refused("schedule", "a:\r\nb", &["x", "EX", "1"]).await;
    assert!(told.contains("\"a:??b\" is no job key"), "{told}");
    let kinds: u64 = site.command(&["HLEN", "keyfall:kinds"]).await;
    let keys: u64 = site.command(&["DBSIZE"]).await;
    assert_eq!((kinds, keys), (0, 1), "but for keyfall:meta");
}

#[tokio::test]
async fn a_key_is_valid_here_if_it_is_there() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let mut keys: Vec<Vec<u8>> = ["", "a", "a:b:c", "a:b:c:", ":b:c:d", "a::c:d", "a:b:c:d:e"]
        .map(|key| key.as_bytes().to_vec())
        .into();
    for length in [1, 63, 64, 65, 256, 257] {
        let name = "x".repeat(length);
        keys.push(format!("{name}:b:c:d").into());
        keys.push(format!("a:b:{name}:d").into());
        keys.push(format!("a:b:c:{name}").into());
    }
    // Every character of the first pages, and those beside which rules begin and end.
    let odd = [
        0x1680, 0x2000, 0x200A, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000, 0xD7FF, 0xE000,
    ];
    let odd = odd
        .into_iter()
        .chain([0xFEFF, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]);
    for point in (0..0x180).chain(odd.flat_map(|it| it - 1..=it + 1)) {
        if let Some(c) = char::from_u32(point) {
            keys.push(format!("a:b:c:x{c}").into());
            keys.push(format!("a:b{c}:c:d").into());
        }
    }
    // What is no UTF-8: cut short, overlong, surrogates, too large, a tail alone.
    for bytes in [
        &b"\xc3"[..],
        b"\xe2\x82",
        b"\xc0\x80",
        b"\xe0\x80\x80",
        b"\xed\xa0\x80",
        b"\xf0\x80\x80\x80",
        b"\xf4\x90\x80\x80",
        b"\xf5\x80\x80\x80",
        b"\x80",
        b"\xff",
        b"\xc3x",
    ] {
        keys.push([b"a:b:c:", bytes].concat());
        keys.push([b"a:b:c:", bytes, b"x"].concat());
    }
    let mut told = redis::pipe();
    for key in &keys {
        let call = told.cmd("FCALL_RO").arg("keyfall_get");
        call.arg(1).arg(key);
    }
    let answers: Vec<Value> = told
        .ignore_errors()
        .query_async(&mut site.redis())
        .await
        .unwrap();
    let mut refused = 0;
    for (key, answer) in keys.iter().zip(answers) {
        let is_valid = std::str::from_utf8(key).is_ok_and(|key| JobKey::parse(key).is_ok());
        match answer {
            Value::Nil => assert!(is_valid, "{key:?} is allowed"),
            Value::ServerError(error) => {
                assert_eq!(error.code(), "INVALIDKEY");
                assert!(!is_valid, "{key:?}: {error:?}");
                refused += 1;
            }
            other => panic!("{key:?}: {other:?}"),
        }
    }
    assert!(refused > 100 && refused < keys.len() - 100, "{refused}");
}

#[tokio::test]
async fn what_one_side_schedules_the_other_sees_runs_and_cancels() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (log, mut runs) = recorder();
    let handler = log.until_stopped(|| Outcome::retry("told to stop"));
    let worker = site.serve(
        Router::new()
            .route(&site.pattern(), log.done())
            .route("fcall:it:long:{id}", handler),
    );
    worker.ready().await;
    site.placed("runs", &["\u{0}\u{1}binary", "PX", "200"])
        .await;
    let job = runs.next().await;
    assert_eq!((job.key().id(), job.attempt()), ("runs", 1));
    assert_eq!(&job.payload()[..], b"\0\x01binary");
    site.placed("ours", &["", "EX", "3600"]).await;
    let cancelled = site.client.cancel(site.key("ours")).await.unwrap();
    assert_eq!(cancelled, Cancelled::Cancelled);
    let call = site.client.schedule(site.key("theirs"), "").after(HOUR);
    call.await.unwrap();
    let word: String = site.fcall("cancel", "theirs", &[]).await;
    assert_eq!(word, "cancelled");
    let word: String = site.fcall("cancel", "theirs", &[]).await;
    assert_eq!(word, "absent");
    // A run is told to stop, and not tried again.
    site.client.schedule("fcall:it:long:1", "").await.unwrap();
    assert_eq!(runs.next().await.key().id(), "1");
    let word = site.try_fcall("cancel", "fcall:it:long:1", &[]).await;
    let word: String = redis::from_redis_value(word.unwrap()).unwrap();
    assert_eq!(word, "running");
    crate::runs::eventually("it has stopped", async || {
        let stats = site.client.stats("fcall:it:long").await.unwrap();
        (stats.leased == 0).then(|| assert_eq!((stats.cancelled, stats.pending), (1, 0)))
    })
    .await;
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    let told = site.client.story(site.key("ours")).await.unwrap();
    assert!(format!("{told:?}").contains("fcall"), "{told:?}");
    site.assert_balanced().await;
}

impl Site {
    /// The job that was just placed runs because its worker heard of it, and not because of a sweep
    /// that comes every 20 or 30 seconds.
    async fn is_heard(&self, commands: &mut Monitor, runs: &mut Runs, id: &str) {
        assert_eq!(runs.next().await.key().id(), id);
        let beats = beats_until_the_last_claim(&commands.so_far(self).await);
        assert!(beats < 12, "{beats} beats");
    }
}

#[tokio::test]
async fn a_worker_that_sleeps_is_woken() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route("fcall:*:*:{id}", log.done()));
    worker.ready().await;
    let mut wakes = wakes(&site.url).await;
    // A kind that nobody has heard of, due now: no event announces that.
    let mut commands = Monitor::of(&site.url).await;
    site.placed("new", &["", "PX", "0"]).await;
    site.is_heard(&mut commands, &mut runs, "new").await;
    site.placed("late", &["", "EX", "3600"]).await;
    site.placed("soon", &["", "PX", "300"]).await;
    site.is_heard(&mut commands, &mut runs, "soon").await;
    site.fcall::<String>("cancel", "late", &[]).await;
    for expected in [
        "kind fcall:it:job".to_owned(),
        "now fcall:it:job/0 new".to_owned(),
        "due fcall:it:job/0".to_owned(),
        "due fcall:it:job/0".to_owned(),
    ] {
        let heard = tokio::time::timeout(PATIENCE, async {
            loop {
                let message = wakes.on_message().next().await.unwrap();
                let text: String = message.get_payload().unwrap();
                // Others speak there, too.
                if ["kind", "now", "due"].contains(&text.split(' ').next().unwrap()) {
                    break text;
                }
            }
        });
        let heard = heard.await.unwrap_or_else(|_| panic!("never {expected}"));
        assert!(heard.starts_with(&expected), "{heard}, not {expected}");
    }
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

/// What is said on the wake channel from now on.
async fn wakes(url: &str) -> redis::aio::PubSub {
    let client = redis::Client::open(url).unwrap();
    let mut wakes = client.get_async_pubsub().await.unwrap();
    wakes.subscribe("keyfall:wake:0").await.unwrap();
    wakes
}

#[tokio::test]
async fn a_kind_that_begins_here_is_paused_by_the_rules_that_stand() {
    let Some((_server, site)) = site().await else {
        return;
    };
    site.client.prefix("fcall:it:").pause().await.unwrap();
    site.client.prefix("other:").pause().await.unwrap();
    site.placed("1", &["", "PX", "0"]).await;
    assert!(site.stats().await.paused);
    let free = "fcall:free:job:1";
    site.try_fcall("schedule", free, &["", "PX", "0"])
        .await
        .unwrap();
    assert!(!site.client.stats("fcall:free:job").await.unwrap().paused);
    // A kind that was resumed by name stays so.
    site.client.prefix("fcall:it:job:").resume().await.unwrap();
    site.placed("2", &["", "PX", "0"]).await;
    assert!(!site.stats().await.paused);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_call_with_an_id_is_answered_again_and_not_done_again() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let call = ["x", "EX", "3600", "CALL", "c1"];
    let first = site.placed("1", &call).await;
    site.client.cancel(site.key("1")).await.unwrap();
    assert_eq!(site.placed("1", &call).await, first);
    assert!(site.client.get(site.key("1")).await.unwrap().is_none());
    // The same id for another job, or for another function, is another call.
    assert_eq!(site.placed("2", &call).await.0, "created");
    for _ in 0..2 {
        let word: String = site.fcall("cancel", "2", &["CALL", "c1"]).await;
        assert_eq!(word, "cancelled");
    }
    // Without an id nothing is remembered.
    let kept = async || -> u64 {
        let key = format!("keyfall:{{{}/0}}:calls", site.kind());
        site.command(&["HLEN", &key]).await
    };
    let before = kept().await;
    site.placed("3", &["x", "EX", "3600"]).await;
    site.fcall::<String>("cancel", "3", &[]).await;
    assert_eq!(kept().await, before);
    site.assert_balanced().await;
}

#[tokio::test]
async fn while_redis_is_full_jobs_are_refused_cancelled_and_looked_up() {
    let Some((_server, site)) = site().await else {
        return;
    };
    site.placed("1", &["x", "EX", "3600"]).await;
    let () = site.command(&["CONFIG", "SET", "maxmemory", "1"]).await;
    let told = site
        .refused("schedule", &site.key("2"), &["x", "EX", "1"])
        .await;
    assert!(told.starts_with("OOM"), "{told}");
    let told: HashMap<String, Value> = site.fcall("get", "1", &[]).await;
    assert_eq!(told["state"], Value::BulkString(b"pending".to_vec()));
    let word: String = site.fcall("cancel", "1", &[]).await;
    assert_eq!(word, "cancelled");
    let () = site.command(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(site.client.get(site.key("2")).await.unwrap().is_none());
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_name_that_is_taken_is_left_alone_and_told() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let () = site.command(&["SET", &site.key("1"), "foreign"]).await;
    let answer: Vec<Value> = site.fcall("schedule", "1", &["x", "EX", "3600"]).await;
    assert_eq!(answer[2], Value::BulkString(b"unarmed".to_vec()));
    let value: String = site.command(&["GET", &site.key("1")]).await;
    assert_eq!(value, "foreign");
    // A ledger with something of somebody else in it is not written to by half.
    let stats = "keyfall:{fcall:it:job/0}:stats";
    let () = site.command(&["RENAME", stats, "kept"]).await;
    let () = site.command(&["SET", stats, "x"]).await;
    let told = site
        .refused("schedule", &site.key("2"), &["x", "EX", "1"])
        .await;
    assert!(told.starts_with("WRONGTYPE"), "{told}");
    let () = site.command(&["RENAME", "kept", stats]).await;
    assert!(site.client.get(site.key("2")).await.unwrap().is_none());
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_database_that_was_not_prepared_or_has_another_schema_is_refused() {
    let Some((server, site)) = site().await else {
        return;
    };
    let url = format!("{}?db=3", server.url());
    let other = Site::at(&url, "fcall").await;
    assert_eq!(
        other.client.functions().state().await.unwrap(),
        LibraryState::Unprepared
    );
    for (name, args) in [("schedule", "x EX 1"), ("cancel", ""), ("get", "")] {
        let args: Vec<&str> = args.split_whitespace().collect();
        let told = other.refused(name, &other.key("1"), &args).await;
        assert!(
            told.contains("`keyfall functions install --redis-url"),
            "{told}"
        );
        let meta = ["HSET", "keyfall:meta", "schema", "2"];
        let _: u64 = site.command(&meta).await;
        let told = site.refused(name, &site.key("1"), &args).await;
        assert!(told.starts_with("INCOMPATIBLE schema \"2\""), "{told}");
        let _: u64 = site.command(&["HSET", "keyfall:meta", "schema", "1"]).await;
    }
    let keys: u64 = other.command(&["DBSIZE"]).await;
    assert_eq!(keys, 1, "but for keyfall:meta");
    let before = other.client.functions().install().await.unwrap();
    assert_eq!(before, LibraryState::Unprepared);
    let (log, mut runs) = recorder();
    let worker = other.serve(Router::new().route("fcall:*:*:{id}", log.done()));
    worker.ready().await;
    // The hints go where the workers of this database listen.
    let mut commands = Monitor::of(&site.url).await;
    other.placed("1", &["x", "PX", "0"]).await;
    other.is_heard(&mut commands, &mut runs, "1").await;
    other.all_ended().await;
    worker.stop().await;
    assert!(site.client.get(site.key("1")).await.unwrap().is_none());
    other.assert_balanced().await;
}

/// Loads a library as it would be after this was changed in it.
async fn load_changed(site: &Site, from: &str, to: &str) {
    let source = site.client.functions().source().replace(from, to);
    let _: String = site
        .command(&["FUNCTION", "LOAD", "REPLACE", &source])
        .await;
}

/// What the doctor says of the functions.
async fn diagnosed(client: &Client) -> (Severity, String, Option<String>) {
    let diagnosis = client.diagnose().only(["functions"]).await.unwrap();
    let [finding] = &diagnosis.findings[..] else {
        panic!("{diagnosis:?}");
    };
    let told = finding.clone();
    (told.severity, told.found, told.remedy)
}

#[tokio::test]
async fn a_library_is_replaced_unless_it_is_newer_or_not_ours() {
    let Some((_server, site)) = server().await else {
        return;
    };
    let functions = || site.client.functions();
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
    assert_eq!(functions().install().await.unwrap(), LibraryState::Absent);
    assert_eq!(functions().install().await.unwrap(), LibraryState::Fits);
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
    let version = functions().version();
    let differs = |version: &str| LibraryState::Differs {
        version: version.to_owned(),
    };
    for (to, state) in [
        ("keyfall 0.0.9 schema", differs("0.0.9")),
        (&*format!("keyfall {version} schema"), differs(version)),
    ] {
        let from = format!("keyfall {version} schema");
        load_changed(&site, "pcall(cjson", "pcall( cjson").await;
        load_changed(&site, &from, to).await;
        if to == from {
            load_changed(&site, "pcall(cjson", "pcall( cjson").await;
        }
        let (severity, found, remedy) = diagnosed(&site.client).await;
        assert_eq!(severity, Severity::Warning, "{found}");
        assert!(remedy.unwrap().contains("keyfall functions install"));
        assert_eq!(functions().install().await.unwrap(), state);
        assert_eq!(functions().state().await.unwrap(), LibraryState::Fits);
    }
    let from = format!("-- keyfall {version} schema 1 namespace keyfall\n");
    for (to, state) in [
        (
            "-- keyfall 99.1.0 schema 1 namespace keyfall\n",
            differs("99.1.0"),
        ),
        (
            "-- keyfall 0.1.0 schema 1 namespace other\n",
            LibraryState::Elsewhere {
                namespace: "other".to_owned(),
            },
        ),
        ("-- somebody else's\n", LibraryState::Foreign),
    ] {
        load_changed(&site, &from, to).await;
        assert_eq!(functions().state().await.unwrap(), state);
        assert_eq!(diagnosed(&site.client).await.0, Severity::Warning);
        let error = functions().install().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        assert!(error.to_string().contains("--replace"), "{error}");
        if state != differs("99.1.0") {
            let error = functions().remove().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
        }
        assert_eq!(functions().state().await.unwrap(), state, "left alone");
        let replacing = functions().replacing();
        assert_eq!(replacing.install().await.unwrap(), state);
        assert_eq!(functions().state().await.unwrap(), LibraryState::Fits);
    }
    let _: String = site.command(&["FUNCTION", "FLUSH"]).await;
    let (severity, found, _) = diagnosed(&site.client).await;
    assert_eq!(severity, Severity::Warning, "{found}");
    functions().install().await.unwrap();
    assert_eq!(functions().remove().await.unwrap(), LibraryState::Fits);
    assert_eq!(functions().remove().await.unwrap(), LibraryState::Absent);
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
    let noted: bool = site
        .command(&["HEXISTS", "keyfall:meta", "functions"])
        .await;
    assert!(!noted);
}

#[tokio::test]
async fn two_namespaces_have_two_libraries_or_a_refusal() {
    let Some((server, site)) = site().await else {
        return;
    };
    let other = Client::builder(&server.url()).namespace("other");
    let other = other.connect().await.unwrap();
    let error = other.functions().install().await.unwrap_err();
    assert!(error.to_string().contains("--library NAME"), "{error}");
    let named = other.functions().named("second").unwrap();
    assert_eq!(named.install().await.unwrap(), LibraryState::Absent);
    assert_eq!(named.state().await.unwrap(), LibraryState::Fits);
    assert_eq!(
        site.client.functions().state().await.unwrap(),
        LibraryState::Fits
    );
    let key = site.key("1");
    let words = ["FCALL", "second_schedule", "1", &key, "x", "EX", "3600"];
    site.tries(&words).await.unwrap();
    assert!(other.get(&key).await.unwrap().is_some());
    assert!(site.client.get(&key).await.unwrap().is_none());
    assert!(other.stats(&site.kind()).await.unwrap().is_balanced());
    for name in ["", "a-b", "a:b"] {
        let error = other.functions().named(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    }
}

#[tokio::test]
async fn a_restart_keeps_the_library() {
    let Some((mut server, mut site)) = site().await else {
        return;
    };
    site.placed("1", &["x", "EX", "3600"]).await;
    server.restart().await.unwrap();
    site.reconnect().await;
    let word: String = site.fcall("cancel", "1", &[]).await;
    assert_eq!(word, "cancelled");
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_command_installs_checks_shows_and_removes() {
    let Some((_server, mut site)) = server().await else {
        return;
    };
    site.run("functions check").await.fails(3, "is not loaded");
    site.run("functions remove").await.fails(3, "no library");
    let told = site.run("functions install --json").await.value();
    assert_eq!(
        (&told["library"], &told["state"]),
        (&"keyfall".into(), &"absent".into())
    );
    let told = site.run("functions check --json").await.value();
    assert_eq!(told["state"], "fits");
    assert!(
        site.run("functions check")
            .await
            .out
            .contains("is that of this version")
    );
    let shown = site.run("functions show").await.out;
    assert_eq!(shown, site.client.functions().source());
    let told = site.run("functions show --json").await.value();
    assert_eq!(told["source"], *shown);
    load_changed(&site, "-- keyfall 0.", "-- keyfall 99.").await;
    let told = site.run("functions check --json").await;
    assert_eq!(told.code, 1, "{told:?}");
    let says = told.out.contains("\"differs\"") && told.err.contains("use that version");
    assert!(says, "{told:?}");
    site.run("functions install").await.fails(1, "--replace");
    let ran = site.run("functions install --replace").await;
    assert!(ran.out.contains("has taken the place"), "{ran:?}");
    site.run("functions install --library a-b")
        .await
        .fails(2, "must be 1 to 64");
    // By other means, as the help says.
    let _: String = site.command(&["FUNCTION", "FLUSH"]).await;
    let _: String = site.command(&["FUNCTION", "LOAD", &shown]).await;
    let _: u64 = site
        .command(&[
            "HSET",
            "keyfall:meta",
            "schema",
            "1",
            "functions",
            "keyfall:wake:0 keyfall",
        ])
        .await;
    assert_eq!(
        site.run("functions check --json").await.value()["state"],
        "fits"
    );
    assert_eq!(
        site.run("functions remove --json").await.value()["state"],
        "fits"
    );
    site = site.through_a_daemon();
    site.run("functions check")
        .await
        .fails(2, "a daemon does for nobody");
}

#[tokio::test]
async fn a_server_without_functions_is_told_what_is_missing() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "fcall").await;
    if Version::of(&mut site.redis()).await >= Version::Redis(7, 0) {
        return;
    }
    let error = site.client.functions().install().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("came with Redis 7.0"), "{error}");
    site.run("functions install").await.fails(1, "Redis 7.0");
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
}

#[tokio::test]
async fn a_cluster_is_refused() {
    let options = Embedded::options().args(["--cluster-enabled", "yes"]);
    let Ok(server) = options.start().await else {
        return;
    };
    let functions = Client::builder(&server.url()).functions().unwrap();
    let error = functions.install().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
}
