//! The log of actions: who did what to which jobs, and when.

use askama::Template;
use axum::response::Response;
use keyfall_daemon::shapes::{ActionsIn, ActionsOut};
use serde::Deserialize;

use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::page::Page;
use crate::read::Query;

/// Actions of the page.
const LAST: usize = 200;

#[derive(Template)]
#[template(path = "actions.html")]
struct Actions {
    page: Page,
    seen: ActionsOut,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    #[serde(default)]
    prefix: String,
}

pub(crate) async fn show(cx: Cx, Query(asked): Query<Asked>) -> Result<Response, Fault> {
    let cx = cx.at("actions");
    let wanted = ActionsIn {
        prefix: Some(asked.prefix).filter(|prefix| !prefix.is_empty()),
        last: Some(LAST),
    };
    let call = Call::get(&["actions"]).asking(&wanted);
    let seen = cx.caller.ask::<ActionsOut>(call).await?;
    let page = cx.page.clone();
    Ok(cx.show(&Actions { page, seen }))
}

/// The page of the jobs that an action was on.
fn jobs(on: &str) -> String {
    let search = crate::search::Search::of_name(on);
    crate::links::jobs(&search.written())
}
