//! The jobs on a Redis or behind a daemon. Both take the calls of the HTTP API, so each command is
//! written once, and its output is the same for both.
//!
//! | part | task |
//! |---|---|
//! | [`redis`] | carries out the calls in this process, with a client of Redis |
//! | [`daemon`] | sends the calls to a daemon |
//! | [`following`] | follows the changes of jobs, line by line |

#[cfg(test)]
pub(crate) mod answers;
mod daemon;
mod following;
mod redis;

use std::time::Duration;

use anyhow::Context;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode, header};
use futures_util::stream::BoxStream;
use keyfall::{JobKey, LimitScope};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use self::redis::Redis;
use super::stop::Stop;
use keyfall_daemon::shapes::{
    ArchiveIn, ArchivePageOut, ArchivePrefixIn, ArchiveRequeueIn, ArchiveRequeueOut,
    ArchiveSearchIn, ArchiveSetOut, ArchivesOut, AuditIn, AuditOut, BatchOut, BreakerIn,
    BreakerOut, BulkIn, BulkOut, BulkPostponeIn, CancelledOut, ChangedOut, CopiesOut, CopyIn,
    CountIn, CountOut, DeletedOut, DoctorOut, DroppedOut, DurableIn, EndedIn, EndedJobOut,
    EndedRequeueIn, EndedRequeuedOut, FixIn, HistoryIn, HistoryOut, InstancesOut, Job, KindsOut,
    LetterIn, LettersOut, LimitIn, LimitOut, LimitsOut, ListIn, NewJobIn, OverviewIn, OverviewOut,
    PageOut, PausedOut, Payloads, PostponeIn, Problem, RequeueIn, RequeuedOut, RoutesOut, RuleIn,
    RuleOut, ScheduledOut, SeriesChangeOut, SeriesIn, SeriesOut, SeriesPreviewIn, ShowIn, StoryIn,
    StoryOut, SwitchedOut, TailIn, UnlimitedOut,
};

pub(crate) use self::daemon::{Address, Daemon};
pub(crate) use self::following::{Following, News};

/// The way to the jobs. Clones share one connection.
#[derive(Clone)]
pub(crate) enum Jobs {
    Redis(Redis),
    Daemon(Daemon),
}

/// A request.
struct Call {
    method: &'static str,
    /// The segments of the path, not yet encoded.
    path: Vec<String>,
    /// The parameters behind the `?`.
    query: Vec<(String, String)>,
    body: Vec<u8>,
    /// Whether the call is about many jobs, and so may take long.
    is_long: bool,
}

/// An answer that comes part by part.
type Parts = BoxStream<'static, anyhow::Result<Bytes>>;

/// An answer that Keyfall gave.
struct Answer {
    status: u16,
    /// The wait before the same request may be repeated, if it was refused with 429.
    wait: Option<Duration>,
    body: Vec<u8>,
}

impl Jobs {
    pub(crate) fn on_redis(client: keyfall::Client) -> Self {
        Jobs::Redis(Redis::new(client))
    }

    /// # Errors
    /// If the certificates of the CA cannot be used.
    pub(crate) fn behind(address: Address) -> anyhow::Result<Self> {
        Ok(Jobs::Daemon(Daemon::new(address)?))
    }

    pub(crate) async fn schedule(
        &self,
        key: &JobKey,
        job: &NewJobIn,
    ) -> anyhow::Result<ScheduledOut> {
        self.one("PUT", &["jobs", key.as_str()], job).await
    }

    pub(crate) async fn get(&self, key: &JobKey) -> anyhow::Result<Job> {
        let call = Call::new("GET", &["jobs", key.as_str()]).asking(&EXACT);
        self.ask(call).await
    }

    pub(crate) async fn cancel(
        &self,
        key: &JobKey,
        durable: DurableIn,
    ) -> anyhow::Result<CancelledOut> {
        let call = Call::new("DELETE", &["jobs", key.as_str()]);
        self.ask(call.asking(&durable)).await
    }

    pub(crate) async fn postpone(
        &self,
        key: &JobKey,
        when: &PostponeIn,
    ) -> anyhow::Result<ChangedOut> {
        self.one("POST", &["jobs", key.as_str(), "postpone"], when)
            .await
    }

    pub(crate) async fn fire(&self, key: &JobKey) -> anyhow::Result<ChangedOut> {
        self.ask(Call::new("POST", &["jobs", key.as_str(), "fire"]))
            .await
    }

