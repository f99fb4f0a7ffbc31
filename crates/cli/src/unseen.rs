//! Reports the parts that a command could not look at, because one of several servers is away.

use anyhow::bail;

use super::plain::aside;
use super::stop::Stop;
use keyfall_daemon::shapes::UnseenOut;

/// Adds the missing parts of a page to those of the pages before.
pub(crate) fn add(all: &mut Vec<UnseenOut>, page: Vec<UnseenOut>) {
    for one in page {
        match all.iter_mut().find(|known| known.server == one.server) {
            Some(known) => {
                for shard in one.shards {
                    if !known.shards.contains(&shard) {
                        known.shards.push(shard);
                    }
                }
            }
            None => all.push(one),
        }
    }
}

/// Prints the missing parts, and fails with an exit code that a script can test.
pub(crate) fn told(unseen: &[UnseenOut]) -> anyhow::Result<()> {
    if unseen.is_empty() {
        return Ok(());
    }
    for one in unseen {
        let shards = match &*one.shards {
            [] => String::new(),
            shards => format!("; it has {}", shards.join(", ")),
        };
        aside(format!("not seen: {}: {}{shards}", one.server, one.error));
    }
    bail!(Stop::unavailable(
        "a server is away, and its part is missing here: try again when it is back"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_was_away_on_any_page_is_told_once() {
        let away = |server: &str, shards: &[&str]| UnseenOut {
            server: server.to_owned(),
            error: "away".to_owned(),
            shards: shards.iter().map(|&shard| shard.to_owned()).collect(),
        };
        let mut all = Vec::new();
        add(&mut all, vec![away("one", &["a:b:c/0"])]);
        add(&mut all, vec![away("one", &["a:b:c/0", "a:b:d/0"])]);
        add(&mut all, vec![away("two", &[])]);
        // The last page has seen all of them.
        add(&mut all, Vec::new());
        let told: Vec<_> = all
            .iter()
            .map(|one| (&*one.server, one.shards.len()))
            .collect();
        assert_eq!(told, [("one", 2), ("two", 0)]);
        assert!(super::told(&all).is_err());
    }
}
