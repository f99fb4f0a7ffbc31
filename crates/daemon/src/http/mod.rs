//! The HTTP API: one file for each group of calls.
//!
//! | part | task |
//! |---|---|
//! | [`server`] | listens, and stops gracefully |
//! | [`archive`] | the kinds that leave records of ended jobs, and the search through these |
//! | [`copies`] | the kinds whose pending jobs are copied |
//! | [`ended`] | shows a job of the archive, and schedules such jobs again |
//! | [`connections`] | limits the open connections, and closes idle and slow ones |
//! | [`files`] | raises the limit of open files for the connections |
//! | [`front`] | the steps before each handler: id, caller, rate, log |
//! | [`handlers`] | makes all handlers one type, for the compiler's sake |
//! | [`auth`] | the rights of callers; [`pages`] refuses web pages if there are no tokens |
//! | [`rights`] | the rights of the caller |
//! | [`rate`] | limits the requests per second |
//! | [`jobs`] | schedules, shows, changes and cancels one job |
//! | [`rules`] | changes, pauses and resumes the rules of recurring jobs, and shows a rule before it is stored |
//! | [`durable`] | durable calls: the replicas and disks that must have a write |
//! | [`list`], [`count`] | list and count many jobs |
//! | [`bulk`] | changes and cancels many jobs, by the prefix of their keys |
//! | [`batch`] | many calls in one request; [`lines`] reads them as they come |
//! | [`dead`] | dead letters |
//! | [`series`] | jobs relative to a date: makes, moves, shows and cancels them as a whole |
//! | [`restore`] | jobs and dead letters from a backup |
//! | [`kind_page`] | picks the kinds of a page |
//! | [`kinds`] | kinds, their counts, and pausing them |
//! | [`limits`] | the limits of kinds, and of prefixes of kinds |
//! | [`overview`] | the counts of kinds, and the instances, for one screen |
//! | [`upcoming`] | how many jobs fall due in each minute, hour or day |
//! | [`activity`] | the starts and ends of runs over the last hour or day |
//! | [`history`] | the story of a job, and the length of histories |
//! | [`tail`] | changes of jobs as they happen; [`tails`] limits their number, and [`feed`] reads for many of them |
//! | [`actions`] | the log of what operators did; [`notes`] has the details in it |
//! | [`audit`] | checks that every job is accounted for |
//! | [`instances`] | the live instances and their routes |
//! | [`servers`] | the servers, and the kinds with several shards |
//! | [`doctor`] | the findings of the doctor, and its repairs |
//! | [`mod@routes`] | the settings of a job's route |
//! | [`pull`] | hands out jobs, and takes back their leases; [`handing_over`] accepts them when the answer is gone |
//! | [`metrics`] | the metrics, for Prometheus |
//! | [`health`] | the probes: whether the daemon lives, and whether it can serve |
//! | [`openapi`] | the document that describes the API |
//! | [`warnings`] | oddities of a job that was scheduled all the same |
//! | [`wire`] | the JSON form of jobs, times and payloads; [`said`] that of sentences |
//! | [`body`] | reads bodies and queries, and reports their faults |
//! | [`problem`] | the error of a call; [`codes`] has a page for each code |
//! | [`settings`] | the settings of the API |
//! | [`ui`] | the place of the web page, which is a package of its own |

mod actions;
mod activity;
mod archive;
mod audit;
mod auth;
mod batch;
mod body;
mod bulk;
mod codes;
mod connections;
mod copies;
mod count;
mod dead;
mod doctor;
mod durable;
mod ended;
mod feed;
mod files;
mod front;
mod handing_over;
mod handlers;
mod health;
mod history;
mod instances;
mod jobs;
mod kind_page;
mod kinds;
mod limits;
mod lines;
mod list;
mod metrics;
mod notes;
mod openapi;
mod overview;
pub(super) mod pages;
mod problem;
mod pull;
mod rate;
mod restore;
mod rights;
mod routes;
mod rules;
mod said;
mod series;
mod server;
mod servers;
mod settings;
mod tail;
mod tails;
#[cfg(test)]
mod tests;
mod ui;
mod upcoming;
mod warnings;
mod wire;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::ConnectInfo;
use axum::middleware::from_fn_with_state;
use axum::routing::MethodRouter;
use axum::{Extension, Router};
use keyfall::target::Pull;
use keyfall::{Client, Readiness};
use tokio_util::sync::CancellationToken;

pub(crate) use auth::{Grant, Scope, Tokens};
pub(super) use body::received;
pub(super) use connections::Sent;
pub(crate) use files::allow_connections;
pub(super) use front::{Code, told};
pub(super) use handing_over::handed_over;
pub(crate) use metrics::Recorder;
pub use pages::is_local;
pub(super) use pull::LONGEST_WAIT;
pub(crate) use routes::{RouteSet, RouteTerms, Routes};
pub(super) use server::listen;
pub(crate) use server::{bind, serve};
pub(crate) use settings::Settings;
pub use ui::{Ui, UiTerms};

