//! The `keyfall` command.

mod cli;
mod daemon;

fn main() -> anyhow::Result<()> {
    cli::run()
}
