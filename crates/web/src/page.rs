//! What every template can use: words, times, numbers, and what the reader may do.

use std::borrow::Cow;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use axum::http::Uri;
use jiff::tz::TimeZone;
use keyfall_daemon::shapes::{PreviewOut, RightsOut, SaidOut, Span, Time};

use crate::assets::Assets;
use crate::rule_words;
use crate::times::{self, Moment};
use crate::visible::{self, visible};
use crate::words::Words;

/// The frame of a page.
#[derive(Clone)]
pub(crate) struct Page {
    pub(crate) words: &'static Words,
    pub(crate) zone: TimeZone,
    pub(crate) now: SystemTime,
    /// The page that is marked in the navigation.
    pub(crate) here: &'static str,
    /// What the reader may do; `None` before the login.
    pub(crate) rights: Option<Arc<RightsOut>>,
    pub(crate) is_read_only: bool,
    /// Whether the daemon has an archive of ended jobs.
    pub(crate) has_archive: bool,
    /// Whether there is something to log out from.
    pub(crate) can_leave: bool,
    /// The path of the request, before anything was taken off it.
    pub(crate) path: Uri,
    pub(crate) assets: &'static Assets,
}

impl Page {
    /// The pages of the navigation that the reader may see: name and link.
    pub(crate) fn pages(&self) -> Vec<(&'static str, &'static str)> {
        let mut pages = vec![
            ("overview", "./"),
            ("jobs", "jobs"),
            ("dead", "dead"),
            ("live", "live"),
        ];
        if self.has_archive {
            pages.push(("archive", "archive"));
        }
        // These are about all jobs.
        if self.may("read", "") {
            pages.push(("workers", "workers"));
        }
        pages.extend([
            ("pauses", "pauses"),
            ("limits", "limits"),
            ("actions", "actions"),
        ]);
        if self.may("read", "") {
            pages.push(("doctor", "doctor"));
        }
        pages
    }

    pub(crate) fn utc() -> TimeZone {
        TimeZone::UTC
    }

    /// The zone that a script has read from the browser.
    pub(crate) fn zone(cookie: &str) -> TimeZone {
        let name = percent_encoding::percent_decode_str(cookie).decode_utf8_lossy();
        TimeZone::get(&name).unwrap_or(TimeZone::UTC)
    }

    pub(crate) fn zone_name(&self) -> &str {
        self.zone.iana_name().unwrap_or("UTC")
    }

    pub(crate) fn t<'a>(&'a self, name: &'a str) -> &'a str {
        self.words.t(name)
    }

    pub(crate) fn t1(&self, name: &str, value: impl Display) -> String {
        self.words.fill(name, &[&value])
    }

    pub(crate) fn t2(&self, name: &str, first: impl Display, second: impl Display) -> String {
        self.words.fill(name, &[&first, &second])
    }

    /// A key as the page shows it: no hidden character makes it look like another.
    pub(crate) fn visible(&self, key: &str) -> String {
        visible(key)
    }

    /// A text of somebody else as the page shows it, with its line breaks: no hidden character makes
    /// it say something else.
    pub(crate) fn text(&self, text: &str) -> String {
        visible::text(text)
    }

    /// A sentence of the API in the language of the reader, as the page shows it. `text` is the
    /// English one.
    pub(crate) fn say(&self, said: &Option<SaidOut>, text: &str) -> String {
        self.text(&self.words.say(said.as_ref(), text))
    }

    /// The rule of a recurring job in words.
    pub(crate) fn rule(&self, preview: &PreviewOut) -> String {
        self.text(&rule_words::said(self.words, preview))
    }

    /// A text of a check of the doctor in the language of the reader; `text` is the English one.
    pub(crate) fn of_check(&self, table: &str, id: &str, text: &str) -> String {
        let known = self.words.find(&format!("said-{table}.{id}"));
        self.text(known.unwrap_or(text))
    }

    /// A sentence about a number: `name.one` or `name.many`.
    pub(crate) fn count(&self, name: &str, number: &u64) -> String {
        let form = if *number == 1 { "one" } else { "many" };
        self.t1(&format!("{name}_{form}"), self.number(number))
    }

    /// The word for a word of the API, such as a state; unknown ones stay as they are.
    pub(crate) fn of(&self, table: &str, word: &str) -> Cow<'_, str> {
        let known = self.words.find(&format!("{table}.{word}"));
        known.map_or_else(|| visible(word).into(), Cow::from)
    }

    /// A number with its thousands set apart.
    pub(crate) fn number(&self, number: &u64) -> String {
        let digits = number.to_string();
        let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                grouped.push(',');
            }
            grouped.push(digit);
        }
        grouped
    }

    pub(crate) fn moment(&self, time: &Time) -> Moment {
        Moment {
            machine: times::machine(time.0),
            absolute: times::absolute(time.0, self.now, &self.zone),
            relative: times::relative(time.0, self.now, self.words),
        }
    }

    /// The time as a machine reads it.
    pub(crate) fn machine(&self, time: &Time) -> String {
        times::machine(time.0)
    }

    /// The time of the day, with the day unless it is today.
    pub(crate) fn clock(&self, time: &Time) -> String {
        times::absolute(time.0, self.now, &self.zone)
    }

    /// The hour and minute.
    pub(crate) fn minute(&self, time: &Time) -> String {
        times::minute(time.0, &self.zone)
    }

    pub(crate) fn span(&self, span: &Span) -> String {
        times::span(span.0, self.words)
    }

    pub(crate) fn millis(&self, millis: &u64) -> String {
        times::span(Duration::from_millis(*millis), self.words)
    }

    /// The prefix that a page begins with: the wanted one, or else the only one that the token of
    /// the reader is for.
    pub(crate) fn reach(&self, wanted: &str) -> String {
        let own = self.rights.as_ref().map_or(&[][..], |it| &it.prefixes);
        match own {
            [only] if wanted.is_empty() => only.clone(),
            _ => wanted.to_owned(),
        }
    }

    /// Whether the reader may make changes of this scope to some jobs.
    pub(crate) fn may_somewhere(&self, scope: &str) -> bool {
        let prefixes = self.rights.as_ref().map_or(&[][..], |it| &it.prefixes);
        prefixes.iter().any(|prefix| self.may(scope, prefix))
    }

    /// Whether the reader may make changes of this scope to all jobs with this prefix.
    pub(crate) fn may(&self, scope: &str, prefix: &str) -> bool {
        let is_reading = scope == "read";
        let Some(rights) = &self.rights else {
            return false;
        };
        (is_reading || !self.is_read_only)
            && rights.scopes.iter().any(|its| its == scope)
            && rights.prefixes.iter().any(|its| prefix.starts_with(its))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn thousands_are_set_apart() {
        let page = crate::tests::page();
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (12_345_678, "12,345,678"),
        ] {
            assert_eq!(page.number(&number), text);
        }
    }
}
