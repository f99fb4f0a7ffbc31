use proptest::prelude::*;

use super::*;

/// Asserts that there is an error that quotes the text and contains each of the phrases.
#[track_caller]
fn assert_fault(fault: Option<Error>, text: &str, phrases: &[&str]) {
    let Some(fault) = fault else {
        panic!("{text:?} parses");
    };
    assert_eq!(fault.kind(), ErrorKind::InvalidKey);
    let message = fault.to_string();
    for phrase in phrases {
        assert!(message.contains(phrase), "{phrase:?} is not in: {message}");
    }
}

#[test]
fn a_key_has_a_kind_and_an_id() {
    let key: JobKey = "app1:trans:notice:1615283234".parse().unwrap();
    assert_eq!(key.segments(), ["app1", "trans", "notice", "1615283234"]);
    assert_eq!(key.kind(), "app1:trans:notice");
    assert_eq!(key.id(), "1615283234");
    let kind: Kind = key.kind().parse().unwrap();
    assert_eq!(kind.key(key.id()).unwrap(), key);
}

#[test]
fn real_ids_are_accepted() {
    for id in [
        "0190163d-8694-739b-aea5-966c26f8ad91",
        "anna+tag@example.org",
        "2026/03/01#7",
        "Größe-日本",
        r"a\b[c](d)|$^?.",
    ] {
        let key = JobKey::parse(&format!("a:b:c:{id}")).unwrap();
        assert_eq!(key.id(), id);
    }
}

#[test]
fn a_fault_in_a_key_names_segment_rule_and_part() {
    const FOUR: &str = "exactly four, `app:module:biz:id`";
    const KIND_RULE: &str = "app, module and biz hold ASCII letters, digits, `_`, `-` and `.`";
    const ID_RULE: &str = "an id may hold any character but";
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("",             &[r#""""#, "1 segment,", FOUR]),
        ("a:b:c",        &[r#""a:b:c""#, "3 segments", FOUR]),
        ("a:b:c:d:e",    &["5 segments", FOUR]),
        (":b:c:d",       &["`app` is empty", "at least one character"]),
        ("a::c:d",       &["`module` is empty", "at least one character"]),
        ("a:b::d",       &["`biz` is empty", "at least one character"]),
        ("a:b:c:",       &["`id` is empty", "at least one character"]),
        ("a b:b:c:d",    &["`app` holds ' ' at byte 1", KIND_RULE]),
        ("a:bé:c:d",     &["`module` holds 'é' at byte 1", KIND_RULE]),
        ("a:b:c/0:d",    &["`biz` holds '/' at byte 1", KIND_RULE]),
        ("a:b:c:x*",     &["`id` holds '*' at byte 1", ID_RULE]),
        ("a:b:c:{x",     &["`id` holds '{' at byte 0", ID_RULE]),
        ("a:b:c:é}",     &["`id` holds '}' at byte 2", ID_RULE]),
        ("a:b:c:x\ty",   &[r"`id` holds '\t' at byte 1", "white space"]),
        ("a:b:c:x\u{a0}", &["`id` holds", "white space"]),
        ("a:b:c:\0",     &[r"`id` holds '\0' at byte 0", "control characters"]),
    ];
    for (text, phrases) in cases {
        assert_fault(JobKey::parse(text).err(), text, phrases);
    }
}

#[test]
fn a_fault_in_a_kind_names_segment_rule_and_part() {
    const THREE: &str = "exactly three, `app:module:biz`";
    #[rustfmt::skip]
    let cases: &[(&str, &[&str])] = &[
        ("a",       &[r#""a" is not a kind"#, "1 segment,", THREE]),
        ("a:b",     &["2 segments", THREE]),
        ("a:b:c:d", &["4 segments", THREE]),
        ("a:b:",    &["`biz` is empty"]),
        ("a:*:c",   &["`module` holds '*' at byte 0", "ASCII letters"]),
    ];
    for (text, phrases) in cases {
        assert_fault(Kind::parse(text).err(), text, phrases);
    }
    let kind = Kind::parse("a:b:c").unwrap();
    assert_fault(kind.key("").err(), "a:b:c:", &["`id` is empty"]);
    assert_fault(kind.key("d:e").err(), "a:b:c:d:e", &["5 segments"]);
}

#[test]
fn lengths_are_limited_in_bytes() {
    let longest = "x".repeat(MAX_SEGMENT_BYTES);
    let longest_id = "é".repeat(MAX_ID_BYTES / 2);
    let text = format!("{longest}:{longest}:{longest}:{longest_id}");
    assert_eq!(JobKey::parse(&text).unwrap().id(), longest_id);

    let text = format!("a:{longest}x:c:d");
    let phrases = ["`module` has 65 bytes", "limit is 64"];
    assert_fault(JobKey::parse(&text).err(), &text, &phrases);
    let text = format!("a:b:c:{longest_id}x");
    let phrases = ["`id` has 257 bytes", "limit is 256", "…"];
    assert_fault(JobKey::parse(&text).err(), &text, &phrases);
}

proptest! {
    #[test]
    fn parsing_never_panics(text in any::<String>(), dense in "[a-c:.*{}é \0]{0,80}") {
        for text in [&text, &dense] {
            let _ = JobKey::parse(text);
            let _ = Kind::parse(text);
        }
    }

    #[test]
    fn a_fault_names_its_segment(
        segments in prop::array::uniform4("[a-z0-9]{1,9}"),
        at in 0_usize..4,
        wrong in "[*{} \t\n\0é\u{a0}]{1,3}|",
    ) {
        // An id takes letters of any language.
        prop_assume!(at < 3 || wrong.chars().all(|c| c != 'é'));
        let mut segments = segments;
        segments[at] = wrong;
        let text = segments.join(":");
        let fault = JobKey::parse(&text).unwrap_err();
        prop_assert_eq!(fault.kind(), ErrorKind::InvalidKey);
        let named = format!("its `{}` ", NAMES[at]);
        prop_assert!(fault.to_string().contains(&named), "{}", fault);
    }

    #[test]
    fn legal_segments_make_a_key(
        head in prop::array::uniform3("[A-Za-z0-9_.-]{1,64}"),
        id in "[^:*{}\\s\\p{Cc}]{1,64}",
    ) {
        let [app, module, biz] = &head;
        let text = format!("{app}:{module}:{biz}:{id}");
        let key = JobKey::parse(&text).unwrap();
        prop_assert_eq!(key.as_str(), &text);
        prop_assert_eq!(key.to_string(), text);
        prop_assert_eq!(key.segments(), [app.as_str(), module, biz, &id]);
        prop_assert_eq!(key.kind(), head.join(":"));
        prop_assert_eq!(key.id(), &id);
        prop_assert_eq!(&Kind::parse(key.kind()).unwrap().key(&id).unwrap(), &key);
        prop_assert_eq!((&key).into_job_key().unwrap(), key);
    }
}
