//! Alerts: jobs that tell of dead letters, and of jobs that start late.

use std::collections::BTreeMap;
use std::time::Duration;

use keyfall::{Client, DeadJob, Headers, Job, Kind, LateJob, MAX_ID_BYTES, Worker};
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::http::Routes;
use super::http::shapes::Time;

/// The tries to schedule an alert, with the pauses between them.
const TRIES: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::ZERO,
];

/// Schedules alerts for the routes that ask for them.
#[derive(Clone)]
pub(crate) struct Alerts {
    client: Client,
    routes: Routes,
}

/// The payload of an alert. It lacks the payload of its subject, which may be large, and is
/// private.
#[derive(Debug, Serialize)]
struct Alert<'a> {
    alert: What,
    key: &'a str,
    kind: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    attempts: u32,
    due: Time,
    /// The time from the due time to the last start, in milliseconds, if it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    lag_ms: Option<u64>,
    /// Of a late start: the lateness that the route allows, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    limit_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_scheduled_at: Option<Time>,
    headers: BTreeMap<&'a str, &'a str>,
    payload_bytes: usize,
    /// Of a late start: the number of late starts before it that caused no alert.
    #[serde(skip_serializing_if = "Option::is_none")]
    untold: Option<u64>,
    instance: &'a str,
    idempotency_key: &'a str,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "lowercase")]
enum What {
    Dead,
    Late,
}

impl Alerts {
    /// Alerts as these routes ask for them. The routes may change.
    pub(crate) fn new(client: Client, routes: Routes) -> Self {
        Alerts { client, routes }
    }

    /// A worker whose hooks schedule these alerts.
    pub(crate) fn told_by(self, worker: Worker) -> Worker {
        let late = self.clone();
        worker
            .on_dead(move |job| {
                let alerts = self.clone();
                async move { alerts.dead(job).await }
            })
            .on_late(move |job| {
                let alerts = late.clone();
                async move { alerts.late(job).await }
            })
    }

    /// Schedules the alert of a dead letter, if its route asks for one.
    ///
    /// # Errors
    /// If Redis refuses the alert, or does not answer.
    async fn dead(&self, job: DeadJob) -> Result<(), String> {
        let Some(kind) = self.routes.alerts(job.key()).on_dead else {
            return Ok(());
        };
        let alert = Alert {
            alert: What::Dead,
            key: job.key().as_str(),
            kind: job.key().kind(),
            reason: Some(job.reason()),
            attempts: job.attempts(),
            due: Time(job.due()),
            lag_ms: job.lag().map(ms),
            limit_ms: None,
            first_scheduled_at: job.first_scheduled_at().map(Time),
            headers: headers(job.headers()),
            payload_bytes: job.payload().len(),
            untold: None,
            instance: job.instance(),
            idempotency_key: &job.idempotency_key(),
        };
        self.schedule(&kind, alert).await
    }

    /// Schedules the alert of a job that starts late, if its route asks for one.
    async fn late(&self, late: LateJob) -> Result<(), String> {
        let Some(kind) = self.routes.alerts(late.key()).on_late else {
            return Ok(());
        };
        let job: &Job = late.job();
        let alert = Alert {
            alert: What::Late,
            key: job.key().as_str(),
            kind: job.key().kind(),
            reason: None,
            attempts: job.attempt(),
            due: Time(job.due()),
            lag_ms: Some(ms(late.lag())),
            limit_ms: Some(ms(late.limit())),
            first_scheduled_at: Some(Time(job.first_scheduled_at())),
            headers: headers(job.headers()),
            payload_bytes: job.payload().len(),
            untold: Some(late.untold()),
            instance: late.instance(),
            idempotency_key: &late.idempotency_key(),
        };
        self.schedule(&kind, alert).await
    }

    /// Schedules an alert under a name that follows from its subject, so that a repeated report is
    /// one job.
    async fn schedule(&self, kind: &Kind, alert: Alert<'_>) -> Result<(), String> {
        let id = id(alert.alert, alert.idempotency_key);
        let key = format!("{kind}:{id}");
        let mut refused = String::new();
        for pause in TRIES {
            let placed = self.client.schedule(&key, &alert).if_absent().await;
            match placed {
                Ok(_) => return Ok(()),
                Err(error) => refused = error.to_string(),
            }
            tokio::time::sleep(pause).await;
        }
        Err(format!("{key} could not be scheduled: {refused}"))
    }
}

/// The id of an alert: its sort and its subject, with a `/` for each `:`.
fn id(alert: What, about: &str) -> String {
    let what = match alert {
        What::Dead => "dead",
        What::Late => "late",
    };
    let id = format!("{what}/{}", about.replace(':', "/"));
    if id.len() <= MAX_ID_BYTES {
        return id;
    }
    // The id stays unique all the same.
    let digest = Sha256::digest(id.as_bytes());
    let digest: String = digest
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let most = MAX_ID_BYTES - digest.len() - 1;
    let cut = (0..=most)
        .rev()
        .find(|at| id.is_char_boundary(*at))
        .unwrap_or(0);
    format!("{}~{digest}", &id[..cut])
}

fn headers(headers: &Headers) -> BTreeMap<&str, &str> {
    headers.iter().collect()
}

fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use keyfall::JobKey;

    use super::*;

    #[test]
    fn the_id_of_an_alert_names_its_subject_and_is_valid() {
        let short = id(What::Dead, "app1:trans:notice:me@example.org@1-2");
        assert_eq!(short, "dead/app1/trans/notice/me@example.org@1-2");
        let long = |last: &str| format!("app1:trans:notice:{}{last}@1-2", "ä".repeat(127));
        let (one, two) = (id(What::Late, &long("1")), id(What::Late, &long("2")));
        assert_ne!(one, two);
        for id in [short, one, two] {
            JobKey::parse(&format!("ops:alerts:dead:{id}")).unwrap();
        }
    }
}
