//! The archive: which kinds leave records of their ended jobs, and the search through these.

use std::time::SystemTime;

use axum::Json;
use keyfall::{ArchiveTerms, ErrorKind, Kind, Selection, TermsOf};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::Api;
use super::actions::Deed;
use super::auth::{Caller, Scope};
use super::body::{Body, Params};
use super::problem::Problem;
use super::wire::{HeaderMap, Moment, Span, Time};

/// The jobs of a page, unless the request says otherwise, and the most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// Which records the jobs of some kinds leave when they end.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ArchiveIn {
    /// A kind, `app1:mail:send:`, or a prefix of kinds that ends with a colon; empty for all kinds.
    /// The longest prefix that covers a kind holds.
    #[schema(example = "app1:mail:")]
    pub prefix: String,
    /// The longest payload that a record carries, in bytes; a longer one is left out. Defaults to 0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub payload: Option<u64>,
    /// How many bytes of records may wait in each ledger while the database is away. Beyond that the
    /// oldest are dropped, but none of dead letters. Defaults to 64 MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<u64>,
    /// For how many months a record is kept after the month of the end; 0 for ever, the default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_months: Option<u16>,
    /// The same for dead letters. Defaults to 0, for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_dead_months: Option<u16>,
}

/// The prefix of an archive.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ArchivePrefixIn {
    /// A kind, or a prefix of kinds that ends with a colon; empty for all kinds.
    #[param(example = "app1:mail:")]
    #[serde(default)]
    pub prefix: String,
}

/// The kinds that leave records.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ArchivesOut {
    pub archives: Vec<ArchiveOut>,
}

/// A prefix of kinds that leave records, and the terms.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ArchiveOut {
    /// Empty for all kinds.
    #[schema(example = "app1:mail:")]
    pub prefix: String,
    /// The longest payload of a record, in bytes.
    pub payload: u64,
    /// How many bytes of records may wait in each ledger.
    pub waiting: u64,
    /// For how many months a record is kept; 0 for ever.
    pub keep_months: u16,
    /// The same for dead letters.
    pub keep_dead_months: u16,
    pub since: Time,
    /// The id of the token and its note, or the address or process, that set the terms.
    pub by: String,
}

/// The kinds that an archive covers now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct ArchiveSetOut {
    pub prefix: String,
    pub kinds: Vec<String>,
}

/// What to look for among the ended jobs.
#[derive(Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ArchiveSearchIn {
    /// The beginning of the job keys, or a whole key. Defaults to all jobs.
    #[param(example = "app1:mail:send:2026-")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix: Option<String>,
    /// How the jobs ended: `done`, `skipped`, `cancelled`, `replaced` or `buried`.
    #[param(example = "buried")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub how: Option<String>,
    /// Jobs that ended at this time or later, or within this duration until now.
    #[param(value_type = Option<String>, example = "1h")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Moment>,
    /// Jobs that ended before this time, or longer ago than this duration.
    #[param(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Moment>,
    /// Jobs whose error has all of these words.
    #[param(example = "timeout")]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The most jobs of the page. Defaults to 100.
    #[param(minimum = 1, maximum = 1000)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// The start of the page: `next` of the page before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// A page of ended jobs.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct ArchivePageOut {
    /// The job that ended last comes first.
    pub jobs: Vec<EndedOut>,
    /// The start of the next page; missing on the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

/// A job that has ended.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EndedOut {
    #[schema(example = "app1:mail:send:42")]
    pub key: String,
    /// `done`, `skipped`, `cancelled`, `replaced` or `buried`.
    #[schema(example = "done")]
    pub how: String,
    pub ended: Time,
    pub accepted: Time,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<Time>,
    /// When its last run was claimed; missing without a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<Time>,
    pub attempts: u32,
    /// The process that ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    #[serde(default)]
    #[schema(inline)]
    pub headers: HeaderMap,
    /// The length of its payload, in bytes.
    pub payload_bytes: u32,
    /// Whether the archive has its payload, so that it can be requeued.
    #[serde(default)]
    pub has_payload: bool,
    /// The number of the dead letter that it became.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub letter: Option<u64>,
    /// The time that the rule of a recurring job named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occurrence: Option<Time>,
}

impl From<TermsOf<ArchiveTerms>> for ArchiveOut {
    fn from(it: TermsOf<ArchiveTerms>) -> Self {
        ArchiveOut {
            prefix: it.prefix,
            payload: it.terms.get_payload(),
            waiting: it.terms.get_waiting(),
            keep_months: it.terms.get_keep_months(),
            keep_dead_months: it.terms.get_keep_dead_months(),
            since: Time(it.since),
            by: it.by,
        }
    }
}

impl ArchiveIn {
    /// Checks the terms, without a connection.
    ///
    /// # Errors
    /// If they cannot be kept; names the field, the rule and the remedy.
    pub fn check(&self) -> keyfall::Result<()> {
        self.terms().check().map(drop)
    }

