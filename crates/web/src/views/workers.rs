//! The live instances and their routes, jobs without a route, and callback hosts that are down.

use crate::read::Form;
use askama::Template;
use axum::response::Response;
use keyfall_daemon::shapes::{BreakerIn, BreakerOut, InstancesOut, RoutesOut};
use serde::Deserialize;

use crate::api::Call;
use crate::cx::{Cx, redirect};
use crate::fault::Fault;
use crate::page::Page;

#[derive(Template)]
#[template(path = "workers.html", blocks = ["live"])]
struct Workers {
    page: Page,
    seen: InstancesOut,
    routes: RoutesOut,
}

pub(crate) async fn show(cx: Cx) -> Result<Response, Fault> {
    let cx = cx.at("workers");
    let (seen, routes) = tokio::try_join!(
        cx.caller.ask::<InstancesOut>(Call::get(&["instances"])),
        cx.caller.ask::<RoutesOut>(Call::get(&["routes"])),
    )?;
    let view = Workers {
        page: cx.page.clone(),
        seen,
        routes,
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
    fn versions(&self) -> Vec<&str> {
        let mut all: Vec<&str> = self
            .seen
            .instances
            .iter()
            .map(|one| &*one.version)
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn may(&self) -> bool {
        self.page.may("operate", "")
    }
}
