//! Topics and ids as job keys: `app:module:topic:id`.
//!
//! Characters that a key cannot hold are written byte by byte in hexadecimal digits, behind a `%`
//! in an id and behind a `.` in a topic, which cannot hold a `%`: the topic `Order/paid` is
//! `Order.2Fpaid`. A mark that would be read as an escape is escaped itself. Each text has a name
//! of its own. Each job has a text, even if it was not pushed here: a name without a text of its
//! own stands for itself.

use std::fmt::Write;

use keyfall::{JobKey, Kind, MAX_ID_BYTES, MAX_SEGMENT_BYTES};

/// The place of the topics: their app and module.
#[derive(Debug, Clone)]
pub struct Names {
    /// `app:module:`
    prefix: String,
}

/// The escapes of one segment of a key.
struct Writing {
    mark: char,
    /// The length limit of its name, in bytes.
    longest: usize,
    may_stay: fn(char) -> bool,
}

const TOPIC: Writing = Writing {
    mark: '.',
    longest: MAX_SEGMENT_BYTES,
    may_stay: |c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'),
};

const ID: Writing = Writing {
    mark: '%',
    longest: MAX_ID_BYTES,
    may_stay: |c| !matches!(c, ':' | '*' | '{' | '}') && !c.is_whitespace() && !c.is_control(),
};

impl Names {
    /// Below `app:module`.
    pub fn new(prefix: &str) -> Self {
        Names {
            prefix: format!("{prefix}:"),
        }
    }

    /// `app:module`
    pub(super) fn prefix(&self) -> &str {
        self.prefix.trim_end_matches(':')
    }

    /// # Errors
    /// If the topic is empty, or too long.
    pub fn kind(&self, topic: &str) -> keyfall::Result<Kind> {
        Kind::parse(&format!("{}{}", self.prefix, TOPIC.name_of(topic)))
    }

    /// # Errors
    /// If the id is empty, or too long.
    pub fn key(kind: &Kind, id: &str) -> keyfall::Result<JobKey> {
        kind.key(&ID.name_of(id))
    }

    /// Whether the kind is a topic.
    pub(super) fn have(&self, kind: &Kind) -> bool {
        kind.as_str().starts_with(&self.prefix)
    }

    pub(super) fn topic(key: &JobKey) -> String {
        TOPIC.text_of(key.segments()[2])
    }

    pub(super) fn id(key: &JobKey) -> String {
        ID.text_of(key.id())
    }
}

impl Writing {
    fn name_of(&self, text: &str) -> String {
        if self.can_be_name(text) && self.text_of(text) == text {
            return text.to_owned();
        }
        self.escaped(text)
    }

    /// The text with this name.
    fn text_of(&self, name: &str) -> String {
        match self.unescaped(name) {
            // The name gets shorter, so the recursion ends.
            Some(text) if text != name && self.name_of(&text) == name => text,
            _ => name.to_owned(),
        }
    }

    fn can_be_name(&self, text: &str) -> bool {
        text.len() <= self.longest && text.chars().all(self.may_stay)
    }

    /// Escapes each character that a key cannot hold, and each mark that would be read as an
    /// escape.
    fn escaped(&self, text: &str) -> String {
        let mut name = String::with_capacity(text.len());
        for (at, c) in text.char_indices() {
            let is_mark = c == self.mark && byte_behind(&text.as_bytes()[at..]).is_some();
            if (self.may_stay)(c) && !is_mark {
                name.push(c);
                continue;
            }
            for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                write!(name, "{}{byte:02X}", self.mark).expect("writing to a text cannot fail");
            }
        }
        name
    }

    /// Reads the escapes. `None` if the bytes are not UTF-8.
    fn unescaped(&self, name: &str) -> Option<String> {
        let mut text = Vec::with_capacity(name.len());
        let mut rest = name.as_bytes();
        while let Some((first, behind)) = rest.split_first() {
            let byte = (char::from(*first) == self.mark)
                .then(|| byte_behind(rest))
                .flatten();
            text.push(byte.unwrap_or(*first));
            rest = if byte.is_some() { &rest[3..] } else { behind };
        }
        String::from_utf8(text).ok()
    }
}

/// The byte of the two digits behind the first byte.
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
    fn characters_of_keys_stay_and_the_others_are_escaped() {
        for (topic, id, name) in [
            ("order.close", "42", "order.close:42"),
            ("order:close", "a:b", "order.3Aclose:a%3Ab"),
            ("v1.10", "a%3Ab", "v1.2E10:a%253Ab"),
            // They mean no other text, so they need no mark.
            ("a.41", "x%2Fy", "a.41:x%2Fy"),
            ("订单", "订单 7", ".E8.AE.A2.E5.8D.95:订单%207"),
            ("a.b", "50%", "a.b:50%"),
            ("a/b", "{x}*\n", "a.2Fb:%7Bx%7D%2A%0A"),
        ] {
            assert_eq!(key(topic, id).as_str(), format!("app1:queue:{name}"));
        }
    }

    #[test]
    fn an_empty_or_too_long_name_is_refused() {
        let names = Names::new("app1:queue");
        assert!(names.kind("").is_err() && names.kind(&"订".repeat(8)).is_err());
        let kind = names.kind("a").unwrap();
        assert!(Names::key(&kind, "").is_err() && Names::key(&kind, &":".repeat(86)).is_err());
    }

    #[test]
    fn a_name_not_made_by_escaping_stands_for_itself() {
        for (topic, id) in [("a.FF", "x%FFy"), ("a.41", "x%2Fy"), ("a.2E41", "x%252Fy")] {
            let name = format!("app1:queue:{topic}:{id}");
            let made: JobKey = name.parse().unwrap();
            assert_eq!(key(&Names::topic(&made), &Names::id(&made)), made);
            assert_eq!(
                (Names::topic(&made), Names::id(&made)),
                (topic.into(), id.into())
            );
        }
    }

    proptest! {
        #[test]
        fn every_text_comes_back(topic in "[.%:A-F0-9 a-c]{1,12}|\\PC{1,5}", id in "[.%:A-F0-9 {}]{1,30}|(?s:.{1,20})") {
            let key = key(&topic, &id);
            prop_assert_eq!((Names::topic(&key), Names::id(&key)), (topic, id));
        }

        #[test]
        fn every_job_can_be_named(topic in "[.A-F0-9a-c]{1,20}", id in "[%A-F0-9a-c]{1,40}") {
            let made: JobKey = format!("app1:queue:{topic}:{id}").parse().unwrap();
            prop_assert_eq!(key(&Names::topic(&made), &Names::id(&made)), made);
        }
    }
}
