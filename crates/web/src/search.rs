//! Reads the search field: a whole name, a prefix of names, a kind, and conditions such as
//! `state:dead`, `due:<1h`, `attempts:>3` and `error:timeout`.

use std::fmt::Write;

use keyfall_daemon::shapes::{ListIn, Moment, State};

use crate::fault::Fault;

/// The states, in the order in which pages show them.
pub(crate) const STATES: [State; 6] = [
    State::Pending,
    State::Retrying,
    State::Held,
    State::Running,
    State::Lapsed,
    State::Dead,
];

/// The names before the colon of a condition. A name that begins so stands in quotes.
const CONDITIONS: [&str; 6] = ["state", "due", "attempts", "error", "reason", "recurring"];

/// The wanted jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Search {
    /// The beginning of the keys; a kind, an app and a module end with a colon.
    pub(crate) prefix: String,
    pub(crate) state: Option<State>,
    /// Times, or durations from now, as they were written.
    due_before: Option<String>,
    due_after: Option<String>,
    attempts_over: Option<u32>,
    /// A part of the last error.
    pub(crate) error: Option<String>,
    /// The last error with its numbers folded.
    reason: Option<String>,
    recurring: bool,
}

impl Search {
    /// # Errors
    /// If a condition has a value that it does not take.
    pub(crate) fn read(text: &str) -> Result<Self, Fault> {
        let mut search = Search::default();
        let mut has_name = false;
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let condition = CONDITIONS.into_iter().find_map(|name| {
                let behind = rest.strip_prefix(name)?.strip_prefix(':')?;
                Some((name, behind))
            });
            let (word, behind) = word(condition.map_or(rest, |(_, behind)| behind));
            rest = behind.trim_start();
            match condition {
                Some((name, _)) => search.set(name, word)?,
                None if has_name => {
                    return Err(Fault::invalid("q", "fault.two_names", &[]));
                }
                None => {
                    search.prefix = word;
                    has_name = true;
                }
            }
        }
        Ok(search)
    }

    /// The dead letters with this reason, folded.
    pub(crate) fn of_reason(folded: &str) -> Self {
        Search {
            state: Some(State::Dead),
            reason: Some(folded.to_owned()),
            ..Search::default()
        }
    }

    /// The jobs with this name, or whose names begin so.
    pub(crate) fn of_name(name: &str) -> Self {
        Search {
            prefix: name.to_owned(),
            ..Search::default()
        }
    }

    fn set(&mut self, name: &str, value: String) -> Result<(), Fault> {
        match name {
            "state" => self.state = Some(state(&value)?),
            "due" => match (value.strip_prefix('<'), value.strip_prefix('>')) {
                (Some(before), _) => self.due_before = Some(moment(before)?),
                (_, Some(after)) => self.due_after = Some(moment(after)?),
                _ => {
                    return Err(Fault::invalid("q", "fault.due", &[]));
                }
            },
            "attempts" => {
                let limit = value.strip_prefix('>').and_then(|it| it.parse().ok());
                let wrong = || Fault::invalid("q", "fault.attempts", &[]);
                self.attempts_over = Some(limit.ok_or_else(wrong)?);
            }
            "error" => self.error = Some(value),
            "recurring" => {
                if value != "yes" {
                    return Err(Fault::invalid("q", "fault.recurring", &[]));
                }
                self.recurring = true;
            }
            _ => self.reason = Some(value),
        }
        Ok(())
    }

    /// The search as a person would write it.
    pub(crate) fn written(&self) -> String {
        let mut text = String::new();
        if !self.prefix.is_empty() {
            let is_condition = |name: &&str| {
                let behind = self.prefix.strip_prefix(*name);
                behind.is_some_and(|behind| behind.starts_with(':'))
            };
            text = match CONDITIONS.iter().any(is_condition) {
                true => quoted(&self.prefix),
                false => unquoted(&self.prefix),
            };
        }
        let mut add = |name: &str, value: String| {
            let gap = if text.is_empty() { "" } else { " " };
            let _ = write!(text, "{gap}{name}:{value}");
        };
        if let Some(state) = self.state {
            add("state", state.word().to_owned());
        }
        if let Some(time) = &self.due_after {
            add("due", unquoted(&format!(">{time}")));
        }
        if let Some(time) = &self.due_before {
            add("due", unquoted(&format!("<{time}")));
        }
        if let Some(limit) = self.attempts_over {
            add("attempts", format!(">{limit}"));
        }
        if let Some(part) = &self.error {
            add("error", unquoted(part));
        }
        if let Some(folded) = &self.reason {
            add("reason", unquoted(folded));
        }
        if self.recurring {
            add("recurring", "yes".to_owned());
        }
        text
    }

    pub(crate) fn with_state(&self, state: State) -> Self {
        Search {
            state: Some(state),
            ..self.clone()
        }
    }

    /// The call that lists the jobs.
    pub(crate) fn list(&self) -> ListIn {
        let moment = |text: &Option<String>| text.as_ref().and_then(|text| text.parse().ok());
        ListIn {
            prefix: Some(self.prefix.clone()).filter(|prefix| !prefix.is_empty()),
            state: self.state.unwrap_or_default(),
            due_before: moment(&self.due_before),
            due_after: moment(&self.due_after),
            attempts_over: self.attempts_over,
            error: self.error.clone(),
            reason: self.reason.clone(),
            recurring: self.recurring,
            ..ListIn::default()
        }
    }

    /// The key, if the search names a whole one.
    pub(crate) fn key(&self) -> Option<&str> {
        let mut segments = self.prefix.split(':');
        let is_whole = segments.clone().count() == 4 && segments.all(|it| !it.is_empty());
        is_whole.then_some(&*self.prefix)
    }

    /// Whether counts cost the same for any number of jobs: the prefix names kinds.
    pub(crate) fn is_counted(&self) -> bool {
        let colons = self.prefix.matches(':').count();
        colons < 3 || (colons == 3 && self.prefix.ends_with(':'))
    }

    /// Whether there is a condition beside name and state.
    pub(crate) fn has_conditions(&self) -> bool {
        self.due_before.is_some()
            || self.due_after.is_some()
            || self.attempts_over.is_some()
            || self.error.is_some()
            || self.reason.is_some()
            || self.recurring
    }
}

