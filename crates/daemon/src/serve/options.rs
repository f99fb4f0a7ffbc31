//! The arguments of `keyfall serve`, and the routes that follow from them.

use std::collections::HashMap;
use std::num::NonZeroU32;

use keyfall::target::Pull;
use keyfall::{Handler, Route};

use crate::classic::Terms;
use crate::config::destinations;
use crate::config::{Alerts, AlertsSection, Args, Config, RouteAlerts, RouteConfig};
use crate::http::{RouteSet, RouteTerms};

#[derive(clap::Args)]
pub struct Options {
    #[command(flatten)]
    args: Args,
    /// Let consumers pull the jobs that match this pattern, beside the routes of the file; all
    /// jobs, if there is neither
    #[arg(long = "pull", value_name = "PATTERN")]
    patterns: Vec<String>,
}

impl Options {
    /// # Errors
    /// All faults of the configuration.
    pub fn load(&self) -> anyhow::Result<Config> {
        Config::load(&self.args).map_err(|faults| {
            let s = if faults.count() == 1 { "" } else { "s" };
            anyhow::anyhow!(
                "the configuration has {} fault{s}\n{faults}",
                faults.count()
            )
        })
    }

    /// The routes of the file, of the command line, and of the classic interface.
    ///
    /// # Errors
    /// If they clash.
    pub(super) fn routes(
        &self,
        config: &Config,
        pull: &Pull,
        classic: Option<&ClassicRoute>,
    ) -> anyhow::Result<RouteSet> {
        let all = [String::from("*:*:*:*")];
        let patterns = match self.patterns.as_slice() {
            [] if config.routes.is_empty() => &all,
            patterns => patterns,
        };
        let alerts = RouteAlerts::default().or(&config.alerts);
        let mut router = config.router(pull);
        for pattern in patterns {
            router = router.try_route(pattern, late(pull.clone().into_route(), &alerts))?;
        }
        let mut terms = terms(&config.routes, &config.alerts);
        if let Some(classic) = classic {
            let pattern = classic.terms.pattern();
            router =
                router.try_route(&pattern, late(classic.terms.route(&classic.pull), &alerts))?;
            let of_route = RouteTerms {
                retry: Some(classic.terms.retry()),
                payload_limit: Some(config.http.body_limit.0),
                durable: None,
                alerts: alerts.clone(),
            };
            terms.insert(pattern, of_route);
        }
        let of_routes = config.routes.iter().map(|route| &route.alerts);
        Ok(RouteSet {
            router,
            terms,
            destinations: destinations(&config.alerts, of_routes),
            alerts,
            is_served: true,
        })
    }
}

/// The route of the classic interface, which does not change while the process lives.
pub(super) struct ClassicRoute {
    pub(super) terms: Terms,
    pub(super) pull: Pull,
}

/// The same route, with the hook for late starts.
fn late(route: Route, alerts: &Alerts) -> Route {
    match alerts.late_after {
        Some(limit) => route.late_after(limit),
        None => route,
    }
}

/// The settings of each pattern. Of routes with the same pattern, the one with the highest priority
/// gets all jobs.
fn terms(routes: &[RouteConfig], alerts: &AlertsSection) -> HashMap<String, RouteTerms> {
    let mut routes: Vec<&RouteConfig> = routes.iter().collect();
    routes.sort_by_key(|route| route.priority);
    let terms = |route: &RouteConfig| RouteTerms {
        retry: route.retry.clone(),
        payload_limit: route.payload_limit.map(|limit| limit.0),
        durable: route.durable.map(NonZeroU32::get),
        alerts: route.alerts.or(alerts),
    };
    let named = routes
        .into_iter()
        .map(|route| (route.pattern.clone(), terms(route)));
    named.collect()
}