    fn terms(&self) -> ArchiveTerms {
        let new = ArchiveTerms::new();
        new.payload(self.payload.unwrap_or(new.get_payload()))
            .waiting(self.waiting.unwrap_or(new.get_waiting()))
            .keep_months(self.keep_months.unwrap_or(0))
            .keep_dead_months(self.keep_dead_months.unwrap_or(0))
    }
}

/// The kinds that leave records of their ended jobs. With a token, those that it can see.
#[utoipa::path(get, path = "/v1/archives", operation_id = "list_archives", tag = "archive",
    responses((status = 200, body = ArchivesOut)))]
pub(super) async fn list(caller: Caller) -> Result<Json<ArchivesOut>, Problem> {
    let archives = caller.sees_its_own()?.client.archives().await?.into_iter();
    let seen = archives.filter(|it| caller.can(Scope::Read, &it.prefix));
    Ok(Json(ArchivesOut {
        archives: seen.map(ArchiveOut::from).collect(),
    }))
}

/// Has the jobs of these kinds leave a record when they end. It replaces the terms of this prefix.
#[utoipa::path(put, path = "/v1/archives", operation_id = "set_archive", tag = "archive",
    request_body = ArchiveIn, responses((status = 200, body = ArchiveSetOut)))]
pub(super) async fn set(
    caller: Caller,
    Body(body): Body<ArchiveIn>,
) -> Result<Json<ArchiveSetOut>, Problem> {
    let set = select(&caller, &body.prefix)?.archive(body.terms());
    let kinds = match caller.operator() {
        Some(operator) => set.by(operator).await,
        None => set.await,
    };
    let kinds = kinds.map_err(of_archive)?;
    Ok(changed(&caller, "archive", body.prefix, &kinds).await)
}

/// Removes the terms of a prefix. Records that wait stay until they are in the archive.
#[utoipa::path(delete, path = "/v1/archives", operation_id = "stop_archive", tag = "archive",
    params(ArchivePrefixIn), responses((status = 200, body = ArchiveSetOut)))]
pub(super) async fn stop(
    caller: Caller,
    Params(ArchivePrefixIn { prefix }): Params<ArchivePrefixIn>,
) -> Result<Json<ArchiveSetOut>, Problem> {
    let stop = select(&caller, &prefix)?.stop_archive();
    let kinds = stop.await.map_err(of_archive)?;
    Ok(changed(&caller, "stop_archive", prefix, &kinds).await)
}

/// The ended jobs in the archive, page by page, the one that ended last first.
#[utoipa::path(get, path = "/v1/archive", operation_id = "search_archive", tag = "archive",
    params(ArchiveSearchIn), responses(
        (status = 200, body = ArchivePageOut),
        (status = 404, description = "The daemon has no database", body = Problem)))]
pub(super) async fn search(
    caller: Caller,
    Params(wanted): Params<ArchiveSearchIn>,
) -> Result<Json<ArchivePageOut>, Problem> {
    let prefix = wanted.prefix.as_deref().unwrap_or_default();
    let api = caller.may(Scope::Read, prefix)?;
    let limit = wanted.limit.unwrap_or(PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        let detail = format!("a page has from 1 to {LARGEST_PAGE} jobs, not {limit}");
        return Err(Problem::invalid("limit", detail));
    }
    search_in(api, &wanted, limit).await.map(Json)
}

pub(super) fn select<'a>(caller: &'a Caller, prefix: &str) -> Result<Selection<'a>, Problem> {
    let client = &caller.may(Scope::Operate, prefix)?.client;
    Ok(match prefix {
        "" => client.everything(),
        prefix => client.prefix(prefix),
    })
}

/// Notes that the terms of a prefix have changed, and answers with the kinds that it covers now.
pub(super) async fn changed(
    caller: &Caller,
    what: &str,
    prefix: String,
    kinds: &[Kind],
) -> Json<ArchiveSetOut> {
    let deed = Deed::new(what, &prefix).count(kinds.len() as u64);
    caller.did(deed).await;
    Json(ArchiveSetOut {
        prefix,
        kinds: kinds.iter().map(ToString::to_string).collect(),
    })
}

/// The error of an archive, with the field that it names.
fn of_archive(error: keyfall::Error) -> Problem {
    let message = error.to_string();
    let fields = [
        ("`payload`", "payload"),
        ("`waiting`", "waiting"),
        ("months", "keep_months"),
    ];
    let named = fields.into_iter().find(|(text, _)| message.contains(text));
    match (error.kind(), named) {
        (ErrorKind::InvalidSetting, Some((_, field))) => Problem::from(error).field(field),
        _ => Problem::of_prefix(error),
    }
}

/// The time that a moment of the past means: a duration counts back from now.
fn past(moment: Moment) -> SystemTime {
    match moment {
        Moment::At(Time(time)) => time,
        Moment::FromNow(Span(ago)) => {
            let now = SystemTime::now();
            now.checked_sub(ago).unwrap_or(SystemTime::UNIX_EPOCH)
        }
    }
}

#[cfg(not(feature = "database"))]
async fn search_in(_: &Api, _: &ArchiveSearchIn, _: usize) -> Result<ArchivePageOut, Problem> {
    Err(Problem::no_archive())
}

