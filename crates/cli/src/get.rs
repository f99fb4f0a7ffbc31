//! `keyfall get`: one job.

use keyfall::JobKey;

use super::connect::Server;
use super::out::{self, Form};
use super::stop::Stop;
use super::when::shown;
use keyfall_daemon::shapes::{Job, State};

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
    let jobs = options.server.connect().await?;
    let job = jobs.get(&options.key).await?;
    if options.form.json {
        out::json(&job)?;
    } else {
        out::sheet(&fields(&job)?)?;
    }
    Ok(())
}

fn fields(job: &Job) -> anyhow::Result<Vec<(&'static str, String)>> {
    let mut fields = vec![
        ("key", job.key.clone()),
        ("state", job.state.word().to_owned()),
        (
            if job.state == State::Dead {
                "died"
            } else {
                "due"
            },
            shown(job.due),
        ),
        ("attempts", job.attempts.to_string()),
    ];
    if let Some(accepted) = job.first_scheduled_at {
        fields.push(("scheduled", shown(accepted)));
    }
    if job.adopted {
        fields.push(("adopted", "it was made from the plain key".to_owned()));
    }
    if job.cancelled {
        fields.push(("cancelled", "it is told to stop".to_owned()));
    }
    if let Some(due) = job.successor_due {
        fields.push(("then", format!("its successor, due {}", shown(due))));
    }
    if let Some(number) = job.letter {
        fields.push(("letter", number.to_string()));
    }
    if let Some(error) = &job.last_error {
        fields.push(("last error", error.clone()));
    }
    if let Some(policy) = &job.retry {
        fields.push(("retry", serde_json::to_string(policy)?));
    }
    if let Some(limit) = job.max_attempts {
        fields.push(("max attempts", limit.to_string()));
    }
    if let Some(limit) = job.timeout {
        fields.push(("timeout", limit.to_string()));
    }
    if let Some(limit) = job.max_lateness {
        fields.push(("max lateness", limit.to_string()));
    }
    for (name, text) in &job.headers {
        fields.push(("header", format!("{name}={text}")));
    }
    for step in &job.steps {
        fields.push(("step", format!("{}, {}", step.what, shown(step.at))));
    }
    let payload = job.bytes().map_err(Stop::of_problem)?;
    let payload = String::from_utf8_lossy(&payload);
    fields.push(("payload", payload.into_owned()));
    Ok(fields)
}
