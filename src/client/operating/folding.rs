//! Errors that differ only in numbers and ids count as the same, for people who look for the cause
//! of many.

/// The longest folded error, in characters. Errors that agree so far count as the same.
const LONGEST: usize = 200;

/// The lengths of the parts of a UUID.
const UUID: [usize; 5] = [8, 4, 4, 4, 12];

/// Folds the numbers and ids in an error to `#`, so that errors with the same cause become the same
/// text: `order 17 not found` becomes `order # not found`. A folded text stays as it is. A long one
/// is cut after 200 characters.
///
/// An id is a UUID, or a word of letters and digits that has at least two numbers, or has one and
/// is hexadecimal, begins with `0x`, or has at least sixteen characters. Of other words only the
/// number is folded.
///
/// ```
/// use keyfall::fold_reason;
///
/// assert_eq!(fold_reason("order 17 not found"), "order # not found");
/// assert_eq!(fold_reason("http://10.0.0.7:8080/a took 30s"), "http://#.#.#.#:#/a took #s");
/// ```
pub fn fold_reason(error: &str) -> String {
    let is_of_word = |letter: char| letter.is_ascii_alphanumeric();
    let (mut folded, mut rest) = (String::new(), error);
    while let Some(begin) = rest.find(is_of_word) {
        folded.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest
            .find(|letter| !is_of_word(letter))
            .unwrap_or(rest.len());
        let uuid = end_of_uuid(rest);
        let (word, behind) = rest.split_at(uuid.unwrap_or(end));
        if uuid.is_some() || is_id(word) {
            folded.push('#');
        } else {
            fold_numbers(word, &mut folded);
        }
        rest = behind;
        // Errors can be long, and the rest would be cut anyway.
        if folded.len() > 4 * LONGEST {
            break;
        }
    }
    folded.push_str(rest);
    if let Some((end, _)) = folded.char_indices().nth(LONGEST) {
        folded.truncate(end);
    }
    folded
}

/// The end of the UUID with which a text begins.
fn end_of_uuid(text: &str) -> Option<usize> {
    let whole = text
        .as_bytes()
        .get(..UUID.iter().sum::<usize>() + UUID.len() - 1)?;
    let mut parts = whole.split(|byte| *byte == b'-');
    let is_part = |length: &usize| {
        let part = parts.next().unwrap_or_default();
        part.len() == *length && part.iter().all(u8::is_ascii_hexdigit)
    };
    UUID.iter().all(is_part).then_some(whole.len())
}

/// Whether a word is an id as a whole.
fn is_id(word: &str) -> bool {
    let numbers = word.split(|letter: char| !letter.is_ascii_digit());
    match numbers.filter(|number| !number.is_empty()).count() {
        0 => false,
        1 => {
            let is_hex = word.bytes().all(|byte| byte.is_ascii_hexdigit());
            is_hex || word.starts_with("0x") || word.len() >= 16
        }
        _ => true,
    }
}

/// Appends a word with its number folded.
fn fold_numbers(word: &str, folded: &mut String) {
    let mut in_number = false;
    for letter in word.chars() {
        let is_digit = letter.is_ascii_digit();
        match is_digit {
            true if in_number => {}
            true => folded.push('#'),
            false => folded.push(letter),
        }
        in_number = is_digit;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_and_ids_are_folded() {
        for (error, folded) in [
            ("order 17 not found", "order # not found"),
            ("order-17: -3.5e9 left, #8", "order-#: -#.# left, ##"),
            ("no 3f9a1c20 in v2 of x86_64", "no # in v# of x#_#"),
            ("0xDEADBEEF at 0x1f, 1c: deadbee5", "# at #, #: #"),
            ("of 550e8400-E29B-41d4-a716-abcdefabcdef!", "of #!"),
            (
                "abcdabcd-abcd-abcd-abcd-abcdefabcde",
                "abcdabcd-abcd-abcd-abcd-abcdefabcde",
            ),
            ("cus_9s6XKzkNRiz8i3xQ is gone", "cus_# is gone"),
            ("decade faced", "decade faced"),
            ("Zeile 5: ü7 ungültig", "Zeile #: ü# ungültig"),
            ("", ""),
        ] {
            assert_eq!(fold_reason(error), folded, "{error}");
        }
        let long = "x ".repeat(1000);
        assert_eq!(fold_reason(&long).chars().count(), LONGEST);
    }

    proptest! {
        #[test]
        fn a_folded_text_stays_as_it_is(error in r"[ -:a-h#_ü\n]{0,300}|.{0,60}") {
            let folded = fold_reason(&error);
            prop_assert_eq!(fold_reason(&folded), folded.clone());
            prop_assert!(!folded.bytes().any(|byte| byte.is_ascii_digit()), "{}", folded);
        }
    }
}
