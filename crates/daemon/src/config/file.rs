//! The file: the place of each value in it, and the entries that are not settings.

use std::path::Path;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::fault::{Faults, Origin, Wrong, meant};
use super::rules::Rule;
use super::setting::Setting;
use super::settings::SECTIONS;
use super::value::{Form, Value};

/// The name of the tables that are routes.
const ROUTE: &str = "route";

/// The name of the tables that are limits.
const LIMIT: &str = "limit";

/// The name of the tables that are recurring jobs.
const RECURRING: &str = "recurring";

/// The section that has tables within it, and their name.
const REDIS: &str = "redis";
const SERVERS: &str = "servers";

/// A file that was read, as far as it could be.
pub(super) struct File<'a> {
    place: LineIndex<'a>,
    table: DeTable<'a>,
    /// Whether a part of the file is not TOML: then a missing value may be in that part.
    pub(super) is_broken: bool,
}

/// Finds the line of a part of the text.
#[derive(Clone)]
struct LineIndex<'a> {
    path: Arc<Path>,
    text: &'a str,
}

/// A route of the file, or a table in one.
pub(super) struct Entry<'a> {
    place: LineIndex<'a>,
    table: &'a DeTable<'a>,
    pub(super) origin: Origin,
    /// The prefix of its fields in messages: `route`, or `route.target.http`.
    name: String,
}

impl LineIndex<'_> {
    fn at(&self, offset: usize) -> Origin {
        let before = &self.text[..offset.min(self.text.len())];
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Origin::File {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl<'a> File<'a> {
    /// Parses the text, and reports the parts that are not TOML and the entries that are not
    /// settings.
    pub(super) fn parse(path: &Path, text: &'a str, faults: &mut Faults) -> Self {
        let place = LineIndex {
            path: path.into(),
            text,
        };
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in &errors {
            let at = place.at(error.span().map_or(0, |span| span.start));
            // The error could show the line, and with it a password; its message does not.
            let wrong = Wrong(format!("this is not TOML: {}", error.message()));
            faults.add(at, "", wrong);
        }
        let file = File {
            place,
            table: table.into_inner(),
            is_broken: !errors.is_empty(),
        };
        file.find_strangers(faults);
        file
    }

    /// An absent file.
    pub(super) fn none() -> Self {
        File {
            place: LineIndex {
                path: Path::new("").into(),
                text: "",
            },
            table: DeTable::default(),
            is_broken: false,
        }
    }

    /// The value of a setting, as a text.
    pub(super) fn setting(
        &self,
        setting: &Setting,
    ) -> Result<Option<(String, Origin)>, (Origin, Wrong)> {
        let section = self.table.get(setting.section);
        let section = section.and_then(|section| section.get_ref().as_table());
        let Some(value) = section.and_then(|section| section.get(setting.name)) else {
            return Ok(None);
        };
        let origin = self.place.at(value.span().start);
        match written(value.get_ref(), setting.form) {
            Ok(text) => Ok(Some((text, origin))),
            Err(wrong) => Err((origin, wrong)),
        }
    }

    /// The tables that are routes.
    pub(super) fn routes(&self) -> impl Iterator<Item = Entry<'_>> {
        self.tables(self.table.get(ROUTE), ROUTE.to_owned())
    }

    /// The tables that are limits.
    pub(super) fn limits(&self) -> impl Iterator<Item = Entry<'_>> {
        self.tables(self.table.get(LIMIT), LIMIT.to_owned())
    }

    /// The tables that are recurring jobs; `None` if the file has none, not even an empty list.
    pub(super) fn recurring(&self) -> Option<impl Iterator<Item = Entry<'_>>> {
        let list = self.table.get(RECURRING)?;
        Some(self.tables(Some(list), RECURRING.to_owned()))
    }

    /// The tables that are servers of the section `redis`.
    pub(super) fn servers(&self) -> impl Iterator<Item = Entry<'_>> {
        let section = self.table.get(REDIS);
        let section = section.and_then(|section| section.get_ref().as_table());
        let servers = section.and_then(|section| section.get(SERVERS));
        self.tables(servers, format!("{REDIS}.{SERVERS}"))
    }

    fn tables<'s>(
        &'s self,
        list: Option<&'s Spanned<DeValue<'a>>>,
        name: String,
    ) -> impl Iterator<Item = Entry<'s>> {
        let tables = list.and_then(|list| list.get_ref().as_array());
        let tables = tables.into_iter().flat_map(|tables| tables.iter());
        tables.filter_map(move |table| {
            Some(Entry {
                place: self.place.clone(),
                table: table.get_ref().as_table()?,
                origin: self.place.at(table.span().start),
                name: name.clone(),
            })
        })
    }

    /// Reports entries that no setting reads.
    fn find_strangers(&self, faults: &mut Faults) {
        for (name, value) in &self.table {
            let at = || self.place.at(name.span().start);
            let text: &str = name.get_ref();
            if text == ROUTE {
                if !are_tables(value.get_ref()) {
                    faults.add(at(), ROUTE, routes_are_tables());
                }
                continue;
            }
            if text == LIMIT {
                if !are_tables(value.get_ref()) {
                    faults.add(at(), LIMIT, limits_are_tables());
                }
                continue;
            }
            if text == RECURRING {
                if !are_tables(value.get_ref()) {
                    faults.add(at(), RECURRING, recurring_are_tables());
                }
                continue;
            }
            let known = SECTIONS.iter().find(|section| section.name == text);
            let Some(known) = known else {
                faults.add(at(), text, no_section(text));
                continue;
            };
            let Some(section) = value.get_ref().as_table() else {
                let remedy = format!("write [{text}], and below it its settings");
                faults.add(at(), text, Wrong::new("it is a section", remedy));
                continue;
            };
            for (name, value) in section {
                let text: &str = name.get_ref();
                if known.name == REDIS && text == SERVERS {
                    let is_empty = value.get_ref().as_array().is_some_and(|it| it.is_empty());
                    if is_empty || !are_tables(value.get_ref()) {
                        let at = self.place.at(name.span().start);
                        let field = format!("{REDIS}.{SERVERS}");
                        faults.add(at, field, servers_are_tables());
                    }
                    continue;
                }
                if !known.settings.iter().any(|setting| setting.name == text) {
                    let field = format!("{}.{text}", known.name);
                    let at = self.place.at(name.span().start);
                    faults.add(at, field, no_setting(known.name, text));
                }
            }
        }
    }
}

