//! The configuration of `keyfall serve`: settings from the command line, the environment and a
//! file, and the routes of that file.
//!
//! | part | task |
//! |---|---|
//! | [`settings`] | lists all settings; [`setting`] makes structs of the list |
//! | [`value`], [`rules`] | how values are written, and in which ranges they lie |
//! | [`mod@file`], [`flags`] | the places of values |
//! | [`sources`] | the precedence of the places |
//! | [`misspelt`] | variables whose names have a slip |
//! | [`limits`] | the limits of the file |
//! | [`recurring`] | the recurring jobs of the file |
//! | [`redis_url`], [`hosts`], [`sentinels`], [`servers`], [`tls`], [`alerts`], [`classic`], [`database`], [`routes`], [`target`] | rules that join several values |
//! | [`fault`] | faults, with their places |
//!
//! All sources are read before anything is refused, so that all faults are reported at once.

mod alerts;
mod classic;
mod database;
mod fault;
mod file;
mod flags;
mod hosts;
mod limits;
mod misspelt;
mod recurring;
mod redis_url;
mod routes;
mod rules;
mod sentinels;
mod servers;
mod setting;
#[allow(
    rustdoc::broken_intra_doc_links,
    reason = "its comments are printed as help: `[http]` is a section of the file"
)]
mod settings;
mod sources;
mod target;
#[cfg(test)]
mod tests;
mod tls;
mod value;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use keyfall::target::Pull;
use keyfall::{Client, ClientBuilder, Router, Worker};

pub use alerts::{Alerts, RouteAlerts, destinations};
pub use fault::{Faults, Origin};
pub use flags::{Args, Flags, RedisFlags};
pub use limits::{LimitConfig, declare_limits};
pub use misspelt::misspelt_variables;
pub use recurring::{RecurringConfig, declare};
pub use routes::{PAYLOAD_LIMIT, RouteConfig};
pub use settings::{
    AlertsSection, ClassicSection, DatabaseSection, Http, Log, Redis, TokensSection, TracesSection,
    WorkerSection,
};

use super::classic::Terms;
use fault::Wrong;
use file::File;
use routes::Context;
use settings::Settings;
use sources::{Given, Sources};

/// All settings at their defaults, each with a comment.
pub const DEFAULT: &str = include_str!("default.toml");

/// A configuration without a fault.
#[derive(Debug, Clone)]
pub struct Config {
    pub redis: Redis,
    pub http: Http,
    pub classic: ClassicSection,
    pub worker: WorkerSection,
    pub alerts: AlertsSection,
    pub tokens: TokensSection,
    pub database: DatabaseSection,
    pub log: Log,
    pub traces: TracesSection,
    /// In the order of the file.
    pub routes: Vec<RouteConfig>,
    /// The limits, in the order of the file.
    pub limits: Vec<LimitConfig>,
    /// The recurring jobs; `None` if the file declares none.
    pub recurring: Option<Vec<RecurringConfig>>,
    tls: Option<Arc<rustls::ServerConfig>>,
    classic_terms: Option<Terms>,
    #[cfg(feature = "database")]
    database_settings: Option<keyfall_database::Settings>,
    given: Vec<Given>,
}

impl Config {
    /// Reads the file, if one is named, the environment and the flags. A second call reads all of
    /// them again.
    ///
    /// # Errors
    /// All faults of the configuration.
    pub fn load(args: &Args) -> Result<Config, Faults> {
        let env = |name: &str| std::env::var(name).ok();
        let of_env = || env(CONFIG_ENV).filter(|path| !path.is_empty());
        let (path, from) = match (&args.config, of_env()) {
            (Some(path), _) => (path.clone(), Origin::Flag("--config".into())),
            (None, Some(path)) => (PathBuf::from(path), Origin::Env(CONFIG_ENV.into())),
            (None, None) => return Config::read(None, &env, &args.flags),
        };
        match std::fs::read_to_string(&path) {
            Ok(text) => Config::read(Some((&path, &text)), &env, &args.flags),
            Err(error) => {
                let mut faults = Faults::default();
                let wrong = Wrong(format!("{} cannot be read: {error}", path.display()));
                faults.add(from, "", wrong);
                Err(faults)
            }
        }
    }

    /// The same, from the text of a file and from `env` as the environment.
    fn read(
        file: Option<(&Path, &str)>,
        env: &dyn Fn(&str) -> Option<String>,
        flags: &Flags,
    ) -> Result<Config, Faults> {
        let mut faults = Faults::default();
        let file = match file {
            Some((path, text)) => File::parse(path, text, &mut faults),
            None => File::none(),
        };
        let mut sources = Sources {
            file,
            env,
            flags,
            faults,
            given: Vec::new(),
        };
        let mut settings = Settings::read(&mut sources);
        redis_url::resolve(&mut settings.redis, &mut sources);
        let tls = tls::read(&settings.http, &mut sources);
        check_access(&settings, &mut sources);
        let classic_terms = classic::terms(&settings, &mut sources);
        #[cfg(feature = "database")]
        let database_settings = database::read(&settings.database, &mut sources);
        #[cfg(not(feature = "database"))]
        database::refuse(&settings.database, &mut sources);
        let classic_route = classic::route(classic_terms.as_ref(), &sources);
        let alerts_at = |name: &str| sources.origin("alerts", name);
        let alerts_at = ["late_after", "on_late"].map(|name| (name, alerts_at(name)));
        let Sources {
            file,
            mut faults,
            given,
            ..
        } = sources;
        let context = Context {
            alerts: (&settings.alerts, &alerts_at),
            body: settings.http.body_limit,
            redis: &settings.redis,
            env,
        };
        let routes = routes::read(&file, &context, classic_route, &mut faults);
        let limits = limits::read(&file, &mut faults);
        let recurring = recurring::read(&file, &mut faults);
        faults.or(Config {
            redis: settings.redis,
            http: settings.http,
            classic: settings.classic,
            worker: settings.worker,
            alerts: settings.alerts,
            tokens: settings.tokens,
            database: settings.database,
            log: settings.log,
            traces: settings.traces,
            routes,
            limits,
            recurring,
            tls,
            classic_terms,
            #[cfg(feature = "database")]
            database_settings,
            given,
        })
    }

