//! The list of all settings, except the routes. Everything else is made from it: the structs, the
//! flags, the variables of the environment, the fields of the file, and `default.toml`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::alerts::Destination;
use super::classic::TopicPrefix;
use super::database::DatabaseUrl;
use super::hosts::Hosts;
use super::redis_url::RedisUrl;
use super::rules::{
    at_least_one, if_any, lease, longer_than_zero, namespace, shards, size, trace_url, up_to_a_day,
    wait,
};
use super::setting::{Section, Setting, first, settings};
use super::sources::Sources;
use super::value::{Bytes, Endpoint, LogFilter, Share, Value};
use crate::classic::{Existing, Networks};

settings! {
    /// The Redis that holds the jobs.
    redis: Redis {
        /// The place of Redis: redis://[user:password@]host:port/database, rediss:// for TLS,
        /// redis+unix:///path?db=0, redis+sentinel://host:port,host:port/master for a primary that
        /// sentinels watch, or redis+cluster://host:port,host:port. Several servers that hold the
        /// jobs together are listed with spaces between them, in the same order everywhere; or each
        /// has a table [[redis.servers]], shown at the end of this file.
        /// A password has no place on a command line, which all users of the machine can list: name
        /// it by `password_file`, or write the URL into KEYFALL_REDIS_URL.
        url: RedisUrl = "redis://127.0.0.1:6379";
        /// A file that holds the URL, instead of `url`; with several servers, one URL a line.
        url_file: Option<PathBuf>, like "/run/secrets/redis-url";
        /// A file that holds the password, for a URL without one.
        password_file: Option<PathBuf>, like "/run/secrets/redis-password";
        /// Sentinels that know the place of Redis, instead of the host in `url`, which then holds
        /// only user, database and TLS: redis://user@/0 or rediss:///.
        sentinels: Option<Hosts>, like "10.0.0.5:26379, 10.0.0.6:26379, 10.0.0.7:26379";
        /// The sentinels' name for the primary.
        master: Option<String>, like "main";
        /// The user at the sentinels, if they require one.
        sentinel_user: Option<String>, like "keyfall";
        /// A file that holds the password of the sentinels, if they require one.
        sentinel_password_file: Option<PathBuf>, like "/run/secrets/sentinel-password";
        /// Whether the sentinels speak TLS, with the certificates below.
        sentinel_tls: bool = "false";
        /// Some nodes of a cluster, instead of the host in `url`, which then says no more than user and
        /// TLS: redis://user@ or rediss://.
        nodes: Option<Hosts>, like "10.0.0.5:6379, 10.0.0.6:6379, 10.0.0.7:6379";
        /// The start of all key names except triggers. Services and daemons that share jobs need
        /// the same.
        namespace: String = "keyfall" where namespace;
        /// The number of shards of a new kind. Defaults to 1; on a cluster, to the number of its
        /// primaries, rounded up to 2, 4 or 8.
        default_shards: Option<usize>, like "4" where shards;
        /// Whether to accept a Redis that drops any key when it is full, which loses jobs.
        allow_eviction: bool = "false";
        /// The certificates of the CA that signed the certificate of Redis, as PEM, if this system
        /// does not trust it. No other CA is trusted then.
        ca_file: Option<PathBuf>, like "/etc/keyfall/ca.pem";
        /// The certificate to show to a Redis that asks for one, with its chain, as PEM.
        cert_file: Option<PathBuf>, like "/etc/keyfall/client.pem";
        /// The private key of `cert_file`, as PEM.
        key_file: Option<PathBuf>, like "/etc/keyfall/client.key";
        /// The time after which a call to Redis gives up, its repeats included.
        call_timeout: Duration = "10s" where wait;
    }

    /// The HTTP API.
    http: Http {
        /// The address to listen at: an IP address and a port. Without tokens, only an address that
        /// this machine alone can reach.
        listen: SocketAddr = "127.0.0.1:9276";
        /// The certificate to serve HTTPS with, and its chain, as PEM. Without it, plain HTTP.
        tls_cert_file: Option<PathBuf>, like "/etc/keyfall/tls.pem";
        /// The private key of `tls_cert_file`, as PEM.
        tls_key_file: Option<PathBuf>, like "/etc/keyfall/tls.key";
        /// The largest body of a request.
        body_limit: Bytes = "4MiB" where size;
        /// The time in which a client must send the head of a request.
        header_timeout: Duration = "10s" where wait;
        /// The time in which a client must send the body.
        body_timeout: Duration = "30s" where wait;
        /// The most open connections. Each consumer that waits for jobs holds one.
        max_connections: usize = "4096" where at_least_one;
        /// The most requests a second of one token, or of one address without a token, and the most
        /// jobs of these requests: a request counts as its first job, each further line of a batch
        /// and each further job of a pull as one more. A batch is slowed down. A pull hands out at
        /// most the jobs of one second, which are counted once their number is known, and before
        /// the next request. No limit by default.
        requests_per_second: Option<NonZeroU32>, like "1000";
        /// The most new kinds in an hour through this daemon, [classic] included. They may come all
        /// at once. Names of kinds are kept until `keyfall kinds drop`.
        new_kinds: NonZeroU32 = "1000";
        /// The most new kinds in an hour of one token.
        new_kinds_per_token: NonZeroU32 = "100";
        /// Whether to serve the web page, at /ui.
        ui: bool = "true";
        /// The page of a trace in another program, with {trace_id} in the place of its id: the web
        /// page links to it from jobs that have the header `traceparent`.
        trace_url: Option<String>, like "https://tempo.example.org/trace/{trace_id}"
            where trace_url;
        /// Whether to log each request.
        access_log: bool = "true";
        /// How long a stop waits for requests in progress.
        grace: Duration = "10s" where up_to_a_day;
    }

    /// The interface for clients of classic delay queues. The limits of [http] apply to it.
    classic: ClassicSection {
        /// The address to listen at; the interface is off without it. Such clients know the port
        /// 9277. Without `allow`, only an address that this machine alone can reach.
        listen: Option<SocketAddr>, like "127.0.0.1:9277";
        /// The start of the keys of its jobs, app:module. A topic is the third segment.
        prefix: Option<TopicPrefix>, like "app1:queue";
        /// The lease of a consumer, if the push does not name one: then another consumer gets the
        /// job.
        ttr: Duration = "60s" where lease;
        /// The effect of a push with an existing id: "replace" the job, or "refuse" the push.
        existing: Existing = "replace";
        /// The most deliveries of a job, before it becomes a dead letter. No limit by default.
        deliveries: Option<NonZeroU32>, like "100";
        /// The networks that may use it beside this machine: its clients know no tokens.
        allow: Option<Networks>, like "10.0.0.0/8, fd00::/8";
    }

    /// The worker, which runs jobs and hands them out.
    worker: WorkerSection {
        /// The lease of a consumer, if the route does not set one: then another consumer gets the
        /// job. Consumers can extend it.
        lease: Duration = "60s" where lease;
        /// How long a stop waits for runs to end.
        grace: Duration = "25s" where up_to_a_day;
        /// Whether routes may adopt plain keys although Redis does not announce changes of keys.
        /// Keys that expire before a search finds them are lost then.
        allow_unannounced: bool = "false";
        /// The most dead letters of each shard of a kind. The oldest go first.
        dead_letters: u64 = "10000" where at_least_one;
        /// How long dead letters are kept.
        dead_letter_age: Duration = "90d" where longer_than_zero;
        /// The name under which the file declares its recurring jobs, shown at the end of this file.
        /// Daemons with the same jobs share a name; others need one of their own.
        declaration: String = "main";
    }

    /// Alerts about jobs that end as dead letters or start late: one job of another kind for each,
    /// due at once. A route can override these settings.
    alerts: AlertsSection {
        /// The kind of the jobs that tell of dead letters.
        on_dead: Option<Destination>, like "ops:alerts:dead";
        /// The lateness from which on a start counts as late.
        late_after: Option<Duration>, like "5s" where if_any;
        /// The kind of the alerts about late starts.
        on_late: Option<Destination>, like "ops:alerts:late";
    }

    /// The tokens of the clients of the HTTP API.
    tokens: TokensSection {
        /// The file of tokens; `keyfall token make` makes it. Without it, every client that can
        /// reach the daemon may do everything.
        file: Option<PathBuf>, like "/etc/keyfall/tokens.toml";
    }

    /// The PostgreSQL in which programs schedule jobs within their own transactions; docs/database.md.
    /// Nothing of this is done without a URL.
    database: DatabaseSection {
        /// The place of the database: postgresql://user@host:5432/name, or keywords and values,
        /// host=/run/postgresql dbname=name. With sslmode=require, nothing is sent without TLS.
        /// A password has no place on a command line: name it by `password_file`, or write the URL
        /// into KEYFALL_DATABASE_URL.
        url: Option<DatabaseUrl>, like "postgresql://keyfall@127.0.0.1:5432/orders";
        /// A file that holds the password, for a URL without one.
        password_file: Option<PathBuf>, like "/run/secrets/database-password";
        /// The certificates of the CA that signed the certificate of the database, as PEM, if this
        /// system does not trust it. No other CA is trusted then.
        ca_file: Option<PathBuf>, like "/etc/keyfall/database-ca.pem";
        /// The most connections, beside the one that listens.
        connections: usize = "4" where at_least_one;
        /// How long a statement may take.
        statement_timeout: Duration = "30s" where wait;
        /// Whether to make the tables, and to bring them up to date, at the start. Without it, they
        /// are checked: `keyfall database migrate` makes them, as a role with more rights.
        migrate: bool = "true";
        /// Whether the daemon refuses to start beside a Redis that has lost jobs of which the
        /// database has a copy. Without it, only the log, a metric, `keyfall doctor` and
        /// `keyfall database check` say so.
        refuse_lost_data: bool = "false";
    }

    /// The log, on the standard error.
    log: Log {
        /// A level, error, warn, info, debug or trace; or levels by module: "info,keyfall=debug".
        filter: LogFilter = "info";
    }

    /// Traces, sent over OTLP. The variables OTEL_… of the environment apply to settings that are
    /// absent here.
    traces: TracesSection {
        /// The collector, without the path /v1/traces. Without it, and without
        /// OTEL_EXPORTER_OTLP_ENDPOINT, nothing is traced.
        endpoint: Option<Endpoint>, like "http://127.0.0.1:4318";
        /// The share of the traces beginning here that is recorded: 10% or 0.1. Traces that begin
        /// elsewhere are recorded here if they are recorded there.
        sample: Option<Share>, like "10%";
        /// The name of the daemon in traces.
        service: Option<String>, like "keyfall";
    }
}

/// The setting with this name.
pub(super) fn setting(section: &str, name: &str) -> &'static Setting {
    all()
        .find(|it| it.section == section && it.name == name)
        .expect("the list names every setting")
}

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}
