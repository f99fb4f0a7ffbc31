//! The `keyfall` command.

mod cli;
mod daemon;
mod duration;

fn main() -> std::process::ExitCode {
    cli::run()
}
