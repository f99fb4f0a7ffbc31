//! The calls about leases over HTTP. Any daemon can take them, and all may be repeated.

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::sleep;

use super::{PAUSE, RunEnd};
use crate::daemons::{Daemons, Lost};
use crate::order::NO_MORE;

pub(super) struct Leases {
    pub(super) daemons: Daemons,
    /// The start of the keys of the jobs that are pulled.
    pub(super) prefixes: &'static [&'static str],
}

impl Leases {
    pub(super) fn new(daemons: Daemons, prefixes: &'static [&'static str]) -> Self {
        Leases { daemons, prefixes }
    }

    /// Asks for more time, once.
    pub(super) async fn ask_for_more(&self, lease: &str) {
        let _ = self.call("extend", &[lease], json!({"by": "3s"})).await;
    }

    /// Extends these leases. For each, whether its job is still to be run.
    pub(super) async fn hold(&self, leases: &[&str]) -> Vec<bool> {
        let (results, _) = self.insist("extend", leases, &json!({"by": "2s"})).await;
        let are_held = results.iter().map(|result| result == "extended");
        are_held.collect()
    }

    /// Ends these leases. For each, whether the end counted, if that can be known.
    pub(super) async fn end(&self, leases: &[&str], end: RunEnd) -> Vec<Option<bool>> {
        let (call, further) = match end {
            RunEnd::Done => ("finish", json!({})),
            RunEnd::Failed => ("fail", json!({"error": "not this time"})),
            RunEnd::Later => ("fail", json!({"error": "not yet", "after": "150ms"})),
            RunEnd::Bury => ("fail", json!({"error": NO_MORE, "bury": true})),
        };
        let (results, repeated) = self.insist(call, leases, &further).await;
        let counted = results.iter().map(|result| match result.as_str() {
            // The call before this one may have ended the lease.
            "gone" | "taken" => (!repeated).then_some(false),
            "done" | "pending" | "replaced" | "cancelled" | "buried" => Some(true),
            _ => None,
        });
        counted.collect()
    }

    /// Repeats the call until it is answered. Returns the answer for each lease, and whether it
    /// took more than one call.
    async fn insist(&self, call: &str, leases: &[&str], further: &Value) -> (Vec<String>, bool) {
        let mut repeated = false;
        loop {
            match self.call(call, leases, further.clone()).await {
                Ok((status, answer)) if status.is_success() => {
                    let results = answer["results"].as_array().expect("one for each");
                    let told = results.iter().map(|one| one["result"].as_str());
                    let told = told.map(|told| told.unwrap_or_default().to_owned());
                    return (told.collect(), repeated);
                }
                _ => repeated = true,
            }
            sleep(PAUSE).await;
        }
    }

    async fn call(
        &self,
        call: &str,
        leases: &[&str],
        mut body: Value,
    ) -> Result<(StatusCode, Value), Lost> {
        body["leases"] = json!(leases);
        let path = format!("/v1/leases/{call}");
        self.daemons.call(Method::POST, &path, &body).await
    }
}
