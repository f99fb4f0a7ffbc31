//! The `keyfall` command.

fn main() -> std::process::ExitCode {
    keyfall_cli::run(std::env::args_os())
}
