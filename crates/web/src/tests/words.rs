//! Words and templates: each language has the same words, and templates have none of their own.

use crate::words::{self, Words};

/// The templates, by name.
const TEMPLATES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/templates");

fn files(folder: &str, ending: &str) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.to_str().unwrap().to_owned();
        if path.is_dir() {
            all.extend(files(&name, ending));
        } else if name.ends_with(ending) {
            let text = std::fs::read_to_string(&path).unwrap();
            all.push((name, text));
        }
    }
    all
}

/// A template without its expressions and blocks.
fn literal(template: &str) -> String {
    let mut text = template.to_owned();
    for (begin, end) in [("{#", "#}"), ("{{", "}}"), ("{%", "%}")] {
        while let Some(at) = text.find(begin) {
            let length = text[at..].find(end).unwrap() + end.len();
            text.replace_range(at..at + length, "");
        }
    }
    text
}

#[test]
fn all_languages_have_the_same_words() {
    let languages = words::languages();
    for one in &languages[1..] {
        assert_eq!(one.names(), languages[0].names(), "{}", one.lang);
        for name in one.names() {
            let places = |words: &Words| {
                let text = words.t(name).to_owned();
                assert!(!text.contains("{}"), "{name}: a place needs a number");
                ["{1}", "{2}", "{3}"].map(|place| text.contains(place))
            };
            assert_eq!(places(one), places(&languages[0]), "{name}");
        }
    }
}

#[test]
fn words_are_named_where_they_are_used_and_used_where_they_are_named() {
    let names = words::languages()[0].names();
    let source = files(concat!(env!("CARGO_MANIFEST_DIR"), "/src"), ".rs");
    let all: Vec<_> = files(TEMPLATES, ".html")
        .into_iter()
        .chain(source)
        .collect();
    let mut used = std::collections::BTreeSet::new();
    // A fault names its words.
    let mut tables = std::collections::BTreeSet::from(["problem".to_owned(), "fault".to_owned()]);
    for (file, text) in &all {
        for call in [
            ".t(\"",
            ".t1(\"",
            ".t2(\"",
            ".fill(\"",
            ".fill(\n            \"",
            ".count(\"",
        ] {
            for part in text.split(call).skip(1) {
                let name = part.split('"').next().unwrap();
                if name == "a.b" || !name.contains('.') {
                    continue;
                }
                let forms = match call {
                    ".count(\"" => vec![format!("{name}_one"), format!("{name}_many")],
                    _ => vec![name.to_owned()],
                };
                for form in forms {
                    assert!(names.contains(&*form), "{file}: there is no word {form}");
                    used.insert(form);
                }
            }
        }
        // A word that is chosen by the word of an action.
        for part in text.split("format!(\"").skip(1) {
            let beginning = part.split(['"', '{']).next().unwrap();
            let chosen: Vec<_> = names
                .iter()
                .filter(|name| name.starts_with(beginning))
                .collect();
            if beginning.contains('.') && beginning.ends_with('_') {
                assert!(!chosen.is_empty(), "{file}: there is no word {beginning}…");
                used.extend(chosen.into_iter().map(|name| (*name).to_owned()));
            }
        }
        // Words of the API have a table each.
        for part in text.split(".of(\"").skip(1) {
            tables.insert(part.split('"').next().unwrap().to_owned());
        }
    }
    for name in names {
        let table = name.split('.').next().unwrap();
        let is_used = used.contains(name) || tables.contains(table) || table == "time";
        assert!(is_used, "nobody uses the word {name}");
    }
}

#[test]
fn templates_have_no_words_of_their_own() {
    // Values that are the same in all languages.
    const VALUES: [&str; 7] = [
        "15m",
        "10/s",
        "100/s",
        "app1:trans:",
        "app1:mail:send",
        "header:tenant",
        "acme=3",
    ];
    // Names, and commands for a shell.
    let known = ["Keyfall", "&middot;"];
    for (file, template) in files(TEMPLATES, ".html") {
        let mut text = literal(&template);
        while let Some(at) = text.find("<code>keyfall") {
            let length = text[at..].find("</code>").unwrap();
            text.replace_range(at..at + length, "");
        }
        let mut rest = text.as_str();
        let mut outside = String::new();
        while let Some((before, tag)) = rest.split_once('<') {
            outside.push_str(before);
            let (tag, after) = tag.split_once('>').unwrap();
            for said in ["title=\"", "aria-label=\"", "alt=\"", "placeholder=\""] {
                for value in tag.split(said).skip(1) {
                    let value = value.split('"').next().unwrap();
                    let is_word =
                        value.chars().any(char::is_alphabetic) && !VALUES.contains(&value);
                    assert!(!is_word, "{file}: {said}{value}");
                }
            }
            rest = after;
        }
        outside.push_str(rest);
        for word in known {
            outside = outside.replace(word, "");
        }
        let word: String = outside.chars().filter(|it| it.is_alphabetic()).collect();
        assert_eq!(word, "", "{file}");
    }
}

#[test]
fn templates_have_nothing_inline() {
    for (file, template) in files(TEMPLATES, ".html") {
        let text = literal(&template);
        for inline in [
            " style=",
            "<style",
            " onclick",
            " onload",
            "javascript:",
            "hx-on",
            "|safe",
        ] {
            assert!(!template.contains(inline), "{file}: {inline}");
        }
        for script in text.split("<script").skip(1) {
            assert!(script.starts_with(" src="), "{file}");
        }
    }
}
