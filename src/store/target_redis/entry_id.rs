//! Ids of the entries of a stream.

use std::fmt;
use std::str::FromStr;

/// The id of an entry, written as `milliseconds-number`. Later entries have greater ids. The
/// default is `0-0`, which is before all entries.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId {
    /// Milliseconds since 1970, by the clock of the server that made the entry.
    ms: u64,
    /// Counts the entries of one millisecond.
    number: u64,
}

impl FromStr for EntryId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (ms, number) = text.split_once('-').ok_or(())?;
        Ok(EntryId {
            ms: ms.parse().map_err(drop)?,
            number: number.parse().map_err(drop)?,
        })
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_ordered_as_numbers_and_round_trip() {
        let id = |text: &str| text.parse::<EntryId>().unwrap();
        assert!(id("9-10") > id("9-9") && id("10-0") > id("9-9"));
        assert_eq!(id("1763765346000-17").to_string(), "1763765346000-17");
        assert_eq!(EntryId::default(), id("0-0"));
        assert!("1763765346000".parse::<EntryId>().is_err());
    }
}
