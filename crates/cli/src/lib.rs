//! The `keyfall` command as a library: [`run`] reads the arguments of the process and carries them
//! out. One module for each command, or for a few similar ones.
//!
//! | module | shared task |
//! |---|---|
//! | [`connect`] | finds the jobs: on a Redis, or behind a daemon |
//! | [`jobs`] | makes calls on the jobs |
//! | [`which`], [`when`] | select jobs, and read times |
//! | [`durably`] | makes calls durable |
//! | [`out`] | tables and JSON |
//! | [`progress`], [`bookmark`] | show the progress of a long command, and keep it for the next one |
//! | [`ask`], [`stop`] | confirmations; exit codes |
#![allow(
    rustdoc::private_intra_doc_links,
    reason = "the tables of modules are for readers of the source"
)]

mod archive;
mod ask;
mod audit;
mod bookmark;
mod breakers;
mod change;
mod cluster;
mod completions;
mod config;
mod connect;
mod copy;
mod database;
mod dead;
mod dev;
mod doctor;
mod durably;
mod export;
mod functions;
mod get;
mod hints;
mod history;
mod import;
mod instances;
mod jobs;
mod kinds;
mod limit;
mod list;
mod man;
mod out;
mod pause;
mod plain;
mod probe;
mod progress;
mod rebuild;
mod recur;
mod reshard;
mod schedule;
mod series;
mod stop;
mod tail;
mod token;
mod top;
mod ui;
mod unseen;
mod when;
mod which;
mod why;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

use keyfall_daemon::Traces;

use self::plain::PlainLog;

