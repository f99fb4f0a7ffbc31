//! The command line: one module for each command.

mod bench;
mod config;
mod demo;
mod serve;
mod token;

use std::io::IsTerminal;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Reminders that are Redis keys.
#[derive(Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Watch reminders fall due on a private Redis that is started for it and gone after it
    #[command(after_help = "Example:\n  keyfall demo\n  keyfall demo --seconds 10")]
    Demo(demo::Options),
    /// Measure how late jobs start, how fast they are scheduled and run, and what they cost Redis
    #[command(
        after_help = "Examples:\n  keyfall bench\n  keyfall bench --pending 500000 --runs 3 --only lateness,burst\n  keyfall bench --json --url redis://127.0.0.1:6379"
    )]
    Bench(bench::Options),
    /// Schedule and hand out jobs over HTTP
    #[command(
        after_help = "Examples:\n  keyfall serve\n  keyfall serve --config keyfall.toml\n  keyfall serve --redis-url redis://127.0.0.1:6379 --http-listen 127.0.0.1:9276"
    )]
    Serve(serve::Options),
    /// Print a configuration of `keyfall serve`: all settings at their defaults, with comments
    #[command(
        after_help = "Examples:\n  keyfall config > keyfall.toml\n  keyfall config check keyfall.toml"
    )]
    Config(config::Options),
    /// Make, list and revoke the tokens of the HTTP API
    #[command(
        subcommand,
        after_help = "Example:\n  keyfall token make --file tokens.toml --scope schedule --prefix app1: --note billing"
    )]
    Token(token::Command),
}

/// Reads the arguments and runs the command.
pub(crate) fn run() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let config = match &cli.command {
        Command::Serve(options) => Some(options.load()?),
        _ => None,
    };
    let filter = match &config {
        Some(config) => EnvFilter::new(&config.log.filter.0),
        None => EnvFilter::try_from_env("KEYFALL_LOG").unwrap_or_else(|_| EnvFilter::new("error")),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Runtime::new()?;
    match cli.command {
        Command::Demo(options) => runtime.block_on(demo::run(options)),
        Command::Bench(options) => runtime.block_on(bench::run(options)),
        Command::Serve(options) => {
            let config = config.expect("it was loaded for this command");
            runtime.block_on(serve::run(options, config))
        }
        Command::Config(options) => config::run(options),
        Command::Token(command) => token::run(command),
    }
}