    pub(crate) async fn change_rule(&self, key: &JobKey, rule: &RuleIn) -> anyhow::Result<RuleOut> {
        self.one("PUT", &["jobs", key.as_str(), "rule"], rule).await
    }

    pub(crate) async fn pause_rule(&self, key: &JobKey) -> anyhow::Result<RuleOut> {
        let path = ["jobs", key.as_str(), "rule", "pause"];
        self.ask(Call::new("POST", &path)).await
    }

    pub(crate) async fn resume_rule(&self, key: &JobKey) -> anyhow::Result<RuleOut> {
        let path = ["jobs", key.as_str(), "rule", "resume"];
        self.ask(Call::new("POST", &path)).await
    }

    pub(crate) async fn put_series(
        &self,
        key: &JobKey,
        series: &SeriesIn,
    ) -> anyhow::Result<SeriesChangeOut> {
        self.one("PUT", &["series", key.as_str()], series).await
    }

    pub(crate) async fn preview_series(
        &self,
        series: &SeriesPreviewIn,
    ) -> anyhow::Result<SeriesChangeOut> {
        self.one("POST", &["series", "preview"], series).await
    }

    pub(crate) async fn series(&self, key: &JobKey) -> anyhow::Result<SeriesOut> {
        self.ask(Call::new("GET", &["series", key.as_str()])).await
    }

    pub(crate) async fn cancel_series(&self, key: &JobKey) -> anyhow::Result<SeriesChangeOut> {
        self.ask(Call::new("DELETE", &["series", key.as_str()]))
            .await
    }

    pub(crate) async fn cancel_many(&self, which: &BulkIn) -> anyhow::Result<BulkOut> {
        self.many(&["jobs", "cancel"], which).await
    }

    pub(crate) async fn postpone_many(&self, which: &BulkPostponeIn) -> anyhow::Result<BulkOut> {
        self.many(&["jobs", "postpone"], which).await
    }

    pub(crate) async fn fire_many(&self, which: &BulkIn) -> anyhow::Result<BulkOut> {
        self.many(&["jobs", "fire"], which).await
    }

    pub(crate) async fn list(&self, wanted: &ListIn) -> anyhow::Result<PageOut> {
        self.ask(Call::new("GET", &["jobs"]).asking(wanted).long())
            .await
    }

    pub(crate) async fn count(&self, prefix: Option<&str>) -> anyhow::Result<CountOut> {
        let prefix = prefix.map(Into::into);
        let call = Call::new("GET", &["jobs", "count"]).asking(&CountIn { prefix });
        self.ask(call.long()).await
    }

    /// The dead letters of a job, the latest first.
    pub(crate) async fn letters(&self, key: &JobKey) -> anyhow::Result<Vec<Job>> {
        let call = Call::new("GET", &["dead", key.as_str()]).asking(&EXACT);
        let LettersOut { letters } = self.ask(call).await?;
        Ok(letters)
    }

    pub(crate) async fn requeue(
        &self,
        key: &JobKey,
        wanted: &RequeueIn,
    ) -> anyhow::Result<RequeuedOut> {
        self.one("POST", &["dead", key.as_str(), "requeue"], wanted)
            .await
    }

    pub(crate) async fn delete_letter(
        &self,
        key: &JobKey,
        letter: u64,
    ) -> anyhow::Result<DeletedOut> {
        let call = Call::new("DELETE", &["dead", key.as_str()]).asking(&LetterIn { letter });
        self.ask(call).await
    }

    pub(crate) async fn requeue_many(&self, which: &BulkIn) -> anyhow::Result<BulkOut> {
        self.many(&["dead", "requeue"], which).await
    }

    pub(crate) async fn delete_letters(&self, which: &BulkIn) -> anyhow::Result<BulkOut> {
        self.many(&["dead", "delete"], which).await
    }

    pub(crate) async fn kinds(&self) -> anyhow::Result<KindsOut> {
        self.ask(Call::new("GET", &["kinds"]).long()).await
    }

    pub(crate) async fn drop_kind(&self, kind: &str) -> anyhow::Result<DroppedOut> {
        self.ask(Call::new("DELETE", &["kinds", kind]).long()).await
    }

    pub(crate) async fn limits(&self) -> anyhow::Result<LimitsOut> {
        self.ask(Call::new("GET", &["limits"])).await
    }

    pub(crate) async fn limit(
        &self,
        scope: &LimitScope,
        limit: &LimitIn,
    ) -> anyhow::Result<LimitOut> {
        let path = ["kinds", scope.as_str(), "limit"];
        self.one("PUT", &path, limit).await
    }

