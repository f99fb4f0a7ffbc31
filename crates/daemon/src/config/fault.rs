//! The faults of a configuration, with their places.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The place of a setting, in ascending order of precedence.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    Default,
    /// Line and column count from 1, the column in characters.
    File {
        path: Arc<Path>,
        line: usize,
        column: usize,
    },
    /// A variable of the environment.
    Env(String),
    /// The name of the flag, with its dashes.
    Flag(String),
}

impl Origin {
    /// Whether both are the file, both the environment, or both the command line.
    pub fn is_beside(&self, other: &Origin) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line, column } => {
                write!(f, "{}:{line}:{column}", path.display())
            }
            Origin::Env(name) | Origin::Flag(name) => f.write_str(name),
        }
    }
}

/// A value that breaks a rule: the rule and the remedy, as a phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wrong(pub(super) String);

impl Wrong {
    pub(super) fn new(rule: impl fmt::Display, remedy: impl fmt::Display) -> Self {
        Wrong(format!("{rule}; {remedy}"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    pub(super) at: Origin,
    /// Such as `redis.url` or `route.lease`; empty if no field is known.
    pub(super) field: String,
    /// The rule and the remedy.
    pub(super) wrong: Wrong,
}

impl Fault {
    /// In the file.
    fn line(&self) -> Option<usize> {
        match self.at {
            Origin::File { line, .. } => Some(line),
            _ => None,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.at)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.wrong.0)
    }
}

/// All faults, in the order of the file; one a line.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Faults(Vec<Fault>);

impl Faults {
    pub(super) fn add(&mut self, at: Origin, field: impl Into<String>, wrong: Wrong) {
        self.0.push(Fault {
            at,
            field: field.into(),
            wrong,
        });
    }

    /// Whether a field, such as `alerts.late_after`, has a fault.
    pub(super) fn is_about(&self, field: &str) -> bool {
        self.0.iter().any(|fault| fault.field == field)
    }

    /// The number of faults; at least one in a `Faults` that is returned as an error.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// `value`, if there are no faults.
    pub(super) fn or<T>(mut self, value: T) -> Result<T, Faults> {
        if self.0.is_empty() {
            return Ok(value);
        }
        // A line that is not TOML was misread, so its other faults mean nothing.
        let no_toml = self.0.iter().filter(|fault| fault.field.is_empty());
        let no_toml: HashSet<usize> = no_toml.filter_map(Fault::line).collect();
        let is_meant = |fault: &Fault| !fault.line().is_some_and(|line| no_toml.contains(&line));
        self.0
            .retain(|fault| fault.field.is_empty() || is_meant(fault));
        self.0.sort_by(|a, b| a.at.cmp(&b.at));
        self.0.dedup();
        Err(self)
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, fault) in self.0.iter().enumerate() {
            let end = if number == 0 { "" } else { "\n" };
            write!(f, "{end}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Faults {}

/// ``did you mean `x`?`` if one of the names is similar; else the list of all names.
pub(super) fn meant<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    // A letter too many, too few, wrong, or swapped with the next.
    let is_slip = |name: &&&str| strsim::damerau_levenshtein(text, name) == 1;
    if let Some(name) = names.iter().find(is_slip) {
        return format!("did you mean `{name}`?");
    }
    let near = names
        .iter()
        // Two swapped letters make short names look very different.
        .map(|name| {
            let alike = strsim::jaro_winkler(text, name);
            (
                alike.max(strsim::normalized_damerau_levenshtein(text, name)),
                name,
            )
        })
        .max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        Some((likeness, name)) if likeness > 0.65 => format!("did you mean `{name}`?"),
        _ => {
            let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
            format!("there are {}", names.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::meant;

    #[test]
    fn the_nearest_name_is_suggested() {
        let names = ["url_file", "username", "url", "password_file"];
        for (text, name) in [
            ("ulr", "url"),
            ("urll", "url"),
            ("urlfile", "url_file"),
            ("pasword_file", "password_file"),
        ] {
            assert_eq!(meant(text, names), format!("did you mean `{name}`?"));
        }
        assert!(meant("zzzzz", names).starts_with("there are `url_file`, "));
    }
}
