//! Decides whether several regexes have a text in common that a segment of a key may hold.
//!
//! It runs the automata of all regexes side by side over every possible text, shortest first. The
//! answer is exact within the bounds on automata and search below, and "perhaps" beyond them.

use std::collections::HashSet;

use regex_automata::Anchored;
use regex_automata::dfa::{Automaton, StartKind, dense};
use regex_automata::nfa::thompson;
use regex_automata::util::{primitives::StateID, start};

use crate::key::{MAX_ID_BYTES, MAX_SEGMENT_BYTES};

/// A regex for the texts of app, module and biz.
const KIND_TEXT: &str = r"[A-Za-z0-9_.\-]+";

/// A regex for the texts of an id.
const ID_TEXT: &str = r"[^:*{}\s\p{Cc}]+";

/// The largest automaton that is built, in bytes.
const MAX_AUTOMATON_BYTES: usize = 4 << 20;

/// The number of combinations of states after which a search is given up.
const MAX_COMBINATIONS: usize = 1 << 16;

/// Whether there is a text that segment `segment` (0 to 3) of a key may hold and that each of the
/// regexes matches, from its first to its last character.
///
/// `false` is certain. `true` is certain, too, unless an automaton is too large to build, the
/// search is too long to finish, or a Unicode `\b` stands beside characters that are not ASCII:
/// then it means "perhaps".
pub(super) fn may_share_text(regexes: &[&str], segment: usize) -> bool {
    let (alphabet, longest_bytes) = if segment < 3 {
        (KIND_TEXT, MAX_SEGMENT_BYTES)
    } else {
        (ID_TEXT, MAX_ID_BYTES)
    };
    let regexes: Vec<&str> = regexes.iter().copied().chain([alphabet]).collect();
    share_text_within(&regexes, longest_bytes).unwrap_or(true)
}

/// Whether each of the regexes matches some common text of at most `longest_bytes`. `None` if the
/// search gives up.
///
/// The search goes breadth first, a byte a layer. It meets each combination of states first by the
/// shortest text that leads to it, which makes the bound on the length exact.
fn share_text_within(regexes: &[&str], longest_bytes: usize) -> Option<bool> {
    let product = Product::of(regexes)?;
    let bytes = product.telling_bytes();
    let start = product.start()?;
    let mut met = HashSet::from([start.clone()]);
    let mut layer = vec![start];
    for _length in 0..=longest_bytes {
        if layer.iter().any(|states| product.accepts(states)) {
            return Some(true);
        }
        let mut next_layer = Vec::new();
        for states in &layer {
            for &byte in &bytes {
                let next = product.after(states, byte);
                if product.is_dead(&next) {
                    continue;
                }
                if product.gave_up(&next) || met.len() > MAX_COMBINATIONS {
                    return None;
                }
                if met.insert(next.clone()) {
                    next_layer.push(next);
                }
            }
        }
        layer = next_layer;
    }
    Some(false)
}

/// A deterministic automaton on the heap.
type Dfa = dense::DFA<Vec<u32>>;

/// Automata that read the same text side by side. One state of the product is a list with one state
/// of each automaton.
struct Product(Vec<Dfa>);

impl Product {
    /// Builds the automata. `None` if a regex does not compile or an automaton is too large.
    fn of(regexes: &[&str]) -> Option<Self> {
        let config = dense::Config::new()
            .start_kind(StartKind::Anchored)
            .unicode_word_boundary(true)
            .dfa_size_limit(Some(MAX_AUTOMATON_BYTES))
            .determinize_size_limit(Some(MAX_AUTOMATON_BYTES));
        let size = thompson::Config::new().nfa_size_limit(Some(MAX_AUTOMATON_BYTES));
        let build = |regex: &&str| {
            // With `\z` no match ends early: `a|ab` matches all of "ab", and a text that
            // cannot become a match is dead at once.
            dense::Builder::new()
                .configure(config.clone())
                .thompson(size.clone())
                .build(&format!(r"(?:{regex})\z"))
                .ok()
        };
        regexes
            .iter()
            .map(build)
            .collect::<Option<_>>()
            .map(Product)
    }

    /// The state before the first byte. `None` if an automaton cannot tell it.
    fn start(&self) -> Option<Vec<StateID>> {
        let anchored = start::Config::new().anchored(Anchored::Yes);
        self.0
            .iter()
            .map(|automaton| automaton.start_state(&anchored).ok())
            .collect()
    }

    /// One byte of each class whose bytes move all automata alike, so that a search tries no byte
    /// in vain.
    fn telling_bytes(&self) -> Vec<u8> {
        let mut told = HashSet::new();
        (0..=u8::MAX)
            .filter(|&byte| {
                let classes = self.0.iter().map(|it| it.byte_classes().get(byte));
                told.insert(classes.collect::<Vec<u8>>())
            })
            .collect()
    }

    /// The state after one more byte.
    fn after(&self, states: &[StateID], byte: u8) -> Vec<StateID> {
        self.each(states)
            .map(|(automaton, state)| automaton.next_state(state, byte))
            .collect()
    }

    /// Whether every automaton matches the text that led here.
    fn accepts(&self, states: &[StateID]) -> bool {
        self.each(states)
            .all(|(it, state)| it.is_match_state(it.next_eoi_state(state)))
    }

