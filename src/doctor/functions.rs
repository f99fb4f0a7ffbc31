//! The check of the Redis functions: whether the installed library fits this version.

use std::time::Instant;

use super::checks::FUNCTIONS_FIT;
use super::diagnose::PATIENCE;
use super::finding::Finding;
use super::ledgers::unseen;
use crate::client::{Client, LibraryState};
use crate::error::Result;
use crate::phrase::Phrase;
use crate::store::VERSION;

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
            Phrase::new(
                "found.functions-several",
                "several servers have the jobs, and then functions are not supported",
                [],
            ),
        ));
        return Ok(());
    };
    let prepared = server.prepared(Instant::now() + PATIENCE).await;
    let state = match prepared {
        Ok(None) => {
            let unused = Phrase::new("found.no-functions", "this database uses no functions", []);
            found.push(Finding::fine(check, unused));
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
            let told = told(&name, &state);
            match state {
                LibraryState::Fits => Finding::fine(check, told),
                _ => Finding::warning(check, told, remedy(&name, &state)),
            }
        }
    });
    Ok(())
}

/// The state of a library.
fn told(name: &str, state: &LibraryState) -> Phrase {
    let name = name.into();
    match state {
        LibraryState::Unprepared => Phrase::new(
            "found.library-elsewhere",
            "the library {} wakes the workers of another database",
            [name],
        ),
        LibraryState::Absent => Phrase::new(
            "found.library-absent",
            "the library {} is not loaded",
            [name],
        ),
        LibraryState::Foreign => Phrase::new(
            "found.library-foreign",
            "the library {} is not of Keyfall",
            [name],
        ),
        LibraryState::Elsewhere { namespace } => Phrase::new(
            "found.library-namespace",
            "the library {} is for the namespace {}",
            [name, namespace.into()],
        ),
        LibraryState::Fits => Phrase::new(
            "found.library-fits",
            "the library {} is of this version, keyfall {}",
            [name, VERSION.into()],
        ),
        LibraryState::Differs { version } if version == VERSION => Phrase::new(
            "found.library-changed",
            "the library {} states version {}, but differs from the library of that version",
            [name, version.into()],
        ),
        LibraryState::Differs { version } => Phrase::new(
            "found.library-version",
            "the library {} is of keyfall {}, and this program is {}",
            [name, version.into(), VERSION.into()],
        ),
    }
}

/// The command that installs the library, for a shell. It replaces a library that is already there.
fn remedy(name: &str, state: &LibraryState) -> String {
    let replace = if state.is_kept() { " --replace" } else { "" };
    format!("keyfall functions install --library {name}{replace}")
}
