//! The `keyfall` command.

mod cli;

fn main() -> anyhow::Result<()> {
    cli::run()
}
