//! `keyfall dev`: a Redis for development, which keeps its data.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, anyhow, bail};
use keyfall::embedded::Embedded;
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};

use super::out::Form;

/// The port that every command uses by default.
const USUAL_PORT: u16 = 6379;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The folder of the data
    #[arg(long, value_name = "PATH", default_value = ".keyfall")]
    dir: PathBuf,

    /// The port on 127.0.0.1, for this machine only; 0 takes any free port. By default 6379, which
    /// all commands use, or any other if 6379 is taken
    #[arg(long)]
    port: Option<u16>,

    #[command(flatten)]
    form: Form,
}

#[derive(Serialize)]
struct DevOut {
    url: String,
    unix_url: String,
    dir: PathBuf,
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let port = port(options.port)?;
    let mut redis = Embedded::options()
        .keep(&options.dir)
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .start()
        .await
        // A missing server binary is not a wrong flag.
        .map_err(|error| anyhow!("{error}"))?;
    // The data of a trial do not belong in version control.
    fs::write(options.dir.join(".gitignore"), "*\n")?;
    let answer = DevOut {
        url: format!("redis://127.0.0.1:{port}"),
        unix_url: redis.url(),
        dir: options.dir.canonicalize()?,
    };
    let sentence = format!(
        "Redis runs at {}, and at {}. Its data stay in {}. Ctrl-C ends it.",
        answer.url,
        answer.unix_url,
        answer.dir.display()
    );
    options.form.say(&answer, sentence)?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        ended = redis.wait() => {
            ended?;
            bail!("Redis has ended by itself; its output is in {}/redis.log", answer.dir.display());
        }
    }
    redis.stop().await?;
    Ok(())
}

/// The chosen port, or a free one.
fn port(asked: Option<u16>) -> anyhow::Result<u16> {
    let free = |port| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        listener.local_addr().map(|address| address.port())
    };
    match asked {
        Some(port) => free(port).with_context(|| {
            format!("port {port} cannot be used: choose another `--port`, or 0 for any free port")
        }),
        None => Ok(free(USUAL_PORT).or_else(|_| free(0))?),
    }
}
