//! The reason of a failure, as text of bounded length.
//!
//! Failures are kept with jobs in Redis, so [`Failure`] limits their size however long an error's
//! text is.

use std::error::Error as StdError;
use std::fmt::{self, Write};

/// The longest text of a [`Failure`], in bytes.
pub const MAX_FAILURE_BYTES: usize = 4096;

/// The number of causes that are read: no real chain of causes is longer, and a source that returns
/// itself has no end.
const MAX_CAUSES: usize = 64;

/// The mark at the end of a text that was cut.
const CUT: char = '…';

/// The reason of a failure: the text of an error and of its causes, at most [`MAX_FAILURE_BYTES`]
/// long.
///
/// Causes are joined by `: `; a cause whose text its parent already contains is left out. A text
/// that is too long ends in `…`.
///
/// ```
/// use keyfall::Failure;
///
/// let error = std::fs::read("/no/such/file").unwrap_err();
/// assert!(Failure::new(error).as_str().starts_with("No such file"));
/// assert_eq!(Failure::new("the bank is closed").as_str(), "the bank is closed");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Failure(String);

impl Failure {
    /// Reads an error of any type with its causes, or takes a text.
    pub fn new(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        let error = error.into();
        let top: &(dyn StdError + 'static) = &*error;
        let mut whole = Bounded::default();
        // The parent is the text of the error before, even if that text was left out.
        let mut parent = Bounded::default();
        for cause in std::iter::successors(Some(top), |error| (**error).source()).take(MAX_CAUSES) {
            let own = Bounded::of(cause);
            if !parent.text.contains(&own.text) {
                if !whole.text.is_empty() {
                    whole.push(": ");
                }
                whole.push(&own.text);
                whole.cut |= own.cut;
            }
            if whole.cut {
                break;
            }
            parent = own;
        }
        Failure(whole.finish())
    }

    /// Formats the text up to the limit, without copying the rest.
    pub(crate) fn written(text: fmt::Arguments<'_>) -> Self {
        let mut whole = Bounded::default();
        // Fails when the text is full, which `finish` marks.
        let _ = whole.write_fmt(text);
        Failure(whole.finish())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text of at most [`MAX_FAILURE_BYTES`]. It takes the beginning of a longer text and then fails,
/// which ends the formatting: of an error of ten megabytes it copies four kilobytes.
#[derive(Default)]
struct Bounded {
    text: String,
    cut: bool,
}

impl Bounded {
    /// The text of this error alone, without its causes.
    fn of(error: &dyn StdError) -> Self {
        let mut bounded = Bounded::default();
        // Fails when the text is full, which `cut` records.
        let _ = write!(bounded, "{error}");
        bounded
    }

    /// Appends the text as far as it fits.
    fn push(&mut self, text: &str) {
        let room = MAX_FAILURE_BYTES - self.text.len();
        if text.len() > room {
            self.cut = true;
        }
        self.text.push_str(&text[..boundary(text, room)]);
    }

    /// The text, with the mark if it was cut.
    fn finish(mut self) -> String {
        if self.cut {
            let room = MAX_FAILURE_BYTES - CUT.len_utf8();
            self.text.truncate(boundary(&self.text, room));
            self.text.push(CUT);
        }
        self.text
    }
}

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text);
        if self.cut { Err(fmt::Error) } else { Ok(()) }
    }
}

/// The last place within the first `room` bytes at which the text can be cut between characters.
fn boundary(text: &str, room: usize) -> usize {
    (0..=room.min(text.len()))
        .rev()
        .find(|&at| text.is_char_boundary(at))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that says `text`, because of `cause`.
    #[derive(Debug)]
    struct Fault(String, Option<Box<Fault>>);

    impl fmt::Display for Fault {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(&self.0)
        }
    }

    impl StdError for Fault {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            self.1.as_deref().map(|cause| cause as _)
        }
    }

    fn chain(texts: &[&str]) -> Failure {
        let fault = texts.iter().rev().fold(None, |cause, text| {
            Some(Box::new(Fault((*text).into(), cause)))
        });
        Failure::new(fault.unwrap())
    }

    #[test]
    fn causes_are_joined_and_not_repeated() {
        assert_eq!(chain(&["a", "b", "c"]).as_str(), "a: b: c");
        assert_eq!(
            chain(&["sending: refused", "refused", "port 80", ""]).as_str(),
            "sending: refused: port 80"
        );
        assert_eq!(
            Failure::new(anyhow::anyhow!("cause").context("top")).as_str(),
            "top: cause"
        );
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        for text in ["x".repeat(10 << 20), "é".repeat(5000), "😀".repeat(2000)] {
            let failure = Failure::new(text);
            let length = failure.as_str().len();
            assert!((MAX_FAILURE_BYTES - 6..=MAX_FAILURE_BYTES).contains(&length));
            assert!(failure.as_str().ends_with(CUT));
        }
        let fits = "x".repeat(MAX_FAILURE_BYTES);
        assert_eq!(Failure::new(fits.clone()).as_str(), fits);
        assert!(chain(&["a", &fits, "b"]).as_str().ends_with("x…"));
        assert!(
            Failure::written(format_args!("{fits}{fits}"))
                .as_str()
                .ends_with("x…")
        );
    }

    #[test]
    fn an_endless_chain_of_sources_is_cut() {
        #[derive(Debug)]
        struct Circle;

        impl fmt::Display for Circle {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("circle")
            }
        }

        impl StdError for Circle {
            fn source(&self) -> Option<&(dyn StdError + 'static)> {
                Some(self)
            }
        }

        assert_eq!(Failure::new(Circle).as_str(), "circle");
    }
}