/// Reminders that are Redis keys.
#[derive(Parser)]
#[command(
    name = "keyfall",
    version,
    about,
    after_help = "Exit codes: 0 done, 1 refused or a fault, 2 a wrong flag, 3 there is no such job, letter or\nkind, 4 Redis or the daemon does not answer: try again, 5 `doctor`\nwarns"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Schedule a job, or replace the pending job of that name
    #[command(
        after_help = "Examples:\n  keyfall schedule app1:trans:notice:42 '{\"amount\": 990}' --after 15m\n  keyfall schedule app1:trans:notice:42 --file order.json --at 'tomorrow 9:00' --zone Europe/Berlin"
    )]
    Schedule(schedule::Options),
    /// Look a job up, or its latest dead letter
    #[command(after_help = "Example:\n  keyfall get app1:trans:notice:42 --json")]
    Get(get::Options),
    /// Show the story of a job, and why it waits
    #[command(
        after_help = "Examples:\n  keyfall why app1:trans:notice:42\n  keyfall why app1:trans:notice:42 --zone UTC --json"
    )]
    Why(why::Options),
    /// Cancel jobs; running jobs are told to stop
    #[command(
        after_help = "Examples:\n  keyfall cancel app1:trans:notice:42\n  keyfall cancel app1:trans:notice: --dry-run"
    )]
    Cancel(change::Cancel),
    /// Give pending jobs another due time
    #[command(
        after_help = "Examples:\n  keyfall postpone app1:trans:notice:42 --at 'monday 9:00'\n  keyfall postpone app1:trans:notice: --by 1h"
    )]
    Postpone(change::Postpone),
    /// Make pending jobs due now
    #[command(
        after_help = "Examples:\n  keyfall fire app1:trans:notice:42\n  keyfall fire app1:trans:notice: --dry-run"
    )]
    Fire(change::Fire),
    /// List, change, pause and resume the rules of recurring jobs
    #[command(
        after_help = "Examples:\n  keyfall recur ls app1:digest:\n  keyfall recur change app1:digest:daily:42 '0 9 * * MON-FRI' --zone Europe/Berlin"
    )]
    Recur(recur::Options),
    /// Make, move, show and cancel series of jobs relative to a date
    #[command(
        after_help = "Examples:\n  keyfall series set app1:booking:remind:42 '2026-12-24 18:00' --zone Europe/Berlin --at='-3d 09:00' --at=-1h\n  keyfall series show app1:booking:remind:42"
    )]
    Series(series::Options),
    /// List jobs; for programs, one JSON object on each line
    #[command(
        alias = "ls",
        after_help = "Examples:\n  keyfall list app1:trans:notice: --state dead\n  keyfall list app1: --limit 1000 --json"
    )]
    List(list::Options),
    /// Count the jobs in each state
    #[command(after_help = "Example:\n  keyfall count app1:")]
    Count(list::Count),
    /// List the kinds with their counts, or drop an empty one
    #[command(
        alias = "kind",
        after_help = "Examples:\n  keyfall kinds\n  keyfall kinds app1: --json\n  keyfall kinds drop app1:trans:notice"
    )]
    Kinds(kinds::Options),
    /// Watch kinds, instances, lag and failures on a full screen
    #[command(after_help = "Examples:\n  keyfall top\n  keyfall top app1: --interval 5s")]
    Top(top::Options),
    /// List the live workers, and the jobs without a route
    #[command(alias = "instance", after_help = "Example:\n  keyfall instances")]
    Instances(instances::Options),
    /// List the hosts of callbacks that workers leave alone because they are down, or close one
    #[command(
        alias = "breaker",
        after_help = "Examples:\n  keyfall breakers\n  keyfall breakers close hooks.example.org"
    )]
    Breakers(breakers::Options),
    /// Look for settings of Redis, rights, clocks and unserved jobs that can cause trouble
    #[command(
        after_help = "Examples:\n  keyfall doctor\n  keyfall doctor --fix\n  keyfall doctor --only notify-flags,persistence --json\n\nExit codes: 0 nothing worse than a note, 1 an error, 5 a warning and no error; others as in `keyfall --help`"
    )]
    Doctor(doctor::Options),
    /// List, requeue and delete dead letters
    #[command(
        subcommand,
        after_help = "Example:\n  keyfall dead ls app1:trans:notice:"
    )]
    Dead(dead::Dead),
    /// Follow the changes of jobs, until Ctrl-C
    #[command(
        after_help = "Examples:\n  keyfall tail app1:trans:\n  keyfall tail --what failed,buried --json\n  keyfall tail --key app1:trans:notice:42 -n 100"
    )]
    Tail(tail::Options),
    /// Show or set the length of the histories, which `why` and `tail` read
    #[command(
        after_help = "Examples:\n  keyfall history\n  keyfall history app1:trans:notice: --keep 100000\n  keyfall history app1:trans:notice: --off"
    )]
    History(history::Options),
    /// Give a kind another number of shards, while work goes on
    #[command(
        after_help = "Examples:\n  keyfall reshard app1:trans:notice\n  keyfall reshard app1:trans:notice --to 8\n\nIt can be stopped at any time; the same command goes on"
    )]
    Reshard(reshard::Options),
    /// Look for ledgers whose parts are on two nodes of a cluster, and bring them together
    #[command(
        subcommand,
        after_help = "Examples:\n  keyfall cluster mend\n  keyfall cluster mend --yes"
    )]
    Cluster(cluster::Command),
    /// Keep jobs of these kinds from starting
    #[command(after_help = "Examples:\n  keyfall pause app1:trans:notice:\n  keyfall pause --list")]
    Pause(pause::Pause),
    /// End a pause
    #[command(after_help = "Example:\n  keyfall resume app1:trans:notice:")]
    Resume(pause::Options),
    /// Limit how many jobs of a kind start in a time, and run at the same time, over all workers
    #[command(
        after_help = "Examples:\n  keyfall limit app1:mail:send --rate 10/s --concurrency 5\n  keyfall limit"
    )]
    Limit(limit::Options),
    /// Remove the limit of a kind
    #[command(after_help = "Example:\n  keyfall unlimit app1:mail:send")]
    Unlimit(limit::Remove),
    /// Choose which kinds leave records of their ended jobs for the archive in PostgreSQL, and search it
    #[command(
        subcommand,
        after_help = "Examples:\n  keyfall archive set app1:mail: --keep-months 24\n  keyfall archive search app1:mail: --how buried"
    )]
    Archive(archive::Command),
    /// Choose which kinds have their pending jobs copied to PostgreSQL
    #[command(
        subcommand,
        after_help = "Examples:\n  keyfall copy set app1:order:\n  keyfall copy ls"
    )]
    Copy(copy::Command),
    /// Compare Redis with its copy in PostgreSQL, and bring back the jobs that Redis has lost
    #[command(
        after_help = "Examples:\n  keyfall rebuild --config keyfall.toml\n  keyfall rebuild --config keyfall.toml --yes"
    )]
    Rebuild(rebuild::Options),
    /// Check that every job is accounted for, and repair damage
    #[command(
        after_help = "Examples:\n  keyfall audit\n  keyfall audit app1:trans:notice: --repair"
    )]
    Audit(audit::Options),
    /// Write pending jobs and dead letters, one JSON object on each line
    #[command(
        after_help = "Examples:\n  keyfall export app1: > app1.ndjson\n  keyfall export -o all.ndjson --cursor-file all.cursor"
    )]
    Export(export::Options),
    /// Schedule the jobs of an export, or of another system
    #[command(
        after_help = "Examples:\n  keyfall import app1.ndjson --paused --skip-overdue 1h\n  keyfall import --from redis-zset --due-key delayed --due-unit s --payload-key bodies --key 'app1:trans:notice:{member}' --pace 200/s\n  keyfall import --from classic-queue --due-key dq_bucket_1 --prefix app1:queue\n  keyfall import --from bullmq --queue mail --as app1:mail:send --source-url redis://127.0.0.1:6380 --dry-run"
    )]
    Import(Box<import::Options>),
    /// Load, check, remove or print the Redis functions by which any client schedules
    #[command(
        subcommand,
        alias = "function",
        after_help = "Example:\n  keyfall functions install"
    )]
    Functions(functions::Command),
    /// Print the script by which a shell completes commands and flags
    #[command(
        after_help = "Example:\n  keyfall completions bash > ~/.local/share/bash-completion/completions/keyfall"
    )]
    Completions(completions::Options),
    /// Print the manual page, or write the pages of all commands
    #[command(after_help = "Example:\n  keyfall man --dir ~/.local/share/man/man1")]
    Man(man::Options),
    /// Run a private Redis for development, which keeps its data, until Ctrl-C
    #[command(after_help = "Examples:\n  keyfall dev\n  keyfall dev --dir /tmp/try --port 0")]
    Dev(dev::Options),
    /// Watch reminders fall due on a private Redis that is started for it and gone after it
    #[command(after_help = "Example:\n  keyfall demo\n  keyfall demo --time 10s")]
    Demo {
        /// The longest duration of the demo, from 4s to 1h: all delays, between retries too, are
        /// stretched to it
        #[arg(
            long = "time",
            alias = "seconds",
            value_name = "DURATION",
            default_value = format!("{}s", keyfall_demo::SECONDS),
            value_parser = seconds
        )]
        seconds: u64,
    },
    /// Measure the lateness of jobs, the rates of scheduling and running, and the cost for Redis
    #[command(
        after_help = "Examples:\n  keyfall bench\n  keyfall bench --pending 500000 --runs 3 --only lateness,burst\n  keyfall bench --json --redis-url redis://127.0.0.1:6379"
    )]
    Bench(keyfall_bench::Options),
    /// Schedule and hand out jobs over HTTP
    #[command(
        after_help = "Examples:\n  keyfall serve\n  keyfall serve --config keyfall.toml\n  keyfall serve --redis-url redis://127.0.0.1:6379 --http-listen 127.0.0.1:9276"
    )]
    Serve(keyfall_daemon::Options),
    /// Ask whether a daemon is ready, for health checks: exit code 0, or a reason
    #[command(
        after_help = "Examples:\n  keyfall probe\n  keyfall probe --api https://keyfall.example.org:9276"
    )]
    Probe(probe::Options),
    /// Open the web page over a Redis: it prints a link, which only the person who has it can use
    #[command(
        after_help = "Examples:\n  keyfall ui\n  keyfall ui --actions --redis-url redis://127.0.0.1:6379"
    )]
    Ui(ui::Options),
    /// Print a configuration of `keyfall serve`: all settings at their defaults, with comments
    #[command(
        after_help = "Examples:\n  keyfall config > keyfall.toml\n  keyfall config check keyfall.toml"
    )]
    Config(config::Options),
    /// Make or check the tables in PostgreSQL, in which programs schedule jobs within transactions
    #[command(
        subcommand,
        after_help = "Examples:\n  keyfall database migrate --database-url postgresql:///orders\n  keyfall database check --config keyfall.toml"
    )]
    Database(database::Command),
    /// Make, list and revoke the tokens of the HTTP API
    #[command(
        subcommand,
        alias = "tokens",
        after_help = "Example:\n  keyfall token make --file tokens.toml --scope schedule --prefix app1: --note billing"
    )]
    Token(token::Command),
}

