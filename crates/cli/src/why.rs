//! `keyfall why`: the story of a job, and the reasons why it waits.

use jiff::tz::TimeZone;
use keyfall::JobKey;

use super::connect::Server;
use super::out::{self, Form};
use super::when;
use keyfall_daemon::shapes::{StoryIn, StoryOut};

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The name of the job, app:module:biz:id
    key: JobKey,

    /// The zone of the shown times, such as Europe/Berlin; by default the zone of this system
    #[arg(long, value_parser = when::zone)]
    zone: Option<TimeZone>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let zone = options.zone.unwrap_or_else(TimeZone::system);
    let wanted = StoryIn {
        zone: zone.iana_name().map(Into::into),
    };
    let jobs = options.server.connect().await?;
    let story = jobs.story(&options.key, &wanted).await?;
    if options.form.json {
        out::json(&story)?;
    } else {
        tell(&story, &zone)?;
    }
    Ok(())
}

fn tell(story: &StoryOut, zone: &TimeZone) -> std::io::Result<()> {
    for it in &story.happenings {
        let at = when::to_the_ms(it.at, zone);
        out::line(format!("{at}  {}", it.text))?;
    }
    for it in story.archived.iter().rev() {
        let by = it.worker.as_deref().unwrap_or_default();
        let error = it.error.as_deref().map(|it| format!(": {it}"));
        let at = when::to_the_ms(it.ended, zone);
        let (how, error) = (&it.how, error.unwrap_or_default());
        out::line(format!("{at}  in the archive: {how}, by {by}{error}"))?;
    }
    let state = match story.state {
        Some(state) => format!("now {}:", state.word()),
        None => "now gone: there is no such job, nor a dead letter of it".to_owned(),
    };
    out::line(state)?;
    for wait in &story.waits {
        out::line(format!("  {}", wait.text))?;
    }
    if let Some(how) = &story.key_differs {
        out::line(format!("  {how}"))?;
    }
    if let Some(gap) = &story.gap {
        out::line(format!("({gap})"))?;
    }
    Ok(())
}
