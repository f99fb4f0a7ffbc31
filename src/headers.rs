//! What travels with a job beside its payload.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;

/// How many headers a job may have.
pub const MAX_HEADERS: usize = 64;

/// How many bytes the headers of a job may have, names and values together.
pub const MAX_HEADERS_BYTES: usize = 8 * 1024;

/// Texts by name that travel with a job beside its payload, such as a trace id or a tenant.
/// Whoever schedules the job sets them, and its handler reads them. Up to [`MAX_HEADERS`], with
/// [`MAX_HEADERS_BYTES`] in all: they are read and written with each attempt.
///
/// Names are case-sensitive and in order. Written, headers are a map of strings.
///
/// ```
/// use keyfall::Headers;
///
/// let mut headers = Headers::new();
/// headers.insert("tenant", "acme");
/// assert_eq!(headers.get("tenant"), Some("acme"));
/// assert_eq!(headers, Headers::from_iter([("tenant", "acme")]));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Headers(BTreeMap<String, String>);

impl Headers {
    /// No headers.
    pub const fn new() -> Self {
        Headers(BTreeMap::new())
    }

    /// The value under this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a header and returns the value it had.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Option<String> {
        self.0.insert(name.into(), value.into())
    }

    /// Takes a header away and returns the value it had.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a header that nobody asked for, if all of them are within the limits then.
    #[cfg(feature = "traces")]
    pub(crate) fn insert_if_it_fits(&mut self, name: &str, value: String) {
        if self.len() < MAX_HEADERS && self.bytes() + name.len() + value.len() <= MAX_HEADERS_BYTES
        {
            self.insert(name, value);
        }
    }

    /// Names and values together.
    fn bytes(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// # Errors
    /// [`ErrorKind::InvalidHeaders`], naming the job, the rule and the remedy.
    pub(crate) fn check(&self, key: &JobKey) -> Result<()> {
        let bytes = self.bytes();
        let fault = if self.0.contains_key("") {
            "one of its headers has no name: give it one".to_owned()
        } else if self.len() > MAX_HEADERS {
            format!(
                "it has {} headers, and the limit is {MAX_HEADERS}: put the rest into the payload",
                self.len()
            )
        } else if bytes > MAX_HEADERS_BYTES {
            format!(
                "its headers have {bytes} bytes, and the limit is {MAX_HEADERS_BYTES}: put what \
                 is large into the payload"
            )
        } else {
            return Ok(());
        };
        Err(Error::new(
            ErrorKind::InvalidHeaders,
            format!("{key}: {fault}"),
        ))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Headers {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(headers: I) -> Self {
        headers
            .into_iter()
            .map(|(name, value)| (name.into(), value.into()))
            .collect::<BTreeMap<_, _>>()
            .into()
    }
}

impl From<BTreeMap<String, String>> for Headers {
    fn from(headers: BTreeMap<String, String>) -> Self {
        Headers(headers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_as_a_map_in_order() {
        let headers = Headers::from_iter([("z", "1"), ("a", "2"), ("z", "3")]);
        let text = serde_json::to_string(&headers).unwrap();
        assert_eq!(text, r#"{"a":"2","z":"3"}"#);
        assert_eq!(serde_json::from_str::<Headers>(&text).unwrap(), headers);
        assert_eq!(headers.iter().next(), Some(("a", "2")));
    }
}