/// A duration of whole seconds; a number without a unit counts as seconds.
fn seconds(text: &str) -> Result<u64, String> {
    let seconds = match text.parse() {
        Ok(number) => number,
        Err(_) => {
            let time = keyfall_daemon::duration::parse(text).map_err(|wrong| wrong.to_string())?;
            time.as_secs()
        }
    };
    let seconds = Some(seconds).filter(|seconds| (4..=3600).contains(seconds));
    seconds.ok_or_else(|| "it is out of range; write one from 4s to 1h".to_owned())
}

/// Reads the arguments, of which the first is the name of the program, and runs the command.
pub fn run(arguments: impl IntoIterator<Item: Into<OsString> + Clone>) -> ExitCode {
    // For all parts that speak TLS. It is the first, so it cannot fail.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let matches = hints::with_hints(Cli::command()).get_matches_from(arguments);
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match start(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => stop::told(&error),
    }
}

/// The log filter of commands by default; they report errors of TLS themselves. `bench` and `demo`
/// run workers on servers that need not keep their data.
const LOGGED: &str = "error,rustls_platform_verifier=off,keyfall::worker::checkup=off";

/// Logs to the standard error, and traces.
fn log(filter: EnvFilter, traces: Option<&Traces>) {
    let is_plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let is_coloured = std::io::stderr().is_terminal() && !is_plain;
    let Some(traces) = traces else {
        return tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_ansi(is_coloured)
            .with_writer(|| PlainLog(std::io::stderr()))
            .init();
    };
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(is_coloured)
        .with_writer(|| PlainLog(std::io::stderr()));
    // The log filter does not apply to traces.
    let both = traces.layer().and_then(log.with_filter(filter));
    tracing_subscriber::registry().with(both).init();
}

