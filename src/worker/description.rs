//! The description that a worker publishes of itself: host, process, version, start time, routes
//! and their slots. Peers rank by it, and clients list it.

use std::time::SystemTime;

use crate::handler::MissingKey;
use crate::instance::{CANCELS, Description, RUNS};
use crate::recurrence::database_version;
use crate::router::{RouteEntry, Routes};

/// The description of a worker in this process that starts now with these routes, and runs
/// `concurrency` jobs at the same time over all of them. Its circuit breakers are closed.
pub(super) fn describe(routes: &Routes, concurrency: usize) -> Description {
    let started = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
    Description {
        host: gethostname::gethostname().to_string_lossy().into_owned(),
        pid: std::process::id(),
        zones: database_version(),
        version: env!("CARGO_PKG_VERSION").into(),
        started: u64::try_from(started.as_millis()).unwrap_or(u64::MAX),
        routes: routes
            .of_table()
            .iter()
            .map(|route| (route.pattern.as_str().to_owned(), route.priority))
            .collect(),
        fallback: routes.fallback.is_some(),
        adopts: routes.of_table().iter().filter_map(adoption).collect(),
        slots: (routes.routes.iter())
            .map(|route| slots(route, concurrency))
            .collect(),
        breakers: Vec::new(),
    }
}

/// How many jobs of a route run at the same time; 0 if its rate or its clients decide.
fn slots(route: &RouteEntry, concurrency: usize) -> usize {
    match (&route.rate, &route.pull) {
        (None, None) => concurrency.min(route.concurrency.unwrap_or(usize::MAX)),
        _ => 0,
    }
}

/// The pattern of a route that adopts plain keys, with the word for the meaning of a missing key:
/// run or cancel. `None` if the route adopts none.
fn adoption(route: &RouteEntry) -> Option<(String, String)> {
    let word = match route.adopts? {
        MissingKey::Run => RUNS,
        MissingKey::Cancel => CANCELS,
    };
    Some((route.pattern.as_str().to_owned(), word.to_owned()))
}
