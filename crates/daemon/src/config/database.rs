//! The database: its URL, which may hold a password, and the settings that belong to it.

use std::fmt;

use super::fault::Wrong;
#[cfg(feature = "database")]
use super::redis_url::secret;
use super::settings::DatabaseSection;
use super::sources::Sources;
use super::value::{Form, Value};

/// Shown in place of a password.
const HIDDEN: &str = "***";

/// The place of a PostgreSQL, as a URL or as keywords and values. It may hold a password, which is
/// never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseUrl(String);

impl fmt::Display for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let url = self.0.split_once("://");
        let url = url.filter(|(scheme, _)| matches!(*scheme, "postgres" | "postgresql"));
        let Some((scheme, rest)) = url else {
            let shown = self
                .0
                .split_whitespace()
                .map(|pair| match pair.split_once('=') {
                    Some((name @ ("host" | "port" | "user" | "dbname" | "sslmode"), value)) => {
                        format!("{name}={value}")
                    }
                    // A value can have blanks, so any other text may be a part of a password.
                    _ => HIDDEN.to_owned(),
                });
            return f.write_str(&shown.collect::<Vec<_>>().join(" "));
        };
        // A password may have an `@` or a `?` by mistake, and must not be shown.
        let (user, place) = match rest.split_once('@') {
            Some((user, _)) => (user, rest.rsplit('@').next().unwrap_or_default()),
            None => ("", rest),
        };
        let place = place.split('?').next().unwrap_or_default();
        match user.split_once(':') {
            Some((name, _)) => write!(f, "{scheme}://{name}:{HIDDEN}@{place}"),
            None if user.is_empty() => write!(f, "{scheme}://{place}"),
            None => write!(f, "{scheme}://{user}@{place}"),
        }
    }
}

impl fmt::Debug for DatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DatabaseUrl({self})")
    }
}

impl Value for DatabaseUrl {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "URL";

    /// Accepts any text: its faults are reported with those of the settings that belong to it.
    fn parse(text: &str) -> Result<Self, Wrong> {
        Ok(DatabaseUrl(text.to_owned()))
    }

    fn shown(text: &str) -> String {
        DatabaseUrl(text.to_owned()).to_string()
    }
}

/// The settings of the database; `None` without a URL.
#[cfg(feature = "database")]
pub(super) fn read(
    section: &DatabaseSection,
    sources: &mut Sources<'_>,
) -> Option<keyfall_database::Settings> {
    let files = [
        ("password_file", &section.password_file),
        ("ca_file", &section.ca_file),
    ];
    let Some(url) = &section.url else {
        for (name, _) in files.iter().filter(|(_, file)| file.is_some()) {
            let wrong = Wrong::new(
                "there is no database that it could belong to",
                "name the place of the database by `database.url`, or leave this out",
            );
            sources.fault("database", name, wrong);
        }
        return None;
    };
    let mut settings = keyfall_database::Settings::new(&url.0)
        .connections(section.connections)
        .statement_timeout(section.statement_timeout);
    if let Some(file) = &section.password_file {
        match secret(file) {
            Ok(password) => settings = settings.password(password),
            Err(wrong) => sources.fault("database", "password_file", wrong),
        }
    }
    if let Some(file) = &section.ca_file {
        settings = settings.ca_file(file);
    }
    for (name, checked) in [
        ("url", settings.check_url()),
        ("ca_file", settings.check_ca_file()),
    ] {
        if let Err(error) = checked {
            sources.fault("database", name, Wrong(error.to_string()));
        }
    }
    Some(settings)
}

/// Refuses a URL: nothing here could use it.
#[cfg(not(feature = "database"))]
pub(super) fn refuse(section: &DatabaseSection, sources: &mut Sources<'_>) {
    if section.url.is_some() {
        let wrong = Wrong::new(
            "this program was built without the feature `database`",
            "build it with the feature, or leave the setting out",
        );
        sources.fault("database", "url", wrong);
    }
}
