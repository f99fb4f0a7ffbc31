//! The search, and the jobs that it finds, page by page.

use std::sync::Arc;
use std::time::Duration;

use crate::read::Query;
use askama::Template;
use axum::http::StatusCode;
use axum::response::Response;
use keyfall_daemon::shapes::{
    CountIn, CountOut, DamagedOut, Job, ListIn, PageOut, ShowIn, State, UnseenOut,
};
use serde::Deserialize;
use tokio::time::Instant;

use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::links::{self, link};
use crate::page::Page;
use crate::search::{STATES, Search};
use crate::{Shared, Web};

/// Jobs of one page.
const JOBS: usize = 50;

/// How long a page without a match looks further before it is shown: one call of the API looks at a
/// bounded number of kinds and jobs.
const FURTHER: Duration = Duration::from_millis(50);

#[derive(Template)]
#[template(path = "jobs.html")]
struct Jobs {
    page: Page,
    search: String,
    tabs: Vec<Tab>,
    /// The job whose whole key was searched.
    exact: Option<Job>,
    jobs: Vec<Job>,
    damaged: Vec<DamagedOut>,
    unseen: Vec<UnseenOut>,
    /// The number of jobs in the shown state, if it is known.
    count: Option<u64>,
    /// Whether the states are being counted for the first time.
    is_counting: bool,
    /// The number of jobs that were looked at for this page.
    scanned: u64,
    /// The search of the archive for the same jobs.
    in_archive: String,
    is_first: bool,
    /// The address of this page.
    again: String,
    first: String,
    next: Option<String>,
}

/// A state to choose.
struct Tab {
    state: State,
    /// The jobs in it, if it is counted.
    count: Option<u64>,
    link: String,
    is_here: bool,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    q: String,
    #[serde(default)]
    cursor: String,
}

pub(crate) async fn show(
    axum::extract::State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("jobs");
    let mut search = Search::read(&asked.q)?;
    search.prefix = cx.page.reach(&search.prefix);
    let state = search.state.unwrap_or_default();
    let list = ListIn {
        limit: Some(JOBS),
        cursor: Some(asked.cursor.clone()).filter(|cursor| !cursor.is_empty()),
        ..search.list()
    };
    let (found, counts, exact) = tokio::try_join!(
        found(&cx, list),
        counts(&web, &cx, &search),
        exact(&cx, &search),
    )?;
    let (counts, is_counting) = counts;
    let count = |state| {
        let counts = counts.as_ref()?;
        match state {
            State::Pending => Some(counts.pending),
            State::Running => Some(counts.running),
            State::Lapsed => Some(counts.lapsed),
            State::Dead => Some(counts.dead),
            State::Retrying | State::Held => None,
        }
    };
    let tabs = STATES.into_iter().map(|one| Tab {
        state: one,
        count: count(one),
        link: links::jobs(&search.with_state(one).written()),
        is_here: one == state,
    });
    let next = found.next.as_ref();
    let next = next.map(|cursor| link("jobs", &[("q", &search.written()), ("cursor", cursor)]));
    let view = Jobs {
        page: cx.page.clone(),
        tabs: tabs.collect(),
        count: count(state).filter(|_| !search.has_conditions()),
        is_counting,
        in_archive: link(
            "archive",
            &[
                ("prefix", &search.prefix),
                ("error", search.error.as_deref().unwrap_or("")),
            ],
        ),
        scanned: found.scanned,
        again: match &*asked.cursor {
            "" => links::jobs(&search.written()),
            cursor => link("jobs", &[("q", &search.written()), ("cursor", cursor)]),
        },
        first: links::jobs(&search.written()),
        search: search.written(),
        exact,
        jobs: found.jobs,
        damaged: found.damaged,
        unseen: found.unseen,
        is_first: asked.cursor.is_empty(),
        next,
    };
    Ok(cx.show(&view))
}

impl Jobs {
    /// Whether the page lists dead letters, whose time is that of their death.
    fn is_dead(&self) -> bool {
        let mut here = self.tabs.iter().filter(|tab| tab.is_here);
        here.any(|tab| tab.state == State::Dead)
    }
}

/// The first page from here on that has a job, as far as that is found soon.
async fn found(cx: &Cx, mut wanted: ListIn) -> Result<PageOut, Fault> {
    let begun = Instant::now();
    let ask = async |wanted: &ListIn| {
        let call = Call::get(&["jobs"]).asking(wanted);
        cx.caller.ask::<PageOut>(call).await
    };
    let mut page = ask(&wanted).await?;
    while page.jobs.is_empty() && page.damaged.is_empty() && begun.elapsed() < FURTHER {
        wanted.cursor.clone_from(&page.next);
        if wanted.cursor.is_none() {
            break;
        }
        // The reader can go on by hand, for example if these were too many calls.
        let Ok(next) = ask(&wanted).await else { break };
        let scanned = page.scanned + next.scanned;
        let mut unseen = page.unseen;
        UnseenOut::merge(&mut unseen, next.unseen);
        page = PageOut {
            scanned,
            unseen,
            ..next
        };
    }
    Ok(page)
}

/// How many jobs are in each state, and whether they are being counted for the first time. A prefix that reaches into the ids is not counted: each id would
/// be looked at.
async fn counts(
    web: &Web,
    cx: &Cx,
    search: &Search,
) -> Result<(Option<Arc<CountOut>>, bool), Fault> {
    if !search.is_counted() {
        return Ok((None, false));
    }
    let prefix = search.list().prefix;
    let reach = prefix.clone().unwrap_or_default();
    let call = Call::get(&["jobs", "count"]).asking(&CountIn { prefix });
    let counts = web.gathered.ask::<CountOut>(cx, &reach, call).await?;
    let is_counting = counts.is_none();
    Ok((counts.map(|counts| counts.answer), is_counting))
}

/// The job of this name, in whatever state it is.
async fn exact(cx: &Cx, search: &Search) -> Result<Option<Job>, Fault> {
    let Some(key) = search.key() else {
        return Ok(None);
    };
    let call = Call::get(&["jobs", key]).asking(&ShowIn::default());
    match cx.caller.ask(call).await {
        Ok(job) => Ok(Some(job)),
        Err(fault) if fault.status == StatusCode::NOT_FOUND => Ok(None),
        Err(fault) => Err(fault),
    }
}
