//! The findings of the doctor, for pages that are loaded again and again: it asks each server many
//! questions.

use std::sync::Arc;
use std::time::{Duration, Instant};

use keyfall_daemon::shapes::DoctorOut;
use tokio::sync::Mutex;

use crate::api::{Call, Caller};
use crate::fault::Fault;

/// How long findings are shown before the doctor looks again.
const KEPT: Duration = Duration::from_secs(60);

#[derive(Default)]
pub(crate) struct Checkup(Mutex<Option<(Instant, Arc<DoctorOut>)>>);

impl Checkup {
    /// The findings, at most a minute old. The caller has to be one who may see them.
    pub(crate) async fn latest(&self, caller: &Caller) -> Result<Arc<DoctorOut>, Fault> {
        // Others wait meanwhile, and get the same findings.
        let mut kept = self.0.lock().await;
        if let Some((at, findings)) = &*kept
            && at.elapsed() < KEPT
        {
            return Ok(findings.clone());
        }
        let findings = Arc::new(caller.ask::<DoctorOut>(Call::get(&["doctor"])).await?);
        *kept = Some((Instant::now(), findings.clone()));
        Ok(findings)
    }

    /// Has the doctor look again, because something was repaired.
    pub(crate) async fn forget(&self) {
        *self.0.lock().await = None;
    }
}
