//! The servers, and the kinds with several shards: a part of the page of workers that is loaded
//! again less often than the rest.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use keyfall_daemon::shapes::{
    CountOut, InstancesOut, KindShardsOut, LateServerOut, ServerOut, ServersOut, ShardsIn,
    ShardsOut, TopologyOut, UnseenOut,
};

use crate::Web;
use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::links::link;
use crate::page::Page;
use crate::visible::visible;

/// The most kinds of a page.
const KINDS: usize = 20;

/// The digits of an id that stand for an instance that is gone.
const DIGITS: usize = 8;

/// This part alone.
#[derive(Template)]
#[template(path = "places_part.html")]
pub(crate) struct Part {
    pub(crate) page: Page,
    pub(crate) places: Places,
}

/// What the part shows.
pub(crate) struct Places {
    pub(crate) servers: Vec<ServerOut>,
    /// The jobs by state, with the servers that are late.
    counts: Arc<CountOut>,
    /// The number of kinds with several shards, and those of this page.
    pub(crate) total: u64,
    pub(crate) kinds: Vec<KindShardsOut>,
    pub(crate) unseen: Vec<UnseenOut>,
    /// The address of the next page.
    pub(crate) next: Option<String>,
    pub(crate) is_first: bool,
    /// The address of this part.
    pub(crate) again: String,
    /// Host and process of each live instance, by its id.
    pub(crate) names: HashMap<String, String>,
}

impl Places {
    /// Asks for the servers, and for the kinds behind this cursor.
    pub(crate) async fn ask(web: &Web, cx: &Cx, cursor: &str) -> Result<Self, Fault> {
        let wanted = ShardsIn {
            limit: Some(KINDS),
            cursor: Some(cursor.to_owned()).filter(|cursor| !cursor.is_empty()),
            ..ShardsIn::default()
        };
        let (servers, shards, live, counts) = tokio::try_join!(
            cx.caller.ask::<ServersOut>(Call::get(&["servers"])),
            cx.caller
                .ask::<ShardsOut>(Call::get(&["shards"]).asking(&wanted)),
            cx.caller.ask::<InstancesOut>(Call::get(&["instances"])),
            web.totals.latest(&cx.caller, ""),
        )?;
        let named = |one: keyfall_daemon::shapes::InstanceOut| {
            let name = format!("{}:{}", visible(&one.host), one.pid);
            (one.id, name)
        };
        let page = |cursor: &String| link("workers", &[("shards", cursor)]) + "#shards";
        Ok(Places {
            servers: servers.servers,
            counts,
            total: shards.total,
            kinds: shards.kinds,
            unseen: shards.unseen,
            next: shards.next.as_ref().map(page),
            is_first: cursor.is_empty(),
            again: link("workers", &[("part", "places"), ("shards", cursor)]),
            names: live.instances.into_iter().map(named).collect(),
        })
    }

    /// The overdue jobs of a server; `None` if it has none.
    pub(crate) fn late(&self, server: &ServerOut) -> Option<&LateServerOut> {
        let mut late = self.counts.late.iter();
        late.find(|one| one.address == server.address)
    }

    /// The host and process of an instance, or the beginning of its id if it is gone.
    pub(crate) fn name(&self, id: &str) -> String {
        let known = self.names.get(id).cloned();
        known.unwrap_or_else(|| visible(id).chars().take(DIGITS).collect())
    }

    /// A short time, in milliseconds with a decimal.
    #[expect(clippy::cast_precision_loss, reason = "it is rounded to a decimal")]
    pub(crate) fn round_trip(&self, page: &Page, micros: &u64) -> String {
        page.t1("time.millis", format!("{:.1}", *micros as f64 / 1000.0))
    }
}

/// The word of a topology.
pub(crate) fn word(topology: &TopologyOut) -> &'static str {
    match topology {
        TopologyOut::Single => "single",
        TopologyOut::Sentinel => "sentinel",
        TopologyOut::Cluster => "cluster",
    }
}