fn state(word: &str) -> Result<State, Fault> {
    let found = STATES.into_iter().find(|state| state.word() == word);
    found.ok_or_else(|| {
        let words = STATES.map(State::word).join(", ");
        Fault::invalid("q", "fault.no_state", &[&format!("{word:?}"), &words])
    })
}

fn moment(text: &str) -> Result<String, Fault> {
    match text.parse::<Moment>() {
        Ok(_) => Ok(text.to_owned()),
        Err(_) => Err(Fault::invalid("q", "fault.moment", &[&format!("{text:?}")])),
    }
}

/// The first word, and the text behind it. In quotes, it can have spaces, and a doubled quote stands
/// for one.
fn word(text: &str) -> (String, &str) {
    let Some(mut rest) = text.strip_prefix('"') else {
        let end = text.find(char::is_whitespace).unwrap_or(text.len());
        let (word, behind) = text.split_at(end);
        return (word.to_owned(), behind);
    };
    let mut word = String::new();
    while let Some((before, behind)) = rest.split_once('"') {
        word.push_str(before);
        match behind.strip_prefix('"') {
            Some(after) => {
                word.push('"');
                rest = after;
            }
            None => return (word, behind),
        }
    }
    // The last quote is missing.
    word.push_str(rest);
    (word, "")
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// The text, in quotes if it needs them.
fn unquoted(text: &str) -> String {
    let is_plain = !text.contains(char::is_whitespace) && !text.starts_with('"');
    if is_plain && !text.is_empty() {
        text.to_owned()
    } else {
        quoted(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_is_read_as_it_is_written() {
        for (text, prefix, state) in [
            ("", "", None),
            (" app1:trans: ", "app1:trans:", None),
            ("app1:trans: state:dead", "app1:trans:", Some(State::Dead)),
            ("state:running", "", Some(State::Running)),
            ("\"a:b:c:x y\"\"z\"", "a:b:c:x y\"z", None),
            ("\"state:dead\"", "state:dead", None),
            ("due:<1h a: attempts:>3", "a:", None),
            ("error:\"connection refused\" due:>5m due:<2h", "", None),
            (
                "reason:\"order # \"\"x\"\"\" state:dead",
                "",
                Some(State::Dead),
            ),
            ("error:\"unclosed x", "", None),
        ] {
            let search = Search::read(text).unwrap();
            assert_eq!(search.prefix, prefix, "{text}");
            assert_eq!(search.state, state, "{text}");
            assert_eq!(Search::read(&search.written()).unwrap(), search, "{text}");
        }
        for wrong in [
            "state:gone",
            "a: b:",
            "due:1h",
            "due:<soon",
            "attempts:3",
            "attempts:>x",
        ] {
            assert!(Search::read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn conditions_reach_the_list() {
        let list = Search::read("a: due:<1h attempts:>3 error:\"x y\"")
            .unwrap()
            .list();
        assert_eq!(list.prefix.as_deref(), Some("a:"));
        assert!(matches!(list.due_before, Some(Moment::FromNow(_))));
        assert_eq!(list.attempts_over, Some(3));
        assert_eq!(list.error.as_deref(), Some("x y"));
    }

    #[test]
    fn a_whole_name_has_four_segments() {
        let key = |text: &str| Search::read(text).unwrap().key().map(ToOwned::to_owned);
        assert_eq!(key("a:b:c:d").as_deref(), Some("a:b:c:d"));
        assert_eq!(key("a:b:c:d:e"), None);
        assert_eq!(key("a:b:c:"), None);
        assert_eq!(key("a:b:c"), None);
        assert_eq!(key("a::c:d"), None);
    }

    #[test]
    fn counts_of_kinds_are_cheap() {
        let counted = |text: &str| Search::read(text).unwrap().is_counted();
        assert!(counted("") && counted("a:") && counted("a:b:c:") && counted("a:b:c"));
        assert!(!counted("a:b:c:4") && !counted("a:b:c:4:"));
    }
}
