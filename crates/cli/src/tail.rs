//! `keyfall tail`: shows the changes of jobs as they happen.

use std::io;

use jiff::tz::TimeZone;
use keyfall::{JobKey, What};

use super::connect::Server;
use super::jobs::News;
use super::out::{self, Form};
use super::plain::aside;
use super::when;
use keyfall_daemon::shapes::{HappeningOut, TailIn, Time};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The prefix of the job keys, such as app1:trans:notice: with the colon at its end; all jobs
    /// by default
    #[arg(value_name = "PREFIX", conflicts_with = "all")]
    named: Vec<String>,

    /// The same as PREFIX
    #[arg(long, conflicts_with = "all")]
    prefix: Vec<String>,

    /// All jobs there are
    #[arg(long, hide = true)]
    all: bool,

    /// Only these changes, such as failed,buried
    #[arg(long, value_name = "WORD", value_delimiter = ',', value_parser = What::parse)]
    what: Vec<What>,

    /// Only these jobs
    #[arg(long, value_name = "KEY")]
    key: Vec<JobKey>,

    /// Begin with this number of past changes, 1000 at the most
    #[arg(short = 'n', long = "last", alias = "limit", value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(..=1000))]
    last: u16,

    /// The zone of the shown times, such as Europe/Berlin; by default the zone of this system
    #[arg(long, value_parser = when::zone)]
    zone: Option<TimeZone>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let zone = options.zone.clone().unwrap_or_else(TimeZone::system);
    let wanted = TailIn {
        prefix: [options.named, options.prefix].concat(),
        key: options.key.iter().map(JobKey::to_string).collect(),
        what: options.what.iter().map(What::to_string).collect(),
        last: Some(options.last.into()),
        zone: zone.iana_name().map(Into::into),
        shared: false,
    };
    let jobs = options.server.connect().await?;
    let mut following = jobs.follow(wanted).await?;
    loop {
        let next = tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(()),
            next = following.next() => next?,
        };
        match next {
            News::Happened(it) => print(&it, &zone, options.form)?,
            News::Missed(kind) => aside(format!(
                "{kind}: its history was trimmed before all of it could be read"
            )),
            News::Behind => aside(
                "the daemon was away, and repeats its last 1000 changes at the most: changes \
                 before them may be missing here; `keyfall why KEY` has the whole story of a job",
            ),
            News::Unseen(one) => aside(format!(
                "not seen: {}: {}; its changes follow when it is back",
                one.server, one.error
            )),
            News::Away(error) => aside(format!("{error}; going on as soon as it answers")),
            News::Closed(error) => aside(format!("{error}; asking again until it sends changes")),
            News::Open => aside("the daemon sends changes again"),
        }
    }
}

fn print(it: &HappeningOut, zone: &TimeZone, form: Form) -> io::Result<()> {
    if form.json {
        return out::json(it);
    }
    let at = when::to_the_ms(Time(it.at.0), zone);
    let about = it.key.as_ref().unwrap_or(&it.kind);
    out::line(format!("{at}  {:<10} {about}  {}", it.what, it.text))
}
