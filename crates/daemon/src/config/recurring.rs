//! The recurring jobs of a file: `[[recurring]]`.

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::time::Duration;

use keyfall::{Client, Declared, JobKey, MaxLateness, NewJob, RetryPolicy, Rule};
use serde_json::{Map, Value as Json};
use toml::de::DeValue;

use super::fault::{Faults, Wrong};
use super::file::{Entry, File};
use super::rules::longer_than_zero;

/// The fields of a recurring job that make up its rule.
const RULE: [&str; 14] = [
    "cron",
    "every",
    "after_end",
    "zone",
    "from",
    "until",
    "runs",
    "jitter",
    "busy",
    "gap",
    "overlap",
    "missed",
    "quiet",
    "template",
];

/// The other fields of a recurring job.
const OTHERS: [&str; 7] = [
    "key",
    "payload",
    "headers",
    "retry",
    "attempts",
    "timeout",
    "max_lateness",
];

/// All fields of a recurring job.
pub(super) fn fields() -> impl Iterator<Item = &'static str> + Clone {
    OTHERS.into_iter().chain(RULE)
}

/// A recurring job, checked. `None` stands for an absent field.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurringConfig {
    pub key: JobKey,
    pub rule: Rule,
    pub payload: Json,
    pub headers: BTreeMap<String, String>,
    pub retry: Option<RetryPolicy>,
    pub attempts: Option<NonZeroU32>,
    pub timeout: Option<Duration>,
    pub max_lateness: Option<MaxLateness>,
}

impl RecurringConfig {
    fn job(&self) -> NewJob {
        let mut job = NewJob::new(&self.key, &self.payload).recurring(self.rule.clone());
        for (name, value) in &self.headers {
            job = job.header(name, value);
        }
        if let Some(policy) = &self.retry {
            job = job.retry(policy.clone());
        }
        if let Some(limit) = self.attempts {
            job = job.attempts(limit.get());
        }
        if let Some(limit) = self.timeout {
            job = job.timeout(limit);
        }
        if let Some(MaxLateness { limit, then }) = self.max_lateness {
            job = job.max_lateness(limit, then);
        }
        job
    }
}

/// Makes the recurring jobs of this declaration those of the file, and logs what changed.
///
/// # Errors
/// If a job is not valid, or Redis does not carry it out.
pub async fn declare(client: &Client, name: &str, jobs: &[RecurringConfig]) -> keyfall::Result<()> {
    let declared = client
        .declare(name, jobs.iter().map(RecurringConfig::job))
        .await?;
    let Declared {
        created,
        changed,
        ended,
        running,
        foreign,
        removed,
        ..
    } = &declared;
    for (keys, done) in [
        (created, "is scheduled"),
        (changed, "is changed"),
        (
            removed,
            "is cancelled, since the configuration does not have it any more",
        ),
    ] {
        for key in keys {
            tracing::info!("recurring job {key} {done}");
        }
    }
    for key in ended {
        tracing::warn!(
            "recurring job {key} is not scheduled again: its rule has ended, or somebody has \
             cancelled it; change its entry to schedule it anew"
        );
    }
    for key in running {
        tracing::warn!(
            "recurring job {key} is running, and its new rule allows no further run: the rule that \
             it has goes on until the next start or SIGHUP"
        );
    }
    for key in foreign {
        tracing::warn!(
            "recurring job {key} is left alone: a job with this key was made elsewhere; cancel that \
             job, or choose another key"
        );
    }
    Ok(())
}

/// The recurring jobs of the file; `None` if the file has no `recurring`, and so declares nothing.
pub(super) fn read(file: &File<'_>, faults: &mut Faults) -> Option<Vec<RecurringConfig>> {
    let mut jobs: Vec<RecurringConfig> = Vec::new();
    for entry in file.recurring()? {
        let Some(job) = one(&entry, faults) else {
            continue;
        };
        if jobs.iter().any(|other| other.key == job.key) {
            let wrong = Wrong::new("another entry has this key", "leave one of them out");
            entry.fault("key", wrong, faults);
            continue;
        }
        jobs.push(job);
    }
    Some(jobs)
}

