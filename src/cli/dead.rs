//! `keyfall dead`: dead letters are listed, requeued and deleted.

use anyhow::anyhow;
use jiff::Timestamp;
use keyfall::{Cursor, JobKey, JobState, JobView, Requeued};
use serde::Serialize;

use super::ask;
use super::change::tell_many;
use super::connect::Server;
use super::job::JobLine;
use super::list::tell_damaged;
use super::out::{self, Form};
use super::stop::Stop;
use super::when::{When, shown, stamp};
use super::which::Which;

#[derive(clap::Subcommand, Debug)]
pub(crate) enum Dead {
    /// List dead letters: of one job the latest first, of many the oldest
    #[command(
        after_help = "Examples:\n  keyfall dead ls --prefix app1:trans:notice:\n  keyfall dead ls app1:trans:notice:42 --json"
    )]
    Ls(List),
    /// Make dead letters pending again, with all their attempts ahead
    #[command(
        after_help = "Examples:\n  keyfall dead requeue app1:trans:notice:42 --after 5m\n  keyfall dead requeue --prefix app1:trans:notice: --dry-run"
    )]
    Requeue(Requeue),
    /// Delete dead letters for good
    #[command(
        after_help = "Examples:\n  keyfall dead rm app1:trans:notice:42 --letter 7\n  keyfall dead rm --prefix app1:trans:notice: --yes"
    )]
    Rm(Remove),
}

#[derive(clap::Args, Debug)]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,

    /// How many at the most
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = page, conflicts_with = "key")]
    limit: usize,

    /// Go on where an earlier list ended
    #[arg(long, value_name = "CURSOR", conflicts_with = "key")]
    after: Option<Cursor>,

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
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["prefix", "all"])]
    letter: Option<u64>,

    #[command(flatten)]
    when: When,

    /// Change nothing, and count the letters
    #[arg(long, conflicts_with = "key")]
    dry_run: bool,

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
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["prefix", "all"])]
    letter: Option<u64>,

    /// Change nothing, and count the letters
    #[arg(long, conflicts_with = "key")]
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
    let client = options.server.connect().await?;
    if let Some(key) = &options.which.key {
        let letters = client.dead_letters(key).await?;
        if letters.is_empty() {
            return Err(absent(key));
        }
        return show(&letters, options.form);
    }
    let letters = options.which.among(&client).list(JobState::Dead);
    let mut letters = letters.limit(options.limit);
    if let Some(cursor) = options.after {
        letters = letters.after(cursor);
    }
    let page = letters.await?;
    tell_damaged(&page);
    show(&page.jobs, options.form)?;
    if let Some(cursor) = page.next {
        eprintln!("there are more: `--after '{cursor}'`");
    }
    Ok(())
}

fn show(letters: &[JobView], form: Form) -> anyhow::Result<()> {
    if form.json {
        for letter in letters {
            out::json(&JobLine::of(letter))?;
        }
        return Ok(());
    }
    let rows = letters.iter().map(|letter| {
        [
            letter.key().to_string(),
            letter.letter().unwrap_or_default().to_string(),
            shown(letter.due()),
            letter.attempts().to_string(),
            letter.last_error().unwrap_or_default().to_owned(),
        ]
    });
    out::table(["key", ">letter", "died", ">attempts", "reason"], rows)?;
    Ok(())
}

async fn requeue(options: Requeue) -> anyhow::Result<()> {
    let at = options.when.at()?;
    if options.which.key.is_none() && !options.when.is_open() {
        let wrong = "many letters are requeued to be due now: leave out `--after` and `--at`, or \
                     postpone the jobs afterwards";
        return Err(Stop::wrong(wrong).into());
    }
    let client = options.server.connect().await?;
    let Some(key) = &options.which.key else {
        let mut call = options.which.among(&client).requeue();
        if options.dry_run {
            call = call.dry_run();
        }
        return tell_many(call.await?, options.dry_run, options.form);
    };
    let mut call = client.requeue(key);
    if let Some(number) = options.letter {
        call = call.letter(number);
    }
    if let Some(delay) = options.when.after {
        call = call.after(delay);
    }
    if let Some(due) = at {
        call = call.at(due);
    }
    #[derive(Serialize)]
    struct Answer<'a> {
        key: &'a str,
        due: Timestamp,
    }
    let due = match call.await? {
        Requeued::Requeued(due) => due,
        Requeued::Present => {
            return Err(anyhow!(
                "a job {key} is pending or running: the letter was left as it is"
            ));
        }
        _ => return Err(absent(key)),
    };
    let answer = Answer {
        key: key.as_str(),
        due: stamp(due),
    };
    let sentence = format!("{key} is pending again: due {}", shown(due));
    options.form.say(&answer, sentence)?;
    Ok(())
}

async fn remove(options: Remove) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let which = &options.which;
    let Some(key) = &which.key else {
        let letters = || which.among(&client).delete_dead_letters();
        let counted = letters().dry_run().await?;
        if options.dry_run {
            return tell_many(counted, true, options.form);
        }
        let what = format!(
            "this deletes the dead letters of {} for good",
            which.jobs(counted.matched)
        );
        ask::confirm(&what, options.yes)?;
        return tell_many(letters().await?, false, options.form);
    };
    let mut call = client.delete_dead_letter(key);
    if let Some(number) = options.letter {
        call = call.letter(number);
    }
    if !call.await? {
        return Err(absent(key));
    }
    #[derive(Serialize)]
    struct Answer<'a> {
        key: &'a str,
        deleted: bool,
    }
    let answer = Answer {
        key: key.as_str(),
        deleted: true,
    };
    options
        .form
        .say(&answer, format!("a dead letter of {key} is deleted"))?;
    Ok(())
}

fn page(text: &str) -> Result<usize, String> {
    let number = text.parse().ok();
    let number = number.filter(|number| (1..=1000).contains(number));
    number.ok_or_else(|| "write a number from 1 to 1000; `keyfall export` takes all".to_owned())
}

fn absent(key: &JobKey) -> anyhow::Error {
    Stop::absent(format!("there is no such dead letter of {key}")).into()
}
