//! Shows characters that a reader cannot see, or that turn the text around them: a key with one
//! would look like another key.

use std::fmt::Write;

/// The text with each such character as its escape, such as `\u{202e}`.
pub(crate) fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_hidden(letter) {
            true => {
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(letter));
            }
            false => shown.push(letter),
        }
    }
    shown
}

/// Control characters, and those of Unicode that have no width or set the direction.
fn is_hidden(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hidden_character_is_shown_as_its_escape() {
        assert_eq!(visible("a:b:c:\u{202e}21"), "a:b:c:\\u{202e}21");
        assert_eq!(
            visible("a\u{200b}b\u{feff}\0"),
            "a\\u{200b}b\\u{feff}\\u{0}"
        );
    }

    #[test]
    fn a_text_without_hidden_characters_stays_as_it_is() {
        for text in ["app1:trans:notice:42", "ü:任务:שלום:🔔 <x>"] {
            assert_eq!(visible(text), text);
        }
    }
}
