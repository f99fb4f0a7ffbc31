//! Who says what a setting is: a flag beats the environment, which beats the file, which beats
//! the default.

use super::fault::{Faults, Origin, Wrong};
use super::file::File;
use super::flags::Flags;
use super::rules::Rule;
use super::setting::Setting;
use super::settings::setting;
use super::value::Value;

/// Where values are looked for, and what was wrong there.
pub(super) struct Sources<'a> {
    pub(super) file: File<'a>,
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
    pub(super) flags: &'a Flags,
    pub(super) faults: Faults,
    pub(super) given: Vec<Given>,
}

/// A setting that somebody has given.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) setting: &'static Setting,
    pub(super) origin: Origin,
    /// Its value, without secrets.
    pub(super) shown: String,
}

impl Sources<'_> {
    /// What holds of a setting. All that is said is looked at, so that the file has no fault
    /// that a flag hides.
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

    /// What is said of it, the strongest last.
    fn said(&mut self, setting: &Setting) -> Vec<(String, Origin)> {
        let mut said = Vec::new();
        match self.file.setting(setting) {
            Ok(found) => said.extend(found),
            Err((origin, wrong)) => self.faults.add(origin, setting.field(), wrong),
        }
        // Whoever cannot leave a variable out leaves it empty.
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

    /// Who gave a setting.
    pub(super) fn origin(&self, section: &str, name: &str) -> Origin {
        let setting = setting(section, name);
        let mut given = self.given.iter();
        given
            .find(|given| std::ptr::eq(given.setting, setting))
            .map_or(Origin::Default, |given| given.origin.clone())
    }

    /// Says what is wrong with a setting as it was given.
    pub(super) fn fault(&mut self, section: &str, name: &str, wrong: Wrong) {
        let origin = self.origin(section, name);
        self.faults.add(origin, format!("{section}.{name}"), wrong);
    }
}