use super::new_kinds::NewKinds;
use feed::Feed;
use handlers::{Calls, calls, with};
use problem::Problem;
use rate::Rate;
use tails::Tails;
use warnings::LiveRoutes;

/// The JSON of requests and answers, for programs that make these calls.
pub mod shapes {
    pub use super::actions::{ActionOut, ActionsIn, ActionsOut};
    pub use super::activity::{ActivityIn, ActivityOut, KindActivityOut, SpanIn, StepsOut};
    pub use super::archive::{
        ArchiveIn, ArchiveOut, ArchivePageOut, ArchivePrefixIn, ArchiveSearchIn, ArchiveSetOut,
        ArchivesOut, EndedOut,
    };
    pub use super::audit::{AuditIn, AuditOut, AuditedOut, DamageOut};
    pub use super::batch::BatchOut;
    pub use super::bulk::{BulkIn, BulkOut, BulkPostponeIn};
    pub use super::copies::{CopiesOut, CopyIn, CopyOut};
    pub use super::count::{CountIn, CountOut, LateServerOut};
    pub use super::dead::{
        DeadBulkIn, DeletedOut, GroupOut, GroupsIn, GroupsOut, LetterIn, LettersOut, RequeueIn,
        RequeuedOut,
    };
    pub use super::doctor::{DoctorOut, FindingOut, FixIn, SeverityOut};
    pub use super::durable::{DurableIn, ReachedOut};
    pub use super::ended::{
        ArchiveRequeueIn, ArchiveRequeueOut, EndedIn, EndedJobOut, EndedRequeueIn, EndedRequeuedOut,
    };
    pub use super::history::{HappeningOut, HistoryIn, HistoryOut, StoryIn, StoryOut};
    pub use super::instances::{
        BreakerIn, BreakerOut, InstanceOut, InstancesOut, RoutesOut, UnroutedOut,
    };
    pub use super::jobs::{
        CancelledOut, ChangedOut, Condition, NewJobIn, PayloadIn, PlacedOut, PostponeIn,
        ScheduledOut, ShowIn,
    };
    pub use super::kinds::{DroppedOut, KindsOut, PausedOut, SinceOut, SwitchedOut};
    pub use super::limits::{LimitIn, LimitOut, LimitsOut, UnlimitedOut};
    pub use super::list::{DamagedOut, ListIn, PageOut};
    pub use super::overview::{DueWithinOut, OverviewIn, OverviewKindOut, OverviewOut};
    pub use super::problem::Problem;
    pub use super::restore::{RestoreIn, RestoredAs, RestoredOut};
    pub use super::rights::RightsOut;
    pub use super::rules::{PreviewOut, RuleIn, RuleOut};
    pub use super::said::SaidOut;
    pub use super::series::{
        FateOut, MemberChangeOut, MemberIn, MemberOut, SeriesChangeOut, SeriesIn, SeriesOut,
        SeriesPreviewIn, StandOut,
    };
    pub use super::servers::{
        KindShardsOut, PacerOut, ServerOut, ServersOut, ShardJobsOut, ShardOut, ShardsIn,
        ShardsOut, TopologyOut,
    };
    pub use super::tail::{AliveOut, AwayOut, MissedOut, SkippedOut, TailIn, TailOut};
    pub use super::upcoming::{UpcomingIn, UpcomingOut};
    pub use super::warnings::WarningOut;
    pub use super::wire::{Job, Moment, Payloads, Span, State, Time, UnseenOut};
}

/// The state that all calls share.
pub(crate) struct Api {
    client: Client,
    /// The way to the consumers that pull.
    pull: Pull,
    routes: Routes,
    /// The routes of all instances.
    live_routes: LiveRoutes,
    /// The readiness of the worker whose jobs are pulled.
    readiness: Readiness,
    /// Cancelled when the daemon has to stop: then no call waits any longer.
    stopping: CancellationToken,
    settings: Settings,
    /// Without them, every client that reaches the daemon may do everything.
    tokens: Option<Box<dyn Tokens>>,
    rate: Option<Rate>,
    tails: Tails,
    shared_tails: Tails,
    /// Reads for the shared tails.
    feed: Feed,
    /// Limits the number of new kinds; `None` for no limit.
    new_kinds: Option<Arc<NewKinds>>,
    /// The metrics of this process, if it records any.
    recorder: Option<Recorder>,
    /// The archive of ended jobs.
    #[cfg(feature = "database")]
    database: Option<keyfall_database::Database>,
}

type Shared = axum::extract::State<Arc<Api>>;

