//! `keyfall pause` and `keyfall resume`: nothing of a kind starts, until it may.

use jiff::Timestamp;
use keyfall::{Client, Kind};
use serde::Serialize;

use super::connect::Server;
use super::out::{self, Form};
use super::when::{shown, stamp};
use super::which::select;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    kinds: Kinds,

    /// Change nothing, and name the kinds
    #[arg(long)]
    dry_run: bool,

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
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct Kinds {
    /// What the kinds begin with, such as app1:trans:notice: with the colon at its end
    prefix: Option<String>,

    /// All of them
    #[arg(long)]
    all: bool,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct KindsOrList {
    /// What the kinds begin with, such as app1:trans:notice: with the colon at its end; those
    /// included that are used for the first time later
    prefix: Option<String>,

    /// All of them
    #[arg(long)]
    all: bool,

    /// Say what is paused, and since when
    #[arg(long)]
    list: bool,
}

pub(crate) async fn pause(options: Pause) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    if options.kinds.list {
        return list(&client, options.form).await;
    }
    let mut call = select(&client, options.kinds.prefix.as_deref()).pause();
    if options.dry_run {
        call = call.dry_run();
    }
    tell("paused", &call.await?, options.dry_run, options.form)
}

pub(crate) async fn resume(options: Options) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let mut call = select(&client, options.kinds.prefix.as_deref()).resume();
    if options.dry_run {
        call = call.dry_run();
    }
    tell("resumed", &call.await?, options.dry_run, options.form)
}

fn tell(done: &str, kinds: &[Kind], dry_run: bool, form: Form) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Answer<'a> {
        kinds: Vec<&'a str>,
        dry_run: bool,
    }
    if form.json {
        let kinds = kinds.iter().map(Kind::as_str).collect();
        return Ok(out::json(&Answer { kinds, dry_run })?);
    }
    let would = if dry_run { "would be " } else { "" };
    for kind in kinds {
        out::line(format!("{would}{done}: {kind}"))?;
    }
    if kinds.is_empty() {
        out::line("no kind begins so by now")?;
    }
    Ok(())
}

async fn list(client: &Client, form: Form) -> anyhow::Result<()> {
    #[derive(Serialize)]
    struct Since<'a> {
        name: &'a str,
        since: Timestamp,
    }
    #[derive(Serialize)]
    struct Answer<'a> {
        /// What kinds to come begin with that are paused.
        rules: Vec<Since<'a>>,
        kinds: Vec<Since<'a>>,
    }
    let paused = client.paused().await?;
    if form.json {
        let since = |name, since| Since {
            name,
            since: stamp(since),
        };
        let (rules, kinds) = (paused.rules.iter(), paused.kinds.iter());
        return Ok(out::json(&Answer {
            rules: rules.map(|(rule, at)| since(rule.as_str(), *at)).collect(),
            kinds: kinds.map(|(kind, at)| since(kind.as_str(), *at)).collect(),
        })?);
    }
    let rules = paused.rules.iter().map(|(rule, since)| {
        let all = if rule.is_empty() { "all" } else { rule };
        [all.to_owned(), "kinds to come".to_owned(), shown(*since)]
    });
    let kinds = paused.kinds.iter();
    let kinds = kinds.map(|(kind, since)| [kind.to_string(), "kind".to_owned(), shown(*since)]);
    out::table(["paused", "what", "since"], kinds.chain(rules))?;
    Ok(())
}
