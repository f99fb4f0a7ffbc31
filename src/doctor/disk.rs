//! Checks of persistence: the data that a restart of Redis finds again.

use super::checks::{AOF_FSYNC, AOF_TRUNCATED, DISK_WRITES, PERSISTENCE, SNAPSHOTS};
use super::finding::Finding;
use crate::phrase::Phrase;
use crate::store::{Info, ServerReport};

/// Adds the findings of this file:
///
/// - persistence: an error without log and snapshots, a warning with snapshots alone;
/// - `appendfsync no` and `aof-load-truncated no`: warnings, only with a log;
/// - snapshots beside a log: information, since the log suffices;
/// - failed writes to the disk, see [`writes`].
pub(super) fn look(info: &Info, vitals: &ServerReport, found: &mut Vec<Finding>) {
    let log = info.text("aof_enabled") == "1";
    let save = vitals.setting("save");
    found.push(match &save {
        _ if log => Finding::fine(&PERSISTENCE, "appendonly yes"),
        Ok("") => Finding::error(
            &PERSISTENCE,
            Phrase::new("found.no-log", "neither a log nor snapshots", []),
            "CONFIG SET appendonly yes",
        ),
        Ok(points) => Finding::warning(
            &PERSISTENCE,
            Phrase::new(
                "found.snapshots-only",
                "no log, only snapshots: save \"{}\"",
                [(*points).into()],
            ),
            "CONFIG SET appendonly yes",
        ),
        Err(_) => Finding::warning(
            &PERSISTENCE,
            Phrase::new(
                "found.log-unknown",
                "no log; the server does not show whether it makes snapshots",
                [],
            ),
            "CONFIG SET appendonly yes",
        ),
    });
    let fsync = vitals.setting("appendfsync");
    found.push(Finding::of(&AOF_FSYNC, fsync, |check, policy| {
        let shown = format!("appendfsync {policy}");
        if policy == "no" && log {
            return Finding::warning(check, shown, "CONFIG SET appendfsync everysec");
        }
        Finding::fine(check, shown)
    }));
    let truncated = vitals.setting("aof-load-truncated");
    found.push(Finding::of(&AOF_TRUNCATED, truncated, |check, answer| {
        let shown = format!("aof-load-truncated {answer}");
        if answer == "no" && log {
            return Finding::warning(check, shown, "CONFIG SET aof-load-truncated yes");
        }
        Finding::fine(check, shown)
    }));
    found.push(Finding::of(&SNAPSHOTS, save.clone(), |check, points| {
        let shown = format!("save \"{points}\"");
        if points.is_empty() || !log {
            return Finding::fine(check, shown);
        }
        Finding {
            remedy: Some("CONFIG SET save \"\"".into()),
            ..Finding::info(
                check,
                Phrase::new("found.beside-log", "{}, beside the log", [shown.into()]),
            )
        }
    }));
    // After a failed snapshot, Redis refuses writes only if it makes snapshots by itself.
    let snapshots = save.map_or(true, |points| !points.is_empty());
    found.push(writes(info, snapshots));
}

/// The finding about the last write of the log, and of a snapshot.
///
/// It is an error if Redis refuses writes for it: after a failed write of the log, or after a
/// failed snapshot on a server that makes snapshots by itself, as `snapshots` says. Other failures
/// are warnings.
fn writes(info: &Info, snapshots: bool) -> Finding {
    let failed = |field| !matches!(info.text(field), "" | "ok");
    let remedy = Phrase::new(
        "remedy.disk",
        "free disk space, read the server's log file, then call BGREWRITEAOF or BGSAVE",
        [],
    );
    if failed("aof_last_write_status") {
        let shown = Phrase::new("found.log-write", "the last write to the log failed", []);
        return Finding::error(&DISK_WRITES, shown, remedy);
    }
    if failed("rdb_last_bgsave_status") {
        let shown = Phrase::new("found.snapshot", "the last snapshot failed", []);
        return if snapshots {
            Finding::error(&DISK_WRITES, shown, remedy)
        } else {
            Finding::warning(&DISK_WRITES, shown, remedy)
        };
    }
    if failed("aof_last_bgrewrite_status") {
        let shown = Phrase::new(
            "found.log-rewrite",
            "the last rewrite of the log failed, and the log grows",
            [],
        );
        return Finding::warning(&DISK_WRITES, shown, remedy);
    }
    let shown = Phrase::new("found.disk-writes", "the last writes succeeded", []);
    Finding::fine(&DISK_WRITES, shown)
}