    /// A client of this Redis, for [`connect`](ClientBuilder::connect). It takes payloads as large
    /// as a request can hold: the route of a job has the exact limit, and routes can change.
    pub fn client(&self) -> ClientBuilder {
        self.redis.client().payload_limit(self.http.body_limit.0)
    }

    /// The routes. Pulled jobs come from `pull`.
    pub fn router(&self, pull: &Pull) -> Router {
        routes::router(&self.routes, pull, &self.redis, &self.alerts)
    }

    /// The address and the settings of the classic interface; `None` if it is off.
    pub fn classic(&self) -> Option<(SocketAddr, Terms)> {
        Some((self.classic.listen?, self.classic_terms.clone()?))
    }

    /// A worker for these routes.
    pub fn worker(&self, client: Client, router: Router) -> Worker {
        Worker::new(client, router)
            .lease(self.worker.lease)
            .grace(self.worker.grace)
            .allow_unannounced(self.worker.allow_unannounced)
            .dead_letters(self.worker.dead_letters, self.worker.dead_letter_age)
    }

    /// The certificate to serve HTTPS with.
    pub fn tls(&self) -> Option<Arc<rustls::ServerConfig>> {
        self.tls.clone()
    }

    /// The place of the database; `None` if no setting names it.
    #[cfg(feature = "database")]
    pub fn database_settings(&self) -> Option<&keyfall_database::Settings> {
        self.database_settings.as_ref()
    }

    /// Whether a setting names the place of Redis.
    pub fn names_redis(&self) -> bool {
        let mut given = self.given.iter();
        let names = [
            "redis.url",
            "redis.url_file",
            "redis.sentinels",
            "redis.nodes",
        ];
        given.any(|given| names.contains(&&*given.setting.field()))
    }

    /// The settings that differ from their defaults: the setting, its value without secrets, and
    /// the place where it was given.
    pub fn given(&self) -> impl Iterator<Item = (String, &str, &Origin)> {
        let given = self.given.iter();
        given.map(|given| (given.setting.field(), &*given.shown, &given.origin))
    }
}

impl Redis {
    /// The place of Redis, for commands that read no file; and the source that named it.
    ///
    /// # Errors
    /// All faults of these settings.
    pub fn load(flags: &RedisFlags) -> Result<(Redis, Origin), Faults> {
        let mut sources = Sources {
            file: File::none(),
            env: &|name| std::env::var(name).ok(),
            flags: &flags.0,
            faults: Faults::default(),
            given: Vec::new(),
        };
        let mut redis = Redis::read(&mut sources);
        redis_url::resolve(&mut redis, &mut sources);
        let names = ["url", "url_file", "sentinels", "nodes"];
        let places = names.map(|name| sources.origin("redis", name));
        let place = places.into_iter().max().unwrap_or(Origin::Default);
        sources.faults.or((redis, place))
    }

    /// A client of this Redis.
    pub fn client(&self) -> ClientBuilder {
        let mut builder = Client::builder(self.url.reveal())
            .namespace(&self.namespace)
            .allow_eviction(self.allow_eviction)
            .call_timeout(self.call_timeout);
        if let Some(shards) = self.default_shards {
            builder = builder.default_shards(u16::try_from(shards).unwrap_or(u16::MAX));
        }
        if let Some(ca) = &self.ca_file {
            builder = builder.ca_certificate_file(ca);
        }
        if let (Some(chain), Some(key)) = (&self.cert_file, &self.key_file) {
            builder = builder.client_certificate_files(chain, key);
        }
        builder
    }
}

/// The variable with the name of the file, if no flag names it.
const CONFIG_ENV: &str = "KEYFALL_CONFIG";

/// Refuses an address that others can reach, if no tokens protect it.
fn check_access(settings: &Settings, sources: &mut Sources<'_>) {
    let listen = settings.http.listen;
    match &settings.tokens.file {
        Some(path) => {
            if let Err(error) = super::tokens::Tokens::open(path) {
                sources.fault("tokens", "file", Wrong(format!("{error:#}")));
            }
        }
        None if listen.ip().to_canonical().is_loopback() => {}
        None => {
            let wrong = Wrong::new(
                format_args!("{listen} can be reached from elsewhere, and there are no tokens"),
                "name a file of them by `tokens.file`, made by `keyfall token make`, or listen on \
                 127.0.0.1 or [::1]",
            );
            sources.fault("http", "listen", wrong);
        }
    }
}
