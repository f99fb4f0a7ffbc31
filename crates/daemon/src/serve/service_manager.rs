//! The service manager, which is systemd as a rule: it is told by the protocol of `sd_notify` when
//! the daemon is ready, reloads, stops and lives, and it restarts a daemon that hangs. Nothing is told
//! if the process was started otherwise.

use std::time::Duration;

use keyfall::Readiness;
use sd_notify::NotifyState;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// How often a starting daemon looks whether it is ready.
const STARTING: Duration = Duration::from_millis(50);

/// How often the status is brought up to date, without a watchdog.
const UNWATCHED: Duration = Duration::from_secs(10);

/// The part of the daemon that reports to the service manager.
pub(super) struct ServiceManager {
    pub(super) readiness: Readiness,
}

impl ServiceManager {
    /// Reports as long as the process runs. It shares the task of the caller, so nothing is reported
    /// while another part of that task hangs.
    pub(super) async fn keep_informed(self) {
        if std::env::var_os("NOTIFY_SOCKET").is_none() {
            return std::future::pending().await;
        }
        let stop = async {
            let (term, int) = (SignalKind::terminate(), SignalKind::interrupt());
            if let (Ok(mut term), Ok(mut int)) = (signal(term), signal(int)) {
                tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
                tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
            }
        };
        tokio::join!(self.report(), stop);
    }

    async fn report(&self) {
        while !self.readiness.is_ready() && self.readiness.unannounced().is_none() {
            sleep(STARTING).await;
        }
        let mut told = self.status();
        tell(&[NotifyState::Ready, NotifyState::Status(&told)]);
        // Half of the time after which the daemon is taken for dead.
        let pause = sd_notify::watchdog_enabled().map_or(UNWATCHED, |limit| limit / 2);
        loop {
            self.turn().await;
            tell(&[NotifyState::Watchdog]);
            sleep(pause).await;
            let status = self.status();
            if status != told {
                tell(&[NotifyState::Status(&status)]);
                told = status;
            }
        }
    }

    /// Waits until the threads of the runtime and of the worker have had a turn each. It needs no
    /// Redis: an outage is no reason to restart a daemon, which reconnects by itself.
    async fn turn(&self) {
        // It fails only while the runtime ends.
        let _ = tokio::spawn(async {}).await;
        self.readiness.responds().await;
    }

    fn status(&self) -> String {
        match self.readiness.unannounced() {
            Some(why) => format!("plain keys may be lost: {why}"),
            None if self.readiness.is_ready() => "ready".to_owned(),
            None => "not ready: Redis does not answer, or its events are not heard".to_owned(),
        }
    }
}

/// Tells the service manager that the configuration is being read again.
pub(super) fn reloading() {
    // systemd 253 and later wants the time of the reload with it.
    if let Ok(now) = NotifyState::monotonic_usec_now() {
        tell(&[NotifyState::Reloading, now]);
    }
}

/// Tells the service manager that the reload is over.
pub(super) fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// A daemon works without a service manager that listens; the log says why one will complain.
fn tell(states: &[NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be told the state of the daemon: {error}");
    }
}
