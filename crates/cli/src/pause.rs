//! `keyfall pause` and `keyfall resume`: keep jobs of a kind from starting, and let them start
//! again.

use super::connect::Server;
use super::jobs::Jobs;
use super::out::{self, Form};
use super::unseen;
use super::when::shown;
use super::which::{Unasked, among};
use keyfall_daemon::shapes::SwitchedOut;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    kinds: Kinds,

    /// Change nothing, and name the kinds
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Pause {
    #[command(flatten)]
    kinds: KindsOrList,

    /// Change nothing, and name the kinds
    #[arg(long, conflicts_with = "list")]
    dry_run: bool,

    #[command(flatten)]
    unasked: Unasked,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct Kinds {
    /// The prefix of the kinds, such as app1:trans:notice: with the colon at its end
    #[arg(value_name = "PREFIX")]
    named: Option<String>,

    /// The same as PREFIX
    #[arg(long)]
    prefix: Option<String>,

    /// All of them
    #[arg(long)]
    all: bool,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct KindsOrList {
    /// The prefix of the kinds, such as app1:trans:notice: with the colon at its end; it also
    /// pauses kinds that are used for the first time later
    #[arg(value_name = "PREFIX")]
    named: Option<String>,

    /// The same as PREFIX
    #[arg(long)]
    prefix: Option<String>,

    /// All of them
    #[arg(long)]
    all: bool,

    /// List the pauses with their starts
    #[arg(long)]
    list: bool,
}

pub(crate) async fn pause(options: Pause) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    if options.kinds.list {
        return list(&jobs, options.form).await;
    }
    let prefix = options.kinds.named.or(options.kinds.prefix);
    let which = among(prefix, options.dry_run);
    tell("paused", &jobs.pause(&which).await?, options.form)
}

pub(crate) async fn resume(options: Options) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let prefix = options.kinds.named.or(options.kinds.prefix);
    let which = among(prefix, options.dry_run);
    tell("resumed", &jobs.resume(&which).await?, options.form)
}

fn tell(done: &str, switched: &SwitchedOut, form: Form) -> anyhow::Result<()> {
    if form.json {
        return Ok(out::json(switched)?);
    }
    let would = if switched.dry_run { "would be " } else { "" };
    for kind in &switched.kinds {
        out::line(format!("{would}{done}: {kind}"))?;
    }
    if switched.kinds.is_empty() {
        let state = if done == "resumed" { " is paused" } else { "" };
        out::line(format!("no kind with this prefix{state}"))?;
    }
    Ok(())
}

async fn list(jobs: &Jobs, form: Form) -> anyhow::Result<()> {
    let paused = jobs.paused().await?;
    if form.json {
        out::json(&paused)?;
        return unseen::told(&paused.unseen);
    }
    let kinds = paused.kinds.into_iter();
    let kinds = kinds.map(|one| [one.name, "kind".to_owned(), shown(one.since)]);
    let rules = paused.prefixes.into_iter().map(|one| {
        let all = if one.name.is_empty() {
            "all".to_owned()
        } else {
            one.name
        };
        [all, "kinds to come".to_owned(), shown(one.since)]
    });
    out::table(["paused", "what", "since"], kinds.chain(rules))?;
    unseen::told(&paused.unseen)
}
