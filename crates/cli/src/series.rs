//! `keyfall series`: jobs relative to a date, which are made, moved and cancelled as a whole.

use keyfall::{JobKey, Past, QuietHours};
use keyfall_daemon::duration;
use serde_json::value::RawValue;
use std::time::Duration;

use super::connect::Server;
use super::out::{Form, json, line, table};
use super::stop::Stop;
use super::when::shown;
use keyfall_daemon::shapes::{
    FateOut, MemberChangeOut, MemberOut, SeriesChangeOut, SeriesIn, SeriesPreviewIn, Span, StandOut,
};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(subcommand)]
    what: What,
}

#[derive(clap::Subcommand, Debug)]
enum What {
    /// Make a series, or change its members; what is left out stays as it is
    #[command(
        after_help = "Example:\n  keyfall series set app1:booking:remind:42 '2026-12-24 18:00' --zone Europe/Berlin --at='-3d 09:00' --at=-1h --payload '\"booking 42\"'"
    )]
    Set(Set),
    /// Say what `set` would do, and store nothing
    #[command(
        after_help = "Example:\n  keyfall series preview app1:booking:remind:42 2026-12-24 --zone Europe/Berlin --at='-3d 09:00'"
    )]
    Preview(Set),
    /// Move the date of a series, and all members that have not begun
    #[command(
        after_help = "Example:\n  keyfall series move app1:booking:remind:42 '2026-12-25 18:00'"
    )]
    Move(Move),
    /// Show a series: what ran, what is to come, and what was left out and why
    #[command(after_help = "Example:\n  keyfall series show app1:booking:remind:42")]
    Show(One),
    /// Cancel the members of a series that are pending, and the series
    #[command(after_help = "Example:\n  keyfall series cancel app1:booking:remind:42")]
    Cancel(One),
}

#[derive(clap::Args, Debug)]
struct Set {
    /// The name of the series, app:module:biz:id
    key: JobKey,

    /// The date that it is relative to: `2026-12-24 18:00` on the wall of its zone, or `2026-12-24`
    anchor: Option<String>,

    #[command(flatten)]
    terms: Terms,

    /// A member: an offset such as `-3d 09:00`, `-1h` or `+2w 10:00`; can be given several times
    #[arg(long, value_name = "OFFSET", allow_hyphen_values = true)]
    at: Vec<String>,

    /// The payload of the members, as JSON
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,

    /// Hours on which no member is due, such as `22:00-08:00`, or a table in JSON
    #[arg(long, value_name = "HOURS")]
    quiet: Option<String>,

    /// How long the plan is kept after the last member; by default 30 days
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    keep: Option<Duration>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
struct Move {
    /// The name of the series, app:module:biz:id
    key: JobKey,

    /// The new date, `2026-12-25 18:00` or `2026-12-25`
    anchor: String,

    #[command(flatten)]
    terms: Terms,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

/// What `set` and `move` share.
#[derive(clap::Args, Debug)]
struct Terms {
    /// The time zone of the date, such as Europe/Berlin
    #[arg(long, value_name = "ZONE", requires = "anchor")]
    zone: Option<String>,

    /// Make members whose time has passed due at once, instead of leaving them out
    #[arg(long)]
    run_past: bool,

