//! `keyfall dead`: lists, requeues and deletes dead letters.

use anyhow::bail;
use keyfall::{Cursor, JobKey};

use super::ask;
use super::change::tell_many;
use super::connect::Server;
use super::jobs::Jobs;
use super::list::tell_damaged;
use super::out::{self, Form};
use super::plain::aside;
use super::stop::Stop;
use super::unseen;
use super::when::{When, shown};
use super::which::Which;
use keyfall_daemon::shapes::{Job, ListIn, Payloads, RequeueIn, State};

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Dead {
    /// List dead letters: of one job the latest first, of many jobs the oldest first
    #[command(
        alias = "list",
        after_help = "Examples:\n  keyfall dead ls app1:trans:notice:\n  keyfall dead ls app1:trans:notice:42 --json"
    )]
    Ls(List),
    /// Make dead letters pending again, with all their attempts ahead
    #[command(
        after_help = "Examples:\n  keyfall dead requeue app1:trans:notice:42 --after 5m\n  keyfall dead requeue app1:trans:notice: --dry-run"
    )]
    Requeue(Requeue),
    /// Delete dead letters for good
    #[command(
        aliases = ["delete", "remove"],
        after_help = "Examples:\n  keyfall dead rm app1:trans:notice:42 --letter 7\n  keyfall dead rm app1:trans:notice: --yes"
    )]
    Rm(Remove),
}

#[derive(clap::Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,

    /// The most letters to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100, value_parser = page)]
    limit: usize,

    /// Go on at the end of an earlier list
    #[arg(long, alias = "after", value_name = "CURSOR")]
    cursor: Option<Cursor>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Requeue {
    #[command(flatten)]
    which: Which,

    /// The letter with this number, instead of the latest of the job
    #[arg(long, value_name = "NUMBER")]
    letter: Option<u64>,

    #[command(flatten)]
    when: When,

    /// Change nothing, and count the letters
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before many letters are requeued
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Remove {
    #[command(flatten)]
    which: Which,

    /// The letter with this number, instead of the latest of the job
    #[arg(long, value_name = "NUMBER")]
    letter: Option<u64>,

    /// Change nothing, and count the letters
    #[arg(long)]
    dry_run: bool,

    /// Do not ask before many letters are deleted
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(command: Dead) -> anyhow::Result<()> {
    match command {
        Dead::Ls(options) => list(options).await,
        Dead::Requeue(options) => requeue(options).await,
        Dead::Rm(options) => remove(options).await,
    }
}

async fn list(options: List) -> anyhow::Result<()> {
    let which = &options.which;
    which.refuse_for_one("--cursor", options.cursor.is_some())?;
    let jobs = options.server.connect().await?;
    if let Some(key) = which.key() {
        let mut letters = jobs.letters(key).await?;
        if letters.is_empty() {
            return Err(absent(key));
        }
        letters.truncate(options.limit);
        return show(&letters, options.form);
    }
    let wanted = ListIn {
        prefix: which.prefix(),
        state: State::Dead,
        limit: Some(options.limit),
        cursor: options.cursor.map(|cursor| cursor.to_string()),
        payloads: Payloads::Exact,
        ..ListIn::default()
    };
    let page = jobs.list(&wanted).await?;
    tell_damaged(&page);
    show(&page.jobs, options.form)?;
    if let Some(cursor) = page.next {
        aside(format!("there are more: `--cursor '{cursor}'`"));
    }
    unseen::told(&page.unseen)
}

fn show(letters: &[Job], form: Form) -> anyhow::Result<()> {
    if form.json {
        for letter in letters {
            out::json(letter)?;
        }
        return Ok(());
    }
    let rows = letters.iter().map(|letter| {
        [
            letter.key.clone(),
            letter.letter.unwrap_or_default().to_string(),
            shown(letter.due),
            letter.attempts.to_string(),
            letter.last_error.clone().unwrap_or_default(),
        ]
    });
    out::table(["key", ">letter", "died", ">attempts", "reason"], rows)?;
    Ok(())
}

async fn requeue(options: Requeue) -> anyhow::Result<()> {
    let (after, at) = (options.when.after(), options.when.at()?);
    let which = &options.which;
    which.refuse_for_one("--dry-run", options.dry_run)?;
    which.refuse_for_many("--letter", options.letter.is_some())?;
    if which.key().is_none() && !options.when.is_open() {
        let wrong = "many letters are requeued to be due now: leave out `--after` and `--at`, or \
                     postpone the jobs afterwards";
        return Err(Stop::wrong(wrong).into());
    }
    let jobs = options.server.connect().await?;
    let Some(key) = which.key() else {
        let counted = jobs.requeue_many(&which.many(true)).await?;
        if options.dry_run {
            return tell_many(&counted, options.form);
        }
        let what = format!(
            "this requeues the dead letters of {}",
            which.jobs(counted.matched)
        );
        ask::confirm(&what, options.yes)?;
        let report = jobs.requeue_many(&which.many(false)).await?;
        return tell_many(&report, options.form);
    };
    let letter = match find(&jobs, key, options.letter).await? {
        Some(letter) => letter,
        None if is_there(&jobs, key).await? => {
            bail!("a job {key} is pending or running, and there is no dead letter of it");
        }
        None => return Err(absent(key)),
    };
    let requeued = jobs.requeue(key, &RequeueIn { letter, after, at }).await?;
    let sentence = format!("{key} is pending again: due {}", shown(requeued.due));
    options.form.say(&requeued, sentence)?;
    Ok(())
}

async fn remove(options: Remove) -> anyhow::Result<()> {
    let which = &options.which;
    which.refuse_for_one("--dry-run", options.dry_run)?;
    which.refuse_for_many("--letter", options.letter.is_some())?;
    let jobs = options.server.connect().await?;
    let Some(key) = which.key() else {
        let counted = jobs.delete_letters(&which.many(true)).await?;
        if options.dry_run {
            return tell_many(&counted, options.form);
        }
        let what = format!(
            "this deletes the dead letters of {} for good",
            which.jobs(counted.matched)
        );
        ask::confirm(&what, options.yes)?;
        let report = jobs.delete_letters(&which.many(false)).await?;
        return tell_many(&report, options.form);
    };
    let letter = find(&jobs, key, options.letter).await?;
    let letter = letter.ok_or_else(|| absent(key))?;
    let deleted = jobs.delete_letter(key, letter).await?;
    let sentence = format!("the dead letter {letter} of {key} is deleted");
    options.form.say(&deleted, sentence)?;
    Ok(())
}

/// The given number, or the number of the latest letter.
async fn find(jobs: &Jobs, key: &JobKey, given: Option<u64>) -> anyhow::Result<Option<u64>> {
    if given.is_some() {
        return Ok(given);
    }
    let letters = jobs.letters(key).await?;
    Ok(letters.first().and_then(|letter| letter.letter))
}

/// Whether a job of this name is pending or running.
async fn is_there(jobs: &Jobs, key: &JobKey) -> anyhow::Result<bool> {
    let page = jobs.get(key).await;
    Ok(page.is_ok_and(|job| job.state != State::Dead))
}

fn page(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "write a number from 1 to 1000; `keyfall export` takes all".to_owned())
}

fn absent(key: &JobKey) -> anyhow::Error {
    Stop::absent(format!("there is no such dead letter of {key}")).into()
}