    /// Whether some automaton can match nothing that begins with the text that led here.
    fn is_dead(&self, states: &[StateID]) -> bool {
        self.each(states).any(|(it, state)| it.is_dead_state(state))
    }

    /// Whether some automaton cannot tell: it has a Unicode `\b`, and read a byte that is
    /// not ASCII.
    fn gave_up(&self, states: &[StateID]) -> bool {
        self.each(states).any(|(it, state)| it.is_quit_state(state))
    }

    /// Each automaton with its state.
    fn each<'a>(&'a self, states: &'a [StateID]) -> impl Iterator<Item = (&'a Dfa, StateID)> {
        self.0.iter().zip(states.iter().copied())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;
    use crate::key::{is_id_char, is_kind_char};

    #[test]
    fn overlap_is_decided_within_the_alphabet_of_a_segment() {
        const BIZ: usize = 2;
        const ID: usize = 3;
        #[rustfmt::skip]
        let cases = [
            ("[0-9]+",          "[a-z]+",          ID,  false),
            ("[0-9]+",          "[0-9a-f]+",       ID,  true),
            ("a|ab",            "ab|c",            ID,  true),
            ("a*?",             "aaa",             ID,  true),
            ("(?:aa)+",         "(?:aaa)+",        ID,  true),
            ("(?:aa)+",         "a(?:aa)*",        ID,  false),
            (".*x",             "y.*",             ID,  true),
            (".*x",             ".*y",             ID,  false),
            ("a*",              "b*",              ID,  false), // the empty text only
            ("a b|c",           "a b|d",           ID,  false), // no white space in an id
            ("a:b",             ".*",              ID,  false), // nor a colon
            ("(?i)straße",      "STRAẞE",          ID,  true),
            ("(?i)straße",      "STRAẞE",          BIZ, false), // not ASCII
            ("[^a-z]",          "[^A-Z0-9_.-]",    BIZ, false),
            ("[^a-z]",          "[^A-Z0-9_.-]",    ID,  true),
            ("[ab]{65}",        "[bc]{65}",        BIZ, false), // 65 bytes
            ("[ab]{64}",        "[bc]{64}",        BIZ, true),
            ("(?:ab){129}",     "[ab]*",           ID,  false), // 258 bytes
            (r"\bfoo\b.*",      r".*\bbar\b",      BIZ, true),  // foo.bar
            (r"foo\b",          r"fo+\bo",         BIZ, false),
            (r"foo\b",          r"bar\b",          BIZ, false),
            (r"[a-z&&[^b]]",    "b",               ID,  false),
        ];
        for (one, other, segment, expected) in cases {
            assert_eq!(
                may_share_text(&[one, other], segment),
                expected,
                "{one} and {other}"
            );
            assert_eq!(
                may_share_text(&[other, one], segment),
                expected,
                "{other} and {one}"
            );
        }
    }

    #[test]
    fn undecidable_patterns_may_overlap() {
        // The automaton of the first needs 2^20 states.
        assert!(may_share_text(&["[ab]*a[ab]{20}", "c"], 3));
        // No word ends between `é` and `1`, but the automaton knows words of ASCII alone.
        assert!(may_share_text(&[r"é\b1", "é1"], 3));
    }

    #[test]
    fn the_alphabets_match_the_rules_for_keys() {
        let kind_text = Regex::new(&format!(r"\A{KIND_TEXT}\z")).unwrap();
        let id_text = Regex::new(&format!(r"\A{ID_TEXT}\z")).unwrap();
        for c in '\0'..=char::MAX {
            let text = c.encode_utf8(&mut [0; 4]).to_owned();
            assert_eq!(kind_text.is_match(&text), is_kind_char(c), "{c:?}");
            assert_eq!(id_text.is_match(&text), is_id_char(c), "{c:?}");
        }
    }

    fn small_regex() -> impl Strategy<Value = String> {
        let leaf = prop_oneof![Just("a"), Just("b"), Just("."), Just("[^a]"), Just("")];
        leaf.prop_map(String::from)
            .prop_recursive(4, 12, 3, |inner| {
                prop_oneof![
                    (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("{l}{r}")),
                    (inner.clone(), inner.clone()).prop_map(|(l, r)| format!("(?:{l}|{r})")),
                    (
                        inner.clone(),
                        prop_oneof![Just("*"), Just("+?"), Just("?"), Just("{2}")]
                    )
                        .prop_map(|(it, times)| format!("(?:{it}){times}")),
                ]
            })
    }

    proptest! {
        #[test]
        fn the_decision_agrees_with_trying_every_text(one in small_regex(), other in small_regex()) {
            const LONGEST_BYTES: usize = 5;
            let mut texts = vec![String::new()];
            let mut last = texts.clone();
            for _ in 0..LONGEST_BYTES {
                last = last.iter().flat_map(|t| [format!("{t}a"), format!("{t}b")]).collect();
                texts.extend_from_slice(&last);
            }
            let whole = |regex: &str| Regex::new(&format!(r"\A(?:{regex})\z")).unwrap();
            let (first, second) = (whole(&one), whole(&other));
            let shared = texts.iter().any(|t| first.is_match(t) && second.is_match(t));
            prop_assert_eq!(
                share_text_within(&[&one, &other, "[ab]*"], LONGEST_BYTES),
                Some(shared)
            );
        }
    }
}
