//! SIGHUP: the daemon reads its configuration again, and takes routes, limits, recurring jobs and
//! certificate from it.

use anyhow::Context;
use axum_server::tls_rustls::RustlsConfig;
use keyfall::target::Pull;
use keyfall::{Client, Rerouter};
use tokio::signal::unix::Signal;

use super::options::{ClassicRoute, Options};
use super::service_manager::{reloaded, reloading};
use crate::config::{
    AlertsSection, Config, LimitConfig, RecurringConfig, RouteConfig, declare, declare_limits,
};
use crate::http::Routes;

/// The configuration that is read again on SIGHUP, and the parts that it updates.
pub(super) struct Reload {
    pub(super) options: Options,
    pub(super) pull: Pull,
    pub(super) classic: Option<ClassicRoute>,
    /// The routes and alert settings that hold now.
    pub(super) known: (Vec<RouteConfig>, AlertsSection),
    pub(super) client: Client,
    /// The limits that were declared.
    pub(super) limits: Vec<LimitConfig>,
    /// The recurring jobs that were declared.
    pub(super) recurring: Option<Vec<RecurringConfig>>,
    pub(super) routes: Routes,
    pub(super) rerouter: Rerouter,
    pub(super) tls: Option<RustlsConfig>,
}

impl Reload {
    /// Reads the configuration whenever the process is sent SIGHUP, for ever.
    pub(super) async fn run(mut self, mut hangups: Signal) {
        loop {
            hangups.recv().await;
            reloading();
            if let Err(error) = self.once().await {
                tracing::error!("{error:#}");
            }
            reloaded();
        }
    }

    /// Takes routes, certificate, limits and recurring jobs of the configuration, if it has no fault.
    ///
    /// # Errors
    /// What was not taken, and why.
    async fn once(&mut self) -> anyhow::Result<()> {
        const STAYS: &str = "the old configuration stays";
        let config = self.options.load().context(STAYS)?;
        self.serve(&config).await.context(STAYS)?;
        self.declare(&config).await.context(
            "routes, alerts and certificate of the new configuration hold, but not all of its \
             limits and recurring jobs: mend this, and send SIGHUP again",
        )?;
        tracing::info!(
            "certificate, limits and recurring jobs are those of the configuration, too; other \
             settings change only at a start"
        );
        Ok(())
    }

    /// Takes routes and alerts, and then the certificate. After an error the old ones hold.
    async fn serve(&mut self, config: &Config) -> anyhow::Result<()> {
        if (&config.routes, &config.alerts) == (&self.known.0, &self.known.1) {
            tracing::info!("the configuration was read again, and has the same routes");
        } else {
            let set = self
                .options
                .routes(config, &self.pull, self.classic.as_ref())?;
            self.rerouter.replace(set.router.clone()).await?;
            self.routes.replace(set);
            tracing::info!("the routes of the new configuration hold now");
            for route in &config.routes {
                tracing::info!("route {}", route.pattern);
            }
            self.known = (config.routes.clone(), config.alerts.clone());
        }
        if let (Some(serving), Some(read)) = (&self.tls, config.tls()) {
            serving.reload_from_config(read);
        }
        Ok(())
    }

    /// Declares the limits and recurring jobs that have changed.
    async fn declare(&mut self, config: &Config) -> keyfall::Result<()> {
        if config.limits != self.limits {
            declare_limits(&self.client, &config.limits).await?;
            self.limits.clone_from(&config.limits);
        }
        if let Some(jobs) = &config.recurring
            && config.recurring != self.recurring
        {
            declare(&self.client, &config.worker.declaration, jobs).await?;
            self.recurring.clone_from(&config.recurring);
        }
        Ok(())
    }
}
