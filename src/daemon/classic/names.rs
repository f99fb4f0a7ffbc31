//! Topics and ids as job keys: `app:module:topic:id`.
//!
//! What a key cannot hold is written byte by byte in hexadecimal digits, behind a `%` in an id and
//! behind a `.` in a topic, which can hold no `%`: the topic `Order/paid` is `Order.2Fpaid`. A mark
//! that is followed by two such digits anyway is written so itself; so every text comes back as it
//! was, and no two have the same name.

use std::fmt::Write;

use keyfall::{JobKey, Kind};

/// Where the topics are.
#[derive(Debug, Clone)]
pub(super) struct Names {
    /// `app:module:`
    prefix: String,
}

const TOPIC_MARK: char = '.';
const ID_MARK: char = '%';

impl Names {
    /// Below `app:module`.
    pub(super) fn new(prefix: &str) -> Self {
        Names {
            prefix: format!("{prefix}:"),
        }
    }

    /// # Errors
    /// If the topic is empty, or too long.
    pub(super) fn kind(&self, topic: &str) -> keyfall::Result<Kind> {
        let topic = escaped(topic, TOPIC_MARK, |c| {
            c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.')
        });
        Kind::parse(&format!("{}{topic}", self.prefix))
    }

    /// # Errors
    /// If the id is empty, or too long.
    pub(super) fn key(kind: &Kind, id: &str) -> keyfall::Result<JobKey> {
        kind.key(&escaped(id, ID_MARK, |c| {
            !matches!(c, ':' | '*' | '{' | '}') && !c.is_whitespace() && !c.is_control()
        }))
    }

    /// Whether it is a topic.
    pub(super) fn have(&self, kind: &Kind) -> bool {
        kind.as_str().starts_with(&self.prefix)
    }

    pub(super) fn topic(key: &JobKey) -> String {
        unescaped(key.segments()[2], TOPIC_MARK)
    }

    pub(super) fn id(key: &JobKey) -> String {
        unescaped(key.id(), ID_MARK)
    }
}

/// The text with every character that may not stay, and every mark that would be read as one.
fn escaped(text: &str, mark: char, may_stay: fn(char) -> bool) -> String {
    let mut name = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        let is_mark = c == mark && byte_behind(&text.as_bytes()[at..]).is_some();
        if may_stay(c) && !is_mark {
            name.push(c);
            continue;
        }
        for byte in c.encode_utf8(&mut [0; 4]).bytes() {
            write!(name, "{mark}{byte:02X}").expect("a text takes all that is written");
        }
    }
    name
}

/// The text that a name was made of. A name that was made otherwise, and means none, is itself.
fn unescaped(name: &str, mark: char) -> String {
    let mut text = Vec::with_capacity(name.len());
    let mut rest = name.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        let byte = (char::from(*first) == mark)
            .then(|| byte_behind(rest))
            .flatten();
        text.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &rest[3..] } else { behind };
    }
    String::from_utf8(text).unwrap_or_else(|_| name.to_owned())
}

/// The byte that two digits behind the first one stand for.
fn byte_behind(marked: &[u8]) -> Option<u8> {
    let digit = |byte: &u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    Some(digit(marked.get(1)?)? * 16 + digit(marked.get(2)?)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(topic: &str, id: &str) -> JobKey {
        let kind = Names::new("app1:queue").kind(topic).unwrap();
        Names::key(&kind, id).unwrap()
    }

    #[test]
    fn what_a_key_can_hold_stays_and_the_rest_can_be_read() {
        for (topic, id, name) in [
            ("order.close", "42", "order.close:42"),
            ("order:close", "a:b", "order.3Aclose:a%3Ab"),
            ("v1.10", "100%25", "v1.2E10:100%2525"),
            ("订单", "订单 7", ".E8.AE.A2.E5.8D.95:订单%207"),
            ("a.b", "50%", "a.b:50%"),
            ("a/b", "{x}*\n", "a.2Fb:%7Bx%7D%2A%0A"),
        ] {
            assert_eq!(key(topic, id).as_str(), format!("app1:queue:{name}"));
        }
    }

    #[test]
    fn what_is_empty_or_too_long_is_refused() {
        let names = Names::new("app1:queue");
        assert!(names.kind("").is_err() && names.kind(&"订".repeat(8)).is_err());
        let kind = names.kind("a").unwrap();
        assert!(Names::key(&kind, "").is_err() && Names::key(&kind, &":".repeat(86)).is_err());
    }

    #[test]
    fn a_name_that_was_made_otherwise_is_what_it_says() {
        let key: JobKey = "app1:queue:a.FF:x%FFy".parse().unwrap();
        assert_eq!(
            (Names::topic(&key), Names::id(&key)),
            ("a.FF".into(), "x%FFy".into())
        );
    }

    proptest! {
        #[test]
        fn every_text_comes_back(topic in "[.%:A-F0-9 a-c]{1,12}|\\PC{1,5}", id in "[.%:A-F0-9 {}]{1,30}|(?s:.{1,20})") {
            let key = key(&topic, &id);
            prop_assert_eq!((Names::topic(&key), Names::id(&key)), (topic, id));
        }
    }
}
