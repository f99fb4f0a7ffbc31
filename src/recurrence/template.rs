//! Payloads that name the time of their occurrence, as `{{scheduled_for %Y-%m-%d}}`.

#[cfg(feature = "worker")]
use bytes::Bytes;
use jiff::Zoned;
use jiff::fmt::strtime;

#[cfg(feature = "worker")]
use super::occurrence::instant;
use super::{Recurring, Rule, invalid};
use crate::error::Result;

/// The beginning and the end of a placeholder.
const OPEN: &[u8] = b"{{";
const CLOSE: &[u8] = b"}}";

/// The most characters of a placeholder, so that braces of another sense are soon left alone.
const LONGEST: usize = 64;

/// What stands between the braces.
enum Placeholder<'a> {
    /// The number of the occurrence.
    Number,
    /// The time that the rule names, in the zone of the rule; a format of `strftime`, or RFC 3339.
    ScheduledFor(Option<&'a str>),
}

impl<'a> Placeholder<'a> {
    fn read(text: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?.trim();
        let (name, format) = match text.split_once(' ') {
            Some((name, format)) => (name, Some(format.trim())),
            None => (text, None),
        };
        // Quotes and backslashes would end a text in JSON.
        let is_plain = |it: char| it.is_ascii_alphanumeric() || " %-_:./,".contains(it);
        match (name, format) {
            ("number", None) => Some(Placeholder::Number),
            ("scheduled_for", None) => Some(Placeholder::ScheduledFor(None)),
            ("scheduled_for", Some(format)) if format.chars().all(is_plain) => {
                let example = Zoned::try_from(std::time::SystemTime::UNIX_EPOCH).ok()?;
                strtime::format(format, &example).ok()?;
                Some(Placeholder::ScheduledFor(Some(format)))
            }
            _ => None,
        }
    }

    fn fill(&self, number: u64, time: &Zoned) -> String {
        match self {
            Placeholder::Number => number.to_string(),
            Placeholder::ScheduledFor(format) => {
                let format = format.unwrap_or("%Y-%m-%dT%H:%M:%S%:z");
                strtime::format(format, time).unwrap_or_default()
            }
        }
    }
}

/// A part of a template: bytes that stay, or the text between braces.
enum Part<'a> {
    Bytes(&'a [u8]),
    Braces(&'a [u8]),
}

/// The parts of a template in order.
fn parts(mut rest: &[u8]) -> Vec<Part<'_>> {
    let find = |bytes: &[u8], what: &[u8]| bytes.windows(what.len()).position(|it| it == what);
    let mut parts = Vec::new();
    while let Some(begin) = find(rest, OPEN) {
        let inner = &rest[begin + OPEN.len()..];
        let within = &inner[..inner.len().min(LONGEST + CLOSE.len())];
        let Some(end) = find(within, CLOSE) else {
            parts.push(Part::Bytes(&rest[..begin + OPEN.len()]));
            rest = inner;
            continue;
        };
        parts.push(Part::Bytes(&rest[..begin]));
        parts.push(Part::Braces(&inner[..end]));
        rest = &inner[end + CLOSE.len()..];
    }
    parts.push(Part::Bytes(rest));
    parts
}

impl Rule {
    /// Checks the payload of a job with this rule.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`](crate::ErrorKind::InvalidRule) if the payload is a template with
    /// an unknown placeholder.
    pub(crate) fn check_template(&self, payload: &[u8]) -> Result<()> {
        if !self.template {
            return Ok(());
        }
        for part in parts(payload) {
            if let Part::Braces(text) = part
                && Placeholder::read(text).is_none()
            {
                return Err(invalid(format!(
                    "the payload is a template, and `{{{{{}}}}}` is no placeholder: write \
                     `{{{{number}}}}`, `{{{{scheduled_for}}}}` or `{{{{scheduled_for %Y-%m-%d}}}}`, \
                     or leave out `template`",
                    String::from_utf8_lossy(text)
                )));
            }
        }
        Ok(())
    }
}

impl Recurring {
    /// The payload of this occurrence: as it is stored or, if it is a template, filled in. Unknown
    /// placeholders stay.
    #[cfg(feature = "worker")]
    pub(crate) fn payload(&self, stored: &Bytes) -> Bytes {
        let is_template = self.rule["template"].as_bool().unwrap_or(false);
        let rule = is_template
            .then(|| Rule::from_table(&self.rule).ok())
            .flatten();
        let Some((rule, time)) = rule.zip(instant(self.at())) else {
            return stored.clone();
        };
        let time = time.to_zoned(rule.zone.zone.clone());
        let mut filled = Vec::with_capacity(stored.len());
        for part in parts(stored) {
            match part {
                Part::Bytes(bytes) => filled.extend_from_slice(bytes),
                Part::Braces(text) => match Placeholder::read(text) {
                    Some(it) => filled.extend_from_slice(it.fill(self.n, &time).as_bytes()),
                    None => filled.extend_from_slice(&[OPEN, text, CLOSE].concat()),
                },
            }
        }
        filled.into()
    }
}