impl Api {
    /// Serves the jobs that `pull` hands out, by the settings in `routes`, until `stopping` is
    /// cancelled.
    pub(crate) fn new(
        client: Client,
        pull: Pull,
        routes: Routes,
        readiness: Readiness,
        stopping: CancellationToken,
        settings: Settings,
        tokens: Option<Box<dyn Tokens>>,
    ) -> Self {
        Api {
            client,
            pull,
            routes,
            live_routes: LiveRoutes::default(),
            readiness,
            stopping,
            rate: settings.requests_per_second.map(Rate::new),
            settings,
            tokens,
            tails: Tails::alone(),
            shared_tails: Tails::shared(),
            feed: Feed::default(),
            new_kinds: None,
            recorder: None,
            #[cfg(feature = "database")]
            database: None,
        }
    }

    /// Limits the number of new kinds.
    pub(crate) fn new_kinds(mut self, limit: Arc<NewKinds>) -> Self {
        self.new_kinds = Some(limit);
        self
    }

    /// Looks for ended jobs in this database.
    #[cfg(feature = "database")]
    pub(crate) fn database(mut self, database: Option<keyfall_database::Database>) -> Self {
        self.database = database;
        self
    }

    /// Whether there is a database to look for ended jobs in.
    fn has_archive(&self) -> bool {
        #[cfg(feature = "database")]
        return self.database.is_some();
        #[cfg(not(feature = "database"))]
        false
    }

    /// Shows the metrics of this recorder.
    pub(crate) fn recorder(mut self, recorder: Recorder) -> Self {
        self.recorder = Some(recorder);
        self
    }
}

/// The calls, for a program that has a client of its own and makes them in its own process: without
/// tokens and without limits.
pub fn in_process(client: Client) -> Router {
    let settings = Settings {
        tls: None,
        body_limit: usize::MAX / 2,
        header_timeout: Duration::MAX,
        body_timeout: Duration::from_secs(24 * 3600),
        max_connections: usize::MAX,
        requests_per_second: None,
        trace_url: None,
        access_log: false,
        grace: Duration::ZERO,
    };
    let api = Api::new(
        client,
        Pull::new(),
        Routes::new(RouteSet::without_limits()),
        Readiness::default(),
        CancellationToken::new(),
        settings,
        None,
    );
    router(Arc::new(api)).layer(Extension(ConnectInfo(NOWHERE)))
}

/// The address of callers in this process, which use no network.
const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// All calls of the API.
static CALLS: [Calls; 61] = [
    calls!(jobs: put, show, cancel),
    calls!(jobs: postpone),
    calls!(jobs: fire),
    calls!(jobs: put_payload),
    calls!(rules: change),
    calls!(rules: pause),
    calls!(rules: resume),
    calls!(rules: preview),
    calls!(series: put, show, cancel),
    calls!(series: preview),
    calls!(restore: restore),
    calls!(list: list),
    calls!(count: count),
    calls!(bulk: cancel),
    calls!(bulk: postpone),
    calls!(bulk: fire),
    calls!(batch: batch),
    calls!(dead: show, delete),
    calls!(dead: requeue),
    calls!(dead: groups),
    calls!(dead: requeue_many),
    calls!(dead: delete_many),
    calls!(kinds: list),
    calls!(kinds: show, drop_kind),
    calls!(limits: list),
    calls!(limits: set, remove),
    calls!(archive: list, set, stop),
    calls!(archive: search),
    calls!(copies: list, set, stop),
    calls!(ended: show),
    calls!(ended: requeue),
    calls!(ended: requeue_many),
    calls!(kinds: paused),
    calls!(kinds: pause),
    calls!(kinds: resume),
    calls!(history: story),
    calls!(tail: tail),
    calls!(overview: overview),
    calls!(upcoming: upcoming),
    calls!(activity: activity),
    calls!(history: list, keep),
    calls!(audit: audit),
    calls!(actions: list),
    calls!(instances: routes),
    calls!(instances: list),
    calls!(instances: close_breaker),
    calls!(servers: servers),
    calls!(servers: shards),
    calls!(doctor: doctor),
    calls!(doctor: fix),
    calls!(rights: show),
    calls!(pull: pull),
    calls!(pull: finish),
    calls!(pull: extend),
    calls!(pull: fail),
    calls!(pull: snooze),
    calls!(metrics: show),
    calls!(openapi: show),
    calls!(codes: show),
    calls!(health: livez),
    calls!(health: readyz),
];

/// The router of all calls.
fn router(api: Arc<Api>) -> Router {
    let router = CALLS
        .iter()
        .fold(Router::new(), |router, calls| (calls.serve)(router));
    router
        .with_state(api.clone())
        .fallback(async || Problem::unknown_route())
        .method_not_allowed_fallback(async || Problem::wrong_method())
        .layer(from_fn_with_state(api, front::pass))
}
