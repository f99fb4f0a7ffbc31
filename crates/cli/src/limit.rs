//! `keyfall limit` and `keyfall unlimit`: how many jobs of a kind, or of all kinds with a prefix,
//! start in a time, and run at the same time, over all workers together.

use keyfall::LimitScope;
use keyfall_daemon::shapes::{LimitIn, LimitOut};

use super::connect::Server;
use super::out::{self, Form};
use super::stop::Stop;
use super::unseen;
use super::when::shown;

#[derive(clap::Args, Debug)]
pub(crate) struct Options {
    /// The kind, app:module:biz, or a prefix of kinds that share the limit, app:module:; without one,
    /// all limits are listed
    #[arg(value_name = "KIND")]
    kind: Option<String>,

    /// How many jobs start in a time, evenly spaced: 10/s, 50/m, 5/h, 1/d or 1/90s
    #[arg(long, value_name = "RATE", requires = "kind")]
    rate: Option<String>,

    /// How many jobs may start at once; 1 by default
    #[arg(long, value_name = "N", requires = "rate")]
    burst: Option<u32>,

    /// How many jobs may run at the same time
    #[arg(long, value_name = "N", requires = "kind")]
    concurrency: Option<u32>,

    /// Makes groups that take turns, each with the limit above: header:tenant, or id/1 for the part of
    /// the id before its first slash
    #[arg(long, value_name = "GROUP", requires = "kind")]
    per: Option<String>,

    /// The rate of all groups together
    #[arg(long, value_name = "RATE", requires = "per")]
    total_rate: Option<String>,

    /// The burst of all groups together
    #[arg(long, value_name = "N", requires = "total_rate")]
    total_burst: Option<u32>,

    /// How many jobs of all groups together may run at the same time
    #[arg(long, value_name = "N", requires = "per")]
    total_concurrency: Option<u32>,

    /// How many starts a group gets for one start of another: acme=3; can be repeated
    #[arg(long = "weight", value_name = "GROUP=WEIGHT", requires = "per")]
    weights: Vec<String>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

#[derive(clap::Args, Debug)]
pub(crate) struct Remove {
    /// The kind, app:module:biz, or the prefix, app:module:
    #[arg(value_name = "KIND")]
    kind: String,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    server: Server,
}

pub(crate) async fn limit(options: Options) -> anyhow::Result<()> {
    let weights = LimitIn::weights(options.weights.iter().map(String::as_str))
        .map_err(|error| Stop::wrong(error.to_string()))?;
    let limit = LimitIn {
        rate: options.rate,
        burst: options.burst,
        concurrency: options.concurrency,
        per: options.per,
        total_rate: options.total_rate,
        total_burst: options.total_burst,
        total_concurrency: options.total_concurrency,
        weights,
    };
    let is_set = limit.rate.is_some() || limit.concurrency.is_some() || limit.per.is_some();
    let scope = options.kind.as_deref().map(scope).transpose()?;
    if is_set {
        limit
            .limit()
            .map_err(|error| Stop::wrong(error.to_string()))?;
    }
    let jobs = options.server.connect().await?;
    if let Some(scope) = scope.as_ref().filter(|_| is_set) {
        let limit = jobs.limit(scope, &limit).await?;
        if options.form.json {
            return Ok(out::json(&limit)?);
        }
        let words = words(&limit);
        let text = match scope.is_prefix() {
            true => format!("limited: all kinds below {scope} {words}"),
            false => format!("limited: {scope}: {words}"),
        };
        return Ok(out::line(text)?);
    }
    let mut limits = jobs.limits().await?;
    limits.limits.retain(|one| {
        scope
            .as_ref()
            .is_none_or(|scope| one.kind == scope.as_str())
    });
    if options.form.json {
        out::json(&limits)?;
        return unseen::told(&limits.unseen);
    }
    let rows = limits.limits.iter().map(|one| {
        [
            one.kind.clone(),
            words(one),
            one.leased.to_string(),
            one.held.to_string(),
            one.next.map(shown).unwrap_or_default(),
            shown(one.since),
            one.by.clone(),
        ]
    });
    out::table(
        ["kind", "limit", "running", "held", "next", "since", "by"],
        rows,
    )?;
    unseen::told(&limits.unseen)
}

pub(crate) async fn unlimit(options: Remove) -> anyhow::Result<()> {
    let scope = scope(&options.kind)?;
    let jobs = options.server.connect().await?;
    let removed = jobs.unlimit(&scope).await?;
    if options.form.json {
        return Ok(out::json(&removed)?);
    }
    let text = match removed.removed {
        true => format!("no longer limited: {scope}"),
        false => format!("{scope} had no limit"),
    };
    Ok(out::line(text)?)
}

fn scope(text: &str) -> Result<LimitScope, Stop> {
    LimitScope::parse(text).map_err(|error| Stop::wrong(error.to_string()))
}

/// The limit as a person reads it.
fn words(limit: &LimitOut) -> String {
    match limit.limit.limit() {
        Ok(limit) => limit.to_string(),
        Err(error) => error.to_string(),
    }
}
