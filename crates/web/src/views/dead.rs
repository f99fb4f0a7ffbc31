//! Dead letters by kind and reason; requeueing and deleting a group or all, after a look at how
//! many, in parts with a progress bar.

use askama::Template;
use axum::response::{IntoResponse, Response};
use keyfall_daemon::shapes::{BulkOut, DeadBulkIn, GroupOut, GroupsIn, GroupsOut};
use serde::Deserialize;

use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::{self, link};
use crate::page::Page;
use crate::reach::Reach;
use crate::read::{Form, Query};
use crate::search::Search;

/// Letters that are changed before the page shows how far it is.
const PART: u64 = 2_000;

#[derive(Template)]
#[template(path = "dead.html")]
struct Dead {
    page: Page,
    prefix: String,
    seen: GroupsOut,
    first: String,
    next: Option<String>,
    asked: Option<Asking>,
    done: Option<(Verb, u64)>,
}

/// A change that waits for a confirmation.
struct Asking {
    verb: Verb,
    reach: Reach,
    reason: String,
    matched: u64,
}

/// A change in progress.
#[derive(Template)]
#[template(path = "dead_progress.html", blocks = ["part"])]
struct Progress {
    page: Page,
    sent: Sent,
    done: u64,
    matched: u64,
    /// How far it is, in words.
    said: String,
}

/// A change of dead letters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Verb {
    Requeue,
    Delete,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    ask: Option<Verb>,
    done: Option<Verb>,
    #[serde(default)]
    count: String,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    cursor: String,
    #[serde(flatten)]
    reach: Reach,
}

pub(crate) async fn show(cx: Cx, Query(asked): Query<Asked>) -> Result<Response, Fault> {
    let cx = cx.at("dead");
    let prefix = cx.page.reach(&asked.reach.prefix);
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let wanted = GroupsIn {
        prefix: some(&prefix),
        cursor: some(&asked.cursor),
    };
    let groups = Call::get(&["dead", "groups"]).asking(&wanted);
    let (seen, asking) = tokio::try_join!(cx.caller.ask::<GroupsOut>(groups), async {
        match asked.ask {
            Some(verb) => preview(&cx, verb, &asked).await.map(Some),
            None => Ok(None),
        }
    })?;
    let next = seen.next.as_ref();
    let next = next.map(|cursor| link("dead", &[("prefix", &prefix), ("cursor", cursor)]));
    Ok(cx.show(&Dead {
        page: cx.page.clone(),
        first: link("dead", &[("prefix", &prefix)]),
        next,
        prefix,
        seen,
        asked: asking,
        done: asked.done.zip(asked.count.parse().ok()),
    }))
}

/// How many letters a change would reach.
async fn preview(cx: &Cx, verb: Verb, asked: &Asked) -> Result<Asking, Fault> {
    let mut which = which(&asked.reach, &asked.reason)?;
    which.dry_run = true;
    let out: BulkOut = cx.caller.ask(verb.call(&which)).await?;
    Ok(Asking {
        verb,
        reach: asked.reach.clone(),
        reason: asked.reason.clone(),
        matched: out.matched,
    })
}

/// The form of a change, and how far it is.
#[derive(Clone, Deserialize)]
pub(crate) struct Sent {
    #[serde(rename = "do")]
    verb: Verb,
    #[serde(default)]
    reason: String,
    /// The letters that were changed before.
    #[serde(default)]
    done: String,
    /// The letters that the preview counted.
    #[serde(default)]
    matched: String,
    #[serde(flatten)]
    reach: Reach,
}

/// Changes some letters. If more are left, the answer is a page with a progress bar, which goes on by
/// itself, or without scripts by a button.
pub(crate) async fn act(cx: Cx, Form(sent): Form<Sent>) -> Result<Response, Fault> {
    let cx = cx.at("dead");
    let mut which = which(&sent.reach, &sent.reason)?;
    which.at_most = Some(PART);
    let out: BulkOut = cx.caller.ask(sent.verb.call(&which)).await?;
    let done = sent.done().saturating_add(out.done);
    // Letters that cannot be requeued are left, and would be met for ever.
    let goes_on = out.more && out.done > 0;
    if goes_on {
        let page = cx.page.clone();
        let matched = sent.matched().max(done);
        let name = format!("dead.progress_{}", sent.verb.word());
        let said = page.t2(&name, page.number(&done), page.number(&matched));
        let view = Progress {
            page,
            sent,
            done,
            matched,
            said,
        };
        return Ok(if cx.is_part {
            cx.show(&view.as_part())
        } else {
            cx.show(&view)
        });
    }
    let to = link(
        "dead",
        &[("done", sent.verb.word()), ("count", &done.to_string())],
    );
    if cx.is_part {
        return Ok(([("hx-redirect", to)], "").into_response());
    }
    Ok(redirect(&to))
}

fn which(reach: &Reach, reason: &str) -> Result<DeadBulkIn, Fault> {
    let bulk = reach.bulk(false)?;
    Ok(DeadBulkIn {
        prefix: bulk.prefix,
        everything: bulk.everything,
        reason: Some(reason.to_owned()).filter(|reason| !reason.is_empty()),
        ..DeadBulkIn::default()
    })
}

impl Verb {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verb::Requeue => "requeue",
            Verb::Delete => "delete",
        }
    }

    fn call(self, which: &DeadBulkIn) -> Call {
        Call::post(&["dead", self.word()]).with(which)
    }
}

impl Sent {
    fn done(&self) -> u64 {
        self.done.parse().unwrap_or(0)
    }

    fn matched(&self) -> u64 {
        self.matched.parse().unwrap_or(0)
    }
}

impl Dead {
    /// The page of the letters of a group.
    fn letters(&self, group: &GroupOut) -> String {
        let mut search = Search::of_reason(&group.reason);
        search.prefix = format!("{}:", group.kind);
        links::jobs(&search.written())
    }

    /// The page that asks before a group is changed.
    fn ask(&self, verb: &str, group: &GroupOut) -> String {
        let prefix = format!("{}:", group.kind);
        link(
            "dead",
            &[
                ("ask", verb),
                ("prefix", &prefix),
                ("reason", &group.reason),
            ],
        )
    }

    fn may(&self) -> bool {
        self.page.may_somewhere("operate")
    }
}