/// The last ends of the jobs of one name; none without a database, or while it is away.
#[cfg(not(feature = "database"))]
pub(super) async fn last_ends(_: &Api, _: &keyfall::JobKey) -> Vec<EndedOut> {
    Vec::new()
}

#[cfg(feature = "database")]
use self::with_database::search_in;
#[cfg(feature = "database")]
pub(super) use self::with_database::{last_ends, of_search, query_of};

#[cfg(feature = "database")]
mod with_database {
    use std::time::Duration;

    use keyfall::JobKey;
    use keyfall_database::{ArchiveQuery, ArchivedJob, Error, How};
    use tokio::time::timeout;

    use super::*;

    /// How many ends of a name belong to the story of its job.
    const LAST: usize = 20;

    /// How long a story waits for the archive: the rest of it is in Redis.
    const PATIENCE: Duration = Duration::from_millis(500);

    pub(super) async fn search_in(
        api: &Api,
        wanted: &ArchiveSearchIn,
        limit: usize,
    ) -> Result<ArchivePageOut, Problem> {
        let database = api.database.as_ref().ok_or_else(Problem::no_archive)?;
        let query = query_of(wanted)?.limit(limit);
        let page = database.archived(&query).await.map_err(of_search)?;
        Ok(ArchivePageOut {
            jobs: page.jobs.into_iter().map(EndedOut::from).collect(),
            next: page.next,
        })
    }

    /// The search as the database takes it.
    pub(in crate::http) fn query_of(wanted: &ArchiveSearchIn) -> Result<ArchiveQuery, Problem> {
        for (field, text) in [
            ("prefix", &wanted.prefix),
            ("error", &wanted.error),
            ("cursor", &wanted.cursor),
        ] {
            if text.as_deref().is_some_and(|it| it.contains('\0')) {
                let detail = "it has a NUL, which no text in PostgreSQL has: leave it out";
                return Err(Problem::invalid(field, detail));
            }
        }
        let mut query = ArchiveQuery::new();
        if let Some(prefix) = wanted.prefix.as_deref().filter(|it| !it.is_empty()) {
            query = query.prefix(prefix);
        }
        if let Some(word) = &wanted.how {
            let how = How::parse(word).ok_or_else(|| {
                let words = How::ALL.map(How::as_str).join(", ");
                Problem::invalid("how", format!("{word:?} is no end of a job: {words}"))
            })?;
            query = query.how(how);
        }
        if let Some(since) = wanted.since {
            query = query.ended_from(past(since));
        }
        if let Some(until) = wanted.until {
            query = query.ended_until(past(until));
        }
        if let Some(words) = &wanted.error {
            query = query.error_words(words);
        }
        if let Some(cursor) = wanted.cursor.as_deref().filter(|it| !it.is_empty()) {
            query = query.after(cursor);
        }
        Ok(query)
    }

    /// The last ends of the jobs of one name; none without a database, or while it is away.
    pub(in crate::http) async fn last_ends(api: &Api, key: &JobKey) -> Vec<EndedOut> {
        let Some(database) = &api.database else {
            return Vec::new();
        };
        let query = ArchiveQuery::new().key(key.clone()).limit(LAST);
        let error = match timeout(PATIENCE, database.archived(&query)).await {
            Ok(Ok(page)) => return page.jobs.into_iter().map(EndedOut::from).collect(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("it has not answered for {PATIENCE:?}"),
        };
        tracing::warn!(%key, error, "the archive cannot be asked");
        Vec::new()
    }

    pub(in crate::http) fn of_search(error: Error) -> Problem {
        match error {
            Error::Search(detail) => Problem::invalid("query", detail),
            error => Problem::archive_away(&error.to_string()),
        }
    }

    impl From<ArchivedJob> for EndedOut {
        fn from(it: ArchivedJob) -> Self {
            EndedOut {
                key: it.key,
                how: it.how,
                ended: Time(it.ended),
                accepted: Time(it.accepted),
                due: it.due.map(Time),
                begun: it.begun.map(Time),
                attempts: it.attempts,
                worker: it.worker,
                error: it.error,
                headers: it.headers,
                payload_bytes: it.payload_bytes,
                has_payload: it.has_payload,
                letter: it.letter,
                occurrence: it.occurrence.map(Time),
            }
        }
    }
}

#[cfg(all(test, feature = "database"))]
mod tests {
    use super::*;

    #[test]
    fn a_text_with_a_nul_is_refused_with_its_field() {
        let nul = || Some("a\0".to_owned());
        let [mut prefix, mut error, mut cursor] = [(); 3].map(|()| ArchiveSearchIn::default());
        prefix.prefix = nul();
        error.error = nul();
        cursor.cursor = nul();
        for (wanted, field) in [(prefix, "prefix"), (error, "error"), (cursor, "cursor")] {
            let refused = query_of(&wanted).unwrap_err();
            assert_eq!(refused.field.as_deref(), Some(field));
            assert_eq!((refused.status().as_u16(), refused.retryable), (400, false));
        }
    }
}
