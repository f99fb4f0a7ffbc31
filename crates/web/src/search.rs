//! Reads the search field: a whole name, a prefix of names, a kind, and a state.

use keyfall_daemon::shapes::State;

use crate::fault::Fault;

/// The wanted jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Search {
    /// The beginning of the keys; a kind, an app and a module end with a colon.
    pub(crate) prefix: String,
    pub(crate) state: Option<State>,
}

impl Search {
    /// # Errors
    /// If a filter has an unknown value.
    pub(crate) fn read(text: &str) -> Result<Self, Fault> {
        let mut search = Search::default();
        let mut names: Vec<String> = Vec::new();
        for word in words(text) {
            match word {
                Word::Plain(word) => match word.split_once(':') {
                    Some(("state", value)) => search.state = Some(state(value)?),
                    _ => names.push(word),
                },
                Word::Quoted(word) => names.push(word),
            }
        }
        if names.len() > 1 {
            let detail = "there are two names; search one, and put a name with spaces into quotes: \
                          \"app1:trans:notice:order 42\"";
            return Err(Fault::invalid("q", detail));
        }
        search.prefix = names.pop().unwrap_or_default();
        Ok(search)
    }

    /// The search as a person would write it.
    pub(crate) fn written(&self) -> String {
        let name = &self.prefix;
        let is_plain = !name.contains(char::is_whitespace)
            && !name.contains('"')
            && name.split_once(':').is_none_or(|(app, _)| app != "state");
        let mut text = match name.is_empty() || is_plain {
            true => name.clone(),
            false => format!("\"{}\"", name.replace('"', "\"\"")),
        };
        if let Some(state) = self.state {
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str("state:");
            text.push_str(state.word());
        }
        text
    }

    pub(crate) fn with_state(&self, state: State) -> Self {
        Search {
            state: Some(state),
            ..self.clone()
        }
    }

    /// The key, if the search names a whole one.
    pub(crate) fn key(&self) -> Option<&str> {
        let mut segments = self.prefix.splitn(4, ':');
        let is_whole = segments.clone().count() == 4 && segments.all(|it| !it.is_empty());
        is_whole.then_some(&*self.prefix)
    }

    /// Whether counts cost the same for any number of jobs: the prefix names kinds.
    pub(crate) fn is_counted(&self) -> bool {
        let colons = self.prefix.matches(':').count();
        colons < 3 || (colons == 3 && self.prefix.ends_with(':'))
    }
}

fn state(word: &str) -> Result<State, Fault> {
    let all = [
        State::Pending,
        State::Retrying,
        State::Running,
        State::Lapsed,
        State::Dead,
    ];
    all.into_iter()
        .find(|state| state.word() == word)
        .ok_or_else(|| {
            let detail = format!(
                "there is no state {word:?}: write pending, retrying, running, lapsed or dead"
            );
            Fault::invalid("q", &detail)
        })
}

enum Word {
    Plain(String),
    /// It stood in quotes; a doubled quote in it stands for one.
    Quoted(String),
}

fn words(text: &str) -> Vec<Word> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        if let Some(quoted) = rest.strip_prefix('"') {
            let (mut word, mut behind) = (String::new(), quoted);
            while let Some((before, after)) = behind.split_once('"') {
                word.push_str(before);
                behind = after;
                match behind.strip_prefix('"') {
                    Some(after) => {
                        word.push('"');
                        behind = after;
                    }
                    None => break,
                }
            }
            words.push(Word::Quoted(word));
            rest = behind.trim_start();
        } else {
            let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(end);
            words.push(Word::Plain(word.to_owned()));
            rest = behind.trim_start();
        }
    }
    words
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
        ] {
            let search = Search::read(text).unwrap();
            assert_eq!(search.prefix, prefix, "{text}");
            assert_eq!(search.state, state, "{text}");
            assert_eq!(Search::read(&search.written()).unwrap(), search, "{text}");
        }
        assert!(Search::read("state:gone").is_err());
        assert!(Search::read("a: b:").is_err());
    }

    #[test]
    fn a_whole_name_has_four_segments() {
        let key = |text: &str| Search::read(text).unwrap().key().map(ToOwned::to_owned);
        assert_eq!(key("a:b:c:d:e").as_deref(), Some("a:b:c:d:e"));
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
