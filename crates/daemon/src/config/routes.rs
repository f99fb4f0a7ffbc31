//! The routes of a file.

use std::num::NonZeroU32;
use std::time::Duration;

use keyfall::target::Pull;
use keyfall::{Handler, MaxLateness, QuietHours, RetryPolicy, Router};
use serde::Deserialize;
use serde::de::IntoDeserializer;

use super::alerts::{self, RouteAlerts};
use super::fault::{Faults, Origin, Wrong};
use super::file::{Entry, File};
use super::recurring::json;
use super::rules::{lease, longer_than_zero, size};
use super::settings::{AlertsSection, Redis};
use super::target::{self, Target};
use super::value::{Adoption, Bytes, Rate};

/// The payload limit of a route that sets none, as in the library.
pub const PAYLOAD_LIMIT: usize = 1024 * 1024;

/// The fields of a route.
pub(super) const FIELDS: [&str; 16] = [
    "pattern",
    "target",
    "priority",
    "retry",
    "timeout",
    "max_lateness",
    "quiet",
    "lease",
    "concurrency",
    "rate",
    "payload_limit",
    "on_dead",
    "late_after",
    "on_late",
    "adoption",
    "durable",
];

/// One route, checked. `None` stands for an absent field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteConfig {
    pub pattern: String,
    pub target: Target,
    pub priority: i32,
    pub retry: Option<RetryPolicy>,
    pub timeout: Option<Duration>,
    pub max_lateness: Option<MaxLateness>,
    /// Hours at which no run begins.
    pub quiet: Option<QuietHours>,
    pub lease: Option<Duration>,
    /// The most of its jobs that consumers of this daemon hold at once.
    pub concurrency: Option<NonZeroU32>,
    /// The rate at which this daemon hands out its jobs.
    pub rate: Option<Rate>,
    /// The largest payload that this daemon takes for it.
    pub payload_limit: Option<Bytes>,
    pub alerts: RouteAlerts,
    /// Whether plain keys become its jobs.
    pub adoption: Adoption,
    /// The number of replicas that must have the settlement of a run.
    pub durable: Option<NonZeroU32>,
}

impl RouteConfig {
    /// The same route for checks of pattern and rank: the faults of its target have been reported.
    fn without_target(&self) -> Self {
        RouteConfig {
            target: Target::Pull,
            ..self.clone()
        }
    }

    /// # Errors
    /// If the pattern is invalid, or clashes with a route of the router.
    fn add_to(&self, router: Router, pull: &Pull, redis: &Redis) -> keyfall::Result<Router> {
        self.add_with(None, router, pull, redis)
    }

    /// The same, with the hook for late starts.
    fn add_with(
        &self,
        late_after: Option<Duration>,
        router: Router,
        pull: &Pull,
        redis: &Redis,
    ) -> keyfall::Result<Router> {
        let mut route = self.target.route(pull, redis).priority(self.priority);
        if let Some(policy) = &self.retry {
            route = route.retry(policy.clone());
        }
        if let Some(timeout) = self.timeout {
            route = route.timeout(timeout);
        }
        if let Some(MaxLateness { limit, then }) = self.max_lateness {
            route = route.max_lateness(limit, then);
        }
        if let Some(hours) = &self.quiet {
            route = route.quiet(hours.clone());
        }
        if let Some(lease) = self.lease {
            route = route.lease(lease);
        }
        if let Some(jobs) = self.concurrency {
            route = route.concurrency(jobs.get() as usize);
        }
        if let Some(rate) = self.rate {
            route = route.rate(rate.count.get(), rate.per);
        }
        if let Some(limit) = late_after {
            route = route.late_after(limit);
        }
        if let Some(replicas) = self.durable {
            route = route.durable(replicas.get());
        }
        if let Some(missing) = self.adoption.0 {
            let limit = self.payload_limit.map_or(PAYLOAD_LIMIT, |limit| limit.0);
            route = route.adopt(missing).payload_limit(limit);
        }
        router.try_route(&self.pattern, route)
    }
}

