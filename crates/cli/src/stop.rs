//! How a command that failed ends: with a sentence, and with an exit code that says what to do.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::time::Duration;

use keyfall::ErrorKind;

use super::out::Closed;
use super::plain::aside;
use keyfall_daemon::shapes::Problem;
use keyfall_database::Error as DatabaseError;

const FAULT: u8 = 1;
const WRONG: u8 = 2;
const ABSENT: u8 = 3;
const UNAVAILABLE: u8 = 4;
const WARNED: u8 = 5;

/// An end that has an exit code of its own.
#[derive(Debug)]
pub(crate) struct Stop {
    code: u8,
    message: String,
    /// The wait before the same call can succeed, if the daemon named one.
    wait: Option<Duration>,
}

impl Stop {
    /// A flag or an argument is wrong.
    pub(crate) fn wrong(message: impl Into<String>) -> Self {
        Stop::new(WRONG, message)
    }

    /// There is no such job, letter or kind.
    pub(crate) fn absent(message: impl Into<String>) -> Self {
        Stop::new(ABSENT, message)
    }

    /// Redis or the daemon does not answer: try again.
    pub(crate) fn unavailable(message: impl Into<String>) -> Self {
        Stop::new(UNAVAILABLE, message)
    }

    /// A warning, and no error.
    pub(crate) fn warned(message: impl Into<String>) -> Self {
        Stop::new(WARNED, message)
    }

    /// The error of a call that was refused.
    pub(crate) fn of_problem(problem: Problem) -> Self {
        let code = match &*problem.code {
            "invalid_key" | "invalid_time" | "invalid_policy" | "invalid_rule"
            | "invalid_payload" | "invalid_headers" | "invalid_request" => WRONG,
            code if code.ends_with("_absent") => ABSENT,
            "unavailable"
            | "archive_unavailable"
            | "outcome_unknown"
            | "stopping"
            | "body_timeout"
            | "rate_limited"
            | "too_many_tails" => UNAVAILABLE,
            _ => FAULT,
        };
        Stop::new(code, problem.detail)
    }

    /// The same error, with the wait before the call may be repeated.
    pub(crate) fn after(mut self, wait: Option<Duration>) -> Self {
        self.wait = wait;
        self
    }

    /// The wait before the same call can succeed, if the daemon named one.
    pub(crate) fn wait_of(error: &anyhow::Error) -> Option<Duration> {
        let mut causes = error.chain();
        causes.find_map(|cause| cause.downcast_ref::<Stop>()?.wait)
    }

    /// Whether the same call can succeed later.
    pub(crate) fn is_passing(error: &anyhow::Error) -> bool {
        code(error) == UNAVAILABLE
    }

    /// Whether there is no such job, letter or kind.
    pub(crate) fn is_absent(error: &anyhow::Error) -> bool {
        code(error) == ABSENT
    }

    fn new(code: u8, message: impl Into<String>) -> Self {
        Stop {
            code,
            message: message.into(),
            wait: None,
        }
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Stop {}

/// Prints the error, and returns the exit code of the process.
pub(crate) fn told(error: &anyhow::Error) -> ExitCode {
    if is_closed_output(error) {
        return ExitCode::SUCCESS;
    }
    let code = code(error);
    if code == WARNED {
        aside(format!("{error:#}"));
    } else {
        aside(format!("error: {error:#}"));
    }
    ExitCode::from(code)
}

/// Whether the reader of the output has closed it, as `head` does. Another pipe or connection that
/// breaks is an error.
fn is_closed_output(error: &anyhow::Error) -> bool {
    let mut io = error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>());
    io.any(|error| error.get_ref().is_some_and(|inner| inner.is::<Closed>()))
}

fn code(error: &anyhow::Error) -> u8 {
    for cause in error.chain() {
        if let Some(stop) = cause.downcast_ref::<Stop>() {
            return stop.code;
        }
        if let Some(error) = cause.downcast_ref::<keyfall::Error>() {
            return code_of(error.kind());
        }
        // The error of Redis is not in the chain: it is shown as this one.
        match cause.downcast_ref() {
            Some(DatabaseError::Unreachable(_) | DatabaseError::ReadOnly { .. }) => {
                return UNAVAILABLE;
            }
            Some(DatabaseError::Redis(error)) => return code_of(error.kind()),
            _ => {}
        }
    }
    FAULT
}

fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidKey
        | ErrorKind::InvalidTime
        | ErrorKind::InvalidPolicy
        | ErrorKind::InvalidRule
        | ErrorKind::InvalidPayload
        | ErrorKind::InvalidHeaders
        | ErrorKind::InvalidRoute
        | ErrorKind::InvalidSetting => WRONG,
        ErrorKind::Unavailable | ErrorKind::OutcomeUnknown => UNAVAILABLE,
        _ => FAULT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::out::marked;

    #[test]
    fn the_code_is_found_below_what_was_added_to_the_error() {
        let error = anyhow::Error::new(Stop::absent("no such job")).context("while it was read");
        assert_eq!(code(&error), ABSENT);
        assert_eq!(format!("{error:#}"), "while it was read: no such job");
        assert_eq!(code(&anyhow::anyhow!("anything else")), FAULT);
        let standby = DatabaseError::ReadOnly {
            what: "to write",
            message: "cannot execute INSERT".to_owned(),
        };
        assert_eq!(code(&anyhow::Error::new(standby)), UNAVAILABLE);
    }

    #[test]
    fn a_reader_that_has_seen_enough_is_no_error() {
        let broken = |kind: io::ErrorKind| anyhow::Error::from(marked(io::Error::from(kind)));
        let closed = broken(io::ErrorKind::BrokenPipe);
        assert!(is_closed_output(&closed));
        assert!(is_closed_output(&closed.context("it ended early")));
        assert!(!is_closed_output(&broken(io::ErrorKind::StorageFull)));
    }

    #[test]
    fn another_pipe_that_breaks_is_an_error() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        assert!(!is_closed_output(&broken.into()));
    }
}
