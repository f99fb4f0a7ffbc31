//! [`GroupBy`]: where the group of a job is found, and the names of groups as the scripts write
//! them.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, ErrorKind, Result};
#[cfg(feature = "worker")]
use crate::headers::Headers;

/// The highest number of a part of an id.
const MOST_PARTS: u8 = 16;

/// The longest name of a group, in bytes, as the scripts write it. They cut longer ones.
const LONGEST_NAME: usize = 64;

/// Where the group of a job is found, such as a tenant, a host or a phone number; for
/// [`Limit::per`](crate::Limit::per).
///
/// As text it is `header:tenant`, or `id/1` for the part of the id before the first slash, `id/2`
/// for the one behind it; another mark stands in place of the slash: `id.1`, `id-2`. A job without
/// that header or part is in a group of its own kind, that of all jobs without one.
///
/// ```
/// use keyfall::GroupBy;
///
/// assert_eq!("header:tenant".parse::<GroupBy>()?, GroupBy::header("tenant"));
/// assert_eq!(GroupBy::id_part(1).to_string(), "id/1");
/// # Ok::<(), keyfall::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupBy(Source);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Source {
    Header(String),
    IdPart { mark: char, nth: u8 },
}

impl GroupBy {
    /// The value of a [header](crate::Headers) that the program gives which schedules the job.
    pub fn header(name: impl Into<String>) -> Self {
        GroupBy(Source::Header(name.into()))
    }

    /// A part of the id between slashes, 1 to 16: for `acme/invoice/7`, 1 is `acme`.
    pub fn id_part(nth: u8) -> Self {
        GroupBy(Source::IdPart { mark: '/', nth })
    }

    /// The name of the header, if it is one.
    pub fn header_name(&self) -> Option<&str> {
        match &self.0 {
            Source::Header(name) => Some(name),
            Source::IdPart { .. } => None,
        }
    }

    /// The group of a job with this id and these headers; empty for one without a group.
    #[cfg(feature = "worker")]
    pub(crate) fn of_job<'a>(&self, id: &'a str, headers: &'a Headers) -> &'a str {
        match &self.0 {
            Source::Header(name) => headers.get(name).unwrap_or_default(),
            Source::IdPart { mark, nth } => {
                let mut parts = id.split(*mark);
                parts.nth(usize::from(*nth) - 1).unwrap_or_default()
            }
        }
    }

    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if a name or number is out of range.
    pub(super) fn check(&self) -> Result<()> {
        match &self.0 {
            Source::Header(name) if name.is_empty() => Err(invalid("", "the header has no name")),
            Source::Header(name) if written(name).len() > LONGEST_NAME => Err(invalid(
                &self.to_string(),
                "the name of the header is longer than 64 bytes",
            )),
            Source::IdPart { mark, .. } if !is_mark(*mark) => Err(invalid(
                &self.to_string(),
                "parts of an id are separated by one mark, such as a slash or a dot",
            )),
            Source::IdPart { nth, .. } if !(1..=MOST_PARTS).contains(nth) => Err(invalid(
                &self.to_string(),
                "a part of the id has a number from 1 to 16",
            )),
            _ => Ok(()),
        }
    }

    /// The text by which the scripts know it.
    pub(super) fn to_script(&self) -> String {
        match &self.0 {
            Source::Header(name) => format!("header={}", written(name)),
            Source::IdPart { mark, nth } => format!("id{mark}{nth}"),
        }
    }

    /// Reads that text.
    pub(super) fn of_script(text: &str) -> Option<Self> {
        match text.strip_prefix("header=") {
            Some(name) => Some(GroupBy::header(read(name)?)),
            None => text.parse().ok(),
        }
    }
}

impl fmt::Display for GroupBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Header(name) => write!(f, "header:{name}"),
            Source::IdPart { mark, nth } => write!(f, "id{mark}{nth}"),
        }
    }
}

