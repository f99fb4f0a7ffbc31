//! The headers of a job: short texts by name that travel beside its payload.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::key::JobKey;

/// The largest number of headers of a job.
pub const MAX_HEADERS: usize = 64;

/// The largest size of a job's headers in bytes, names and values together.
pub const MAX_HEADERS_BYTES: usize = 8 * 1024;

/// Texts by name that travel with a job beside its payload, such as a trace id or a tenant. The
/// scheduling program sets them, and the handler reads them.
///
/// A job has at most [`MAX_HEADERS`] headers with [`MAX_HEADERS_BYTES`] in all, because they are
/// read and written with each attempt; the call that schedules the job checks that, and that no
/// name is empty. Names are case-sensitive and in order. Serialised, headers are a map of strings.
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

    /// The value of the header with this name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a header, and returns its old value.
    pub fn insert(&mut self, name: impl Into<String>, value: impl Into<String>) -> Option<String> {
        self.0.insert(name.into(), value.into())
    }

    /// Removes a header, and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Names and values, ordered by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The number of headers.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no headers.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Sets a header of our own, such as a trace, unless the headers would exceed a limit with it.
    #[cfg(feature = "traces")]
    pub(crate) fn insert_if_it_fits(&mut self, name: &str, value: String) {
        if self.len() < MAX_HEADERS && self.bytes() + name.len() + value.len() <= MAX_HEADERS_BYTES
        {
            self.insert(name, value);
        }
    }

    /// The size of names and values together, in bytes.
    fn bytes(&self) -> usize {
        self.iter()
            .map(|(name, value)| name.len() + value.len())
            .sum()
    }

    /// Checks number, size and names of the headers for the job `key`.
    ///
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
                "its headers have {bytes} bytes, and the limit is {MAX_HEADERS_BYTES}: put large \
                 values into the payload"
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
    fn headers_are_written_as_a_map_in_order() {
        let headers = Headers::from_iter([("z", "1"), ("a", "2"), ("z", "3")]);
        let text = serde_json::to_string(&headers).unwrap();
        assert_eq!(text, r#"{"a":"2","z":"3"}"#);
        assert_eq!(serde_json::from_str::<Headers>(&text).unwrap(), headers);
        assert_eq!(headers.iter().next(), Some(("a", "2")));
    }
}
