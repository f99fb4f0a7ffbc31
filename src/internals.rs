//! What the micro-benchmarks in `benches/` measure and the targets in `fuzz/` try, and nobody
//! else can reach. Not for use: it changes without notice.

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

/// What a worker does with a name that it hears, on a Redis that is never asked.
pub struct NameFilter {
    routes: Arc<Routes>,
    served_ledgers: ServedLedgers,
}

impl NameFilter {
    /// The ears of a worker with these routes. To be called within a runtime.
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

    /// Whether the name of a key that expired may be that of a job with a route here.
    pub fn recognise(&self, name: &[u8]) -> bool {
        self.served_ledgers.recognise(name).is_some()
    }

    /// Which route takes a job.
    pub fn route(&self, key: &JobKey) -> Option<usize> {
        self.routes.table.find(key)
    }
}

/// Reads what may be the record of a job.
pub fn read_record(bytes: &[u8]) {
    let _ = Record::parse(bytes.to_vec());
}

/// Reads what may be the answer of a script, as Redis sends it.
pub fn read_reply(bytes: &[u8]) {
    read_any_reply(bytes);
}
