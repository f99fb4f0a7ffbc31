//! The jobs to come: how many fall due in each minute, hour or day.

use std::time::{Duration, SystemTime};

use crate::read::Query;
use askama::Template;
use axum::extract::State;
use axum::response::Response;
use jiff::Timestamp;
use keyfall_daemon::shapes::{Span, Time, UpcomingIn, UpcomingOut};
use serde::Deserialize;

use crate::api::Call;
use crate::chart::{self, Stack};
use crate::cx::Cx;
use crate::fault::Fault;
use crate::links;
use crate::page::Page;
use crate::search::Search;
use crate::{Shared, Web};

/// Labels below the bars.
const LABELS: usize = 5;

/// The length of a bar.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum By {
    Minute,
    #[default]
    Hour,
    Day,
}

/// The chart.
pub(crate) struct Ahead {
    pub(crate) prefix: String,
    pub(crate) by: By,
    /// `None` while they are gathered for the first time.
    pub(crate) bars: Option<Bars>,
}

/// What the chart shows.
pub(crate) struct Bars {
    pub(crate) all: Vec<(Stack, Slot)>,
    pub(crate) most: u64,
    pub(crate) sum: u64,
    pub(crate) later: u64,
    pub(crate) labels: Vec<String>,
}

/// The time that a bar stands for.
pub(crate) struct Slot {
    pub(crate) name: String,
    /// The page of its jobs.
    pub(crate) link: String,
}

#[derive(Template)]
#[template(path = "ahead.html")]
struct Part {
    page: Page,
    ahead: Ahead,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    by: By,
}

pub(crate) async fn show(
    State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let ahead = look(&web, &cx, &asked.prefix, asked.by).await?;
    let page = cx.page.clone();
    Ok(cx.show(&Part { page, ahead }))
}

/// Asks for the bars.
pub(crate) async fn look(web: &Web, cx: &Cx, prefix: &str, by: By) -> Result<Ahead, Fault> {
    let wanted = UpcomingIn {
        prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
        step: Some(Span(by.step())),
        count: Some(by.count()),
        from: by.from(&cx.page),
    };
    let call = Call::get(&["upcoming"]).asking(&wanted);
    let seen = web.gathered.ask::<UpcomingOut>(cx, prefix, call).await?;
    Ok(Ahead {
        prefix: prefix.to_owned(),
        by,
        bars: seen.map(|seen| Bars::new(&cx.page, prefix, by, &seen.answer)),
    })
}

impl By {
    pub(crate) const ALL: [By; 3] = [By::Minute, By::Hour, By::Day];

    pub(crate) fn word(self) -> &'static str {
        match self {
            By::Minute => "minute",
            By::Hour => "hour",
            By::Day => "day",
        }
    }

    fn step(self) -> Duration {
        Duration::from_secs(match self {
            By::Minute => 60,
            By::Hour => 3_600,
            By::Day => 86_400,
        })
    }

    fn count(self) -> usize {
        match self {
            By::Minute => 60,
            By::Hour => 48,
            By::Day => 30,
        }
    }

    /// A day begins at midnight in the zone of the reader. Minutes and hours are the same everywhere,
    /// but for a few zones that are half an hour off.
    fn from(self, page: &Page) -> Option<Time> {
        if self != By::Day {
            return None;
        }
        let now = Timestamp::try_from(page.now)
            .ok()?
            .to_zoned(page.zone.clone());
        let midnight = now.start_of_day().ok()?;
        Some(Time(SystemTime::from(midnight.timestamp())))
    }

    /// The name of the time at which a bar begins.
    fn name(self, page: &Page, time: SystemTime) -> String {
        let time = Timestamp::try_from(time).unwrap_or(Timestamp::MAX);
        let time = time.to_zoned(page.zone.clone());
        match self {
            By::Minute | By::Hour => time.strftime("%H:%M").to_string(),
            By::Day => time.strftime("%m-%d").to_string(),
        }
    }
}

impl Bars {
    fn new(page: &Page, prefix: &str, by: By, seen: &UpcomingOut) -> Self {
        let begin = |at: usize| {
            let at = u32::try_from(at).unwrap_or(u32::MAX);
            seen.from.0 + seen.step.0.saturating_mul(at)
        };
        let slot = |at: usize| {
            // The search that finds these jobs, and shows what it looks for.
            let search = format!("due:>{} due:<{}", Time(begin(at)), Time(begin(at + 1)));
            let mut search = Search::read(&search).unwrap_or_default();
            prefix.clone_into(&mut search.prefix);
            Slot {
                name: by.name(page, begin(at)),
                link: links::jobs(&search.written()),
            }
        };
        let count = seen.bars.len();
        let bars = chart::stacks(&[&seen.bars]);
        let labels = (0..LABELS).map(|label| by.name(page, begin(label * count / LABELS)));
        Bars {
            most: seen.bars.iter().copied().max().unwrap_or(0),
            sum: seen.bars.iter().sum(),
            later: seen.later,
            labels: labels.collect(),
            all: bars
                .into_iter()
                .map(|bar| (slot(bar.x), bar))
                .map(|(slot, bar)| (bar, slot))
                .collect(),
        }
    }
}
