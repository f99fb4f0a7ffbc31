//! Cases of the routing rules: parsing, precedence, clashes.

use super::*;
use crate::error::ErrorKind;
use crate::key::JobKey;

fn pattern(text: &str) -> Pattern {
    Pattern::parse(text).unwrap()
}

fn key(text: &str) -> JobKey {
    JobKey::parse(text).unwrap()
}

#[test]
fn the_error_for_a_malformed_pattern_names_segment_rule_and_remedy() {
    let long_literal = format!("a:{}:c:*", "x".repeat(65));
    let nested = format!("a:b:c:{{id:{}}}", "(".repeat(9_999));
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("",                     &["1 segment,", "exactly four", "write `*`"]),
        ("a:b:{id}",             &["3 segments", "exactly four", "write `*`"]),
        ("a:b:c:d:{id}",         &["5 segments", "exactly four"]),
        ("a:b:c:d:{id",          &["5 segments", "exactly four"]),
        ("a:b:c:",               &["`id` is empty", "at least one", "write `*`"]),
        ("a b:b:c:*",            &["`app` holds ' ' at byte 1", "ASCII", "correct it"]),
        ("a:é:c:*",              &["`module` holds 'é'", "ASCII", "correct it"]),
        ("a:b:c:x\n",            &[r"a:b:c:x\n", "`id` holds '\\n'", "white space"]),
        (&long_literal,          &["`module` has 65 bytes", "limit is 64"]),
        ("a:{b:c:*",             &["`module` opens a brace", "close it"]),
        (r"a:b:c:{id:[{]}",      &["`id` opens a brace", r"`\{`"]),
        (r"a:b:c:{id:\}",        &["`id` opens a brace", r"`\{`"]),
        ("a:b:c:**",             &["`id` is \"**\"", "a whole segment", "`{name:pre-.*}`"]),
        ("a:b:pre-*:*",          &["`biz` is \"pre-*\"", "a whole segment", "`{name:regex}`"]),
        ("a:b:c}:*",             &["`biz` is \"c}\"", "a whole segment"]),
        ("a:b:c:{x}{y}",         &["`id` is \"{x}{y}\"", "a whole segment"]),
        ("a:b:c:{x:[0-9]}}",     &["`id` is", "a whole segment"]),
        ("a:b:c:{}",             &["`id` has the name \"\"", "a letter or `_`", "rename it"]),
        ("a:b:c:{:[0-9]+}",      &["`id` has the name \"\"", "a letter or `_`"]),
        ("a:b:c:{1st}",          &["`id` has the name \"1st\"", "a letter or `_`", "rename it"]),
        ("a:b:c:{order-id}",     &["`id` has the name \"order-id\"", "digits and `_`"]),
        ("a:{x}:c:{x:[0-9]+}",   &["`id` uses the name `x` a second", "occur once", "rename"]),
        ("a:b:{x:[0-9}:*",       &["`biz` holds a regex", "unclosed character class", "correct it"]),
        (r"a:b:c:{x:\q}",        &[r#""a:b:c:{x:\q}""#, "`id`", "unrecognized escape", "correct it"]),
        ("a:b:c:{x:a)|(b}",      &["`id` holds a regex", "does not compile", "correct it"]),
        (r"a:b:c:{x:(?-u:\xFF)}", &["`id` holds a regex", "does not compile", "correct it"]),
        (&nested,                &["…", "`id` holds a regex", "does not compile", "correct it"]),
        (r"a:b:c:{x:\w{99}}",   &["`id` holds a regex", "1048576 bytes", "lower its repet"]),
        ("a:b:c:{x:((.{99}){99}){99}}", &["`id` holds a regex", "1048576 bytes"]),
        ("a:b:c:{x:^[0-9]+$}",   &["`id` holds a regex with an anchor", "leave out `^`, `$`"]),
        (r"a:b:c:{x:(?m)a$|b}",  &["`id` holds a regex with an anchor", "leave out"]),
        ("a:b:c:{x:(?<y>[0-9])}", &["`id` holds a regex with a named group", "write `(…)`"]),
        ("a:b:c:{x:}",           &["`id` holds a regex", "matches no id", "correct it"]),
        ("a:b:c:{x:[0-9]+:b}",   &["`id` holds a regex", "matches no id", "correct it"]),
        ("a:b:{x:[é/]+}:*",      &["`biz` holds a regex", "matches no biz", "correct it"]),
    ];
    for (text, phrases) in cases {
        let fault = match Pattern::parse(text) {
            Ok(pattern) => panic!("{pattern:?} parses"),
            Err(fault) => fault,
        };
        assert_eq!(fault.kind(), ErrorKind::InvalidRoute);
        let message = fault.to_string();
        let start: String = text
            .lines()
            .next()
            .unwrap_or_default()
            .chars()
            .take(50)
            .collect();
        for phrase in phrases.iter().chain([&start.as_str()]) {
            assert!(message.contains(phrase), "{phrase:?} is not in: {message}");
        }
    }
}

#[test]
fn a_pattern_knows_its_names_and_its_kind() {
    let text = "app:{m:[a-z]{3}(?::x)?}:*:{_id2}";
    let wild = pattern(text);
    assert_eq!(wild.as_str(), text);
    assert_eq!(wild.to_string(), text);
    assert_eq!(wild.names().collect::<Vec<_>>(), [("m", 1), ("_id2", 3)]);
    assert_eq!(wild.literal_kind(), None);
    assert!(wild.takes_whole_kind());
    for (kind, expected) in [
        ("app:abc:x", true),
        ("app:abcd:x", false),
        ("APP:abc:x", false),
        ("app:abc", false),
        ("app:abc:x:1", false),
        ("app:abc:", false),
    ] {
        assert_eq!(wild.matches_kind(kind), expected, "{kind}");
    }

    let literal = pattern("app.1:trans:notice:{id:[0-9]+}");
    assert_eq!(
        literal.literal_kind().unwrap().as_str(),
        "app.1:trans:notice"
    );
    assert!(literal.matches_kind("app.1:trans:notice"));
    assert!(!literal.matches_kind("app01:trans:notice"));
    assert!(!literal.takes_whole_kind());
    assert!(!pattern("a:b:c:1").takes_whole_kind());
}

#[test]
fn a_segment_is_matched_from_end_to_end() {
    #[rustfmt::skip]
    let cases = [
        ("a:b:c:x.y",                    "a:b:c:x.y",      true),
        ("a:b:c:x.y",                    "a:b:c:xzy",      false),
        (r"a:b:c:a\b[c",                 r"a:b:c:a\b[c",   true),
        ("a:*:*:*",                      "a:b:c:d",        true),
        ("a:b:c:{x:1|12|3}",             "a:b:c:12",       true),
        ("a:b:c:{x:1|12|3}",             "a:b:c:123",      false),
        ("{x:a.*}:b:c:d",                "ab:b:c:d",       true),
        ("{x:.*}:b:c:d",                 "a:b:b:d",        false),
        ("a:b:c:{x:(?x) [0-9]+ # digits}", "a:b:c:42",     true),
        ("a:b:{x:(?i)q}:{y:q}",          "a:b:Q:q",        true),
        ("a:b:{x:(?i)q}:{y:q}",          "a:b:Q:Q",        false),
        (r"a:b:c:{x:\bfoo\b.*}",         "a:b:c:foo-bar",  true),
        (r"a:b:c:{x:\bfoo\b.*}",         "a:b:c:fool",     false),
        (r"a:b:c:{x:\p{Greek}{2}}",      "a:b:c:αβ",       true),
        (r"a:b:c:{x:\w{8}}",             "a:b:c:Größe_42", true),
        (r"a:b:c:{x:[^\}]+}",            "a:b:c:d",        true),
    ];
    for (text, name, expected) in cases {
        let table = RouteTable::new(vec![(pattern(text), 0)]).unwrap();
        assert_eq!(
            table.find(&key(name)).is_some(),
            expected,
            "{text} and {name}"
        );
    }
}

#[test]
fn priority_wins_and_then_the_leftmost_narrower_segment() {
    let table = RouteTable::new(vec![
        (pattern("*:*:*:*"), 0),
        (pattern("a:*:*:*"), 0),
        (pattern("*:b:c:d"), 0),
        (pattern("a:{m:b|x}:*:*"), 0),
        (pattern("a:b:*:*"), 0),
        (pattern("{app:a}:b:c:d"), 0),
        (pattern("*:*:*:{id:9+}"), 1),
        (pattern("*:*:*:{id}"), -1),
    ])
    .unwrap();
    for (name, owner) in [
        ("a:b:c:d", 4),
        ("a:x:c:d", 3),
        ("a:y:c:d", 1),
        ("z:b:c:d", 2),
        ("z:y:c:d", 0),
        ("a:b:c:99", 6),
    ] {
        assert_eq!(table.find(&key(name)), Some(owner), "{name}");
    }
}

#[test]
fn coverage_says_whether_the_id_matters() {
    let table = RouteTable::new(vec![
        (pattern("a:b:c:*"), 0),
        (pattern("a:b:*:{id:[0-9]+}"), 0), // worse than the first for a:b:c
        (pattern("a:b:*:*"), 0),
        (pattern("a:x:c:*"), 0),
        (pattern("a:*:c:1"), 1), // the highest priority
        (pattern("q:b:c:1"), 0),
    ])
    .unwrap();
    for (kind, expected) in [
        ("a:b:c", Coverage::Mixed),
        ("a:b:d", Coverage::Mixed),
        ("a:x:c", Coverage::Mixed),
        ("q:b:c", Coverage::Mixed),
        ("q:b:d", Coverage::None),
    ] {
        assert_eq!(table.coverage(kind), expected, "{kind}");
    }
    let table = RouteTable::new(vec![
        (pattern("*:b:c:7"), 0),
        (pattern("a:b:*:{id:[0-9]+}"), 0),
        (pattern("a:b:c:*"), 0),
    ])
    .unwrap();
    assert_eq!(table.coverage("a:b:c"), Coverage::Whole(2));

    let empty = RouteTable::new(Vec::new()).unwrap();
    assert_eq!(empty.coverage("a:b:c"), Coverage::None);
    assert_eq!(empty.find(&key("a:b:c:d")), None);
}

#[test]
fn a_clash_needs_equal_ranks_and_a_common_key() {
    #[rustfmt::skip]
    let cases = [
        ("a:b:c:{x}",         "a:b:c:*",           true),
        ("a:b:c:{x}",         "a:b:d:*",           false),
        ("a:*:c:*",           "*:b:c:*",           false), // ranks differ
        ("a:b:c:{x:[0-9]+}",  "a:b:c:{y:[a-z]+}",  false),
        ("a:b:c:{x:[0-9]+}",  "a:b:c:{y:[0-9a-f]+}", true),
        ("a:b:c:{x:[0-9]+}",  "a:b:d:{y:[0-9a-f]+}", false),
        ("a:b:c:{x:[0-9]+}",  "a:b:c:*",           false),
        ("a:{m:x+}:c:{y:1*}", "a:{m:x*}:c:{y:2*}", false), // only the empty id would match both
    ];
    for (a, b, expected) in cases {
        assert_eq!(clash(&pattern(a), &pattern(b)), expected, "{a} and {b}");
    }
}

#[test]
fn a_table_reports_a_clash_unless_priorities_differ() {
    let routes = |priority| {
        vec![
            (pattern("a:b:c:1"), 0),
            (pattern("a:b:c:{x:[0-9]+}"), 0),
            (pattern(r"a:b:c:{y:\d{3}}"), priority),
        ]
    };
    assert!(RouteTable::new(routes(1)).is_ok());
    let fault = RouteTable::new(routes(0)).err().unwrap();
    assert_eq!(fault.kind(), ErrorKind::InvalidRoute);
    let message = fault.to_string();
    for phrase in [
        r#""a:b:c:{x:[0-9]+}""#,
        r#""a:b:c:{y:\d{3}}""#,
        "the same rank",
        "the same key",
        "more specific",
        "`.priority(n)`",
    ] {
        assert!(message.contains(phrase), "{phrase:?} is not in: {message}");
    }
}
