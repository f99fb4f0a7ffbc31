//! Hints at options that other tools have under another name: `--in` is `--after` here.

use clap::builder::UnknownArgumentValueParser;
use clap::{Arg, Command};

/// What an option is called elsewhere, and here. An option of a similar spelling needs no row.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("cron", "recur"),
    ("delay", "after"),
    ("every", "recur"),
    ("in", "after"),
    ("listen", "http-listen"),
    ("port", "http-listen"),
    ("ttl", "after"),
    ("url", "redis-url"),
];

/// The command, and all below it, with a hint for each of these names that it does not have.
pub(super) fn with_hints(command: Command) -> Command {
    let has = |name| {
        command.get_arguments().any(|option| {
            let aliases = option.get_all_aliases().unwrap_or_default();
            option.get_long() == Some(name) || aliases.contains(&name)
        })
    };
    let absent = OTHER_NAMES.into_iter();
    let absent = absent.filter(|(other, name)| has(name) && !has(other));
    let hints: Vec<Arg> = absent.map(|(other, name)| hint(other, name)).collect();
    command.args(hints).mut_subcommands(with_hints)
}

fn hint(other: &'static str, name: &str) -> Arg {
    let refused = UnknownArgumentValueParser::suggest_arg(format!("--{name}"));
    // `--redis-url` has the id `url`, so a hint has an id of its own.
    let hint = Arg::new(format!("hint-{other}")).long(other);
    hint.hide(true).value_name("VALUE").value_parser(refused)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::Cli;

    #[test]
    fn each_name_leads_to_the_option_of_a_command() {
        /// Whether this command, or one below it, refuses the name with this hint.
        fn refuses(command: &Command, other: &str, hint: &str) -> bool {
            let arguments = [command.get_name(), &format!("--{other}"), "1"];
            let parsed = command.clone().try_get_matches_from(arguments);
            parsed.is_err_and(|error| error.to_string().contains(hint))
                || command
                    .get_subcommands()
                    .any(|below| refuses(below, other, hint))
        }
        let command = with_hints(Cli::command());
        command.clone().debug_assert();
        for (other, name) in OTHER_NAMES {
            let hint = format!("a similar argument exists: '--{name}'");
            assert!(refuses(&command, other, &hint), "--{other}");
            let without = Cli::command();
            assert!(!refuses(&without, other, &hint), "--{other} needs no row");
        }
    }
}
