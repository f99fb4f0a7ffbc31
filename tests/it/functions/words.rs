//! The words, times and keys that functions take, and their errors for all others.

use std::time::{Duration, SystemTime};

use keyfall::JobKey;
use redis::Value;

use super::site;
use crate::site::{HOUR, assert_about, ms};

/// The lines with which the page begins.
#[tokio::test]
async fn the_manual_shows_the_actual_answers() {
    let Some((_server, site)) = site().await else {
        return;
    };
    let page = include_str!("../../../docs/functions.md");
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
async fn functions_take_the_time_words_of_set() {
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
    // A past time means now, as in all calls.
    for when in [["EXAT", "1"], ["PX", "0"]] {
        let (_, due) = site.placed(when[0], &["", when[0], when[1]]).await;
        assert_about(SystemTime::UNIX_EPOCH + ms(due.unwrap()), Duration::ZERO);
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_wrong_call_is_refused_with_the_remedy_and_writes_nothing() {
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
        (
            "schedule",
            "x EX 1 GET",
            "SYNTAX",
            "\"GET\" is not an option",
        ),
        ("schedule", &*long, "SYNTAX", "1 to 64"),
        ("schedule", "x EX 1 CALL a:b", "SYNTAX", "ASCII letters"),
        ("cancel", "now", "SYNTAX", "not an option"),
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
    // A text of any bytes cannot break the line of the error.
    let told = site.refused("schedule", "a:\r\nb", &["x", "EX", "1"]).await;
    assert!(told.contains("\"a:??b\" is not a job key"), "{told}");
    let kinds: u64 = site.command(&["HLEN", "keyfall:kinds"]).await;
    let keys: u64 = site.command(&["DBSIZE"]).await;
    assert_eq!((kinds, keys), (0, 1), "but for keyfall:meta");
}

#[tokio::test]
async fn functions_and_clients_accept_the_same_keys() {
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
    // Every character of the first pages, and the characters at the borders of the rules.
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
    // Invalid UTF-8: cut short, overlong, surrogates, too large, a lone continuation byte.
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
