//! [`ArchiveTerms`]: which records of ended jobs wait for an archive, and how long it keeps them.

use super::{KindTerms, checked};
use crate::error::Result;

/// The longest time for which an archive keeps a record, in months: 100 years.
const MAX_MONTHS: u16 = 1200;

/// The least and the most bytes of records that may wait for the archive.
const WAITING: (u64, u64) = (64 * 1024, 1 << 40);

/// The longest payload that a record carries, in bytes.
const MAX_PAYLOAD: u64 = 1024 * 1024;

/// Which records of ended jobs a kind leaves for an archive, such as the one in PostgreSQL. See
/// [`Selection::archive`](crate::Selection::archive).
///
/// ```
/// use keyfall::ArchiveTerms;
///
/// // Payloads up to 4 KiB; two years, dead letters for ever.
/// let terms = ArchiveTerms::new().payload(4096).keep_months(24).keep_dead_months(0);
/// # let _ = terms;
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ArchiveTerms {
    payload: u64,
    waiting: u64,
    keep: u16,
    keep_dead: u16,
}

impl Default for ArchiveTerms {
    fn default() -> Self {
        ArchiveTerms::new()
    }
}

impl ArchiveTerms {
    /// Records without payloads, kept for ever; up to 64 MiB of them wait for the archive.
    pub const fn new() -> Self {
        ArchiveTerms {
            payload: 0,
            waiting: 64 * 1024 * 1024,
            keep: 0,
            keep_dead: 0,
        }
    }

    /// The longest payload that a record carries, in bytes, up to 1 MiB. A longer one is left out,
    /// and its length is kept. Defaults to 0: no payloads.
    pub const fn payload(mut self, bytes: u64) -> Self {
        self.payload = bytes;
        self
    }

    /// How many bytes of records may wait in each ledger of the kind while the archive is away, from
    /// 64 KiB to 1 TiB. Beyond that the oldest are dropped and counted. Records of dead letters do
    /// not count, and are never dropped. Defaults to 64 MiB.
    pub const fn waiting(mut self, bytes: u64) -> Self {
        self.waiting = bytes;
        self
    }

    /// For how many months the archive keeps a record, up to 1,200; 0 for ever, the default. A month
    /// counts from the end of the calendar month, in UTC, in which the job ended.
    pub const fn keep_months(mut self, months: u16) -> Self {
        self.keep = months;
        self
    }

    /// The same for records of jobs that became dead letters. Defaults to 0, for ever.
    pub const fn keep_dead_months(mut self, months: u16) -> Self {
        self.keep_dead = months;
        self
    }

    /// The longest payload that a record carries, in bytes.
    pub fn get_payload(&self) -> u64 {
        self.payload
    }

    /// How many bytes of records may wait in each ledger.
    pub fn get_waiting(&self) -> u64 {
        self.waiting
    }

    /// For how many months a record is kept; 0 for ever.
    pub fn get_keep_months(&self) -> u16 {
        self.keep
    }

    /// For how many months the record of a dead letter is kept; 0 for ever.
    pub fn get_keep_dead_months(&self) -> u16 {
        self.keep_dead
    }

    /// The same terms, if they can be kept. Setting them checks them as well; a program that asks
    /// somebody for them can tell before it connects.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`](crate::ErrorKind::InvalidSetting), naming the setting, the rule and the remedy.
    pub fn check(self) -> Result<Self> {
        let (least, most) = WAITING;
        let months = [
            ("keep_months", self.keep),
            ("keep_dead_months", self.keep_dead),
        ];
        let fault = if self.payload > MAX_PAYLOAD {
            format!(
                "`payload` is {} bytes: write up to {MAX_PAYLOAD}",
                self.payload
            )
        } else if !(least..=most).contains(&self.waiting) {
            format!(
                "`waiting` is {} bytes, and bounds what Redis holds while the archive is away: write \
                 {least} to {most}",
                self.waiting
            )
        } else if self.waiting < 8 * self.payload {
            format!(
                "`waiting` is {} bytes, and a record with its `payload` can take {} of them: write at \
                 least eight times as much",
                self.waiting, self.payload
            )
        } else if let Some((name, months)) = months.iter().find(|it| it.1 > MAX_MONTHS) {
            format!("`{name}` is {months}: write up to {MAX_MONTHS}, or 0 for ever")
        } else {
            return Ok(self);
        };
        checked(self, Some(fault))
    }
}

impl KindTerms for ArchiveTerms {
    const FIELD: &'static str = "archive";
    const DONE: &'static str = "archived";

    fn check(self) -> Result<Self> {
        ArchiveTerms::check(self)
    }

    fn rule_text(&self) -> String {
        let ArchiveTerms {
            payload,
            waiting,
            keep,
            keep_dead,
        } = self;
        format!("{payload} {waiting} {keep} {keep_dead}")
    }

    fn of_rule(text: &str) -> Option<(Self, &str)> {
        let mut words = text.splitn(5, ' ');
        let terms = ArchiveTerms {
            payload: words.next()?.parse().ok()?,
            waiting: words.next()?.parse().ok()?,
            keep: words.next()?.parse().ok()?,
            keep_dead: words.next()?.parse().ok()?,
        };
        Some((terms, words.next()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        let terms = ArchiveTerms::new()
            .payload(7)
            .waiting(1 << 20)
            .keep_months(24)
            .keep_dead_months(1200);
        let text = format!("{} 99 anna of the night shift", terms.rule_text());
        let read = ArchiveTerms::of_rule(&text);
        assert_eq!(read, Some((terms, "99 anna of the night shift")));
        for damaged in ["", "1 2 3 4", "1 2 3 x 99 anna", "-1 2 3 4 99 anna"] {
            assert_eq!(ArchiveTerms::of_rule(damaged), None, "{damaged}");
        }
    }

    #[test]
    fn terms_out_of_range_are_refused_by_name() {
        let new = ArchiveTerms::new;
        for (terms, named) in [
            (new().payload(MAX_PAYLOAD + 1), "`payload`"),
            (new().waiting(WAITING.0 - 1), "`waiting`"),
            (new().waiting(WAITING.1 + 1), "`waiting`"),
            (new().waiting(1 << 20).payload(1 << 18), "eight times"),
            (new().keep_months(1201), "`keep_months` is 1201"),
            (new().keep_dead_months(1201), "`keep_dead_months` is 1201"),
        ] {
            let error = terms.check().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        }
        assert!(new().waiting(WAITING.0).keep_months(1200).check().is_ok());
    }
}
