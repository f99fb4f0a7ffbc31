//! `keyfall top`: kinds, instances, lag and failures on a full screen.
//!
//! | part | task |
//! |---|---|
//! | [`watch`] | reads the counts again and again, from Redis or through a daemon; [`story`] reads
//! the histories |
//! | [`board`] | holds the known data, and the selection on the screen |
//! | [`view`] | draws the board |
//! | [`screen`] | takes the terminal, reads its keys, and gives it back |

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

    /// The time between two updates of the screen, from 100ms to 1h
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
            "`keyfall top` draws on a terminal, and there is none here: for programs there are \
             `keyfall kinds --json`, `keyfall instances --json`, and `/metrics` of `keyfall serve`"
        ));
    }
    let jobs = options.server.connect().await?;
    let prefix = options.among.prefix().unwrap_or_default();
    let mut watch = Watch::new(jobs, &prefix).await?;
    let mut board = Board::new(options.server.shown()?, &prefix, options.interval);
    // Before the screen is taken: a signal that ends the process then leaves the terminal as it
    // was.
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
