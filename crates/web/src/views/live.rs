//! What happens as it happens: the last changes as a table, and further ones as a stream of rows.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::read::Query;
use askama::Template;
use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, future, stream};
use keyfall_daemon::shapes::{HappeningOut, TailIn, TailOut};
use serde::Deserialize;
use tokio::time::timeout;

use crate::Shared;
use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::lines::lines;
use crate::links::link;
use crate::page::Page;
use crate::rows::{Rendered, Row};
use crate::visible;

/// The changes that the page begins with.
const FIRST: usize = 50;

/// The changes among which a stream looks for those that the page does not have yet.
const AGAIN: usize = 500;

/// The beginning of a line about a change.
const HAPPENED: &[u8] = br#"{"happened":"#;

/// How long the past changes may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Template)]
#[template(path = "live.html")]
struct Live {
    page: Page,
    prefix: String,
    only: Only,
    is_paused: bool,
    /// The changes so far; `None` if Redis is too slow to say them in time.
    rows: Option<Vec<HappeningOut>>,
    /// The address of the stream.
    stream: String,
    /// The address of this page, paused or not.
    other: String,
}

/// A row of the stream.
#[derive(Template)]
#[template(path = "live_row.html")]
struct RowView<'a> {
    page: &'a Page,
    it: &'a HappeningOut,
}

/// The changes to show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Only {
    #[default]
    Everything,
    /// New jobs, and changes of their time or payload.
    Scheduled,
    Claimed,
    /// All ends of runs.
    Ended,
    /// Failed attempts, dead letters, and leases that lapsed.
    Failed,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    prefix: String,
    #[serde(default)]
    only: Only,
    #[serde(default)]
    paused: String,
    /// The time of the last change that the page has, in microseconds.
    #[serde(default)]
    since: u64,
}

pub(crate) async fn show(
    State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("live");
    let prefix = cx.page.reach(&asked.prefix);
    let name = format!(
        "live {} {prefix} {}",
        asked.only.word(),
        cx.page.zone_name()
    );
    let look = {
        let (cx, prefix) = (cx.clone(), prefix.clone());
        async move { past(open(&cx, &prefix, asked.only, FIRST).await?).await }
    };
    let seen = web
        .gathered
        .get(&cx, &prefix, &name, Duration::ZERO, look)
        .await?;
    let mut rows = seen.map(|seen| seen.answer.to_vec());
    // Without them the stream begins with all changes that it finds.
    let since = rows.iter().flatten().map(micros).max().unwrap_or_default();
    if let Some(rows) = &mut rows {
        rows.reverse();
    }
    let is_paused = asked.paused == "yes";
    let only = asked.only.word();
    let paused = if is_paused { "" } else { "yes" };
    let view = Live {
        stream: link(
            "stream",
            &[
                ("prefix", &prefix),
                ("only", only),
                ("since", &since.to_string()),
            ],
        ),
        other: link(
            "live",
            &[("prefix", &prefix), ("only", only), ("paused", paused)],
        ),
        page: cx.page.clone(),
        prefix,
        only: asked.only,
        is_paused,
        rows,
    };
    Ok(cx.show(&view))
}

