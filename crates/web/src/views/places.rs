//! The servers, and the kinds with several shards: a part of the page of workers that is loaded
//! again less often than the rest.

use std::collections::HashMap;
use std::sync::Arc;

use askama::Template;
use keyfall_daemon::shapes::{
    CountOut, InstancesOut, LateServerOut, ServerOut, ServersOut, ShardsIn, ShardsOut, Time,
    TopologyOut,
};

use crate::Web;
use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;
use crate::gathered::oldest;
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
    /// `None` while they are gathered for the first time.
    pub(crate) servers: Option<Arc<ServersOut>>,
    /// The jobs by state, with the servers that are late.
    counts: Option<Arc<CountOut>>,
    /// The kinds with several shards.
    pub(crate) shards: Option<Arc<ShardsOut>>,
    pub(crate) since: Option<Time>,
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
        let gathered = &web.gathered;
        let wanted = ShardsIn {
            limit: Some(KINDS),
            cursor: Some(cursor.to_owned()).filter(|cursor| !cursor.is_empty()),
            ..ShardsIn::default()
        };
        let (servers, shards, live, counts) = tokio::try_join!(
            gathered.ask::<ServersOut>(cx, "", Call::get(&["servers"])),
            gathered.ask::<ShardsOut>(cx, "", Call::get(&["shards"]).asking(&wanted)),
            cx.caller.ask::<InstancesOut>(Call::get(&["instances"])),
            gathered.ask::<CountOut>(cx, "", Call::get(&["jobs", "count"])),
        )?;
        let named = |one: keyfall_daemon::shapes::InstanceOut| {
            let name = format!("{}:{}", visible(&one.host), one.pid);
            (one.id, name)
        };
        let times = [
            servers.as_ref().map(|it| it.at),
            shards.as_ref().map(|it| it.at),
        ];
        let page = |cursor: &String| link("workers", &[("shards", cursor)]) + "#shards";
        Ok(Places {
            since: oldest(times.into_iter().flatten(), cx.page.now).map(Time),
            servers: servers.map(|it| it.answer),
            counts: counts.map(|it| it.answer),
            next: shards
                .as_ref()
                .and_then(|it| it.answer.next.as_ref())
                .map(page),
            shards: shards.map(|it| it.answer),
            is_first: cursor.is_empty(),
            again: link("workers", &[("part", "places"), ("shards", cursor)]),
            names: live.instances.into_iter().map(named).collect(),
        })
    }

    /// The overdue jobs of a server; `None` if it has none.
    pub(crate) fn late(&self, server: &ServerOut) -> Option<&LateServerOut> {
        let mut late = self.counts.iter().flat_map(|counts| &counts.late);
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
