//! Adopted keys whose Redis went back to a snapshot: it has forgotten the later commands and all
//! that followed from them, and from then on each job follows its key as the snapshot has it.

use keyfall_testing::journals::{Micros, at_unix_ms};

use crate::kept::Kept;
use crate::story::{Call, Rollback, Run, Story, Wrong};

/// How exactly the time of a claim is known.
const EXACT: Micros = 5_000;

/// More than that, and less than the time for which the server is away.
const APART: Micros = 25_000;

/// The story until a server was gone, and the story as it went on from its snapshot. `None` if
/// nothing of it is certainly undone.
pub(crate) fn split(story: &Story, back: &Rollback) -> Option<(Story, Story)> {
    let (saved, gone) = back.undone?;
    let is_undone = |call: &Call| is_undone(call, saved, gone);
    if !story.calls.iter().any(is_undone) {
        return None;
    }
    let before = |run: &Run| claimed(run) <= gone + APART;
    let kept = |run: &Run| !before(run) || claimed(run) <= saved + EXACT;
    let part = |calls: &dyn Fn(&Call) -> bool, runs: &dyn Fn(&Run) -> bool| Story {
        calls: story.calls.iter().filter(|it| calls(it)).cloned().collect(),
        runs: story.runs.iter().filter(|it| runs(it)).cloned().collect(),
    };
    Some((
        part(&|call| call.sent <= gone, &before),
        part(&|call| !is_undone(call), &kept),
    ))
}

/// Values that were set after the snapshot, and of which something was seen after the return to it.
pub(crate) fn returned(story: &Story, back: &Rollback, kept: &Kept) -> Vec<Wrong> {
    let Some((saved, gone)) = back.undone else {
        return Vec::new();
    };
    let undone = story.calls.iter().filter(|it| is_undone(it, saved, gone));
    let versions = undone.filter_map(Call::version);
    let told = versions.filter_map(|version| {
        let is_later = |run: &&Run| run.version == version && claimed(run) > gone + APART;
        let run = story.runs.iter().find(is_later);
        let place = kept.versions.get(&version);
        (run.is_some() || place.is_some()).then(|| {
            Wrong::AfterCancel(format!(
                "version {version} was set after the snapshot that Redis went back to, and came \
                 again: {run:?}, {place:?}"
            ))
        })
    });
    told.collect()
}

fn is_undone(call: &Call, saved: Micros, gone: Micros) -> bool {
    call.sent >= saved && call.until <= gone
}

/// The time at which Redis gave a worker this run.
fn claimed(run: &Run) -> Micros {
    at_unix_ms(run.fence / 1000)
}
