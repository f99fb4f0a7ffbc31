//! Plays the scenarios of the fault suite.

fn main() -> std::process::ExitCode {
    keyfall_chaos::main()
}
