//! Whether Redis has the data set that was copied.

use keyfall::Client;

use crate::connection::Database;
use crate::error::Result;

/// Why a copy is stopped; `None` if it goes on.
pub(super) type Stopped = Option<String>;

/// Compares the data sets unless nothing is copied: a Redis without copied kinds, and a database
/// without a copy, need no id.
///
/// # Errors
/// If Redis or the database does not answer.
pub(super) async fn compare_copied(
    client: &Client,
    database: &Database,
) -> Result<Option<Stopped>> {
    match database.copy_state().await? {
        None if client.copies().await?.is_empty() => Ok(None),
        _ => compare(client, database).await.map(Some),
    }
}

/// Compares the data set of Redis with the one that was copied, and stops the copy if they differ. The
/// first time both get the same id.
///
/// # Errors
/// If Redis or the database does not answer.
pub(super) async fn compare(client: &Client, database: &Database) -> Result<Stopped> {
    let servers = client.data_sets().await?;
    let Some(state) = database.copy_state().await? else {
        let known = servers.iter().find_map(|(_, id)| id.clone());
        let id = known.unwrap_or_else(new_id);
        client.name_data_set(&id, false).await?;
        return Ok(database.begin_copy(&id).await?.stopped);
    };
    if state.stopped.is_some() {
        return Ok(state.stopped);
    }
    let other = servers
        .iter()
        .find(|(_, id)| id.as_deref() != Some(&*state.data_set));
    let Some((server, id)) = other else {
        return Ok(None);
    };
    // Nothing can have been lost that was copied.
    if database
        .copied_kinds()
        .await?
        .iter()
        .all(|it| it.pending + it.kept == 0)
    {
        client.name_data_set(&state.data_set, true).await?;
        return Ok(None);
    }
    let why = match id {
        None => format!("the Redis at {server} was emptied"),
        Some(_) => {
            format!("the Redis at {server} has another data set than the one that was copied")
        }
    };
    database.stop_copy(&why).await?;
    Ok(Some(why))
}

/// An id that no data set has.
pub(super) fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
