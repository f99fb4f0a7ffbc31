//! The list of all settings, but for the routes. Everything else is made from it: the structs,
//! the flags, the variables of the environment, what the file may hold, and `default.toml`.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use super::alerts::Destination;
use super::classic::TopicPrefix;
use super::hosts::Hosts;
use super::redis_url::RedisUrl;
use super::rules::{
    at_least_one, if_any, lease, longer_than_zero, namespace, shards, size, up_to_a_day, wait,
};
use super::setting::{Section, Setting, first, settings};
use super::sources::Sources;
use super::value::{Bytes, Endpoint, LogFilter, Share, Value};
use crate::classic::{Existing, Networks};

settings! {
    /// The Redis that holds the jobs.
    redis: Redis {
        /// Where it is: redis://[user:password@]host:port/database, rediss:// for TLS,
        /// redis+unix:///path?db=0, redis+sentinel://host:port,host:port/master for a primary that
        /// sentinels watch, or redis+cluster://host:port,host:port. Several servers that have the jobs
        /// together are named one after the other, with spaces between, and in the same order everywhere;
        /// or each by a table [[redis.servers]], which is shown at the end of this file.
        /// A password has no place on a command line, which all users of the machine can list: name it by
        /// `password_file`, or write the URL into KEYFALL_REDIS_URL.
        url: RedisUrl = "redis://127.0.0.1:6379";
        /// A file that holds the URL, instead of `url`; those of several servers one a line.
        url_file: Option<PathBuf>, like "/run/secrets/redis-url";
        /// A file that holds the password, for a URL without one.
        password_file: Option<PathBuf>, like "/run/secrets/redis-password";
        /// Sentinels that say where Redis is, instead of the host in `url`, which then says no more
        /// than user, database and TLS: redis://user@/0 or rediss:///.
        sentinels: Option<Hosts>, like "10.0.0.5:26379, 10.0.0.6:26379, 10.0.0.7:26379";
        /// What they call the primary.
        master: Option<String>, like "main";
        /// The user of the sentinels, where they have users.
        sentinel_user: Option<String>, like "keyfall";
        /// A file that holds the password of the sentinels, where they have one.
        sentinel_password_file: Option<PathBuf>, like "/run/secrets/sentinel-password";
        /// Whether the sentinels speak TLS, with the certificates below.
        sentinel_tls: bool = "false";
        /// Some nodes of a cluster, instead of the host in `url`, which then says no more than user and
        /// TLS: redis://user@ or rediss://.
        nodes: Option<Hosts>, like "10.0.0.5:6379, 10.0.0.6:6379, 10.0.0.7:6379";
        /// What the names of all keys begin with, but for the triggers. Services and daemons that
        /// are to meet need the same.
        namespace: String = "keyfall" where namespace;
        /// With how many shards a kind starts that nobody has used yet. One, if it is not given, and on
        /// a cluster as many as it has primaries, rounded up to 2, 4 or 8.
        default_shards: Option<usize>, like "4" where shards;
        /// Whether to accept a Redis that drops any key when it is full, which loses jobs.
        allow_eviction: bool = "false";
        /// The certificates of the CA that signed that of Redis, as PEM, where this system does not
        /// trust it. No other is trusted then.
        ca_file: Option<PathBuf>, like "/etc/keyfall/ca.pem";
        /// The certificate to show to a Redis that asks for one, with its chain, as PEM.
        cert_file: Option<PathBuf>, like "/etc/keyfall/client.pem";
        /// The private key of `cert_file`, as PEM.
        key_file: Option<PathBuf>, like "/etc/keyfall/client.key";
        /// After how long a call to Redis gives up, its repeats included.
        call_timeout: Duration = "10s" where wait;
    }

    /// The HTTP API.
    http: Http {
        /// Where to listen: an IP address and a port. Without tokens, only an address that this
        /// machine alone can reach.
        listen: SocketAddr = "127.0.0.1:9276";
        /// The certificate to serve HTTPS with, and its chain, as PEM. Without it, plain HTTP.
        tls_cert_file: Option<PathBuf>, like "/etc/keyfall/tls.pem";
        /// The private key of `tls_cert_file`, as PEM.
        tls_key_file: Option<PathBuf>, like "/etc/keyfall/tls.key";
        /// The largest body of a request.
        body_limit: Bytes = "4MiB" where size;
        /// How long a client may take to send the head of a request.
        header_timeout: Duration = "10s" where wait;
        /// How long a client may take to send the body.
        body_timeout: Duration = "30s" where wait;
        /// How many connections may be open. Each consumer that waits for jobs holds one.
        max_connections: usize = "4096" where at_least_one;
        /// How many requests a second one token may make, or one address without a token, and how
        /// many jobs they may be about: a request counts as its first job, each further line of a
        /// batch and each further job of a pull as one more. A batch is slowed down. A pull hands
        /// out as many as may come in a second, which are counted when they are there, and before what
        /// comes next. Any number, if it is not given.
        requests_per_second: Option<NonZeroU32>, like "1000";
        /// How many kinds may begin in an hour by way of this daemon, [classic] included: kinds that
        /// nobody has used yet. They may come all at once. Names are kept until `keyfall kinds drop`.
        new_kinds: NonZeroU32 = "1000";
        /// How many of them by one token.
        new_kinds_per_token: NonZeroU32 = "100";
        /// Whether to log each request.
        access_log: bool = "true";
        /// How long a stop lets requests end that have begun.
        grace: Duration = "10s" where up_to_a_day;
    }

    /// The interface for clients of classic delay queues. Its limits are those of [http].
    classic: ClassicSection {
        /// Where to listen; without it, nowhere. Such clients know the port 9277. Without `allow`,
        /// only an address that this machine alone can reach.
        listen: Option<SocketAddr>, like "127.0.0.1:9277";
        /// What the keys of its jobs begin with, app:module. A topic is the third segment.
        prefix: Option<TopicPrefix>, like "app1:queue";
        /// How long a consumer has a job whose push does not say, before another one gets it.
        ttr: Duration = "60s" where lease;
        /// What becomes of a push whose id exists: it can "replace" the job, or "refuse".
        existing: Existing = "replace";
        /// How often a job is delivered at the most, before it becomes a dead letter. Without end,
        /// if it is not given.
        deliveries: Option<NonZeroU32>, like "100";
        /// The networks that may use it beside this machine: its clients know no tokens.
        allow: Option<Networks>, like "10.0.0.0/8, fd00::/8";
    }

    /// How jobs are run.
    worker: WorkerSection {
        /// How long a consumer has a job, where its route does not say, before another one gets
        /// it; consumers can extend it.
        lease: Duration = "60s" where lease;
        /// How long a stop waits for runs to end.
        grace: Duration = "25s" where up_to_a_day;
        /// Whether routes may adopt plain keys although Redis does not announce what is done to them,
        /// which loses those that expire before a search finds them.
        allow_unannounced: bool = "false";
        /// How many dead letters each kind keeps. The oldest go first.
        dead_letters: u64 = "10000" where at_least_one;
        /// For how long.
        dead_letter_age: Duration = "90d" where longer_than_zero;
    }

    /// What is told of jobs that end badly or start late: jobs of other kinds, one for each, due
    /// at once. A route can say it for its own.
    alerts: AlertsSection {
        /// The kind of the jobs that tell of dead letters.
        on_dead: Option<Destination>, like "ops:alerts:dead";
        /// How long after it was due a job may start.
        late_after: Option<Duration>, like "5s" where if_any;
        /// The kind of the jobs that tell of those that start later.
        on_late: Option<Destination>, like "ops:alerts:late";
    }

    /// Who may use the HTTP API.
    tokens: TokensSection {
        /// The file of tokens; `keyfall token make` makes it. Without it everybody who can reach the
        /// daemon may do everything.
        file: Option<PathBuf>, like "/etc/keyfall/tokens.toml";
    }

    /// What is logged, to the standard error.
    log: Log {
        /// A level, error, warn, info, debug or trace; or levels by module: "info,keyfall=debug".
        filter: LogFilter = "info";
    }

    /// Where traces are sent, over OTLP. The variables OTEL_… of the environment hold for what
    /// is not said here.
    traces: TracesSection {
        /// The collector, without the path /v1/traces. Without it, and without
        /// OTEL_EXPORTER_OTLP_ENDPOINT, nothing is traced.
        endpoint: Option<Endpoint>, like "http://127.0.0.1:4318";
        /// How many of the traces that begin here are recorded: 10% or 0.1. Traces that begin
        /// elsewhere are recorded here if they are there.
        sample: Option<Share>, like "10%";
        /// What the daemon is called in them.
        service: Option<String>, like "keyfall";
    }
}

/// The setting with this name.
pub(super) fn setting(section: &str, name: &str) -> &'static Setting {
    all()
        .find(|it| it.section == section && it.name == name)
        .expect("the list names all that is read")
}

/// All of them.
pub(super) fn all() -> impl Iterator<Item = &'static Setting> {
    SECTIONS.iter().flat_map(|section| section.settings)
}
