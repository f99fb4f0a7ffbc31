//! The words of the page: one file for each language, chosen by the browser.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::sync::LazyLock;

use axum::http::{HeaderMap, header};
use keyfall_daemon::shapes::SaidOut;

/// The words of one language.
pub(crate) struct Words {
    /// Its tag, for browsers.
    pub(crate) lang: &'static str,
    /// The words by table and name: `overview.title`.
    texts: HashMap<String, String>,
}

/// The languages. The first one is for browsers that ask for none of them.
static LANGUAGES: LazyLock<[Words; 2]> = LazyLock::new(|| {
    [
        Words::read("en", include_str!("../words/en.toml")),
        Words::read("zh", include_str!("../words/zh.toml")),
    ]
});

impl Words {
    fn read(lang: &'static str, text: &str) -> Self {
        let tables: HashMap<String, HashMap<String, String>> =
            toml::from_str(text).expect("a test reads the file");
        let texts = tables.into_iter().flat_map(|(table, words)| {
            let full = move |(name, word)| (format!("{table}.{name}"), word);
            words.into_iter().map(full)
        });
        Words {
            lang,
            texts: texts.collect(),
        }
    }

    /// The language that the browser likes best.
    pub(crate) fn of(headers: &HeaderMap) -> &'static Words {
        let languages = &*LANGUAGES;
        let wanted = headers.get(header::ACCEPT_LANGUAGE);
        let wanted = wanted.and_then(|value| value.to_str().ok()).unwrap_or("");
        let mut best = (&languages[0], 0.0);
        for range in wanted.split(',') {
            let (tag, weight) = range.split_once(";q=").unwrap_or((range, "1"));
            let tag = tag.trim().to_ascii_lowercase();
            let primary = tag.split('-').next().unwrap_or("");
            let weight: f32 = weight.trim().parse().unwrap_or(0.0);
            let known = languages.iter().find(|words| words.lang == primary);
            if let Some(words) = known.filter(|_| weight > best.1) {
                best = (words, weight);
            }
        }
        best.0
    }

    /// The word of this name. A name without a word is shown itself; a test finds such names.
    pub(crate) fn t<'a>(&'a self, name: &'a str) -> &'a str {
        self.texts.get(name).map_or(name, String::as_str)
    }

    /// The word of this name, if there is one.
    pub(crate) fn find(&self, name: &str) -> Option<&str> {
        self.texts.get(name).map(String::as_str)
    }

    /// A sentence of the API in this language, if it has words for it. `text` is the English one.
    pub(crate) fn say(&self, said: Option<&SaidOut>, text: &str) -> String {
        let said = said.and_then(|said| self.said(said));
        said.unwrap_or_else(|| text.to_owned())
    }

    fn said(&self, said: &SaidOut) -> Option<String> {
        let (code, values) = match said {
            SaidOut::Text(text) => return Some(text.clone()),
            SaidOut::Said { code, values } => (code, values),
        };
        let name = format!("said-{code}");
        self.find(&name)?;
        let values = values.iter().map(|value| self.said(value));
        let values: Option<Vec<String>> = values.collect();
        let values = values?;
        let values: Vec<&dyn Display> = values.iter().map(|value| value as &dyn Display).collect();
        Some(self.fill(&name, &values))
    }

    /// The sentence of this name, with values in place of `{1}`, `{2}`, …
    pub(crate) fn fill(&self, name: &str, values: &[&dyn Display]) -> String {
        let mut filled = String::new();
        let mut rest = self.t(name);
        while let Some((before, after)) = rest.split_once('{') {
            filled.push_str(before);
            let Some((place, behind)) = after.split_once('}') else {
                rest = after;
                break;
            };
            let value = place.parse().ok().and_then(|n: usize| values.get(n - 1));
            if let Some(value) = value {
                let _ = write!(filled, "{value}");
            }
            rest = behind;
        }
        filled.push_str(rest);
        filled
    }
}

#[cfg(test)]
pub(crate) fn languages() -> &'static [Words] {
    &*LANGUAGES
}

#[cfg(test)]
impl Words {
    pub(crate) fn names(&self) -> std::collections::BTreeSet<&str> {
        self.texts.keys().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_browser_chooses_the_language() {
        for (wanted, lang) in [
            ("zh-CN,zh;q=0.9,en;q=0.8", "zh"),
            ("en-GB, zh;q=0.5", "en"),
            ("de, zh-TW;q=0.3, en;q=0.1", "zh"),
            ("fr", "en"),
            ("", "en"),
            ("zh;q=nonsense", "en"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_LANGUAGE, wanted.parse().unwrap());
            assert_eq!(Words::of(&headers).lang, lang, "{wanted}");
        }
        assert_eq!(Words::of(&HeaderMap::new()).lang, "en");
    }

    #[test]
    fn a_sentence_of_the_api_is_said_if_all_its_parts_are_known() {
        let words = Words::read("xx", "[said-a]\nb = '{2} before {1}'");
        let text = |text: &str| SaidOut::Text(text.to_owned());
        let of = |code: &str, values: Vec<SaidOut>| SaidOut::Said {
            code: code.to_owned(),
            values,
        };
        let inner = of("a.b", vec![text("1"), text("2")]);
        let known = of("a.b", vec![inner.clone(), text("x{1}")]);
        assert_eq!(words.say(Some(&known), "english"), "x{1} before 2 before 1");
        let unknown = of("a.b", vec![inner, of("a.c", Vec::new())]);
        assert_eq!(words.say(Some(&unknown), "english"), "english");
        assert_eq!(words.say(None, "english"), "english");
    }

    #[test]
    fn values_take_their_places() {
        let words = Words::read("en", "[a]\nb = '{2} of {1}, {9} left {'");
        assert_eq!(words.fill("a.b", &[&"x{2}", &7]), "7 of x{2},  left ");
    }
}