fn are_tables(value: &DeValue<'_>) -> bool {
    let tables = value.as_array();
    tables.is_some_and(|tables| tables.iter().all(|table| table.get_ref().is_table()))
}

fn servers_are_tables() -> Wrong {
    Wrong::new(
        "servers are tables",
        "write [[redis.servers]] for each, and below it `url = …`",
    )
}

fn routes_are_tables() -> Wrong {
    Wrong::new(
        "routes are tables",
        "write [[route]], and below it `pattern = …` and `target = …`",
    )
}

fn limits_are_tables() -> Wrong {
    Wrong::new(
        "limits are tables",
        "write [[limit]], and below it `kind = …` and `rate = …` or `concurrency = …`",
    )
}

fn recurring_are_tables() -> Wrong {
    Wrong::new(
        "recurring jobs are tables",
        "write [[recurring]], and below it `key = …` and `cron = …`; or `recurring = []` for none",
    )
}

fn no_section(text: &str) -> Wrong {
    let sections = SECTIONS.iter().map(|section| section.name);
    let settings = super::settings::all();
    let mut here = settings.filter(|it| it.name == text || it.field().replace('.', "_") == text);
    let remedy = match here.next() {
        Some(setting) => format!("write it below [{}] as `{}`", setting.section, setting.name),
        None => meant(text, sections.chain([ROUTE, LIMIT, RECURRING])),
    };
    Wrong::new("there is no such section", remedy)
}

fn no_setting(section: &str, text: &str) -> Wrong {
    let elsewhere = super::settings::all().find(|setting| setting.name == text);
    let here = super::settings::all().filter(|setting| setting.section == section);
    let remedy = match elsewhere {
        Some(setting) => format!("`{text}` stands below [{}]", setting.section),
        None => meant(text, here.map(|setting| setting.name)),
    };
    Wrong::new("there is no such setting", remedy)
}

