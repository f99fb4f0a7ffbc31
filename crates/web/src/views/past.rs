//! The last hour or day: how many runs ended and how, and how late they began.

use std::time::Duration;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use keyfall_daemon::shapes::{ActivityIn, ActivityOut, SpanIn, StepsOut, Time};
use serde::Deserialize;

use crate::api::Call;
use crate::chart::{self, Stack};
use crate::cx::Cx;
use crate::fault::Fault;
use crate::page::Page;
use crate::read::Query;
use crate::times;
use crate::{Shared, Web};

/// Labels below the bars.
const LABELS: u32 = 6;

/// Workers write their counts once a minute.
const WRITTEN: Duration = Duration::from_secs(20);

/// The charts of all kinds together.
pub(crate) struct Past {
    pub(crate) prefix: String,
    pub(crate) span: SpanIn,
    /// `None` while they are gathered for the first time.
    pub(crate) bars: Option<Bars>,
}

/// What the charts show.
pub(crate) struct Bars {
    /// Runs of each step: done, failed, and ended as dead letters.
    pub(crate) ends: Vec<(Stack, String)>,
    /// The 99th percentile of the lag in each step.
    pub(crate) lags: Vec<(Stack, String)>,
    pub(crate) started: u64,
    pub(crate) late: u64,
    pub(crate) failed: u64,
    pub(crate) buried: u64,
    /// The longest lag.
    pub(crate) slowest: String,
    pub(crate) labels: Vec<String>,
}

/// The small charts of one kind.
pub(crate) struct Sparks {
    pub(crate) kind: String,
    pub(crate) rate: Vec<Stack>,
    pub(crate) started: u64,
    pub(crate) lag: Vec<Stack>,
    pub(crate) slowest: String,
}

#[derive(Template)]
#[template(path = "past.html")]
struct Part {
    page: Page,
    past: Past,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    span: SpanIn,
}

pub(crate) async fn show(
    State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let past = look(&web, &cx, &asked.prefix, asked.span).await?;
    let page = cx.page.clone();
    Ok(cx.show(&Part { page, past }))
}

/// The charts of all kinds with a prefix; without bars until they are gathered.
pub(crate) async fn look(web: &Web, cx: &Cx, prefix: &str, span: SpanIn) -> Result<Past, Fault> {
    let wanted = ActivityIn {
        span,
        prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
        limit: Some(1),
        whole: true,
        ..ActivityIn::default()
    };
    let call = Call::get(&["series"]).asking(&wanted);
    let name = call.path().to_owned();
    let caller = cx.caller.clone();
    let make = async move { caller.ask::<ActivityOut>(call).await };
    let seen = web.gathered.get(cx, prefix, &name, WRITTEN, make).await?;
    let bars = seen.map(|seen| Bars::new(&cx.page, span, &seen.answer));
    Ok(Past {
        prefix: prefix.to_owned(),
        span,
        bars,
    })
}

/// The small charts of these kinds; none until they are gathered.
pub(crate) async fn sparks(
    web: &Web,
    cx: &Cx,
    prefix: &str,
    span: SpanIn,
    kinds: Vec<String>,
) -> Result<Vec<Sparks>, Fault> {
    if kinds.is_empty() {
        return Ok(Vec::new());
    }
    let wanted = ActivityIn {
        span,
        prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
        limit: Some(1),
        kind: kinds,
        ..ActivityIn::default()
    };
    let call = Call::get(&["series"]).asking(&wanted);
    let name = call.path().to_owned();
    let caller = cx.caller.clone();
    let make = async move { caller.ask::<ActivityOut>(call).await };
    let seen = web.gathered.get(cx, prefix, &name, WRITTEN, make).await?;
    Ok(seen.map_or_else(Vec::new, |seen| Sparks::all(&cx.page, &seen.answer)))
}

/// The word of a span in addresses.
pub(crate) fn word(span: &SpanIn) -> &'static str {
    match span {
        SpanIn::Hour => "hour",
        SpanIn::Day => "day",
    }
}

fn length(span: SpanIn) -> Duration {
    match span {
        SpanIn::Hour => Duration::from_secs(3600),
        SpanIn::Day => Duration::from_secs(24 * 3600),
    }
}

impl Bars {
    fn new(page: &Page, span: SpanIn, seen: &ActivityOut) -> Self {
        let sum = &seen.sum;
        let name = |at: usize| {
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            let begin = seen.from.0 + seen.step.0.saturating_mul(at);
            page.minute(&Time(begin))
        };
        let ends = chart::stacks(&[&sum.done, &sum.failed, &sum.buried]);
        let ends = ends.into_iter().enumerate().map(|(at, stack)| {
            let said = page.words.fill(
                "past.step",
                &[&name(at), &sum.done[at], &sum.failed[at], &sum.buried[at]],
            );
            (stack, said)
        });
        let lags = whole(&sum.lag_p99_ms);
        let lags = chart::stacks(&[&lags]).into_iter().zip(lags);
        let lags = lags.enumerate().map(|(at, (stack, lag))| {
            (stack, page.t2("past.lag_step", name(at), page.millis(&lag)))
        });
        // Without any run there are no steps, and still the time that the chart is about.
        let labels =
            (0..LABELS).map(|at| page.minute(&Time(seen.from.0 + length(span) * at / LABELS)));
        Bars {
            ends: ends.collect(),
            lags: lags.collect(),
            started: sum.started.iter().sum(),
            late: sum.late.iter().sum(),
            failed: sum.failed.iter().sum(),
            buried: sum.buried.iter().sum(),
            slowest: slowest(page, sum),
            labels: labels.collect(),
        }
    }
}

impl Sparks {
    pub(crate) fn all(page: &Page, seen: &ActivityOut) -> Vec<Self> {
        let sparks = seen.kinds.iter().map(|one| Sparks {
            kind: one.kind.clone(),
            rate: chart::stacks(&[&one.steps.started]),
            started: one.steps.started.iter().sum(),
            lag: chart::stacks(&[&whole(&one.steps.lag_p99_ms)]),
            slowest: slowest(page, &one.steps),
        });
        sparks.collect()
    }
}

/// The lags in whole milliseconds; none is 0.
fn whole(lags: &[Option<f64>]) -> Vec<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a lag is a small positive number"
    )]
    let whole = |lag: &Option<f64>| lag.unwrap_or(0.0).max(0.0).ceil() as u64;
    lags.iter().map(whole).collect()
}

fn slowest(page: &Page, steps: &StepsOut) -> String {
    let most = whole(&steps.lag_max_ms).into_iter().max().unwrap_or(0);
    times::span(Duration::from_millis(most), page.words)
}
