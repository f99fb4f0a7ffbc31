//! The settings as flags.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Arg, ArgMatches, Command, FromArgMatches};

use super::setting::{Section, Setting};
use super::settings::SECTIONS;
use super::value::Form;

/// The configuration on the command line.
#[derive(clap::Args, Debug, Clone, Default)]
pub struct Args {
    /// The file with settings and routes; also KEYFALL_CONFIG. `keyfall config` prints one to
    /// start from
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    #[command(flatten)]
    pub flags: Flags,
}

/// The flags of the section with the place of Redis, for commands that read no file.
#[derive(Debug, Clone, Default)]
pub struct RedisFlags(pub(super) Flags);

/// The flags that were given, by their names.
#[derive(Debug, Clone, Default)]
pub struct Flags(BTreeMap<String, String>);

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
        self.take(matches, SECTIONS);
        Ok(())
    }
}

impl Flags {
    /// Takes the given flags of these sections.
    fn take(&mut self, matches: &ArgMatches, sections: &[Section]) {
        for setting in sections.iter().flat_map(|section| section.settings) {
            let flag = setting.flag();
            if let Some(text) = matches.get_one::<String>(&flag) {
                self.0.insert(flag, text.clone());
            }
        }
    }
}

/// The section with the place of Redis.
fn redis() -> &'static [Section] {
    let at = SECTIONS.iter().position(|section| section.name == "redis");
    let at = at.expect("the list has it");
    &SECTIONS[at..=at]
}

impl FromArgMatches for RedisFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = RedisFlags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.0.take(matches, redis());
        Ok(())
    }
}

/// The arguments of the section with the place of Redis. Most commands have them.
static REDIS_ARGS: LazyLock<Vec<Arg>> = LazyLock::new(|| {
    let sections = redis().iter();
    sections.flat_map(|it| args(it, text(it.doc))).collect()
});

/// The arguments of all sections.
static ALL_ARGS: LazyLock<Vec<Arg>> = LazyLock::new(|| {
    let sections = SECTIONS.iter();
    let args = sections.flat_map(|it| args(it, format!("[{}] {}", it.name, text(it.doc))));
    args.collect()
});

impl clap::Args for RedisFlags {
    fn augment_args(command: Command) -> Command {
        command.args(&*REDIS_ARGS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        RedisFlags::augment_args(command)
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        command.args(&*ALL_ARGS)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Flags::augment_args(command)
    }
}

/// The arguments of a section, under this heading.
fn args(section: &'static Section, heading: String) -> impl Iterator<Item = Arg> {
    let settings = section.settings.iter();
    settings.map(move |setting| arg(setting).help_heading(heading.clone()))
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
        // The flag alone means yes.
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