impl FromStr for GroupBy {
    type Err = Error;

    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the text names no header and no part of an id.
    fn from_str(text: &str) -> Result<Self> {
        let text = text.trim();
        if let Some(name) = text.strip_prefix("header:") {
            let by = GroupBy::header(name);
            return by.check().map(|()| by);
        }
        let fault = || invalid(text, "it names no header and no part of an id");
        let mut rest = text.strip_prefix("id").ok_or_else(fault)?.chars();
        let mark = rest.next().ok_or_else(fault)?;
        let nth = rest.as_str().parse().map_err(|_| fault())?;
        let by = GroupBy(Source::IdPart { mark, nth });
        by.check().map(|()| by)
    }
}

/// A mark between two parts of an id: a colon would be part of no id, and the scripts write `%` and
/// `=` themselves.
fn is_mark(mark: char) -> bool {
    mark.is_ascii_punctuation() && !matches!(mark, ':' | '%' | '=')
}

fn invalid(text: &str, fault: &str) -> Error {
    Error::new(
        ErrorKind::InvalidSetting,
        format!(
            "`per`, {text:?}: {fault}; write header:NAME, or id/1 for the part of the id before its \
             first slash"
        ),
    )
}

/// A name as the scripts write it: each byte that is no letter or digit and none of `_.~-` as `%`
/// and two hexadecimal digits.
fn written(name: &str) -> String {
    let mut text = String::new();
    for byte in name.bytes() {
        match byte {
            b'_' | b'.' | b'~' | b'-' => text.push(byte.into()),
            byte if byte.is_ascii_alphanumeric() => text.push(byte.into()),
            byte => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}

/// The same for a group of a weight: the one of jobs without a group has no name.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if it is too long.
pub(super) fn written_group(name: &str) -> Result<String> {
    let text = match name {
        "" => "%".to_owned(),
        name => written(name),
    };
    match text.len() <= LONGEST_NAME {
        true => Ok(text),
        false => Err(Error::new(
            ErrorKind::InvalidSetting,
            format!("`weights`: the group {name:?} is longer than 64 bytes, and gets no weight"),
        )),
    }
}

/// Reads what [`written_group`] writes.
pub(super) fn read_group(text: &str) -> Option<String> {
    match text {
        "%" => Some(String::new()),
        text => read(text),
    }
}

/// Reads what [`written`] writes.
fn read(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((plain, behind)) = rest.split_once('%') {
        bytes.extend(plain.bytes());
        bytes.push(u8::from_str_radix(behind.get(..2)?, 16).ok()?);
        rest = &behind[2..];
    }
    bytes.extend(rest.bytes());
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_no_header_and_no_part_is_refused_with_the_remedy() {
        for text in [
            "", "tenant", "header:", "id", "id/", "id/x", "id/0", "id/17", "id11", "id:1", "id%1",
            "id 1",
        ] {
            let error = text.parse::<GroupBy>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSetting);
            assert!(error.to_string().contains("header:NAME"), "{error}");
        }
        for text in ["id/1", "id.16", "header:tenant", "header:X of y"] {
            let by: GroupBy = text.parse().unwrap();
            assert_eq!(by.to_string(), text);
            assert_eq!(GroupBy::of_script(&by.to_script()), Some(by));
        }
    }

    #[cfg(feature = "worker")]
    #[test]
    fn a_job_without_the_part_is_in_the_group_without_a_name() {
        let headers = Headers::from_iter([("tenant", "acme")]);
        let of = |by: &str, id| {
            by.parse::<GroupBy>()
                .unwrap()
                .of_job(id, &headers)
                .to_owned()
        };
        assert_eq!(of("header:tenant", "1"), "acme");
        assert_eq!(of("header:host", "1"), "");
        assert_eq!(of("id/1", "acme/7"), "acme");
        assert_eq!(of("id/2", "acme/7"), "7");
        assert_eq!(of("id/3", "acme/7"), "");
        assert_eq!(of("id.1", "acme/7"), "acme/7");
    }

    proptest! {
        #[test]
        fn names_are_read_as_they_are_written(name in ".{0,20}") {
            let text = written(&name);
            prop_assert!(!text.contains([' ', '=', '@', '\n', '\0']));
            prop_assert_eq!(read(&text), Some(name.clone()));
            if let Ok(group) = written_group(&name) {
                prop_assert_eq!(read_group(&group), Some(name));
            }
        }

        #[test]
        fn a_damaged_name_does_no_harm(text in "[%0-9A-Fa-fé]{0,12}") {
            let _ = read(&text);
        }
    }
}
