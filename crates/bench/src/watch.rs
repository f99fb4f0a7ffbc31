//! Counts the commands that servers receive, by MONITOR.

use anyhow::{Context, bail, ensure};
use futures_util::{Stream, StreamExt};
use tokio::task::JoinSet;

use super::ground::Ground;

/// Counts the commands of clients until it is ended or dropped.
pub(super) struct Watch(JoinSet<anyhow::Result<Seen>>);

/// The counts of a watch.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// Commands that clients sent, without the commands inside scripts.
    pub(super) commands: usize,
    /// Jobs that claims named; a job counts once for each claim.
    pub(super) named: usize,
}

impl Watch {
    /// Starts MONITOR on all servers.
    pub(super) async fn start(ground: &Ground) -> anyhow::Result<Self> {
        let mut tasks = JoinSet::new();
        for monitor in ground.monitors().await? {
            let (kind, end) = (ground.kind(), end(ground));
            tasks.spawn(async move { count(monitor.into_on_message(), &kind, &end).await });
        }
        Ok(Watch(tasks))
    }

    /// Ends the watch, and returns the counts up to now.
    pub(super) async fn end(mut self, ground: &Ground) -> anyhow::Result<Seen> {
        let mut echo = redis::cmd("ECHO");
        echo.arg(end(ground));
        for node in ground.nodes.all() {
            let echo = echo.query_async(&mut node.redis()).await;
            let _: String = echo.context("the server cannot be asked for an echo")?;
        }
        let mut all = Seen::default();
        while let Some(seen) = self.0.join_next().await {
            let seen = seen??;
            all.commands += seen.commands;
            all.named += seen.named;
        }
        Ok(all)
    }
}

/// The text of the last command, an ECHO: when it is seen, all commands before it have been seen.
fn end(ground: &Ground) -> String {
    format!("{} has been watched", ground.kind())
}

/// Counts lines of MONITOR up to the ECHO of `end`.
async fn count(lines: impl Stream<Item = String>, kind: &str, end: &str) -> anyhow::Result<Seen> {
    let mut lines = std::pin::pin!(lines);
    let mut seen = Seen::default();
    while let Some(line) = lines.next().await {
        // 1763712345.678901 [0 127.0.0.1:40132] "ECHO" "text"; a script is `[0 lua]`.
        let Some((origin, command)) = line.split_once("] ") else {
            continue;
        };
        if origin.ends_with(" lua") {
            continue;
        }
        let words: Vec<&str> = command.split('"').skip(1).step_by(2).take(WORDS).collect();
        if words == ["ECHO", end] {
            return Ok(seen);
        }
        seen.commands += 1;
        if let Some((sources, before)) = sources(&words, kind) {
            let ids = command.matches('"').count() / 2 - before;
            // The sources have a letter for each id.
            ensure!(
                ids == sources.len(),
                "a claim has a form that is not known here: {line}"
            );
            seen.named += ids;
        }
    }
    bail!("the server broke off MONITOR")
}

/// The number of keys of a claim.
const KEYS: usize = 7;
/// The number of further keys of its ledger, which follow on a cluster.
const OF_LEDGER: usize = 13;

/// The number of words of a claim beside keys and ids: EVALSHA, the script and the number of keys
/// before the keys; the arguments up to the sources of the ids behind them. The ids follow.
const FIXED: usize = 3 + 9;

/// The number of words of a command that are read.
const WORDS: usize = FIXED + KEYS + OF_LEDGER;

/// The sources of the ids, if the command is a claim on a ledger of this kind, and the number of words
/// up to them.
fn sources<'a>(words: &[&'a str], kind: &str) -> Option<(&'a str, usize)> {
    let ["EVALSHA", _, keys, _, _, leased, _, calls, ..] = *words else {
        return None;
    };
    let keys: usize = keys.parse().ok()?;
    let is_claim = [KEYS, KEYS + OF_LEDGER].contains(&keys)
        && leased.contains(kind)
        && leased.ends_with(":leased")
        // A settlement has other keys there.
        && calls.ends_with(":calls");
    let before = FIXED + keys;
    let sources = words.get(before - 1).filter(|_| is_claim)?;
    Some((sources, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The third and the fifth key of a claim, by what they end with.
    const LEASED: [&str; 2] = ["leased", "k:calls"];

    #[tokio::test]
    async fn commands_and_the_jobs_that_claims_name_are_counted_and_scripts_are_not() {
        let claim = |kind: &str, [third, fifth]: [&str; 2], sources: &str, ids: &str| {
            format!(
                "1.2 [0 unix:/tmp/a.sock] \"EVALSHA\" \"5e\" \"7\" \"due\" \"shadow\" \
                 \"keyfall:{{{kind}/0}}:{third}\" \"lease\" \"{fifth}\" \"lanes\" \"history\" \
                 \"lane\" \"1\" \"host:1\" \"15000\" \"0\" \"wake\" \"{kind}/0\" \"named\" \
                 \"{sources}\"{ids}"
            )
        };
        let lines = [
            "OK".to_owned(),
            claim("a:b:c", LEASED, "ep", " \"000001\" \"000002\""),
            "1.2 [0 lua] \"ZADD\" \"k\"".to_owned(),
            claim("a:b:c", LEASED, "", ""),
            claim("a:b:other", LEASED, "e", " \"000001\""),
            claim("a:b:c", ["next", "k:calls"], "e", " \"000001\""),
            claim("a:b:c", ["leased", "k:next"], "done", " \"000001\""),
            "1.2 [0 127.0.0.1:1] \"PING\"".to_owned(),
            "1.2 [0 127.0.0.1:1] \"ECHO\" \"end\"".to_owned(),
            "1.2 [0 127.0.0.1:1] \"PING\"".to_owned(),
        ];
        let seen = count(futures_util::stream::iter(lines), "a:b:c", "end").await;
        let expected = Seen {
            commands: 6,
            named: 2,
        };
        assert_eq!(seen.unwrap(), expected);

        let strange = claim("a:b:c", LEASED, "strange", " \"000001\"");
        let seen = count(futures_util::stream::iter([strange]), "a:b:c", "end").await;
        let error = seen.unwrap_err().to_string();
        assert!(error.starts_with("a claim has a form"), "{error}");
    }
}