/// The routes in the form of the library; pulled jobs come from `pull`.
pub(super) fn router(
    routes: &[RouteConfig],
    pull: &Pull,
    redis: &Redis,
    alerts: &AlertsSection,
) -> Router {
    let add = |router, route: &RouteConfig| {
        let late_after = route.alerts.or(alerts).late_after;
        route.add_with(late_after, router, pull, redis)
    };
    let router = routes.iter().try_fold(Router::new(), add);
    router.expect("routes are checked when they are read")
}

/// The context in which a route is read.
pub(super) struct Context<'a> {
    /// The most bytes of a request.
    pub(super) body: Bytes,
    /// The Redis of the jobs.
    pub(super) redis: &'a Redis,
    /// The settings for all routes, and their places.
    pub(super) alerts: (&'a AlertsSection, &'a [(&'static str, Origin)]),
    /// The environment.
    pub(super) env: &'a dyn Fn(&str) -> Option<String>,
}

/// Reads all routes, and reports the faults of each. `classic` is the route of the classic
/// interface, with the place of the setting that asks for it.
pub(super) fn read(
    file: &File<'_>,
    context: &Context<'_>,
    classic: Option<(String, Origin)>,
    faults: &mut Faults,
) -> Vec<RouteConfig> {
    let pull = Pull::new();
    let mut router = Router::new();
    let mut known: Vec<(RouteConfig, Origin)> = Vec::new();
    let entries: Vec<Entry<'_>> = file.routes().collect();
    let read = |entry| Some((one(entry, file.is_broken, context, faults)?, entry));
    let read: Vec<(RouteConfig, &Entry<'_>)> = entries.iter().filter_map(read).collect();
    let said: Vec<alerts::GivenAlerts<'_>> = read
        .iter()
        .map(|(route, entry)| (&*route.pattern, &route.alerts, *entry))
        .collect();
    let (all, all_at) = context.alerts;
    let all_at = |name: &str| {
        let mut all_at = all_at.iter();
        all_at
            .find(|(known, _)| *known == name)
            .map_or(Origin::Default, |(_, at)| at.clone())
    };
    alerts::check(all, all_at, &said, faults);
    for (route, entry) in read {
        let at = entry.at("pattern");
        match route
            .without_target()
            .add_to(router.clone(), &pull, context.redis)
        {
            Ok(longer) => {
                router = longer;
                known.push((route, at));
            }
            Err(_) => {
                let is_rival = |(known, _): &&(RouteConfig, _)| {
                    let alone = known
                        .without_target()
                        .add_to(Router::new(), &pull, context.redis);
                    let both = |alone| route.without_target().add_to(alone, &pull, context.redis);
                    alone.is_ok_and(|alone| both(alone).is_err())
                };
                let rival = known.iter().find(is_rival);
                faults.add(at, "route.pattern", clash(&route, rival));
            }
        }
    }
    if let Some((pattern, at)) = classic {
        let clashes = |(route, _): &&(RouteConfig, _)| {
            let alone = route.add_to(Router::new(), &pull, context.redis);
            alone.is_ok_and(|alone| alone.try_route(&pattern, Pull::new()).is_err())
        };
        if let Some((rival, place)) = known.iter().find(clashes) {
            faults.add(at, "classic.prefix", classic_clash(&pattern, rival, place));
        }
    }
    known.into_iter().map(|(route, _)| route).collect()
}

fn classic_clash(pattern: &str, rival: &RouteConfig, place: &Origin) -> Wrong {
    Wrong::new(
        format_args!(
            "its route `{pattern}` clashes with `{}` at {place}: both have the same rank and can \
             match the same key",
            rival.pattern
        ),
        "leave that route out, make it more specific, give it another `priority`, or keep the \
         topics below another prefix",
    )
}

fn clash(route: &RouteConfig, rival: Option<&(RouteConfig, Origin)>) -> Wrong {
    let rival = rival.map_or("another route".to_owned(), |(rival, at)| {
        format!("`{}` at {at}", rival.pattern)
    });
    Wrong::new(
        format_args!(
            "`{}` clashes with {rival}: both have the same rank and can match the same key",
            route.pattern
        ),
        "make one of them more specific, with a literal or a narrower regex, or give one a \
         higher `priority`",
    )
}

/// Reads one route, if it has a pattern; its other faults do not hide a clash of two patterns.
/// Hours as text, or a table.
fn quiet(entry: &Entry<'_>, faults: &mut Faults) -> Option<QuietHours> {
    let value = json(entry.raw("quiet")?.get_ref());
    if value["instead"] == "earlier" {
        let wrong = Wrong::new(
            "it asks for an earlier start, and a daemon cannot start a job before it is due",
            "write \"later\" or \"skip\", or give the quiet hours to the jobs",
        );
        entry.fault("quiet", wrong, faults);
        return None;
    }
    serde_json::from_value(value)
        .map_err(|error| entry.fault("quiet", Wrong(error.to_string()), faults))
        .ok()
}

fn one(
    entry: &Entry<'_>,
    is_broken: bool,
    context: &Context<'_>,
    faults: &mut Faults,
) -> Option<RouteConfig> {
    entry.find_strangers(&FIELDS, faults);
    let missing = |field: &str, remedy: &str, faults: &mut Faults| {
        if entry.raw(field).is_none() && !is_broken {
            let wrong = Wrong::new("it is missing", format_args!("write `{remedy}`"));
            faults.add(entry.origin.clone(), format!("route.{field}"), wrong);
        }
    };
    missing("pattern", "pattern = \"app1:trans:notice:*\"", faults);
    missing("target", "target = \"pull\"", faults);
    let target = target::read(entry, context, faults);
    let route = RouteConfig {
        pattern: String::new(),
        target: target.unwrap_or(Target::Pull),
        priority: entry.value("priority", &[], faults).unwrap_or(0),
        retry: retry(entry, faults),
        timeout: entry.value("timeout", &[longer_than_zero], faults),
        max_lateness: entry.value("max_lateness", &[], faults),
        quiet: quiet(entry, faults),
        lease: entry.value("lease", &[lease], faults),
        concurrency: entry.value("concurrency", &[], faults),
        rate: entry.value("rate", &[], faults),
        payload_limit: entry.value("payload_limit", &[size], faults),
        alerts: RouteAlerts::read(entry, faults),
        adoption: entry.value("adoption", &[], faults).unwrap_or_default(),
        durable: entry.value("durable", &[], faults),
    };
    if route
        .payload_limit
        .is_some_and(|limit| limit > context.body)
    {
        let wrong = Wrong::new(
            format_args!(
                "it is more than a request may hold, {} bytes",
                context.body.0
            ),
            "raise `http.body_limit`, or lower this",
        );
        faults.add(entry.at("payload_limit"), "route.payload_limit", wrong);
    }
    let pattern: String = entry.value("pattern", &[], faults)?;
    if let Err(error) = Router::<()>::new().try_route(&pattern, Pull::new()) {
        let wrong = Wrong(error.to_string());
        faults.add(entry.at("pattern"), "route.pattern", wrong);
        return None;
    }
    Some(RouteConfig { pattern, ..route })
}

fn retry(entry: &Entry<'_>, faults: &mut Faults) -> Option<RetryPolicy> {
    let policy = entry.raw("retry")?.clone().into_deserializer();
    match RetryPolicy::deserialize(policy) {
        Ok(policy) => Some(policy),
        Err(error) => {
            let wrong = Wrong(error.message().to_owned());
            faults.add(entry.at("retry"), "route.retry", wrong);
            None
        }
    }
}
