//! Sentences that programs can say in other languages.

use std::fmt;
use std::ops::Deref;

/// A sentence of Keyfall, in English, with a code and values by which a program can say it in
/// another language. It dereferences to the English text.
///
/// ```
/// use keyfall::Phrase;
///
/// let phrase = Phrase::new("wait.late", "{} jobs wait, the oldest for {}", [3.into(), "5 s".into()]);
/// assert_eq!(phrase.to_string(), "3 jobs wait, the oldest for 5 s");
/// assert_eq!(phrase.code(), Some("wait.late"));
/// assert_eq!(&*phrase.values()[1], "5 s");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phrase {
    /// Empty for a text that is the same in every language.
    code: &'static str,
    text: String,
    values: Vec<Phrase>,
}

impl Phrase {
    /// A sentence with this code. `template` is English, and has `{}` in the place of each value.
    pub fn new<const N: usize>(
        code: &'static str,
        template: &'static str,
        values: [Phrase; N],
    ) -> Self {
        debug_assert_eq!(template.matches("{}").count(), N, "{template}");
        let mut parts = template.split("{}");
        let mut text = parts.next().unwrap_or_default().to_owned();
        for (value, part) in values.iter().zip(parts) {
            text.push_str(value);
            text.push_str(part);
        }
        Phrase {
            code,
            text,
            values: values.into(),
        }
    }

    /// The code of the sentence: the same for all values. `None` for a text that is the same in
    /// every language, such as a name, a number, a setting or the error of a handler.
    pub fn code(&self) -> Option<&'static str> {
        Some(self.code).filter(|code| !code.is_empty())
    }

    /// The values, in the order of the English sentence. Some of them can be sentences.
    pub fn values(&self) -> &[Phrase] {
        &self.values
    }

    /// The sentences in one, with semicolons between them; `None` without any.
    #[cfg(feature = "worker")]
    pub(crate) fn joined(all: impl IntoIterator<Item = Phrase>) -> Option<Phrase> {
        let both = |one, other| Phrase::new("list.and", "{}; {}", [one, other]);
        all.into_iter().reduce(both)
    }
}

impl Deref for Phrase {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for Phrase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl PartialEq<str> for Phrase {
    fn eq(&self, text: &str) -> bool {
        self.text == text
    }
}

impl PartialEq<&str> for Phrase {
    fn eq(&self, text: &&str) -> bool {
        self.text == *text
    }
}

impl From<String> for Phrase {
    /// A text that is the same in every language.
    fn from(text: String) -> Self {
        Phrase {
            code: "",
            text,
            values: Vec::new(),
        }
    }
}

impl From<&str> for Phrase {
    /// A text that is the same in every language.
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl From<&String> for Phrase {
    /// A text that is the same in every language.
    fn from(text: &String) -> Self {
        text.clone().into()
    }
}

macro_rules! from_numbers {
    ($($number:ty)*) => {
        $(
            impl From<$number> for Phrase {
                fn from(number: $number) -> Self {
                    number.to_string().into()
                }
            }
        )*
    };
}

from_numbers!(i32 u16 u32 u64 u128 usize);