    pub(crate) async fn unlimit(&self, scope: &LimitScope) -> anyhow::Result<UnlimitedOut> {
        let path = ["kinds", scope.as_str(), "limit"];
        self.ask(Call::new("DELETE", &path)).await
    }

    pub(crate) async fn archives(&self) -> anyhow::Result<ArchivesOut> {
        self.ask(Call::new("GET", &["archives"])).await
    }

    pub(crate) async fn set_archive(&self, archive: &ArchiveIn) -> anyhow::Result<ArchiveSetOut> {
        self.one("PUT", &["archives"], archive).await
    }

    pub(crate) async fn stop_archive(&self, prefix: &str) -> anyhow::Result<ArchiveSetOut> {
        let prefix = prefix.to_owned();
        let call = Call::new("DELETE", &["archives"]);
        self.ask(call.asking(&ArchivePrefixIn { prefix }).long())
            .await
    }

    pub(crate) async fn copies(&self) -> anyhow::Result<CopiesOut> {
        self.ask(Call::new("GET", &["copies"])).await
    }

    pub(crate) async fn set_copy(&self, copy: &CopyIn) -> anyhow::Result<ArchiveSetOut> {
        self.one("PUT", &["copies"], copy).await
    }

    pub(crate) async fn stop_copy(&self, prefix: &str) -> anyhow::Result<ArchiveSetOut> {
        let prefix = prefix.to_owned();
        let call = Call::new("DELETE", &["copies"]);
        self.ask(call.asking(&ArchivePrefixIn { prefix }).long())
            .await
    }

    pub(crate) async fn search_archive(
        &self,
        wanted: &ArchiveSearchIn,
    ) -> anyhow::Result<ArchivePageOut> {
        self.ask(Call::new("GET", &["archive"]).asking(wanted).long())
            .await
    }

    /// A job in the archive: the last run, if no time is given.
    pub(crate) async fn ended(&self, key: &JobKey, run: &EndedIn) -> anyhow::Result<EndedJobOut> {
        let call = Call::new("GET", &["archive", key.as_str()]);
        self.ask(call.asking(run)).await
    }

    pub(crate) async fn requeue_ended(
        &self,
        key: &JobKey,
        wanted: &EndedRequeueIn,
    ) -> anyhow::Result<EndedRequeuedOut> {
        self.one("POST", &["archive", key.as_str(), "requeue"], wanted)
            .await
    }

    pub(crate) async fn requeue_many_ended(
        &self,
        wanted: &ArchiveRequeueIn,
    ) -> anyhow::Result<ArchiveRequeueOut> {
        self.many(&["archive", "requeue"], wanted).await
    }

    pub(crate) async fn paused(&self) -> anyhow::Result<PausedOut> {
        self.ask(Call::new("GET", &["paused"])).await
    }

    pub(crate) async fn pause(&self, which: &BulkIn) -> anyhow::Result<SwitchedOut> {
        self.many(&["pause"], which).await
    }

    pub(crate) async fn resume(&self, which: &BulkIn) -> anyhow::Result<SwitchedOut> {
        self.many(&["resume"], which).await
    }

    pub(crate) async fn doctor(&self) -> anyhow::Result<DoctorOut> {
        self.ask(Call::new("GET", &["doctor"]).long()).await
    }

    pub(crate) async fn fix(&self, wanted: &FixIn) -> anyhow::Result<DoctorOut> {
        self.many(&["doctor", "fix"], wanted).await
    }

    pub(crate) async fn story(&self, key: &JobKey, how: &StoryIn) -> anyhow::Result<StoryOut> {
        let call = Call::new("GET", &["jobs", key.as_str(), "story"]);
        self.ask(call.asking(how)).await
    }

    pub(crate) async fn histories(&self) -> anyhow::Result<HistoryOut> {
        self.ask(Call::new("GET", &["history"]).long()).await
    }

    pub(crate) async fn keep_history(&self, wanted: &HistoryIn) -> anyhow::Result<HistoryOut> {
        self.many(&["history"], wanted).await
    }

    pub(crate) async fn overview(&self, wanted: &OverviewIn) -> anyhow::Result<OverviewOut> {
        // Not a long call: the screen reports within a minute that it is not updated.
        self.ask(Call::new("GET", &["overview"]).asking(wanted))
            .await
    }

    /// Follows the changes of jobs from now on, across outages of a daemon or its Redis. A daemon
    /// without room for a tail is asked again later.
    ///
    /// # Errors
    /// If the tail is refused for good, or neither Redis nor the daemon answers.
    pub(crate) async fn follow(&self, wanted: TailIn) -> anyhow::Result<Following> {
        Following::new(self.clone(), wanted).await
    }

