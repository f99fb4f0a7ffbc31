//! `keyfall tail`: what is done to jobs, as it happens.

use std::io;
use std::time::Duration;

use anyhow::bail;
use jiff::tz::TimeZone;
use keyfall::{JobKey, Tail, Tidings, What};

use super::connect::Server;
use super::out::{self, Form};
use super::plain::aside;
use super::stop::Stop;
use super::when;
use keyfall_daemon::shapes::{HappeningOut, Time};

/// How long to wait until a server is asked again that did not answer.
const AGAIN: Duration = Duration::from_secs(1);

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// Only jobs whose keys begin so, such as app1:trans:notice: with the colon at its end
    prefix: Vec<String>,

    /// Only what is one of these, such as failed,buried
    #[arg(long, value_name = "WORD", value_delimiter = ',', value_parser = What::parse)]
    what: Vec<What>,

    /// Only these jobs
    #[arg(long, value_name = "KEY")]
    key: Vec<JobKey>,

    /// Begin with the last so many, 1000 at the most
    #[arg(short = 'n', long = "last", value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u16).range(..=1000))]
    last: u16,

    /// The zone that times are shown in, such as Europe/Berlin; that of this system by default
    #[arg(long, value_parser = when::zone)]
    zone: Option<TimeZone>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let Some(client) = options.server.client().await? else {
        bail!(Stop::wrong(
            "a daemon does not hand out what happens as it happens: name its Redis with \
             `--redis-url` instead, or ask for the story of a job with `keyfall why`"
        ));
    };
    let zone = options.zone.clone().unwrap_or_else(TimeZone::system);
    let mut tail = client.tail().last(options.last.into());
    for prefix in &options.prefix {
        tail = tail.prefix(prefix)?;
    }
    for key in &options.key {
        tail = tail.prefix(key.as_str())?;
    }
    loop {
        let next = tokio::select! {
            biased;
            _ = tokio::signal::ctrl_c() => return Ok(()),
            next = next(&mut tail) => next?,
        };
        match next {
            Tidings::Happened(it) => {
                let out = HappeningOut::new(&it, &zone);
                let is_named = |key: &JobKey| out.key.as_deref() == Some(key.as_str());
                let is_wanted = (options.what.is_empty() || options.what.contains(&it.what))
                    && (options.key.is_empty() || options.key.iter().any(is_named));
                if is_wanted {
                    print(&out, &zone, options.form)?;
                }
            }
            Tidings::Missed(kind) => aside(format!(
                "{kind}: more happened than its history keeps, and some of it could not be read"
            )),
            Tidings::Unseen(one) => aside(format!(
                "not seen: {}: {}; what happens there is told when it is there again",
                one.server, one.error
            )),
            _ => {}
        }
    }
}

/// The next one, however long Redis is away.
async fn next(tail: &mut Tail) -> keyfall::Result<Tidings> {
    let mut is_away = false;
    loop {
        match tail.next().await {
            Err(error) if error.is_retryable() => {
                if !is_away {
                    aside(format!("{error}; going on as soon as it answers"));
                }
                is_away = true;
                tokio::time::sleep(AGAIN).await;
            }
            other => return other,
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
