//! The live instances and their routes, jobs without a route, callback hosts that are down, and the
//! [places](super::places) of the jobs.

use std::sync::Arc;

use askama::Template;
use axum::extract::State;
use axum::response::Response;
use keyfall_daemon::shapes::{BreakerIn, BreakerOut, InstanceOut, InstancesOut, RoutesOut, Time};
use serde::Deserialize;

use crate::Shared;
use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::gathered::oldest;
use crate::page::Page;
use crate::read::{Form, Query};
use crate::views::places::{self, Places};
use crate::visible;

/// The most kinds without a route that are listed: the instances stand below.
const MOST: usize = 20;

#[derive(Template)]
#[template(path = "workers.html", blocks = ["live"])]
struct Workers {
    page: Page,
    seen: InstancesOut,
    /// `None` while they are gathered for the first time.
    routes: Option<Arc<RoutesOut>>,
    since: Option<Time>,
    /// None for the part that is loaded again every few seconds.
    places: Option<Places>,
}

#[derive(Deserialize)]
pub(crate) struct Asked {
    /// The part of the page that a script wants anew: `places`, or else the instances.
    #[serde(default)]
    part: String,
    /// The cursor of the kinds with several shards.
    #[serde(default)]
    shards: String,
}

pub(crate) async fn show(
    State(web): Shared,
    cx: Cx,
    Query(asked): Query<Asked>,
) -> Result<Response, Fault> {
    let cx = cx.at("workers");
    if cx.is_part && asked.part == "places" {
        let places = Places::ask(&web, &cx, &asked.shards).await?;
        let page = cx.page.clone();
        return Ok(cx.show(&places::Part { page, places }));
    }
    let (seen, routes) = tokio::try_join!(
        cx.caller.ask::<InstancesOut>(Call::get(&["instances"])),
        web.gathered
            .ask::<RoutesOut>(&cx, "", Call::get(&["routes"])),
    )?;
    let at = routes.as_ref().map(|routes| routes.at);
    let places = match cx.is_part {
        true => None,
        false => Some(Places::ask(&web, &cx, &asked.shards).await?),
    };
    let view = Workers {
        page: cx.page.clone(),
        seen,
        routes: routes.map(|routes| routes.answer),
        since: oldest(at, cx.page.now).map(Time),
        places,
    };
    Ok(if cx.is_part {
        cx.show(&view.as_live())
    } else {
        cx.show(&view)
    })
}

#[derive(Deserialize)]
pub(crate) struct Sent {
    host: String,
}

/// Has workers call a host again.
pub(crate) async fn close_breaker(cx: Cx, Form(sent): Form<Sent>) -> Result<Response, Fault> {
    let call = Call::post(&["breakers", "close"]).with(&BreakerIn { host: sent.host });
    cx.caller.ask::<BreakerOut>(call).await?;
    Ok(redirect("workers"))
}

impl Workers {
    /// The versions that run: more than one during a deployment, or after a forgotten one.
    fn versions(&self) -> Vec<String> {
        let all = self.seen.instances.iter();
        let mut all: Vec<String> = all.map(|one| visible::text(&one.version)).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The room of a route of an instance, if that is known: how many jobs it can run at the same
    /// time, and how many of them could start now.
    fn room(&self, one: &InstanceOut, place: &usize) -> Option<String> {
        let slots = one.slots.get(*place).copied().filter(|slots| *slots > 0)? as u64;
        Some(match one.free.get(*place) {
            Some(&free) => {
                let free = self.page.number(&(free as u64));
                self.page
                    .t2("workers.free_of", free, self.page.number(&slots))
            }
            None => self.page.count("workers.at_once", &slots),
        })
    }

    fn may(&self) -> bool {
        self.page.may("operate", "")
    }
}
