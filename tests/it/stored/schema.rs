//! The tables of `docs/stored.md`, as patterns.

use std::collections::{BTreeMap, BTreeSet};

use keyfall_testing::files::repository;
use regex::bytes::Regex;
use serde_json::{Map, Value};

use super::writes::Stored;

/// The rows of the page, and what contradicts them.
pub(super) struct Schema {
    rows: Vec<Row>,
    of_header: Vec<Row>,
    faults: BTreeSet<String>,
}

struct Row {
    /// The row as it is written.
    text: String,
    key: Regex,
    sort: String,
    field: Regex,
    value: Regex,
    was_met: bool,
}

/// The forms that are defined so far, by name.
#[derive(Default)]
struct Forms(BTreeMap<String, String>);

impl Forms {
    /// A pattern with the forms in it replaced.
    fn expand(&self, pattern: &str) -> String {
        let form = Regex::new("<[a-z]+>").unwrap();
        let named = form.replace_all(pattern.as_bytes(), |found: &regex::bytes::Captures<'_>| {
            let name = String::from_utf8_lossy(&found[0]);
            let known = self.0.get(&*name);
            format!("(?:{})", known.unwrap_or_else(|| panic!("no form {name}")))
        });
        String::from_utf8(named.into_owned()).unwrap()
    }

    fn pattern(&self, pattern: &str) -> Regex {
        Regex::new(&format!(r"\A(?:{})\z", self.expand(pattern))).unwrap()
    }

    /// The name of a key: all but the forms is literal.
    fn key(&self, name: &str) -> Regex {
        let escaped = name.replace('{', r"\{").replace('}', r"\}");
        self.pattern(&escaped)
    }
}

/// The code spans of a cell.
fn spans(cell: &str) -> Vec<String> {
    let spans = cell.split('`').skip(1).step_by(2);
    spans.map(|span| span.replace(r"\|", "|")).collect()
}

/// The cells of a line of a table; none of any other line.
fn cells(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.strip_suffix('|')?;
    let inner = inner.replace(r"\|", "\0");
    let cells = inner
        .split('|')
        .map(|cell| cell.trim().replace('\0', r"\|"));
    Some(cells.collect())
}

impl Schema {
    pub(super) fn read() -> Self {
        let page = std::fs::read_to_string(repository().join("docs/stored.md")).unwrap();
        let mut forms = Forms::default();
        let (mut rows, mut of_header) = (Vec::new(), Vec::new());
        let mut heading: Option<Vec<String>> = None;
        let (mut key, mut sort) = (String::new(), String::new());
        for line in page.lines() {
            let Some(cells) = cells(line) else {
                heading = None;
                continue;
            };
            let Some(heading) = &heading else {
                heading = Some(cells);
                continue;
            };
            if cells[0].starts_with("--") {
                continue;
            }
            let row = |key: &str, sort: &str, field: &str, value: &str| Row {
                text: line.to_owned(),
                key: forms.key(key),
                sort: sort.to_owned(),
                field: forms.pattern(field),
                value: forms.pattern(value),
                was_met: false,
            };
            let of_fields = spans(&heading[0]);
            match (&*heading[0], of_fields.first()) {
                ("form", _) => {
                    for (name, pattern) in spans(&cells[0]).iter().zip(spans(&cells[2])) {
                        forms.0.insert(name.clone(), forms.expand(&pattern));
                    }
                }
                ("key", _) => {
                    if let Some(named) = spans(&cells[0]).first() {
                        (key, sort) = (named.clone(), cells[1].clone());
                    }
                    match &spans(&cells[2])[..] {
                        [] => {}
                        [field, value] => rows.push(row(&key, &sort, field, value)),
                        [value] if sort == "stream" => {
                            let (field, value) = value.split_once('=').unwrap();
                            rows.push(row(&key, &sort, field, value));
                        }
                        [value] => rows.push(row(&key, &sort, "", value)),
                        more => panic!("{more:?} in {line}"),
                    }
                }
                (_, Some(of)) => {
                    let (field, value) = (&spans(&cells[0])[0], &spans(&cells[1])[0]);
                    match &**of {
                        "<header>" => of_header.push(row("", "header", field, value)),
                        of => rows.push(row(of, "hash", field, value)),
                    }
                }
                _ => {}
            }
        }
        assert!(rows.len() > 50 && of_header.len() > 10, "the page is read");
        Schema {
            rows,
            of_header,
            faults: BTreeSet::new(),
        }
    }

    /// Compares a key, and one of its entries, with the rows.
    pub(super) fn meets(&mut self, stored: &Stored) {
        let fits = |row: &&mut Row| {
            row.sort == stored.sort
                && row.key.is_match(&stored.key)
                && row.field.is_match(&stored.field)
                && row.value.is_match(&stored.value)
        };
        let Some(row) = self.rows.iter_mut().find(fits) else {
            self.faults.insert(format!("no row for {stored}"));
            return;
        };
        row.was_met = true;
        if row.text.contains("<record>") || row.text.contains("<header>") {
            self.meets_header(stored);
        }
    }

    /// Compares the header of a record with the rows of its fields.
    fn meets_header(&mut self, stored: &Stored) {
        let text = String::from_utf8_lossy(&stored.value);
        let begins = text.find('{').expect("a record has a header");
        let line = text[begins..].lines().next().unwrap_or_default();
        let Ok(header) = serde_json::from_str::<Map<String, Value>>(line) else {
            self.faults.insert(format!("no header in {stored}"));
            return;
        };
        for (field, value) in &header {
            let value = value.to_string();
            let fits = |row: &&mut Row| {
                row.field.is_match(field.as_bytes()) && row.value.is_match(value.as_bytes())
            };
            match self.of_header.iter_mut().find(fits) {
                Some(row) => row.was_met = true,
                None => drop(
                    self.faults
                        .insert(format!("no row for {field}: {value} in a header")),
                ),
            }
        }
    }

    /// Fails if a write had no row, or a row had no write.
    pub(super) fn assert_kept(mut self) {
        let unmet = self.rows.iter().chain(&self.of_header);
        let unmet = unmet.filter(|row| !row.was_met);
        self.faults
            .extend(unmet.map(|row| format!("never written: {}", row.text)));
        let faults = Vec::from_iter(self.faults);
        assert!(
            faults.is_empty(),
            "docs/stored.md and the scripts differ; change the row, or the scene of this test:\n{}",
            faults.join("\n")
        );
    }
}
