//! Pauses of kinds: which there are, and pausing and resuming with a look at what it would reach.

use std::sync::Arc;

use crate::read::{Form, Query};
use askama::Template;
use axum::extract::State;
use axum::response::Response;
use keyfall_daemon::shapes::{BulkIn, PausedOut, SinceOut, SwitchedOut, Time};
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::gathered::oldest;
use crate::links::link;
use crate::page::Page;
use crate::reach::Reach;

#[derive(Template)]
#[template(path = "pauses.html")]
struct Pauses {
    page: Page,
    /// What is paused; `None` while it is gathered for the first time.
    paused: Option<Arc<PausedOut>>,
    since: Option<Time>,
    done: Option<Switch>,
    /// A change that waits for a confirmation, and the kinds that it would reach.
    asked: Option<(Switch, Reach, Vec<String>)>,
}

/// A change of a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Switch {
    Pause,
    Resume,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    ask: Option<Switch>,
    done: Option<Switch>,
    #[serde(flatten)]
    reach: Reach,
}

pub(crate) async fn show(
    State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("pauses");
    let call = Call::get(&["paused"]);
    let paused = web.gathered.ask::<PausedOut>(&cx, "", call).await?;
    let asked_for = match asked.ask {
        None => None,
        Some(switch) => {
            let reach = asked.reach;
            let out: SwitchedOut = cx.caller.ask(switch.call(&reach.bulk(true)?)).await?;
            Some((switch, reach, out.kinds))
        }
    };
    Ok(cx.show(&Pauses {
        page: cx.page.clone(),
        since: oldest(paused.as_ref().map(|seen| seen.at), cx.page.now).map(Time),
        paused: paused.map(|seen| seen.answer),
        done: asked.done,
        asked: asked_for,
    }))
}

/// The paused prefixes, each with the number of kinds that it has paused, and the kinds that were
/// paused for themselves: there can be thousands below a prefix.
fn sorted(paused: &PausedOut) -> (Vec<(&SinceOut, u64)>, Vec<&SinceOut>) {
    let mut prefixes: Vec<_> = paused.prefixes.iter().map(|one| (one, 0)).collect();
    let mut others = Vec::new();
    for kind in &paused.kinds {
        let of = prefixes.iter_mut().find(|(prefix, _)| {
            kind.name.starts_with(&prefix.name)
                && kind.since.0 >= prefix.since.0
                && kind.by == prefix.by
        });
        match of {
            Some((_, count)) => *count += 1,
            None => others.push(kind),
        }
    }
    (prefixes, others)
}

#[derive(Deserialize)]
pub(crate) struct Sent {
    #[serde(rename = "do")]
    switch: Switch,
    #[serde(flatten)]
    reach: Reach,
}

pub(crate) async fn switch(
    State(web): Shared,
    cx: Cx,
    Form(sent): Form<Sent>,
) -> Result<Response, Fault> {
    let call = sent.switch.call(&sent.reach.bulk(false)?);
    cx.caller.ask::<SwitchedOut>(call).await?;
    web.gathered.forget("/v1/paused");
    Ok(redirect(&link("pauses", &[("done", sent.switch.word())])))
}

impl Switch {
    fn call(self, which: &BulkIn) -> Call {
        Call::post(&[self.word()]).with(which)
    }

    fn word(self) -> &'static str {
        match self {
            Switch::Pause => "pause",
            Switch::Resume => "resume",
        }
    }
}

impl Pauses {
    /// The paused prefixes, each with the number of kinds that it has paused.
    fn prefixes(&self) -> Vec<(&SinceOut, u64)> {
        self.paused
            .as_deref()
            .map_or_else(Vec::new, |paused| sorted(paused).0)
    }

    /// The kinds that were paused for themselves.
    fn kinds(&self) -> Vec<&SinceOut> {
        self.paused
            .as_deref()
            .map_or_else(Vec::new, |paused| sorted(paused).1)
    }

    /// Whether the reader may pause anything at all.
    fn may(&self) -> bool {
        self.page.may_somewhere("operate")
    }
}