    pub(crate) async fn instances(&self) -> anyhow::Result<InstancesOut> {
        self.ask(Call::new("GET", &["instances"])).await
    }

    pub(crate) async fn close_breaker(&self, host: &BreakerIn) -> anyhow::Result<BreakerOut> {
        self.one("POST", &["breakers", "close"], host).await
    }

    pub(crate) async fn routes(&self) -> anyhow::Result<RoutesOut> {
        self.ask(Call::new("GET", &["routes"]).long()).await
    }

    pub(crate) async fn audit(&self, wanted: &AuditIn) -> anyhow::Result<AuditOut> {
        self.many(&["audit"], wanted).await
    }

    /// Makes many calls, one a line, and returns an answer to each.
    pub(crate) async fn batch(
        &self,
        lines: Vec<u8>,
        count: usize,
    ) -> anyhow::Result<Vec<BatchOut>> {
        let mut call = Call::new("POST", &["batch"]).long();
        call.body = lines;
        let body = self.send(call).await?.body;
        let answers = serde_json::Deserializer::from_slice(&body).into_iter();
        let answers: Result<Vec<BatchOut>, _> = answers.collect();
        match answers {
            Ok(answers) if answers.len() == count => Ok(answers),
            // The daemon is about to stop, and may have carried out calls that it did not answer.
            _ => Err(Stop::unavailable("the answer to a batch ended early: try again").into()),
        }
    }

    async fn one<T: DeserializeOwned>(
        &self,
        method: &'static str,
        path: &[&str],
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let mut call = Call::new(method, path);
        call.body = serde_json::to_vec(body)?;
        self.ask(call).await
    }

    async fn many<T: DeserializeOwned>(
        &self,
        path: &[&str],
        body: &impl Serialize,
    ) -> anyhow::Result<T> {
        let mut call = Call::new("POST", path).long();
        call.body = serde_json::to_vec(body)?;
        self.ask(call).await
    }

    async fn ask<T: DeserializeOwned>(&self, call: Call) -> anyhow::Result<T> {
        let answer = self.send(call).await?;
        serde_json::from_slice(&answer.body)
            .context("this is not an answer of this version of Keyfall")
    }

    async fn send(&self, call: Call) -> anyhow::Result<Answer> {
        let answer = match self {
            Jobs::Redis(redis) => redis.send(call).await?,
            Jobs::Daemon(daemon) => daemon.send(call).await?,
        };
        refused(&answer)?;
        Ok(answer)
    }

    /// Sends a call whose answer has no end.
    async fn open(&self, call: Call) -> anyhow::Result<Parts> {
        match self {
            Jobs::Redis(redis) => redis.open(call).await,
            Jobs::Daemon(daemon) => daemon.open(call).await,
        }
    }
}

/// Fails if the answer is a problem.
fn refused(answer: &Answer) -> anyhow::Result<()> {
    if answer.status < 400 {
        return Ok(());
    }
    let problem: Problem = serde_json::from_slice(&answer.body)
        .context("this is not a problem document of this version of Keyfall")?;
    Err(Stop::of_problem(problem).after(answer.wait).into())
}

/// The wait that a daemon asks for in an answer with 429.
fn wait_of(status: StatusCode, headers: &HeaderMap) -> Option<Duration> {
    if status != StatusCode::TOO_MANY_REQUESTS {
        return None;
    }
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    seconds.parse().ok().map(Duration::from_secs)
}

/// Asks for payloads byte for byte.
const EXACT: ShowIn = ShowIn {
    payloads: Payloads::Exact,
};

impl Call {
    fn new(method: &'static str, path: &[&str]) -> Self {
        let path = ["v1"].iter().chain(path);
        Call {
            method,
            path: path.map(|&part| part.to_owned()).collect(),
            query: Vec::new(),
            body: Vec::new(),
            is_long: false,
        }
    }

    /// Adds these parameters behind the `?`.
    fn asking(mut self, query: &impl Serialize) -> Self {
        let fields = serde_json::to_value(query).expect("texts and numbers are JSON");
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        for (name, value) in fields.as_object().into_iter().flatten() {
            // A name is repeated for each of its values.
            let values = value
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            let pairs = values.iter().map(|value| (name.clone(), text(value)));
            self.query.extend(pairs);
        }
        self
    }

    fn long(mut self) -> Self {
        self.is_long = true;
        self
    }
}
