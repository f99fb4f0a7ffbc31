//! `keyfall token`: makes, lists and revokes the tokens of the HTTP API.

use std::io;
use std::path::PathBuf;

use anyhow::{Context, ensure};
use jiff::Timestamp;
use serde::Serialize;

use super::out::{self, Form};
use super::stop::Stop;
use super::which::Unasked;
use keyfall_daemon::duration;
use keyfall_daemon::tokens::{Grant, Scope, TokenFile};

#[derive(clap::Subcommand)]
pub(crate) enum Command {
    /// Make a token and print it, this once: the file keeps only a hash
    #[command(
        after_help = "Example:\n  keyfall token make --file tokens.toml --scope schedule --prefix app1: --note billing"
    )]
    Make {
        #[command(flatten)]
        file: Place,
        /// The scopes; several, separated by commas, or each behind its own flag
        #[arg(long, value_enum, value_delimiter = ',', required = true)]
        scope: Vec<Scope>,
        /// The start of the job keys that it allows, such as app1: or app1:trans:notice:, or
        /// several; all job keys by default
        #[arg(long)]
        prefix: Vec<String>,
        /// The holder, and the purpose
        #[arg(long, default_value = "")]
        note: String,
        /// The end of its validity: a time, 2027-01-01T00:00:00Z, or a duration from now, 90d; by
        /// default it never expires
        #[arg(long, value_parser = expiry)]
        expires: Option<Timestamp>,
        #[command(flatten)]
        form: Form,
        #[command(flatten)]
        unasked: Unasked,
    },
    /// List the tokens of a file, without their secrets
    #[command(
        alias = "list",
        after_help = "Example:\n  keyfall token ls --file tokens.toml"
    )]
    Ls {
        #[command(flatten)]
        file: Place,
        /// Print one JSON array, and nothing else
        #[arg(long)]
        json: bool,
    },
    /// Take a token out of the file; daemons refuse it a second later
    #[command(
        alias = "rm",
        after_help = "Example:\n  keyfall token revoke 3f9a1c20 --file tokens.toml"
    )]
    Revoke {
        /// The id of the token, as `keyfall token ls` lists it
        id: String,
        #[command(flatten)]
        file: Place,
        #[command(flatten)]
        form: Form,
        #[command(flatten)]
        unasked: Unasked,
    },
}

#[derive(clap::Args)]
pub(crate) struct Place {
    /// The file of tokens; also KEYFALL_TOKENS_FILE
    #[arg(long)]
    file: Option<PathBuf>,
}

impl Place {
    fn path(self) -> anyhow::Result<PathBuf> {
        let of_env = || std::env::var_os("KEYFALL_TOKENS_FILE").filter(|path| !path.is_empty());
        self.file
            .or_else(|| of_env().map(PathBuf::from))
            .context("which file? name it by --file, or by KEYFALL_TOKENS_FILE")
    }
}

pub(crate) fn run(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Make {
            file,
            scope,
            mut prefix,
            note,
            expires,
            form,
            ..
        } => {
            if prefix.is_empty() {
                prefix.push(String::new());
            }
            let path = file.path()?;
            let (secret, grant) = TokenFile::make(&path, scope, prefix, note, expires)?;
            eprintln!(
                "token {} may {} {}; it is shown this once",
                grant.id,
                scopes(&grant),
                prefixes(&grant)
            );
            if form.json {
                return Ok(out::json(&Made {
                    token: secret.reveal(),
                    row: TokenRow::new(&grant),
                })?);
            }
            out::line(secret.reveal())?;
        }
        Command::Ls { file, json } => {
            let file = TokenFile::read(&file.path()?)?;
            if json {
                let rows: Vec<TokenRow> = file.grants.iter().map(TokenRow::new).collect();
                out::json(&rows)?;
            } else {
                table(&file.grants)?;
            }
        }
        Command::Revoke { id, file, form, .. } => {
            let path = file.path()?;
            if TokenFile::revoke(&path, &id)?.is_none() {
                let absent = format!(
                    "{} has no token {id:?}: `keyfall token ls` lists them",
                    path.display()
                );
                return Err(Stop::absent(absent).into());
            }
            form.say(&Revoked { id: &id }, format!("token {id} is revoked"))?;
        }
    }
    Ok(())
}

/// A new token. Its text is shown only here.
#[derive(Serialize)]
struct Made<'a> {
    token: &'a str,
    #[serde(flatten)]
    row: TokenRow<'a>,
}

#[derive(Serialize)]
struct Revoked<'a> {
    id: &'a str,
}

/// A token, as programs read it.
#[derive(Serialize)]
struct TokenRow<'a> {
    id: &'a str,
    scopes: &'a [Scope],
    prefixes: &'a [String],
    note: &'a str,
    made: Timestamp,
    expires: Option<Timestamp>,
    expired: bool,
}

impl<'a> TokenRow<'a> {
    fn new(grant: &'a Grant) -> Self {
        TokenRow {
            id: &grant.id,
            scopes: &grant.scopes,
            prefixes: &grant.prefixes,
            note: &grant.note,
            made: grant.made,
            expires: grant.expires,
            expired: grant.is_expired(Timestamp::now()),
        }
    }
}

fn table(grants: &[Grant]) -> io::Result<()> {
    let now = Timestamp::now();
    let rows = grants.iter().map(|grant| {
        [
            grant.id.clone(),
            scopes(grant),
            prefixes(grant),
            grant.made.to_string(),
            match grant.expires {
                None => "never".to_owned(),
                Some(expires) if grant.is_expired(now) => format!("{expires}, expired"),
                Some(expires) => expires.to_string(),
            },
            grant.note.clone(),
        ]
    });
    out::table(["id", "scopes", "keys", "made", "expires", "note"], rows)
}

fn scopes(grant: &Grant) -> String {
    let scopes: Vec<&str> = grant.scopes.iter().map(|scope| scope.as_str()).collect();
    scopes.join(",")
}

fn prefixes(grant: &Grant) -> String {
    if grant.prefixes.iter().any(String::is_empty) {
        return "everything".to_owned();
    }
    grant.prefixes.join(",")
}

fn expiry(text: &str) -> anyhow::Result<Timestamp> {
    let now = Timestamp::now();
    let expires = match text.parse::<Timestamp>() {
        Ok(time) => time,
        Err(_) => duration::parse(text)
            .ok()
            .and_then(|duration| now.checked_add(duration).ok())
            .and_then(|time| Timestamp::from_second(time.as_second()).ok())
            .context("write a time, 2027-01-01T00:00:00Z, or a number and its unit, 90d")?,
    };
    ensure!(
        expires > now,
        "it would have expired already: write a later time"
    );
    Ok(expires)
}
