//! `keyfall top`: what goes on, on a full screen.
//!
//! | part | what it does |
//! |---|---|
//! | [`watch`] | reads it, from Redis or through a daemon, again and again; [`story`] what the histories tell |
//! | [`board`] | what is known, and what of it is shown |
//! | [`view`] | draws that: a function of the board alone |
//! | [`screen`] | the terminal: keys, and how it was before |

mod board;
mod screen;
mod story;
#[cfg(test)]
mod tests;
mod view;
mod watch;

use std::io::IsTerminal;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

use super::connect::Server;
use super::stop::Stop;
use super::which::Among;
use board::{Board, Key};
use keyfall_daemon::duration;
use screen::Screen;
use watch::Watch;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    #[command(flatten)]
    among: Among,

    /// How often the screen is brought up to date, from 100ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = interval)]
    interval: Duration,

    #[command(flatten)]
    server: Server,
}

fn interval(text: &str) -> Result<Duration, String> {
    let interval = duration::parse(text).map_err(|wrong| wrong.to_string())?;
    if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&interval) {
        return Ok(interval);
    }
    Err("it is out of range; write one from 100ms to 1h".into())
}

pub(crate) async fn run(options: Options) -> anyhow::Result<()> {
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        anyhow::bail!(Stop::wrong(
            "`keyfall top` draws on a terminal, and here is none: for programs there are \
             `keyfall kinds --json`, `keyfall instances --json`, and `/metrics` of `keyfall serve`"
        ));
    }
    let jobs = options.server.connect().await?;
    let prefix = options.among.prefix().unwrap_or_default();
    let mut watch = Watch::new(jobs, &prefix).await?;
    let mut board = Board::new(options.server.shown()?, &prefix, options.interval);
    // Before the screen is taken: whoever ends us then finds it as it was.
    let mut signals = [
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::interrupt(),
    ]
    .map(signal)
    .into_iter()
    .collect::<Result<Vec<_>, _>>()?;
    let mut screen = Screen::take()?;
    let mut next = Instant::now();
    loop {
        screen.draw(&mut board)?;
        let [terminate, hangup, interrupt] = &mut signals[..] else {
            unreachable!("there are three")
        };
        tokio::select! {
            _ = terminate.recv() => break,
            _ = hangup.recv() => break,
            _ = interrupt.recv() => break,
            key = screen.key() => match key {
                Some(Key::Quit) | None => break,
                Some(key) => board.press(key),
            },
            seen = watch.look(next, board.shown()) => {
                board.take(seen);
                next = Instant::now() + options.interval;
            }
        }
    }
    Ok(())
}
