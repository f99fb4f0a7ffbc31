//! Plain Redis commands on the keys of a route that adopts them, and their effect on jobs.

mod changes;
mod crowds;
mod deaths;
mod doctor;
mod flags;
mod gaps;
mod languages;
mod managed;
mod resharded;
mod several;
mod telling;

use keyfall::{Handler, MissingKey, Route, Router};

use crate::runs::{Recorder, Runs, eventually, recorder};
use crate::site::{Running, Site};

/// A site whose kind is adopted by one worker.
struct Adopting {
    site: Site,
    runs: Runs,
    worker: Running,
}

impl Adopting {
    async fn new(app: &str) -> Self {
        Adopting::at(Site::new(app).await, |log| log.done().into_route()).await
    }

    async fn at(site: Site, route: impl FnOnce(&Recorder) -> Route) -> Self {
        Adopting::with(site, MissingKey::Run, route).await
    }

    async fn with(site: Site, missing: MissingKey, route: impl FnOnce(&Recorder) -> Route) -> Self {
        let (log, runs) = recorder();
        let route = route(&log).adopt(missing);
        let worker = site.serve(Router::new().route(&site.pattern(), route));
        worker.ready().await;
        Adopting { site, runs, worker }
    }

    /// A command, its words separated by blanks, with the key of a job behind the first.
    async fn does(&self, id: &str, command: &str) {
        let key = self.site.key(id);
        let mut words = command.split(' ');
        let first = words.next().unwrap();
        let words: Vec<&str> = [first, &key].into_iter().chain(words).collect();
        let _: redis::Value = self.site.command(&words).await;
    }

    /// Makes the key of a known job expire at once.
    ///
    /// A key that is set with such a short time may be gone before a busy machine looks.
    async fn expires(&self, id: &str, payload: &str) {
        self.becomes(id, Some((payload, 900))).await;
        self.does(id, "PEXPIRE 100").await;
    }

    /// Waits until the job has this payload and is due in this number of seconds; or, for `None`,
    /// until there is no job.
    async fn becomes(&self, id: &str, job: Option<(&str, u64)>) {
        let key = self.site.key(id);
        eventually(&format!("{id} is {job:?}"), async || {
            let view = self.site.client.get(&key).await.unwrap();
            let view = view.filter(|view| view.state() == keyfall::JobState::Pending);
            let seen = view.map(|view| {
                let payload = String::from_utf8(view.payload().to_vec()).unwrap();
                let left = view.due().duration_since(std::time::SystemTime::now());
                (payload, left.unwrap_or_default().as_secs_f64())
            });
            match (seen, job) {
                (None, None) => Some(()),
                (Some((payload, left)), Some((text, seconds))) => {
                    // Exact enough to distinguish the times of these tests.
                    let off = (left - seconds as f64).abs();
                    (payload == text && off < 60.0).then_some(())
                }
                _ => None,
            }
        })
        .await;
    }

    async fn ends(mut self) {
        self.worker.stop().await;
        self.runs.assert_no_more();
        self.site.assert_balanced().await;
    }
}
