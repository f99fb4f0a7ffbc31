//! Shows characters that a reader cannot see, or that turn the text around them: a key with one
//! would look like another key, and an error or a payload would say something else.

use std::fmt::Write;

/// The name with each such character as its escape, such as `\u{202e}`.
pub(crate) fn visible(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for letter in name.chars() {
        push(&mut shown, letter);
    }
    shown
}

/// The same for a text of several lines: line breaks and tabs stay as they are.
pub(crate) fn text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\n' | '\t' => shown.push(letter),
            '\r' if letters.peek() == Some(&'\n') => shown.push(letter),
            _ => push(&mut shown, letter),
        }
    }
    shown
}

/// The same for a string of JSON, with escapes of JSON, such as `\u202e`: a copy of it has the same
/// value.
pub(crate) fn json(string: &str) -> String {
    let mut shown = String::with_capacity(string.len());
    for letter in string.chars() {
        if is_hidden(letter) {
            for unit in letter.encode_utf16(&mut [0; 2]) {
                let _ = write!(shown, "\\u{unit:04x}");
            }
        } else {
            shown.push(letter);
        }
    }
    shown
}

fn push(shown: &mut String, letter: char) {
    if is_hidden(letter) {
        let _ = write!(shown, "\\u{{{:x}}}", u32::from(letter));
    } else {
        shown.push(letter);
    }
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
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
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
    fn line_breaks_and_tabs_of_a_text_stay() {
        assert_eq!(
            text("a\tb\r\nc\n\u{202e}d\re\u{200b}"),
            "a\tb\r\nc\n\\u{202e}d\\u{d}e\\u{200b}"
        );
    }

    #[test]
    fn a_string_of_json_keeps_its_value() {
        for string in ["\"a\u{202e}b\u{e0041}\u{7f}\"", "\"plain: \\n ü 🔔\""] {
            let shown = json(string);
            assert!(!shown.chars().any(is_hidden), "{shown}");
            let read = |text: &str| serde_json::from_str::<String>(text).unwrap();
            assert_eq!(read(&shown), read(string));
        }
    }

    #[test]
    fn a_text_without_hidden_characters_stays_as_it_is() {
        for text in ["app1:trans:notice:42", "ü:任务:שלום:🔔 <x>"] {
            assert_eq!(visible(text), text);
        }
    }
}