impl<'a> Entry<'a> {
    /// Reads the value of a field, or reports its fault.
    pub(super) fn value<T: Value>(
        &self,
        field: &str,
        rules: &[Rule<T>],
        faults: &mut Faults,
    ) -> Option<T> {
        let value = self.table.get(field)?;
        let parsed = written(value.get_ref(), T::FORM).and_then(|text| {
            let parsed = T::parse(&text)?;
            rules.iter().try_for_each(|rule| rule(&parsed))?;
            Ok(parsed)
        });
        match parsed {
            Ok(parsed) => Some(parsed),
            Err(wrong) => {
                self.fault(field, wrong, faults);
                None
            }
        }
    }

    /// Reads a list of texts, or reports its fault.
    pub(super) fn texts(&self, field: &str, faults: &mut Faults) -> Option<Vec<String>> {
        let value = self.table.get(field)?.get_ref();
        let texts = value.as_array().and_then(|list| {
            let text = |value: &Spanned<DeValue<'_>>| value.get_ref().as_str().map(str::to_owned);
            list.iter().map(text).collect()
        });
        if texts.is_none() {
            let wrong = Wrong::new(
                format_args!("this is {}", name_of(value)),
                "write a list of texts, [\"…\", \"…\"]",
            );
            self.fault(field, wrong, faults);
        }
        texts
    }

    /// A table within this one.
    pub(super) fn table(&self, field: &str) -> Option<Entry<'a>> {
        let value = self.table.get(field)?;
        Some(Entry {
            place: self.place.clone(),
            table: value.get_ref().as_table()?,
            origin: self.place.at(value.span().start),
            name: format!("{}.{field}", self.name),
        })
    }

    /// Reports a fault of a field.
    pub(super) fn fault(&self, field: &str, wrong: Wrong, faults: &mut Faults) {
        faults.add(self.at(field), format!("{}.{field}", self.name), wrong);
    }

    /// The value of a field as TOML, not yet read.
    pub(super) fn raw(&self, field: &str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.table.get(field)
    }

    /// The place of a field's value; of the table, if the field is absent.
    pub(super) fn at(&self, field: &str) -> Origin {
        match self.table.get(field) {
            Some(value) => self.place.at(value.span().start),
            None => self.origin.clone(),
        }
    }

    fn what(&self) -> String {
        match self.name.rsplit_once('.') {
            Some((_, last)) => format!("`{last}`"),
            None => format!("a {}", self.name),
        }
    }

    /// Reports the fields that are not in this list.
    pub(super) fn find_strangers(&self, fields: &[&str], faults: &mut Faults) {
        for name in self.table.keys() {
            let text: &str = name.get_ref();
            if !fields.contains(&text) {
                let remedy = meant(text, fields.iter().copied());
                let at = self.place.at(name.span().start);
                let wrong = Wrong::new(format_args!("{} has no such field", self.what()), remedy);
                faults.add(at, format!("{}.{text}", self.name), wrong);
            }
        }
    }
}

/// A value as a text, in the form that it has behind a flag.
fn written(value: &DeValue<'_>, form: Form) -> Result<String, Wrong> {
    match (value, form) {
        (DeValue::String(text), Form::Text) => Ok(text.to_string()),
        (DeValue::Boolean(value), Form::Switch) => Ok(value.to_string()),
        (DeValue::Integer(number), Form::Number) => {
            let number = i128::from_str_radix(number.as_str(), number.radix());
            number
                .map(|number| number.to_string())
                .map_err(|_| Wrong::new("this number is too large", "write a smaller one"))
        }
        (other, form) => Err(Wrong::new(
            format_args!("this is {}", name_of(other)),
            match form {
                Form::Text => "write a text, in quotes",
                Form::Number => "write a whole number, without quotes",
                Form::Switch => "write true or false, without quotes",
            },
        )),
    }
}

fn name_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a text",
        DeValue::Integer(_) => "a number",
        DeValue::Float(_) => "a number with a point",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
