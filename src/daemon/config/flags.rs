//! The settings as flags.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::setting::Setting;
use super::settings::SECTIONS;
use super::value::Form;

/// What the command line says of a configuration.
#[derive(clap::Args, Debug, Clone, Default)]
pub(crate) struct Args {
    /// The file with settings and routes; also KEYFALL_CONFIG. `keyfall config` prints one to
    /// start from
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) flags: Flags,
}

/// The flags that were given, by their names.
#[derive(Debug, Clone, Default)]
pub(crate) struct Flags(BTreeMap<String, String>);

impl Flags {
    pub(super) fn get(&self, setting: &Setting) -> Option<&str> {
        self.0.get(&setting.flag()).map(String::as_str)
    }

    #[cfg(test)]
    pub(super) fn of(flags: &[(&str, &str)]) -> Self {
        let owned = |&(name, text): &(&str, &str)| (name.to_owned(), text.to_owned());
        Flags(flags.iter().map(owned).collect())
    }
}

impl FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Flags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for setting in super::settings::all() {
            let flag = setting.flag();
            if let Some(text) = matches.get_one::<String>(&flag) {
                self.0.insert(flag, text.clone());
            }
        }
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        SECTIONS.iter().fold(command, |command, section| {
            let heading = format!("[{}] {}", section.name, text(section.doc));
            let settings = section.settings.iter();
            command.args(settings.map(|setting| arg(setting).help_heading(heading.clone())))
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args(command)
    }
}

fn arg(setting: &Setting) -> Arg {
    let mut help = text(setting.doc);
    if let Some(default) = setting.default {
        help = format!("{help} [default: {default}]");
    }
    if let Some(like) = setting.like {
        help = format!("{help} [such as {like}]");
    }
    let arg = Arg::new(setting.flag())
        .long(setting.flag())
        .value_name(setting.what)
        .help(help);
    match setting.form {
        // Alone it means yes.
        Form::Switch => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true"),
        Form::Number => arg.allow_negative_numbers(true),
        Form::Text => arg,
    }
}

/// The lines of a comment as one.
fn text(lines: &[&str]) -> String {
    let lines: Vec<&str> = lines.iter().map(|line| line.trim()).collect();
    lines.join(" ").trim_end_matches('.').to_owned()
}
