//! The one error type of this package.

use tokio_postgres::error::SqlState;

/// The result of a call on the database.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call on the database has failed. Each message names the setting, the rule and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A setting is not valid.
    #[error("{0}")]
    Setting(String),
    /// The database cannot be reached, or the connection broke. A later call can succeed.
    #[error("PostgreSQL cannot be reached: {0}")]
    Unreachable(String),
    /// Redis has refused a call, or does not answer.
    #[error(transparent)]
    Redis(#[from] keyfall::Error),
    /// The tables are not those that this version needs.
    #[error("{0}")]
    Schema(String),
    /// Some jobs of the copy could not be brought back.
    #[error(
        "{jobs} jobs could not be brought back, and stay in the copy, which stays stopped. The first: \
         {first}. Mend the reason and repeat the rebuild, or give them up with `--leave-unreadable`"
    )]
    Rebuild {
        /// How many.
        jobs: usize,
        /// The key of one of them, and the reason.
        first: String,
    },
    /// A search of the archive is not valid, or has taken too long.
    #[error("{0}")]
    Search(String),
    /// The server takes no writes: it is a standby, or read-only for a while. A later call can
    /// succeed.
    #[error(
        "PostgreSQL has refused {what}: {message}; this server is a standby, or its \
         `default_transaction_read_only` is on: name the primary, or several hosts with \
         `target_session_attrs=read-write`, or turn the setting off"
    )]
    ReadOnly {
        /// What was asked for.
        what: &'static str,
        /// The message of the server.
        message: String,
    },
    /// The database has refused a statement.
    #[error("PostgreSQL has refused {what}: {message}{remedy}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// The message of the server.
        message: String,
        /// What to do about it, if that is known.
        remedy: &'static str,
    },
}

impl Error {
    /// Whether a later call can succeed without a change of settings or rights.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Error::Unreachable(_) | Error::ReadOnly { .. } => true,
            Error::Redis(error) => error.is_retryable(),
            _ => false,
        }
    }

    /// The error of a statement; `what` is what was asked for.
    pub(crate) fn of(what: &'static str) -> impl Fn(tokio_postgres::Error) -> Error {
        move |error| {
            let Some(told) = error.as_db_error() else {
                let told = with_causes(&error);
                let remedy = match told.contains("certificate") || told.contains("TLS") {
                    true => {
                        "; name the CA of its certificate by `database.ca_file`, or write \
                         `sslmode=disable` for a server on this machine"
                    }
                    false => "",
                };
                return Error::Unreachable(told + remedy);
            };
            let remedy = match told.code() {
                &SqlState::UNDEFINED_TABLE | &SqlState::UNDEFINED_COLUMN => {
                    "; the tables are missing or were changed: run `keyfall database migrate`"
                }
                &SqlState::INSUFFICIENT_PRIVILEGE => {
                    "; the page about the database lists the rights of each role"
                }
                &SqlState::READ_ONLY_SQL_TRANSACTION => {
                    return Error::ReadOnly {
                        what,
                        message: told.message().to_owned(),
                    };
                }
                &SqlState::DISK_FULL => "; make room on the disk of the database",
                // A statement that took too long, two transactions at odds, a lock; a server that starts,
                // stops or has no connection left.
                code if code.code().starts_with("57")
                    || code.code().starts_with("40")
                    || matches!(code.code(), "55P03" | "53300") =>
                {
                    return Error::Unreachable(told.message().to_owned());
                }
                _ => "",
            };
            Error::Refused {
                what,
                message: told.message().to_owned(),
                remedy,
            }
        }
    }
}

/// The message of an error and those of its causes.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let message = error.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = error.source();
    }
    text
}
