//! Functions that the micro-benchmarks in `benches/` measure and the targets in `fuzz/` try. Not
//! for other use: they change without notice.

use std::sync::Arc;

use crate::Router;
use crate::client::SettleTerms;
use crate::error::Result;
use crate::key::JobKey;
use crate::names::Names;
use crate::record::Record;
use crate::router::Routes;
use crate::settings::LinkSettings;
use crate::store::{DeadLimits, Store, read_any_reply};
use crate::worker::ServedLedgers;

/// The part of a worker that decides which of the names in events belong to its jobs, with a Redis
/// that is never asked.
pub struct NameFilter {
    routes: Arc<Routes>,
    served_ledgers: ServedLedgers,
}

impl NameFilter {
    /// A filter for the routes of this router. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the routes do not compile together.
    pub fn new(router: Router) -> Result<Self> {
        let routes = Arc::new(router.finish()?);
        let link = LinkSettings::default();
        let store = Store::new("redis://127.0.0.1:1", Names::new("keyfall"), &link)?;
        let terms = SettleTerms::at_once(DeadLimits::default());
        let served_ledgers = ServedLedgers::new(store, routes.clone(), terms);
        Ok(NameFilter {
            routes,
            served_ledgers,
        })
    }

    /// Whether the name of an expired key may belong to a job with a route here.
    pub fn recognise(&self, name: &[u8]) -> bool {
        self.served_ledgers.recognise(name).is_some()
    }

    /// The index of the route that takes a job.
    pub fn route(&self, key: &JobKey) -> Option<usize> {
        self.routes.table.find(key)
    }
}

/// Reads bytes as the record of a job, and drops the result.
pub fn read_record(bytes: &[u8]) {
    let _ = Record::parse(bytes.to_vec());
}

/// Reads bytes as the reply of a script in the protocol of Redis, and drops the result.
pub fn read_reply(bytes: &[u8]) {
    read_any_reply(bytes);
}