/// Further changes, as server-sent events: `row` is a row of the table, `note` says that changes
/// may be missing, and `end` that the stream ends for good.
pub(crate) async fn stream(
    State(web): Shared,
    cx: Cx,
    headers: HeaderMap,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    // A browser that connects again names the last event that it got.
    let last = headers.get("last-event-id");
    let last = last.and_then(|id| id.to_str().ok()?.parse().ok());
    let since: u64 = last.unwrap_or(asked.since);
    let tail = open(&cx, &asked.prefix, asked.only, AGAIN).await?;
    let page = cx.page.clone();
    let rows = web.rows.of(&page);
    let events =
        lines(tail).filter_map(move |line| future::ready(event_of(&page, &rows, &line, since)));
    let events = stream::once(future::ready(Bytes::from_static(b": open\n\n"))).chain(events);
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        // A proxy that gathers the answer would hold the rows back.
        (header::HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    let body = Body::from_stream(events.map(Ok::<_, Infallible>));
    Ok((headers, body).into_response())
}

async fn open(cx: &Cx, prefix: &str, only: Only, last: usize) -> Result<BodyDataStream, Fault> {
    let wanted = TailIn {
        prefix: Some(prefix.to_owned())
            .filter(|prefix| !prefix.is_empty())
            .into_iter()
            .collect(),
        what: only.what().iter().map(|&what| what.to_owned()).collect(),
        last: Some(last),
        zone: Some(cx.page.zone_name().to_owned()),
        shared: true,
        ..TailIn::default()
    };
    let body = cx.caller.open(Call::get(&["tail"]).asking(&wanted)).await?;
    Ok(body.into_data_stream())
}

/// The past changes, which are the first part of a tail.
async fn past(mut tail: BodyDataStream) -> Result<Vec<HappeningOut>, Fault> {
    let Ok(Some(Ok(first))) = timeout(PATIENCE, tail.next()).await else {
        return Err(Fault::unexpected("the changes ended before the first"));
    };
    let mut rows = Vec::new();
    for line in serde_json::Deserializer::from_slice(&first).into_iter::<TailOut>() {
        match line {
            Ok(TailOut::Happened(it)) => rows.push(*it),
            Ok(TailOut::Away(away)) => return Err(Fault::redis_is_away(&away.error)),
            Ok(TailOut::Ended(problem)) => return Err(problem.into()),
            Ok(_) => {}
            Err(error) => return Err(Fault::unexpected(&error.to_string())),
        }
    }
    Ok(rows)
}

/// The event of a line, unless the page has the change already.
fn event_of(page: &Page, rows: &Rendered, line: &[u8], since: u64) -> Option<Bytes> {
    if !line.starts_with(HAPPENED) {
        return event(page, serde_json::from_slice(line).ok()?);
    }
    let row = rows.row(line, || row(page, line))?;
    (row.micros > since).then_some(row.event)
}

/// The row of a change.
fn row(page: &Page, line: &[u8]) -> Option<Row> {
    let TailOut::Happened(it) = serde_json::from_slice(line).ok()? else {
        return None;
    };
    let mut page = page.clone();
    page.now = SystemTime::now();
    let view = RowView {
        page: &page,
        it: &it,
    };
    let micros = micros(&it);
    let event = named("row", &view.render().ok()?, Some(micros));
    Some(Row {
        micros,
        event: event.into(),
    })
}

/// The event of a line that is about no change.
fn event(page: &Page, line: TailOut) -> Option<Bytes> {
    let text = match line {
        TailOut::Happened(_) => return None,
        TailOut::Missed(missed) => {
            named("note", &escaped(&page.t1("live.missed", missed.kind)), None)
        }
        TailOut::Skipped(_) => named("note", &escaped(page.t("live.skipped")), None),
        TailOut::Unseen(unseen) => named(
            "note",
            &escaped(&page.t2("trouble.away", unseen.server, unseen.error)),
            None,
        ),
        TailOut::Away(away) => named("note", &escaped(&page.t1("live.away", away.error)), None),
        // An empty note takes the last one away.
        TailOut::Alive(_) => named("note", "", None),
        TailOut::Ended(problem) if problem.retryable => return None,
        TailOut::Ended(problem) => {
            let note = named(
                "note",
                &escaped(&Fault::from(problem).said(page.words)),
                None,
            );
            note + &named("end", "", None)
        }
    };
    Some(Bytes::from(text))
}

/// An event of this name. Each line of its data stands alone.
fn named(name: &str, data: &str, id: Option<u64>) -> String {
    let mut event = format!("event: {name}\n");
    if let Some(id) = id {
        event += &format!("id: {id}\n");
    }
    for line in data.split(['\n', '\r']) {
        event += &format!("data: {line}\n");
    }
    event + "\n"
}

fn escaped(text: &str) -> String {
    askama::filters::escape(visible::text(text), askama::filters::Html)
        .map_or_else(|_| String::new(), |text| text.to_string())
}

fn micros(it: &HappeningOut) -> u64 {
    let since = it.at.0.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// A name of the row, by which a script finds a row that came twice.
pub(crate) fn row_id(it: &HappeningOut) -> String {
    let mut hasher = DefaultHasher::new();
    (&it.key, &it.kind, &it.what, &it.by).hash(&mut hasher);
    format!("e{}-{:x}", micros(it), hasher.finish())
}

impl Only {
    pub(crate) const ALL: [Only; 5] = [
        Only::Everything,
        Only::Scheduled,
        Only::Claimed,
        Only::Ended,
        Only::Failed,
    ];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Only::Everything => "everything",
            Only::Scheduled => "scheduled",
            Only::Claimed => "claimed",
            Only::Ended => "ended",
            Only::Failed => "failed",
        }
    }

    /// The changes, in the words of the API; none for all.
    fn what(self) -> &'static [&'static str] {
        match self {
            Only::Everything => &[],
            Only::Scheduled => &[
                "scheduled",
                "replaced",
                "restored",
                "succeeds",
                "postponed",
                "fired",
                "updated",
            ],
            Only::Claimed => &["claimed", "lapsed"],
            Only::Ended => &[
                "done",
                "skipped",
                "again",
                "snoozed",
                "returned",
                "failed",
                "buried",
                "cancelled",
            ],
            Only::Failed => &["failed", "buried", "lapsed"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_text_breaks_out_of_an_event() {
        let event = named("row", "a\nevent: end\rb", Some(7));
        assert_eq!(
            event,
            "event: row\nid: 7\ndata: a\ndata: event: end\ndata: b\n\n"
        );
        assert_eq!(escaped("<b>&\"'"), "&#60;b&#62;&#38;&#34;&#39;");
    }
}
