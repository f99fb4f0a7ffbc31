//! `keyfall recur`: the rules of recurring jobs.

use keyfall::{JobKey, Rule};

use super::connect::Server;
use super::list::tell_damaged;
use super::out::{Form, json, line, table};
use super::plain::aside;
use super::stop::Stop;
use super::unseen;
use super::when::shown;
use super::which::Among;
use keyfall_daemon::shapes::{Job, ListIn, Payloads, PreviewOut, RuleIn, RuleOut, State};

/// The most jobs of one call.
const PAGE: usize = 1000;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// List the recurring jobs, with their rules and next times
    #[command(
        alias = "list",
        after_help = "Example:\n  keyfall recur ls app1:digest:"
    )]
    Ls(Ls),
    /// Say a rule in words, with its next five times
    #[command(
        after_help = "Example:\n  keyfall recur preview '0 9 * * MON-FRI' --zone Europe/Berlin"
    )]
    Preview(Preview),
    /// Give a recurring job another rule; its number, payload and headers stay
    #[command(
        after_help = "Example:\n  keyfall recur change app1:digest:daily:42 'every 6h'\n\nA new recurring job: `keyfall schedule KEY --recur RULE`."
    )]
    Change(Change),
    /// Pause the rule of a recurring job: nothing is due until it is resumed
    Pause(One),
    /// Resume a rule that was paused, with its next time
    Resume(One),
}

#[derive(clap::Args, Debug)]
struct Ls {
    #[command(flatten)]
    among: Among,

    /// The most jobs to show
    #[arg(short = 'n', long, value_name = "N", default_value_t = 100)]
    limit: usize,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
struct Preview {
    #[command(flatten)]
    rule: RuleArgs,

    #[command(flatten)]
    form: Form,
}

#[derive(clap::Args, Debug)]
struct Change {
    /// The name of the job, app:module:biz:id
    key: JobKey,

    #[command(flatten)]
    rule: RuleArgs,

    /// Say the rule in words, with its next five times, and change nothing
    #[arg(long)]
    preview: bool,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
struct One {
    /// The name of the job, app:module:biz:id
    key: JobKey,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// A rule on the command line.
#[derive(clap::Args, Debug)]
struct RuleArgs {
    /// A cron expression (`0 9 * * MON-FRI`), `every 90m`, or a table in JSON
    #[arg(value_name = "RULE")]
    text: String,

    /// The zone of a cron expression, such as Europe/Berlin; by default UTC
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
}

impl RuleArgs {
    fn read(&self) -> Result<Rule, Stop> {
        rule(&self.text, self.zone.as_deref())
            .map_err(|fault| Stop::wrong(format!("`{}`: {fault}", self.text)))
    }
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.what {
        What::Ls(ls) => list(ls).await,
        What::Preview(Preview { rule, form }) => Ok(preview(&rule.read()?, form)?),
        What::Change(change) => {
            let rule = change.rule.read()?;
            if change.preview {
                return Ok(preview(&rule, change.form)?);
            }
            let jobs = change.server.connect().await?;
            let words = rule.to_string();
            let answer = jobs.change_rule(&change.key, &RuleIn { rule }).await?;
            tell(&answer, &format!("has the rule: {words}"), change.form)
        }
        What::Pause(One { key, form, server }) => {
            let answer = server.connect().await?.pause_rule(&key).await?;
            tell(&answer, "is paused", form)
        }
        What::Resume(One { key, form, server }) => {
            let answer = server.connect().await?.resume_rule(&key).await?;
            tell(&answer, "is resumed", form)
        }
    }
}

/// Lists the recurring jobs of each state in which a job can be.
async fn list(options: Ls) -> anyhow::Result<()> {
    let jobs = options.server.connect().await?;
    let mut left = options.limit;
    let mut rows = Vec::new();
    let mut missed = Vec::new();
    let mut is_cut = false;
    for state in [State::Running, State::Lapsed, State::Pending] {
        let mut cursor = None;
        loop {
            let wanted = ListIn {
                prefix: options.among.prefix(),
                state,
                limit: Some(left.clamp(1, PAGE)),
                cursor: cursor.take(),
                payloads: Payloads::Exact,
                recurring: true,
                ..ListIn::default()
            };
            let page = jobs.list(&wanted).await?;
            tell_damaged(&page);
            is_cut |= page.jobs.len() > left || (page.next.is_some() && page.jobs.len() == left);
            for job in page.jobs.iter().take(left) {
                match options.form.json {
                    true => json(job)?,
                    false => rows.extend(row(job)),
                }
            }
            left = left.saturating_sub(page.jobs.len());
            missed = page.unseen;
            cursor = page.next;
            if cursor.is_none() || left == 0 {
                break;
            }
        }
        if left == 0 {
            break;
        }
    }
    if !options.form.json {
        table(["key", ">number", "next run", "rule"], rows)?;
    }
    if is_cut {
        aside("there are more: raise `--limit`, or give a longer prefix");
    }
    unseen::told(&missed)
}

fn row(job: &Job) -> Option<[String; 4]> {
    let occurrence = job.occurrence.as_ref()?;
    let rule: Result<Rule, _> = serde_json::from_value(occurrence.rule.clone());
    let next = match (occurrence.paused_since, job.state) {
        (Some(since), _) => format!("paused since {}", shown(since)),
        (None, State::Running | State::Lapsed) => "is running".to_owned(),
        (None, _) => shown(job.due),
    };
    Some([
        job.key.clone(),
        occurrence.number.to_string(),
        next,
        // A rule whose times have all passed is shown as it is written.
        rule.map_or_else(|_| occurrence.rule.to_string(), |rule| rule.to_string()),
    ])
}

fn tell(answer: &RuleOut, done: &str, form: Form) -> anyhow::Result<()> {
    let key = &answer.key;
    let due = answer.due.map_or_else(String::new, |due| {
        format!("; the next run is due {}", shown(due))
    });
    let sentence = match (answer.changed, answer.after_run) {
        (false, _) => format!("{key} stays as it was: it {done} already"),
        (true, false) => format!("{key} {done}{due}"),
        (true, true) => format!("{key} is running, and {done} from the end of the run on{due}"),
    };
    Ok(form.say(answer, sentence)?)
}

/// Says a rule in words, with its next times.
pub(crate) fn preview(rule: &Rule, form: Form) -> std::io::Result<()> {
    let preview = PreviewOut::of(rule);
    if form.json {
        return json(&preview);
    }
    line(&preview.words)?;
    let mut times = preview.times.iter();
    times.try_for_each(|time| line(format!("  {}", shown(*time))))
}

/// Reads a rule: a text, or a table in JSON.
///
/// # Errors
/// The fault of the text.
pub(crate) fn rule(text: &str, zone: Option<&str>) -> Result<Rule, String> {
    let read = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => text
            .parse()
            .map_err(|error: keyfall::Error| error.to_string()),
    };
    let rule: Rule = read?;
    match zone {
        Some(zone) => rule.zone(zone).map_err(|error| error.to_string()),
        None => Ok(rule),
    }
}