fn start(command: Command) -> anyhow::Result<()> {
    let config = match &command {
        Command::Serve(options) => Some(options.load()?),
        _ => None,
    };
    let filter = match &config {
        Some(config) => EnvFilter::new(&config.log.filter.0),
        None => EnvFilter::try_from_env("KEYFALL_LOG").unwrap_or_else(|_| EnvFilter::new(LOGGED)),
    };
    let runtime = runtime()?;
    let traces = match &config {
        Some(config) => Traces::start(&config.traces, runtime.handle())?,
        None => None,
    };
    log(filter, traces.as_ref());
    let ended = runtime.block_on(async {
        match command {
            Command::Schedule(options) => schedule::run(options).await,
            Command::Get(options) => get::run(options).await,
            Command::Why(options) => why::run(options).await,
            Command::Tail(options) => tail::run(options).await,
            Command::History(options) => history::run(options).await,
            Command::Reshard(options) => reshard::run(options).await,
            Command::Cluster(command) => cluster::run(command).await,
            Command::Cancel(options) => change::cancel(options).await,
            Command::Postpone(options) => change::postpone(options).await,
            Command::Fire(options) => change::fire(options).await,
            Command::Recur(options) => recur::run(options).await,
            Command::Series(options) => series::run(options).await,
            Command::List(options) => list::run(options).await,
            Command::Count(options) => list::count(options).await,
            Command::Kinds(options) => kinds::run(options).await,
            Command::Top(options) => top::run(options).await,
            Command::Instances(options) => instances::run(options).await,
            Command::Breakers(options) => breakers::run(options).await,
            Command::Doctor(options) => doctor::run(options).await,
            Command::Dead(command) => dead::run(command).await,
            Command::Pause(options) => pause::pause(options).await,
            Command::Resume(options) => pause::resume(options).await,
            Command::Archive(command) => archive::run(command).await,
            Command::Copy(command) => copy::run(command).await,
            Command::Rebuild(options) => rebuild::run(options).await,
            Command::Limit(options) => limit::limit(options).await,
            Command::Unlimit(options) => limit::unlimit(options).await,
            Command::Audit(options) => audit::run(options).await,
            Command::Export(options) => export::run(options).await,
            Command::Import(options) => import::run(*options).await,
            Command::Functions(command) => functions::run(command).await,
            Command::Completions(options) => completions::run(&options, Cli::command()),
            Command::Man(options) => man::run(&options, Cli::command()),
            Command::Serve(options) => {
                let config = config.expect("it was loaded for this command");
                let ui = |calls, terms| keyfall_web::Web::of_daemon(calls, terms).into_router();
                keyfall_daemon::run(options, config, Box::new(ui)).await
            }
            Command::Probe(options) => probe::run(options).await,
            Command::Ui(options) => ui::run(options).await,
            Command::Config(options) => config::run(options),
            Command::Database(command) => database::run(command).await,
            Command::Token(command) => token::run(command),
            Command::Dev(options) => dev::run(options).await,
            Command::Demo { seconds } => keyfall_demo::run(seconds).await,
            Command::Bench(options) => keyfall_bench::run(options).await,
        }
    });
    if let Some(traces) = traces {
        traces.stop();
    }
    ended
}

/// A worker has a thread of its own, beside the threads of the runtime, so one core is left to it.
fn runtime() -> std::io::Result<tokio::runtime::Runtime> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.saturating_sub(1).max(1))
        .enable_all()
        .build()
}
