//! `keyfall functions`: the library of Redis functions, by which any client schedules.

use anyhow::bail;
use keyfall::{Functions, LibraryState};
use serde::Serialize;

use super::connect::{Remedy, Server};
use super::out::{self, Form};
use super::stop::Stop;
use super::which::Unasked;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Command {
    /// Load the library, and prepare the database of the URL for it
    #[command(
        after_help = "Examples:\n  keyfall functions install\n  keyfall functions install --redis-url redis://127.0.0.1:6379/3"
    )]
    Install(Change),
    /// Compare the loaded library with the library of this version
    #[command(
        after_help = "Example:\n  keyfall functions check --json\n\nExit codes: 0 the loaded library fits, 1 it does not fit, 3 no library is loaded; others as in `keyfall --help`"
    )]
    Check(Options),
    /// Remove the library from the server
    #[command(alias = "rm", after_help = "Example:\n  keyfall functions remove")]
    Remove(Change),
    /// Print the library, to load it by other means
    #[command(
        after_help = "Example:\n  keyfall functions show | redis-cli -x FUNCTION LOAD REPLACE\n  redis-cli HSET keyfall:meta schema 1 functions 'keyfall:wake:0 keyfall'\n\nThe second line prepares the database 0"
    )]
    Show(Options),
}

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The name of the library, and the start of the names of its functions: NAME_schedule and so
    /// on
    #[arg(long, value_name = "NAME")]
    library: Option<String>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Change {
    /// Replace any library of this name: a newer version, one for another namespace, or a foreign
    /// one
    #[arg(long)]
    replace: bool,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    options: Options,
}

/// The description of a library, as JSON.
#[derive(Serialize)]
struct LibraryOut<'a> {
    library: &'a str,
    /// The version that this program makes.
    version: &'a str,
    /// The state of the loaded library.
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a str>,
    /// The version of the loaded library, if it is another version.
    #[serde(skip_serializing_if = "Option::is_none")]
    found: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<&'a str>,
}

pub(crate) async fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Install(change) => install(change).await,
        Command::Check(options) => check(options).await,
        Command::Remove(change) => remove(change).await,
        Command::Show(options) => show(&options),
    }
}

async fn install(
    Change {
        replace, options, ..
    }: Change,
) -> anyhow::Result<()> {
    let functions = options.functions(replace)?;
    let before = options
        .server
        .explained(functions.install().await, Remedy::Redis)?;
    let done = match &before {
        LibraryState::Fits => "is there already",
        LibraryState::Unprepared => "was there already, and this database is prepared for it now",
        LibraryState::Absent => "is installed",
        _ => "has replaced the library of that name",
    };
    options.say(&functions, &before, done)
}

async fn check(options: Options) -> anyhow::Result<()> {
    let functions = options.functions(false)?;
    let state = options
        .server
        .explained(functions.state().await, Remedy::Redis)?;
    if options.form.json {
        options.say(&functions, &state, "")?;
    }
    let told = format!(
        "the library {} in Redis at {} {state}",
        functions.name(),
        functions.server()
    );
    match state.remedy() {
        None if options.form.json => Ok(()),
        None => Ok(out::line(told)?),
        Some(remedy) if state == LibraryState::Absent => {
            bail!(Stop::absent(format!("{told}: {remedy}")))
        }
        Some(remedy) => bail!("{told}: {remedy}"),
    }
}

async fn remove(
    Change {
        replace, options, ..
    }: Change,
) -> anyhow::Result<()> {
    let functions = options.functions(replace)?;
    let before = options
        .server
        .explained(functions.remove().await, Remedy::Redis)?;
    if before == LibraryState::Absent {
        bail!(Stop::absent(format!(
            "there is no library {} in Redis at {}",
            functions.name(),
            functions.server()
        )));
    }
    options.say(&functions, &before, "is removed")
}

fn show(options: &Options) -> anyhow::Result<()> {
    let functions = options.functions(false)?;
    let source = functions.source();
    if options.form.json {
        return Ok(out::json(&LibraryOut {
            library: functions.name(),
            version: functions.version(),
            state: None,
            found: None,
            source: Some(&source),
        })?);
    }
    Ok(out::text(&source)?)
}

impl Options {
    fn functions(&self, replace: bool) -> anyhow::Result<Functions> {
        let Some(redis) = self.server.redis()? else {
            bail!(Stop::wrong(
                "a library is loaded into Redis, which a daemon does not offer: name the Redis by \
                 --redis-url instead of --api"
            ));
        };
        let mut functions = redis.client().functions()?;
        if let Some(name) = &self.library {
            functions = functions.named(name)?;
        }
        Ok(if replace {
            functions.replacing()
        } else {
            functions
        })
    }

    fn say(&self, functions: &Functions, found: &LibraryState, done: &str) -> anyhow::Result<()> {
        let told = LibraryOut {
            library: functions.name(),
            version: functions.version(),
            state: Some(found.as_str()),
            found: match found {
                LibraryState::Differs { version } => Some(version),
                _ => None,
            },
            source: None,
        };
        let sentence = format!(
            "the library {} of keyfall {} {done} in Redis at {}",
            functions.name(),
            functions.version(),
            functions.server()
        );
        Ok(self.form.say(&told, sentence)?)
    }
}
