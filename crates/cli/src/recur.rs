//! `keyfall recur`: the rules of recurring jobs.

use keyfall::{JobKey, Rule};
use serde_json::{Map, Value};

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

    /// The zone of the rule, such as Europe/Berlin; by default UTC
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
    // When the list is full, one more job is looked for.
    let mut is_cut = false;
    'states: for state in [State::Running, State::Lapsed, State::Pending] {
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
            is_cut = page.jobs.len() > left;
            for job in page.jobs.iter().take(left) {
                match options.form.json {
                    true => json(job)?,
                    false => rows.extend(row(job)),
                }
            }
            left = left.saturating_sub(page.jobs.len());
            unseen::add(&mut missed, page.unseen);
            cursor = page.next;
            if is_cut {
                break 'states;
            }
            if cursor.is_none() {
                break;
            }
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

/// Reads a rule: a text, or a table in JSON. The times of a table are on the wall of the zone, too.
///
/// # Errors
/// The fault of the text.
pub(crate) fn rule(text: &str, zone: Option<&str>) -> Result<Rule, String> {
    let is_table = text.trim_start().starts_with('{');
    match zone {
        Some(zone) if is_table => in_zone(text, zone),
        None if is_table => serde_json::from_str(text).map_err(|error| error.to_string()),
        zone => {
            let rule: Result<Rule, keyfall::Error> = text.parse();
            let rule = match zone {
                Some(zone) => rule.and_then(|rule| rule.zone(zone)),
                None => rule,
            };
            rule.map_err(|error| error.to_string())
        }
    }
}

/// Reads a table that gets its zone from a flag.
fn in_zone(text: &str, zone: &str) -> Result<Rule, String> {
    let table: Result<Map<String, Value>, _> = serde_json::from_str(text);
    let mut table = table.map_err(|error| error.to_string())?;
    match table.get("zone") {
        Some(Value::String(own)) if !own.eq_ignore_ascii_case(zone) => {
            return Err(format!(
                "its `zone` is {own:?}, and the flag says {zone:?}: leave one of them out"
            ));
        }
        Some(Value::Null | Value::String(_)) | None => {
            table.insert("zone".to_owned(), zone.into());
        }
        // The fault is named below.
        Some(_) => {}
    }
    serde_json::from_value(Value::Object(table)).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(text: &str, zone: Option<&str>) -> Value {
        serde_json::to_value(rule(text, zone).unwrap()).unwrap()
    }

    #[test]
    fn the_times_of_a_table_are_in_the_zone_of_the_flag() {
        let text = r#"{"every": "1 day", "from": "2035-12-07 09:00", "until": "2036-01-01 09:00"}"#;
        let read = table(text, Some("Europe/Berlin"));
        assert_eq!(read["zone"], "Europe/Berlin");
        assert_eq!(read["from"], "2035-12-07T08:00:00Z");
        assert_eq!(read["until"], "2036-01-01T08:00:00Z");
        assert_eq!(table(text, None)["from"], "2035-12-07T09:00:00Z");
        assert_eq!(table("0 9 * * *", Some("Asia/Tokyo"))["zone"], "Asia/Tokyo");
    }

    #[test]
    fn a_table_that_names_another_zone_than_the_flag_is_refused() {
        let text = r#"{"cron": "0 9 * * *", "zone": "Asia/Tokyo"}"#;
        let fault = rule(text, Some("Europe/Berlin")).unwrap_err();
        assert!(fault.contains("leave one of them out"), "{fault}");
        assert_eq!(table(text, Some("Asia/Tokyo"))["zone"], "Asia/Tokyo");
        assert_eq!(table(text, None)["zone"], "Asia/Tokyo");
        let fault = rule(r#"{"cron": "@daily", "zome": 1}"#, Some("Asia/Tokyo")).unwrap_err();
        assert!(fault.contains("zome"), "{fault}");
    }
}
