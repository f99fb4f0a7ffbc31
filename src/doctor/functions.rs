//! The check of the Redis functions: whether the installed library fits this version.

use std::time::Instant;

use super::checks::FUNCTIONS_FIT;
use super::diagnose::PATIENCE;
use super::finding::Finding;
use super::ledgers::unseen;
use crate::client::{Client, LibraryState};
use crate::error::Result;

/// Adds the finding about the library of functions. A library that does not fit is a warning, and
/// its remedy installs it again.
///
/// A mark in the database says whether functions are used in it. The mark is read first: users who
/// may not list functions can read it, and a server that has no functions is never asked for them.
pub(super) async fn look(client: &Client, found: &mut Vec<Finding>) -> Result<()> {
    let check = &FUNCTIONS_FIT;
    let Ok(server) = client.store().only() else {
        found.push(Finding::fine(
            check,
            "several servers have the jobs, and then functions are not supported",
        ));
        return Ok(());
    };
    let prepared = server.prepared(Instant::now() + PATIENCE).await;
    let state = match prepared {
        Ok(None) => {
            found.push(Finding::fine(check, "this database uses no functions"));
            return Ok(());
        }
        Ok(Some((name, _))) => match client.functions().named(&name) {
            Ok(functions) => functions.state().await.map(|state| (name, state)),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    found.push(match state {
        Err(error) => Finding::unseen(check, unseen::<()>(error)?.unwrap_err()),
        Ok((name, state)) => {
            let told = format!("the library {name} {state}");
            match state {
                LibraryState::Fits => Finding::fine(check, told),
                LibraryState::Unprepared => {
                    let told = format!("the library {name} wakes the workers of another database");
                    Finding::warning(check, told, remedy(&name, &state))
                }
                _ => Finding::warning(check, told, remedy(&name, &state)),
            }
        }
    });
    Ok(())
}

/// The command that installs the library, for a shell. It replaces a library that is already there.
fn remedy(name: &str, state: &LibraryState) -> String {
    let replace = if state.is_kept() { " --replace" } else { "" };
    format!("keyfall functions install --library {name}{replace}")
}
