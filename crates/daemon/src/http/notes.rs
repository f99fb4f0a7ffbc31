//! The details of actions. The log keeps them as text; this table has the forms that the API and the
//! command write, and reads them back.

use super::said::SaidOut;

/// A form: the code of its sentence, and the sentence, with `{}` for each value.
type Form = (&'static str, &'static str);

pub(super) const IN_A_BATCH: &str = "in a batch";

pub(super) const FROM_THE_ARCHIVE: &str = "from the archive";

/// The details of all actions but limits. An earlier form beats a later one.
const NOTES: [Form; 14] = [
    ("note.batch", IN_A_BATCH),
    ("note.archived", "from the archive: the run that ended {}"),
    ("note.archive", FROM_THE_ARCHIVE),
    ("note.requeued", "letter {}, due {}"),
    ("note.letter", "letter {}"),
    ("note.due", "due {}"),
    ("note.after", "after {}"),
    ("note.at", "at {}"),
    ("note.by", "by {}"),
    ("note.entries", "{} entries"),
    ("note.reason", "reason: {}"),
    ("note.broken-off", "broken off: {}"),
    (
        "note.flags",
        "{}: merged {} into \"{}\", which gives \"{}\"; until Redis restarts: put `{}` into \
         redis.conf, or call CONFIG REWRITE",
    ),
    (
        "note.buffer",
        "{}: raised to {}; until Redis restarts: put `{}` into redis.conf, or call CONFIG REWRITE",
    ),
];

/// The parts of a limit in words, as [`keyfall::Limit`] writes them.
const LIMITS: [Form; 7] = [
    ("limit.weights", "{}; weights {}"),
    ("limit.total", "{}; {} in total"),
    ("limit.turns", "turns for each {}"),
    ("limit.each", "{} for each {}"),
    ("list.comma", "{}, {}"),
    ("limit.burst", "{} at once"),
    ("limit.running", "{} at the same time"),
];

/// The details of an action as a sentence; `None` if they are the same in every language.
pub(super) fn said(action: &str, note: &str) -> Option<SaidOut> {
    let said = match action {
        "limit" => limit(note),
        "rule" | "close-breaker" => return None,
        _ => {
            let (code, values) = form(&NOTES, note)?;
            let values = values.into_iter().map(|it| SaidOut::Text(it.to_owned()));
            SaidOut::Said {
                code: code.to_owned(),
                values: values.collect(),
            }
        }
    };
    matches!(said, SaidOut::Said { .. }).then_some(said)
}

/// A limit, whose parts have parts.
fn limit(words: &str) -> SaidOut {
    match form(&LIMITS, words) {
        None => SaidOut::Text(words.to_owned()),
        Some((code, values)) => SaidOut::Said {
            code: code.to_owned(),
            values: values.into_iter().map(limit).collect(),
        },
    }
}

/// The first form that the text has, with its values.
fn form<'a>(forms: &[Form], text: &'a str) -> Option<(&'static str, Vec<&'a str>)> {
    forms
        .iter()
        .find_map(|(code, sentence)| Some((*code, values(sentence, text)?)))
}

/// The values of a text that has this form. None of them is empty.
fn values<'a>(sentence: &str, text: &'a str) -> Option<Vec<&'a str>> {
    let mut parts = sentence.split("{}");
    let mut rest = text.strip_prefix(parts.next()?)?;
    let mut values = Vec::new();
    let mut parts = parts.peekable();
    while let Some(part) = parts.next() {
        let value = match (part, parts.peek()) {
            ("", None) => std::mem::take(&mut rest),
            (end, None) => {
                let value = rest.strip_suffix(end)?;
                rest = "";
                value
            }
            (between, Some(_)) => {
                let (value, behind) = rest.split_once(between)?;
                rest = behind;
                value
            }
        };
        if value.is_empty() && !sentence.contains("\"{}\"") {
            return None;
        }
        values.push(value);
    }
    rest.is_empty().then_some(values)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use keyfall::{Limit, Phrase};

    use super::*;

    #[test]
    fn details_are_read_as_they_are_written() {
        let text = |text: &str| SaidOut::Text(text.to_owned());
        let of = |code: &str, values: &[&str]| {
            Some(SaidOut::Said {
                code: code.to_owned(),
                values: values.iter().map(|it| text(it)).collect(),
            })
        };
        for (note, expected) in [
            ("in a batch", of("note.batch", &[])),
            (
                "letter 7, due 2026-12-24T18:00:00Z",
                of("note.requeued", &["7", "2026-12-24T18:00:00Z"]),
            ),
            ("letter 7", of("note.letter", &["7"])),
            ("5000 entries", of("note.entries", &["5000"])),
            (
                "reason: letter {}, at",
                of("note.reason", &["letter {}, at"]),
            ),
            ("something else", None),
            ("", None),
        ] {
            assert_eq!(said("requeue", note), expected, "{note}");
        }
        let flags = "notify-flags: merged Ex into \"\", which gives \"xE\"; until Redis restarts: put \
                     `notify-keyspace-events xE` into redis.conf, or call CONFIG REWRITE";
        let setting = "notify-keyspace-events xE";
        let expected = of("note.flags", &["notify-flags", "Ex", "", "xE", setting]);
        assert_eq!(said("fix", flags), expected);
        assert_eq!(said("close-breaker", "at home"), None);
    }

    /// The parts of a list, whichever of them were put together first.
    fn parts(said: &SaidOut) -> Vec<&SaidOut> {
        match said {
            SaidOut::Said { code, values } if code == "list.comma" => {
                values.iter().flat_map(parts).collect()
            }
            one => vec![one],
        }
    }

    #[test]
    fn limits_are_read_as_the_library_says_them() {
        let second = Duration::from_secs(1);
        for limit in [
            Limit::new().rate(10, second),
            Limit::new().rate(3, second).burst(7).concurrency(9),
            Limit::new().concurrency(5),
        ] {
            let phrase: Phrase = limit.phrase();
            let read = said("limit", &phrase).unwrap_or_else(|| (&phrase).into());
            assert_eq!(parts(&read), parts(&(&phrase).into()), "{phrase}");
        }
    }
}