    /// Let members run again that have ended
    #[arg(long)]
    again: bool,
}

#[derive(clap::Args, Debug)]
struct One {
    /// The name of the series, app:module:biz:id
    key: JobKey,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

impl Terms {
    fn series(self, anchor: Option<String>) -> SeriesIn {
        SeriesIn {
            anchor,
            zone: self.zone,
            past: self.run_past.then_some(Past::Run),
            again: self.again,
            ..SeriesIn::default()
        }
    }
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    match options.what {
        What::Set(set) => {
            let (key, form, server) = (set.key.clone(), set.form, set.server.clone());
            let series = set.series()?;
            let changed = server.connect().await?.put_series(&key, &series).await?;
            tell(&changed, form)
        }
        What::Preview(set) => {
            let (key, form, server) = (set.key.to_string(), set.form, set.server.clone());
            let series = set.series()?;
            let asked = SeriesPreviewIn { key, series };
            let changed = server.connect().await?.preview_series(&asked).await?;
            tell(&changed, form)
        }
        What::Move(it) => {
            let series = it.terms.series(Some(it.anchor));
            let jobs = it.server.connect().await?;
            tell(&jobs.put_series(&it.key, &series).await?, it.form)
        }
        What::Show(One { key, form, server }) => {
            let series = server.connect().await?.series(&key).await?;
            if form.json {
                return Ok(json(&series)?);
            }
            line(format!(
                "{} is relative to {}, in {}",
                series.key,
                shown(series.anchor),
                series.zone
            ))?;
            if let Some(quiet) = &series.quiet {
                line(format!("quiet: {quiet}"))?;
            }
            Ok(table(
                ["member", "due", "state", "why"],
                series.members.iter().map(row_of_view),
            )?)
        }
        What::Cancel(One { key, form, server }) => {
            let jobs = server.connect().await?;
            tell(&jobs.cancel_series(&key).await?, form)
        }
    }
}

impl Set {
    fn series(self) -> Result<SeriesIn, Stop> {
        let mut series = self.terms.series(self.anchor);
        if !self.at.is_empty() {
            series.at = Some(self.at.into_iter().map(Into::into).collect());
        }
        if let Some(text) = self.payload {
            let payload = RawValue::from_string(text);
            let payload = payload.map_err(|fault| Stop::wrong(format!("`--payload`: {fault}")))?;
            series.payload = Some(payload);
        }
        if let Some(text) = &self.quiet {
            series.quiet = Some(Some(quiet(text)?));
        }
        series.keep = self.keep.map(Span);
        Ok(series)
    }
}

/// Reads quiet hours: the hours alone, or a table in JSON.
pub(crate) fn quiet(text: &str) -> Result<QuietHours, Stop> {
    let read = match text.trim_start().starts_with('{') {
        true => serde_json::from_str(text).map_err(|error| error.to_string()),
        false => text
            .parse()
            .map_err(|error: keyfall::Error| error.to_string()),
    };
    read.map_err(|fault| Stop::wrong(format!("`--quiet {text}`: {fault}")))
}

fn tell(changed: &SeriesChangeOut, form: Form) -> anyhow::Result<()> {
    if form.json {
        return Ok(json(changed)?);
    }
    match changed.kept_until {
        Some(until) => line(format!(
            "{}: the plan is kept until {}",
            changed.key,
            shown(until)
        ))?,
        None => line(format!("{} is cancelled", changed.key))?,
    }
    Ok(table(
        ["member", "due", "what", "why"],
        changed.members.iter().map(row_of_change),
    )?)
}

fn row_of_change(member: &MemberChangeOut) -> [String; 4] {
    let what = match member.what {
        FateOut::Created => "created",
        FateOut::Moved => "moved",
        FateOut::Unchanged => "unchanged",
        FateOut::Cancelled => "cancelled",
        FateOut::LeftOut => "left out",
        FateOut::Running => "is running",
        FateOut::Retrying => "waits for a retry",
        FateOut::Ended => "has ended",
    };
    let due = member.due.map_or_else(String::new, shown);
    let why = member.why.clone().unwrap_or_default();
    [member.key.clone(), due, what.to_owned(), why]
}

fn row_of_view(member: &MemberOut) -> [String; 4] {
    let state = match member.state {
        StandOut::Planned => "to come".to_owned(),
        StandOut::Retrying => "waits for a retry".to_owned(),
        StandOut::Running => "is running".to_owned(),
        StandOut::Dead => format!("dead letter {}", member.letter.unwrap_or_default()),
        StandOut::Ended => "has ended".to_owned(),
        StandOut::LeftOut => "left out".to_owned(),
    };
    let why = member.why.clone().unwrap_or_default();
    [member.key.clone(), shown(member.due), state, why]
}
