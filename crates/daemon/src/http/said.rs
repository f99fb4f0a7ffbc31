//! Sentences in a form that programs can say in other languages.

use keyfall::Phrase;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A sentence, for programs that say it in another language: its code and its values. A text is the
/// same in every language: a name, a number, a setting, the error of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum SaidOut {
    Text(String),
    Said {
        /// The code of the sentence: the same for all values.
        #[schema(example = "wait.due")]
        code: String,
        /// The values, in the order of the English sentence.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        #[schema(no_recursion)]
        values: Vec<SaidOut>,
    },
}

impl SaidOut {
    /// The sentence; `None` for a text that is the same in every language.
    pub(super) fn of(phrase: &Phrase) -> Option<Self> {
        phrase.code().map(|_| phrase.into())
    }
}

impl From<&Phrase> for SaidOut {
    fn from(phrase: &Phrase) -> Self {
        match phrase.code() {
            None => SaidOut::Text(phrase.to_string()),
            Some(code) => SaidOut::Said {
                code: code.to_owned(),
                values: phrase.values().iter().map(SaidOut::from).collect(),
            },
        }
    }
}
