//! Words and templates: each language has the same words, and templates have none of their own.

use std::collections::{BTreeMap, BTreeSet};

use keyfall::doctor::{CHECKS, Check};

use super::Calls;
use super::hostile::PAGES;
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

/// The words of the page. Sentences of the API, which says them itself in English, are left out.
fn own(words: &Words) -> BTreeSet<&str> {
    let is_own = |name: &&str| !name.starts_with("said-");
    words.names().into_iter().filter(is_own).collect()
}

/// Which places a text has for values.
fn places(text: &str) -> Vec<bool> {
    let place = |number: usize| text.contains(&format!("{{{number}}}"));
    (1..=6).map(place).collect()
}

#[test]
fn all_languages_have_the_same_words() {
    let languages = words::languages();
    for one in &languages[1..] {
        assert_eq!(own(one), own(&languages[0]), "{}", one.lang);
        for name in own(one) {
            let text = one.t(name);
            assert!(!text.contains("{}"), "{name}: a place needs a number");
            assert_eq!(places(text), places(languages[0].t(name)), "{name}");
        }
    }
}

/// A string of Rust at the beginning of this text, and the text behind it.
fn string(text: &str) -> Option<(&str, &str)> {
    let inside = text.trim_start().strip_prefix('"')?;
    let mut is_escaped = false;
    let end = inside.find(|letter: char| {
        let is_end = letter == '"' && !is_escaped;
        is_escaped = letter == '\\' && !is_escaped;
        is_end
    })?;
    Some((&inside[..end], &inside[end + 1..]))
}

/// The sentences of the API by their codes, each with the number of its values, from the source of
/// the library and the daemon. The number is missing if the sentence stands elsewhere, under a name.
fn sentences() -> BTreeMap<String, Option<usize>> {
    let mut all = BTreeMap::new();
    for folder in ["/../../src", "/../daemon/src"] {
        for (file, text) in files(&format!("{}{folder}", env!("CARGO_MANIFEST_DIR")), ".rs") {
            let is_code = |line: &&str| !line.trim_start().starts_with("//");
            let text: Vec<&str> = text.lines().filter(is_code).collect();
            let text = text.join("\n");
            let of_table = file.ends_with("notes.rs").then_some("    (");
            for begin in ["Phrase::new(", ".numbered("].into_iter().chain(of_table) {
                for call in text.split(begin).skip(1) {
                    let Some((code, behind)) = string(call) else {
                        continue;
                    };
                    let is_part =
                        |letter: char| letter.is_ascii_lowercase() || ".-".contains(letter);
                    if !code.contains('.') || !code.chars().all(is_part) {
                        continue;
                    }
                    let sentence = behind.strip_prefix(',').and_then(string);
                    let values = sentence.map(|(sentence, _)| sentence.matches("{}").count());
                    let before = all.insert(code.to_owned(), values);
                    assert!(before.is_none_or(|it| it == values), "{file}: {code}");
                }
            }
        }
    }
    all
}

#[test]
fn each_sentence_of_the_api_is_in_each_language() {
    let mut sentences = sentences();
    assert!(sentences.len() > 250, "{} sentences", sentences.len());
    let of_check = |check: &Check| ["expected", "why"].map(|it| format!("{it}.{}", check.id));
    let of_checks = CHECKS.iter().copied().flat_map(of_check);
    sentences.extend(of_checks.map(|code| (code, Some(0))));
    // Tables of which the page itself takes the words.
    let of_page = ["said-help.", "said-rule.", "said-cron."];
    for one in &words::languages()[1..] {
        for (code, values) in &sentences {
            let text = one.find(&format!("said-{code}"));
            let text = text.unwrap_or_else(|| panic!("{}: no sentence {code}", one.lang));
            let Some(values) = values else { continue };
            let expected: Vec<bool> = (1..=6).map(|place| place <= *values).collect();
            assert_eq!(places(text), expected, "{}: {code}: {text}", one.lang);
        }
        let said = one
            .names()
            .into_iter()
            .filter_map(|name| name.strip_prefix("said-"));
        for code in said.filter(|code| !sentences.contains_key(*code)) {
            let name = format!("said-{code}");
            let is_of_page = of_page.iter().any(|table| name.starts_with(table));
            assert!(is_of_page, "{}: nobody says {code}", one.lang);
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
    let mut used = BTreeSet::new();
    let mut tables = BTreeSet::from(["problem".to_owned(), "fault".to_owned()]);
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
                if name.starts_with("said-") {
                    let others = &words::languages()[1..];
                    let is_said = others.iter().all(|words| words.find(name).is_some());
                    assert!(is_said, "{file}: there is no word {name}");
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
        let faults = "fault";
        for part in text.split(&format!("\"{faults}.")).skip(1) {
            let name = format!("{faults}.{}", part.split('"').next().unwrap());
            // A template.
            if name.ends_with(".html") {
                continue;
            }
            assert!(names.contains(&*name), "{file}: there is no word {name}");
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
    const VALUES: [&str; 10] = [
        "1h",
        "7d",
        "15m",
        "timeout",
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

/// The texts of a page that a reader sees or hears, without names, code and what is marked as
/// English.
fn texts(body: &str) -> Vec<String> {
    let mut texts = Vec::new();
    // The open elements that are left out, from the outermost on.
    let mut left_out: Vec<String> = Vec::new();
    let body = body.split_once("<body>").map_or(body, |(_, body)| body);
    for piece in body.split('<').skip(1) {
        let (tag, text) = piece.split_once('>').unwrap();
        let mut names = tag.split([' ', '\n', '/']);
        let name = names.find(|name| !name.is_empty()).unwrap_or("");
        if tag.starts_with('/') {
            if left_out.last().is_some_and(|last| last == name) {
                left_out.pop();
            }
        } else {
            let is_left_out = ["code", "pre", "textarea"].contains(&name)
                || tag.contains("class=\"key\"")
                || tag.contains("lang=\"en\"")
                || left_out.last().is_some_and(|last| last == name);
            if is_left_out && !["input", "br", "img"].contains(&name) {
                left_out.push(name.to_owned());
            }
            for attribute in [" aria-label=\"", " title=\"", " alt=\"", " data-label=\""] {
                let value = tag.split_once(attribute);
                let value = value.and_then(|(_, rest)| rest.split('"').next());
                texts.extend(value.map(ToOwned::to_owned));
            }
        }
        if left_out.is_empty() {
            texts.push(text.to_owned());
        }
    }
    texts
}

#[tokio::test]
async fn no_page_in_chinese_has_an_english_word() {
    // Names, and words of commands, of the search, of a zone and of the calls that are made up here.
    const KNOWN: [&str; 17] = [
        "API",
        "Berlin",
        "Cron",
        "Europe",
        "JSON",
        "Keyfall",
        "PostgreSQL",
        "Redis",
        "UTC",
        "cli",
        "curl",
        "due",
        "every",
        "keyfall",
        "ops",
        "redis",
        "traceparent",
    ];
    let site = Calls::new("值").site(false);
    let mut faults = BTreeSet::new();
    let pages = PAGES.iter().filter(|path| **path != "stream");
    for path in pages.chain(&["nowhere", "login", "jobs?q=due:soon"]) {
        let answer = site.get_with(path, &[("accept-language", "zh")]).await;
        for text in texts(&answer.body) {
            let words = text.split(|letter: char| !letter.is_ascii_alphabetic());
            let english = words.filter(|word| word.len() > 2 && !KNOWN.contains(word));
            faults.extend(english.map(|word| format!("{path}: {word} in {text:?}")));
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
