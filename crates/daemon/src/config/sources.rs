//! The precedence of the sources: a flag beats the environment, which beats the file, which beats
//! the default.

use super::fault::{Faults, Origin, Wrong};
use super::file::File;
use super::flags::Flags;
use super::rules::Rule;
use super::setting::Setting;
use super::settings::setting;
use super::value::Value;

/// The sources of values, and their faults.
pub(super) struct Sources<'a> {
    pub(super) file: File<'a>,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) flags: &'a Flags,
    pub(super) faults: Faults,
    pub(super) given: Vec<Given>,
}

/// A setting with a given value.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) setting: &'static Setting,
    pub(super) origin: Origin,
    /// Its value, without secrets.
    pub(super) shown: String,
}

impl Sources<'_> {
    /// The value that holds for a setting. All sources are read, so that a flag does not hide a
    /// fault of the file.
    pub(super) fn value<T: Value>(&mut self, section: &str, name: &str, rules: &[Rule<T>]) -> T {
        let setting = setting(section, name);
        let mut value = match setting.default {
            Some(text) => T::parse(text).ok(),
            None => T::absent(),
        }
        .expect("a test parses all defaults");
        for (text, origin) in self.said(setting) {
            let parsed = T::parse(&text).and_then(|parsed| {
                rules.iter().try_for_each(|rule| rule(&parsed))?;
                Ok(parsed)
            });
            match parsed {
                Ok(parsed) => {
                    value = parsed;
                    self.given
                        .retain(|given| !std::ptr::eq(given.setting, setting));
                    self.given.push(Given {
                        setting,
                        origin,
                        shown: T::shown(&text),
                    });
                }
                Err(wrong) => self.faults.add(origin, setting.field(), wrong),
            }
        }
        value
    }

    /// The given values, the strongest last.
    fn said(&mut self, setting: &Setting) -> Vec<(String, Origin)> {
        let mut said = Vec::new();
        match self.file.setting(setting) {
            Ok(found) => said.extend(found),
            Err((origin, wrong)) => self.faults.add(origin, setting.field(), wrong),
        }
        // Some programs cannot omit a variable, and set it to an empty text.
        if let Some(text) = (self.env)(&setting.env()).filter(|text| !text.is_empty()) {
            said.push((text, Origin::Env(setting.env())));
        }
        if let Some(text) = self.flags.get(setting) {
            said.push((
                text.to_owned(),
                Origin::Flag(format!("--{}", setting.flag())),
            ));
        }
        said
    }

    /// The source of a setting.
    pub(super) fn origin(&self, section: &str, name: &str) -> Origin {
        let setting = setting(section, name);
        let mut given = self.given.iter();
        given
            .find(|given| std::ptr::eq(given.setting, setting))
            .map_or(Origin::Default, |given| given.origin.clone())
    }

    /// Reports a fault of a setting at its place.
    pub(super) fn fault(&mut self, section: &str, name: &str, wrong: Wrong) {
        let origin = self.origin(section, name);
        self.faults.add(origin, format!("{section}.{name}"), wrong);
    }
}