fn one(entry: &Entry<'_>, faults: &mut Faults) -> Option<RecurringConfig> {
    let known: Vec<&str> = fields().collect();
    entry.find_strangers(&known, faults);
    let key = key(entry, faults);
    let rule = rule(entry, faults);
    let payload = entry
        .raw("payload")
        .map_or(Json::Null, |it| json(it.get_ref()));
    let headers = headers(entry, faults);
    let retry = entry.value::<String>("retry", &[], faults).map(|text| {
        let policy: Result<RetryPolicy, _> = text.parse();
        policy
            .map_err(|error| entry.fault("retry", Wrong(error.to_string()), faults))
            .ok()
    });
    let attempts = entry.value("attempts", &[], faults);
    let timeout = entry.value("timeout", &[longer_than_zero], faults);
    let max_lateness = entry.value("max_lateness", &[], faults);
    Some(RecurringConfig {
        key: key?,
        rule: rule?,
        payload,
        headers: headers?,
        retry: match retry {
            Some(policy) => Some(policy?),
            None => None,
        },
        attempts,
        timeout,
        max_lateness,
    })
}

fn key(entry: &Entry<'_>, faults: &mut Faults) -> Option<JobKey> {
    if entry.raw("key").is_none() {
        let remedy = "write `key = \"app:module:biz:id\"`";
        entry.fault(
            "key",
            Wrong::new("the name of the job is missing", remedy),
            faults,
        );
        return None;
    }
    let text: String = entry.value("key", &[], faults)?;
    let key = JobKey::parse(&text);
    key.map_err(|error| entry.fault("key", Wrong(error.to_string()), faults))
        .ok()
}

/// A rule whose times have all passed is no fault: the file may be older than that.
fn rule(entry: &Entry<'_>, faults: &mut Faults) -> Option<Rule> {
    let given = RULE.into_iter().filter_map(|field| {
        let value = entry.raw(field)?;
        Some((field.to_owned(), json(value.get_ref())))
    });
    let table = Json::Object(given.collect());
    let rule = Rule::from_table(&table);
    rule.map_err(|error| entry.fault("cron", Wrong(error.to_string()), faults))
        .ok()
}

fn headers(entry: &Entry<'_>, faults: &mut Faults) -> Option<BTreeMap<String, String>> {
    let Some(value) = entry.raw("headers") else {
        return Some(BTreeMap::new());
    };
    let headers = match json(value.get_ref()) {
        Json::Object(table) => table
            .into_iter()
            .map(|(name, value)| Some((name, value.as_str()?.to_owned())))
            .collect(),
        _ => None,
    };
    if headers.is_none() {
        let remedy = "write `headers = { tenant = \"acme\" }`";
        entry.fault(
            "headers",
            Wrong::new("headers are a table of texts", remedy),
            faults,
        );
    }
    headers
}

/// A value of the file as JSON. Dates are texts.
pub(super) fn json(value: &DeValue<'_>) -> Json {
    match value {
        DeValue::String(text) => Json::from(text.as_ref()),
        DeValue::Integer(number) => {
            let (digits, radix) = (number.as_str(), number.radix());
            let signed = i64::from_str_radix(digits, radix).map(Json::from);
            signed
                .or_else(|_| u64::from_str_radix(digits, radix).map(Json::from))
                .unwrap_or_else(|_| Json::from(digits))
        }
        DeValue::Float(number) => {
            let number: f64 = number.as_str().parse().unwrap_or(f64::NAN);
            Json::from(number)
        }
        DeValue::Boolean(value) => Json::from(*value),
        DeValue::Datetime(time) => Json::from(time.to_string()),
        DeValue::Array(list) => list.iter().map(|value| json(value.get_ref())).collect(),
        DeValue::Table(table) => {
            let fields = table.iter();
            let fields =
                fields.map(|(name, value)| (name.get_ref().to_string(), json(value.get_ref())));
            Json::Object(fields.collect::<Map<_, _>>())
        }
    }
}
