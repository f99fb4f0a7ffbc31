//! Properties of routing, checked against a model that tries each route, segment by segment.

use std::cmp::Reverse;
use std::sync::LazyLock;

use proptest::prelude::*;
use regex::Regex;

use super::*;
use crate::key::JobKey;

/// A segment as the tests know it, without help from the parser.
#[derive(Debug, Clone, Copy)]
enum Part {
    Literal(&'static str),
    /// One of [`REGEXES`].
    Regex(usize),
    Any,
}

const TEXTS: [&str; 6] = ["a", "b", "ab", "a1", "1", "zz-9"];
// Each regex matches some of the texts and not others.
const REGEXES: [&str; 6] = ["[a-z]+", "[0-9]+", "a.*", "a|b", "(?i)A[0-9]?", "[^a]{2,}"];

static WHOLE: LazyLock<[Regex; 6]> =
    LazyLock::new(|| REGEXES.map(|it| Regex::new(&format!("^(?:{it})$")).unwrap()));

impl Part {
    fn matches(self, text: &str) -> bool {
        match self {
            Part::Literal(literal) => literal == text,
            Part::Regex(regex) => WHOLE[regex].is_match(text),
            Part::Any => true,
        }
    }

    fn rank(self) -> u8 {
        match self {
            Part::Literal(_) => 0,
            Part::Regex(_) => 1,
            Part::Any => 2,
        }
    }

    fn written(self, index: usize) -> String {
        match self {
            Part::Literal(literal) => literal.to_owned(),
            Part::Regex(regex) => format!("{{n{index}:{}}}", REGEXES[regex]),
            Part::Any if index < 2 => "*".to_owned(),
            Part::Any => format!("{{n{index}}}"),
        }
    }
}

type Parts = [Part; 4];

fn parsed(parts: &Parts) -> Pattern {
    let written: Vec<String> = parts
        .iter()
        .enumerate()
        .map(|(i, p)| p.written(i))
        .collect();
    Pattern::parse(&written.join(":")).unwrap()
}

fn matches(parts: &Parts, segments: [&str; 4]) -> bool {
    parts
        .iter()
        .zip(segments)
        .all(|(part, text)| part.matches(text))
}

fn parts() -> impl Strategy<Value = Parts> {
    prop::array::uniform4(prop_oneof![
        prop::sample::select(&TEXTS[..]).prop_map(Part::Literal),
        (0..REGEXES.len()).prop_map(Part::Regex),
        Just(Part::Any),
    ])
}

fn segments() -> impl Strategy<Value = [&'static str; 4]> {
    prop::array::uniform4(prop::sample::select(&TEXTS[..]))
}

/// Some routes, each with its priority, except routes that clash with an earlier one.
fn routes() -> impl Strategy<Value = Vec<(Parts, Pattern, i32)>> {
    prop::collection::vec((parts(), -1..=1), 0..9).prop_map(|drawn| {
        let mut kept: Vec<(Parts, Pattern, i32)> = Vec::new();
        for (parts, priority) in drawn {
            let pattern = parsed(&parts);
            if !kept
                .iter()
                .any(|it| it.2 == priority && clash(&it.1, &pattern))
            {
                kept.push((parts, pattern, priority));
            }
        }
        kept
    })
}

fn owner(routes: &[(Parts, Pattern, i32)], segments: [&str; 4]) -> Option<usize> {
    let precedence = |&route: &usize| {
        let (parts, _, priority) = &routes[route];
        (Reverse(*priority), parts.map(Part::rank))
    };
    (0..routes.len())
        .filter(|&route| matches(&routes[route].0, segments))
        .min_by_key(precedence)
}

proptest! {
    #[test]
    fn parsing_never_panics(
        text in any::<String>(),
        dense in r"[a-c:*{}\\\[\]().|?+^$0-9,é -]{0,60}",
        regex in r"[a-c:{}\\\[\]().|?+^&pLw0-9,é<>=#-]{0,30}",
    ) {
        for text in [&text, &dense, &format!("a:b:c:{{x:{regex}}}")] {
            if let Ok(pattern) = Pattern::parse(text) {
                prop_assert_eq!(pattern.as_str(), text);
                prop_assert!(RouteTable::new(vec![(pattern, 0)]).is_ok());
            }
        }
    }

    #[test]
    fn a_fault_names_its_segment(
        parts in parts(),
        at in 0_usize..4,
        wrong in prop::sample::select(&["", "a*", "{", "{1x}", "{x:[}", "é é", "{x:a*:}}"][..]),
    ) {
        let written = |index: usize| match index == at {
            true => wrong.to_owned(),
            false => parts[index].written(index),
        };
        let text = [0, 1, 2, 3].map(written).join(":");
        let fault = Pattern::parse(&text).unwrap_err();
        prop_assert_eq!(fault.kind(), crate::ErrorKind::InvalidRoute);
        let named = format!("its `{}` ", crate::key::NAMES[at]);
        prop_assert!(fault.to_string().contains(&named), "{}", fault);
    }

    #[test]
    fn the_table_agrees_with_trying_each_route(
        routes in routes(),
        keys in prop::collection::vec(segments(), 20),
    ) {
        let entries = routes.iter().map(|(_, pattern, priority)| (pattern.clone(), *priority));
        let table = RouteTable::new(entries.collect()).unwrap();
        for segments in keys {
            let key = JobKey::parse(&segments.join(":")).unwrap();
            prop_assert_eq!(table.find(&key), owner(&routes, segments), "{}", key);

            let [app, module, biz, _] = segments;
            let owners = TEXTS.map(|id| owner(&routes, [app, module, biz, id]));
            let expected = match owners[0] {
                _ if owners.iter().any(|it| *it != owners[0]) => Coverage::Mixed,
                Some(route) => Coverage::Whole(route),
                None => Coverage::None,
            };
            prop_assert_eq!(table.coverage(key.kind()), expected, "{}", key.kind());
            for (parts, pattern, _) in &routes {
                prop_assert_eq!(
                    pattern.matches_kind(key.kind()),
                    TEXTS.iter().any(|id| matches(parts, [app, module, biz, id]))
                );
            }
        }
    }

    #[test]
    fn a_tie_is_a_clash_and_a_clash_is_mutual(
        a in parts(),
        b in parts(),
        segments in segments(),
    ) {
        let (first, second) = (parsed(&a), parsed(&b));
        prop_assert!(clash(&first, &first));
        prop_assert_eq!(clash(&first, &second), clash(&second, &first));
        if a.map(Part::rank) == b.map(Part::rank)
            && matches(&a, segments)
            && matches(&b, segments)
        {
            prop_assert!(clash(&first, &second));
        }
    }
}
