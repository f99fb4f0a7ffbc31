//! The overview: first what is wrong, then the kinds.

use std::sync::Arc;
use std::time::Duration;

use crate::read::Query;
use askama::Template;
use axum::extract::State;
use axum::response::Response;
use keyfall_daemon::shapes::{
    CountIn, CountOut, DoctorOut, OverviewKindOut, PausedOut, SpanIn, Time,
};
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::gathered::{Seen as Gathered, oldest};
use crate::kinds::Kinds;
use crate::links::link;
use crate::page::Page;
use crate::troubles::{Seen, Trouble, troubles};
use crate::views::ahead::{self, Ahead, By};
use crate::views::past::{self, Past, Sparks};

/// Kinds of one page.
const KINDS: usize = 50;

/// The doctor asks each server many questions: its findings are shown for so long.
const FINDINGS: Duration = Duration::from_secs(60);

#[derive(Template)]
#[template(path = "overview.html", blocks = ["live"])]
struct Overview {
    page: Page,
    prefix: String,
    troubles: Vec<Trouble>,
    /// Whether all that can be wrong was looked at.
    is_whole: bool,
    totals: Option<Arc<CountOut>>,
    /// `None` while the kinds are gathered for the first time.
    kinds: Option<Arc<Kinds>>,
    /// The number of this page of kinds, from 1.
    number: usize,
    /// The jobs to come; `None` where the browser keeps the chart that it has.
    ahead: Option<Ahead>,
    past: Option<Past>,
    sparks: Vec<Sparks>,
    /// The number of live instances, if the reader may know it.
    instances: Option<u64>,
    /// When the oldest of the numbers were gathered, if that is a while ago.
    since: Option<Time>,
    /// The address of this page, for the next look.
    again: String,
    first: String,
    next: Option<String>,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    prefix: String,
    /// The number of a page of kinds.
    #[serde(default)]
    page: String,
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
    let number = asked.page.parse().unwrap_or(1).max(1);
    let gathered = &web.gathered;
    let count = Call::get(&["jobs", "count"]).asking(&CountIn {
        prefix: Some(prefix.clone()).filter(|prefix| !prefix.is_empty()),
    });
    let doctor = Call::get(&["doctor"]);
    let examine = {
        let caller = cx.caller.clone();
        async move { caller.ask::<DoctorOut>(doctor).await }
    };
    // Only who may read everything is told of the instances.
    let name = format!("kinds {prefix} {}", cx.page.may("read", ""));
    let kinds = Kinds::read(cx.caller.clone(), prefix.clone());
    let (kinds, totals, paused, findings, ahead, past) = tokio::join!(
        gathered.get(&cx, &prefix, &name, Duration::ZERO, kinds),
        gathered.ask::<CountOut>(&cx, &prefix, count),
        gathered.ask::<PausedOut>(&cx, "", Call::get(&["paused"])),
        async {
            match cx.page.may("read", "") {
                true => gathered.get(&cx, "", "/v1/doctor", FINDINGS, examine).await,
                false => Ok(None),
            }
        },
        async {
            // The charts load themselves again, less often than the rest.
            match cx.is_part {
                true => Ok(None),
                false => ahead::look(&web, &cx, &prefix, asked.by).await.map(Some),
            }
        },
        async {
            match cx.is_part {
                true => Ok(None),
                false => past::look(&web, &cx, &prefix, asked.span).await.map(Some),
            }
        },
    );
    let (kinds, totals, paused) = (kinds?, totals?, paused?);
    let is_examined = findings.is_err() || !cx.page.may("read", "");
    // Without the doctor the rest is shown.
    let findings = findings.ok().flatten();
    let times = [
        kinds.as_ref().map(|it| it.at),
        totals.as_ref().map(|it| it.at),
        paused.as_ref().map(|it| it.at),
    ];
    let (kinds, totals) = (answer(kinds), answer(totals));
    let (paused, findings) = (answer(paused), answer(findings));
    let here = kinds.iter().flat_map(|kinds| kinds.page(number, KINDS));
    let here: Vec<String> = here.map(|one| one.kind.counts.kind.clone()).collect();
    let sparks = past::sparks(&web, &cx, &prefix, asked.span, here).await?;
    let looked = Seen {
        kinds: kinds.as_deref(),
        totals: totals.as_deref(),
        paused: paused.as_deref(),
        findings: findings.as_deref(),
    };
    let of_page = |number: usize| {
        let number = match number {
            1 => String::new(),
            number => number.to_string(),
        };
        link("./", &[("prefix", &asked.prefix), ("page", &number)])
    };
    let all = kinds.as_ref().map_or(0, |kinds| kinds.all.len());
    let instances = kinds.as_ref().and_then(|kinds| kinds.instances.as_ref());
    let view = Overview {
        troubles: troubles(&cx.page, &looked),
        is_whole: kinds.is_some()
            && totals.is_some()
            && paused.is_some()
            && (is_examined || findings.is_some()),
        instances: instances.map(|all| all.len() as u64),
        page: cx.page.clone(),
        prefix,
        totals,
        number,
        kinds,
        ahead: ahead?,
        past: past?,
        sparks,
        since: oldest(times.into_iter().flatten(), cx.page.now).map(Time),
        first: of_page(1),
        next: (all > number.saturating_mul(KINDS)).then(|| of_page(number.saturating_add(1))),
        again: of_page(number),
    };
    Ok(if cx.is_part {
        cx.show(&view.as_live())
    } else {
        cx.show(&view)
    })
}

fn answer<T>(seen: Option<Gathered<T>>) -> Option<Arc<T>> {
    seen.map(|seen| seen.answer)
}

impl Overview {
    /// The kinds of this page.
    fn shown(&self) -> Vec<&OverviewKindOut> {
        let kinds = self.kinds.iter();
        kinds
            .flat_map(|kinds| kinds.page(self.number, KINDS))
            .collect()
    }

    /// The number of kinds.
    fn total(&self) -> usize {
        self.kinds.as_ref().map_or(0, |kinds| kinds.all.len())
    }

    /// The small charts of a kind.
    fn sparks_of(&self, kind: &str) -> Option<&Sparks> {
        self.sparks.iter().find(|one| one.kind == kind)
    }
}
