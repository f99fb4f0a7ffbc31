//! The `keyfall` command.

mod cli;
mod daemon;

fn main() -> std::process::ExitCode {
    cli::run()
}
