//! Property tests of replies that no script of this version gives: none panics, and the error names
//! an unknown word.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::store::ledger::work::LeaseTerms;

/// Words that come with a number.
const NUMBERED: [&str; 11] = [
    "created",
    "replaced",
    "succeeds",
    "moved",
    "updated",
    "successor",
    "later",
    "buried",
    "requeued",
    "early",
    "overtaken",
];
/// Words that come without a number.
const PLAIN: [&str; 27] = [
    "replaced",
    "exists",
    "absent",
    "running",
    "cancelled",
    "done",
    "present",
    "deleted",
    "gone",
    "foreign",
    "renewed",
    "claimed",
    "leased",
    "paused",
    "resumed",
    "sound",
    "bare",
    "stray",
    "twice",
    "tokenless",
    "timeless",
    "blank",
    "blind",
    "headless",
    "wordless",
    "undead",
    "misfiled",
];

/// Any value that Redis may send, two levels deep.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        4 => any::<Vec<u8>>().prop_map(Value::BulkString),
        4 => "[a-z0-9:! -]{0,30}".prop_map(|text| Value::BulkString(text.into_bytes())),
        2 => any::<i64>().prop_map(Value::Int),
        1 => any::<String>().prop_map(Value::SimpleString),
        1 => Just(Value::Nil),
        1 => Just(Value::Okay),
    ];
    leaf.prop_recursive(2, 16, 4, |inner| vec(inner, 0..4).prop_map(Value::Array))
}

proptest! {
    #[test]
    fn a_word_is_decoded_with_its_value(number: u64, mark in "!?") {
        let unarmed = mark == "!";
        for word in NUMBERED {
            let answered = Answered::parse(&format!("{word}:{number}{mark}")).unwrap();
            prop_assert_eq!(answered.unarmed, unarmed);
            let printed = format!("{:?}", answered.answer);
            prop_assert!(printed.contains(&number.to_string()), "{}", printed);
            prop_assert_eq!(Answered::parse(word).is_ok(), PLAIN.contains(&word));
        }
        for word in PLAIN {
            prop_assert_eq!(Answered::parse(&format!("{word}{mark}")).unwrap().unarmed, unarmed);
            let numbered = Answered::parse(&format!("{word}:{number}"));
            prop_assert_eq!(numbered.is_ok(), NUMBERED.contains(&word));
        }
    }

    #[test]
    fn an_unknown_word_is_named_in_the_error(text: String, word in "[a-z]{1,9}(:[0-9x-]{0,22})?!?") {
        for text in [text, word] {
            let known = text.strip_suffix('!').unwrap_or(&text);
            let known = match known.split_once(':') {
                Some((word, number)) => NUMBERED.contains(&word) && number.parse::<u64>().is_ok(),
                None => PLAIN.contains(&known),
            };
            match Answered::parse(&text) {
                Ok(_) => prop_assert!(known, "{}", text),
                Err(error) => {
                    prop_assert!(!known, "{}", text);
                    prop_assert_eq!(error.kind(), ErrorKind::Damaged);
                    prop_assert!(error.to_string().contains("the word \""), "{}", error);
                }
            }
        }
    }

    #[test]
    fn parsing_a_reply_never_panics(value in value(), head in vec(value(), 0..3), items: u8) {
        let numbered = [Value::BulkString(b"ok".into()), Value::Int(1)];
        let list = Value::Array(numbered.into_iter().chain(head).chain([value.clone()]).collect());
        for value in [value, list] {
            type Reader = fn(&mut Reply, usize) -> Result<()>;
            let readers: [Reader; 8] = [
                |reply, _| reply.bytes().map(drop),
                |reply, _| reply.text().map(drop),
                |reply, _| reply.number().map(drop),
                |reply, _| reply.score().map(drop),
                |reply, _| reply.time().map(drop),
                |reply, _| reply.words().map(drop),
                |reply, _| reply.answers().map(drop),
                |reply, items| reply.item_answers(items).map(drop),
            ];
            for read in readers {
                let Ok(mut reply) = Reply::parse(value.clone()) else {
                    continue;
                };
                while !reply.is_exhausted() {
                    // Each takes one item, or the loop would not end.
                    let left = reply.rest.len();
                    let _ = read(&mut reply, items.into());
                    prop_assert!(reply.rest.len() < left || reply.status == "late");
                    if reply.status == "late" {
                        break;
                    }
                }
                prop_assert!(reply.status == "late" || read(&mut reply, 0).is_err());
            }
        }
    }

    #[test]
    fn parsing_a_lease_never_panics(
        text: String,
        dense in "[a-f0-9]{0,4}(-[0-9])?( [0-9]{1,21}){0,4}( (-|cancelled))?",
        numbers: (u32, u64, u64),
    ) {
        for text in [text, dense] {
            let _ = LeaseTerms::parse(&text);
        }
        let (claims, fence, due) = numbers;
        let lease = format!("aff-1 {claims} {fence} {due} cancelled");
        let lease = LeaseTerms::parse(&lease).unwrap();
        prop_assert_eq!((lease.claims, lease.fence, lease.due.0), numbers);
        prop_assert_eq!((&*lease.token, lease.cancelled), ("aff-1", true));
    }
}
