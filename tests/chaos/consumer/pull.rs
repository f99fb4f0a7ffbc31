//! Pulls from the daemons over HTTP.

use jiff::Timestamp;
use reqwest::Method;
use serde::Deserialize;
use serde_json::json;
use tokio::time::sleep;

use super::{AT_ONCE, Leases, PAUSE, RunEnd, Source, Taken};
use crate::order::Order;

/// A job as it is handed out, and written to a list.
#[derive(Debug, Clone, Deserialize)]
pub(super) struct Document {
    pub(super) key: String,
    pub(super) lease: String,
    pub(super) payload: Order,
    pub(super) attempt: u32,
    pub(super) due: Timestamp,
    pub(super) fence: u64,
}

impl Document {
    pub(super) fn delivered<T>(self, ticket: impl FnOnce(String) -> T) -> Taken<T> {
        Taken {
            key: self.key,
            order: self.payload,
            attempt: self.attempt,
            fence: self.fence,
            due: Some(self.due),
            ticket: ticket(self.lease),
        }
    }
}

impl Source for Leases {
    type Ticket = String;

    async fn take(&self) -> Vec<Taken<String>> {
        // So that each call brings several jobs.
        sleep(PAUSE).await;
        let wanted = json!({"prefixes": self.prefixes, "max": AT_ONCE, "wait": "10s"});
        let answer = self.daemons.call(Method::POST, "/v1/pull", &wanted).await;
        let jobs = match answer {
            Ok((status, mut answer)) if status.is_success() => answer["jobs"].take(),
            // An incomplete answer has brought nothing.
            _ => return Vec::new(),
        };
        let jobs: Vec<Document> = serde_json::from_value(jobs).expect("jobs as documented");
        let jobs = jobs.into_iter().map(|job| job.delivered(|lease| lease));
        jobs.collect()
    }

    async fn extend(&self, lease: &String) {
        self.ask_for_more(lease).await;
    }

    async fn end(&self, leases: Vec<String>, end: RunEnd) -> Vec<Option<bool>> {
        let leases: Vec<&str> = leases.iter().map(String::as_str).collect();
        Leases::end(self, &leases, end).await
    }
}
