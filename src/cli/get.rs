//! `keyfall get`: one job.

use keyfall::{JobKey, JobView};

use super::connect::Server;
use super::job::{JobLine, State};
use super::out::{self, Form};
use super::stop::Stop;
use super::when::shown;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The name of the job, app:module:biz:id
    key: JobKey,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let client = options.server.connect().await?;
    let key = &options.key;
    let Some(job) = client.get(key).await? else {
        let absent = format!("there is no job {key}, and no dead letter of that name");
        return Err(Stop::absent(absent).into());
    };
    if options.form.json {
        out::json(&JobLine::of(&job))?;
    } else {
        out::sheet(&fields(&job))?;
    }
    Ok(())
}

fn fields(job: &JobView) -> Vec<(&'static str, String)> {
    let state = State::from(job.state());
    let mut fields = vec![
        ("key", job.key().to_string()),
        ("state", state.word().to_owned()),
        (
            if state == State::Dead { "died" } else { "due" },
            shown(job.due()),
        ),
        ("attempts", job.attempts().to_string()),
        ("scheduled", shown(job.first_scheduled_at())),
    ];
    if job.is_cancelled() {
        fields.push(("cancelled", "it is told to stop".to_owned()));
    }
    if let Some(due) = job.successor_due() {
        fields.push(("then", format!("another one, due {}", shown(due))));
    }
    if let Some(number) = job.letter() {
        fields.push(("letter", number.to_string()));
    }
    if let Some(error) = job.last_error() {
        fields.push(("last error", error.to_owned()));
    }
    if let Some(policy) = job.retry() {
        fields.push(("retry", written(policy)));
    }
    if let Some(limit) = job.max_attempts() {
        fields.push(("max attempts", limit.to_string()));
    }
    if let Some(limit) = job.timeout() {
        fields.push(("timeout", format!("{limit:?}")));
    }
    for (name, text) in job.headers().iter() {
        fields.push(("header", format!("{name}={text}")));
    }
    for step in job.steps() {
        fields.push(("step", format!("{}, {}", step.what, shown(step.at))));
    }
    let payload = String::from_utf8_lossy(job.payload());
    fields.push(("payload", payload.into_owned()));
    fields
}

fn written(policy: &keyfall::RetryPolicy) -> String {
    serde_json::to_string(policy).expect("texts and numbers are JSON")
}
