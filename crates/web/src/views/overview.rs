//! The overview: first what is wrong, then the kinds.

use std::sync::Arc;

use crate::read::Query;
use askama::Template;
use axum::extract::State;
use axum::response::Response;
use keyfall_daemon::shapes::{CountOut, OverviewIn, OverviewOut, PausedOut, SpanIn};
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::troubles::{Seen, Trouble, troubles};
use crate::views::ahead::{self, Ahead, By};
use crate::views::past::{self, Past, Sparks};

/// Kinds of one page.
const KINDS: usize = 100;

#[derive(Template)]
#[template(path = "overview.html", blocks = ["live"])]
struct Overview {
    page: Page,
    prefix: String,
    troubles: Vec<Trouble>,
    totals: Arc<CountOut>,
    seen: OverviewOut,
    /// The jobs to come; `None` where the browser keeps the chart that it has.
    ahead: Option<Ahead>,
    past: Option<Past>,
    sparks: Option<Vec<Sparks>>,
    /// The number of live instances, if the reader may know it.
    instances: Option<u64>,
    /// The address of this page, for the next look.
    again: String,
    first: String,
    next: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    cursor: String,
    /// The length of the bars of the chart.
    #[serde(default)]
    by: By,
    /// How far back the other chart reaches.
    #[serde(default)]
    span: SpanIn,
}

pub(crate) async fn show(
    State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("overview");
    if !cx.page.path.path().ends_with('/') {
        // Links are relative to the folder.
        return Ok(redirect("ui/"));
    }
    let prefix = cx.page.reach(&asked.prefix);
    let some = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
    let wanted = OverviewIn {
        prefix: some(&prefix),
        cursor: some(&asked.cursor),
        limit: Some(KINDS),
        kind: Vec::new(),
    };
    let caller = &cx.caller;
    let (seen, totals, paused, ahead, series) = tokio::try_join!(
        caller.ask::<OverviewOut>(Call::get(&["overview"]).asking(&wanted)),
        // Who may not see them may not see the overview either.
        web.totals.latest(caller, &prefix),
        caller.ask::<PausedOut>(Call::get(&["paused"])),
        async {
            // The chart loads itself again, less often than the rest.
            match cx.is_part {
                true => Ok(None),
                false => ahead::look(&cx, &prefix, asked.by).await.map(Some),
            }
        },
        async {
            match cx.is_part {
                true => Ok(None),
                false => past::look(&cx, &prefix, asked.span, &asked.cursor, KINDS)
                    .await
                    .map(Some),
            }
        },
    )?;
    let findings = match cx.page.may("read", "") {
        true => web.checkup.latest(caller).await.ok(),
        false => None,
    };
    let looked = Seen {
        overview: &seen,
        totals: &totals,
        paused: &paused,
        findings: findings.as_deref(),
    };
    let again = link(
        "./",
        &[("prefix", &asked.prefix), ("cursor", &asked.cursor)],
    );
    let next = seen.next.as_ref();
    let next = next.map(|cursor| link("./", &[("prefix", &asked.prefix), ("cursor", cursor)]));
    let view = Overview {
        troubles: troubles(&cx.page, &looked),
        instances: seen.instances.as_ref().map(|all| all.len() as u64),
        page: cx.page.clone(),
        prefix,
        totals,
        seen,
        ahead,
        past: series
            .as_ref()
            .map(|series| Past::new(&cx.page, &asked.prefix, asked.span, series)),
        sparks: series.as_ref().map(|series| Sparks::all(&cx.page, series)),
        first: link("./", &[("prefix", &asked.prefix)]),
        next,
        again,
    };
    Ok(if cx.is_part {
        cx.show(&view.as_live())
    } else {
        cx.show(&view)
    })
}

impl Overview {
    /// The small charts of a kind, unless the browser keeps those that it has.
    fn sparks_of(&self, kind: &str) -> Option<&Sparks> {
        let all = self.sparks.as_ref()?;
        all.iter().find(|one| one.kind == kind)
    }
}

/// A kind as a part of an element's id. htmx looks for the elements that it preserves by selectors
/// such as `#rate-…`, in which a colon or a dot has a meaning.
fn id_of(kind: &str) -> String {
    let mut id = String::with_capacity(kind.len());
    for byte in kind.bytes() {
        if byte.is_ascii_alphanumeric() {
            id.push(char::from(byte));
        } else {
            id.push_str(&format!("_{byte:02x}"));
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use super::id_of;

    #[test]
    fn an_id_needs_no_escape_in_a_selector_and_differs_for_each_kind() {
        assert_eq!(id_of("app1:trans.v2:notice"), "app1_3atrans_2ev2_3anotice");
        assert_ne!(id_of("a:b:c_3a"), id_of("a:b:c:"));
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        assert!(id_of("ü #\"'>:\\").chars().all(is_plain));
    }
}
