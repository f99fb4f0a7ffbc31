//! Consumers that pull over HTTP.

use std::time::Duration;

use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::daemon::{Line, serve};
use super::target::{
    Delivery, Doomed, End, Ends, Nature, RouteTerms, Target, Told, Vanished, text,
};
use crate::runs::PATIENCE;
use crate::site::Site;

/// The time for which a request is held.
const HELD: Duration = Duration::from_secs(5);

pub(super) struct Api {
    folder: Folder,
    line: Line,
}

impl Target for Api {
    const NATURE: Nature = Nature {
        name: "api",
        ends: Ends::Lease,
        vanished: Vanished::Lapses,
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        let folder = Folder::new(&site.app);
        folder.write("keyfall.toml", &written(&site.pattern(), &terms));
        let line = Line::new();
        Api { folder, line }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let mut command = serve(redis);
        command.args(["--config", &self.folder.path("keyfall.toml")]);
        let daemon = TalkingProcess::spawn(command);
        self.line.dial(&daemon, "listening on ");
        daemon.into()
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        let until = Instant::now() + patience;
        loop {
            let left = until.checked_duration_since(Instant::now())?.min(HELD);
            let wanted = json!({"wait": format!("{}ms", left.as_millis())});
            let answer = self.line.post("/v1/pull", &wanted, until + HELD).await?;
            if let Some(job) = answer["jobs"].as_array().unwrap().first() {
                return Some(self.delivery(job));
            }
        }
    }
}

impl Api {
    fn delivery(&self, job: &Value) -> Delivery {
        let line = self.line.clone();
        let lease = job["lease"].clone();
        Delivery {
            key: text(job, "key"),
            payload: job["payload"].to_string().into_bytes(),
            told: Some(Told::by_names(|name| text(job, name))),
            end: Box::new(move |end| {
                let (path, body) = match end {
                    End::Done => ("/v1/leases/finish", json!({"leases": [lease]})),
                    End::Failed(why) => {
                        ("/v1/leases/fail", json!({"leases": [lease], "error": why}))
                    }
                };
                Box::pin(async move {
                    let answer = line.post(path, &body, Instant::now() + PATIENCE).await;
                    assert!(answer.unwrap()["results"].is_array());
                })
            }),
        }
    }
}

/// The handler, as a route of a file.
fn written(pattern: &str, terms: &RouteTerms) -> String {
    let mut file = format!(
        "[[route]]\npattern = {pattern:?}\ntarget = \"pull\"\nretry = {:?}\nlease = \"{}s\"\n",
        terms.retry,
        terms.lease.as_secs()
    );
    if let Some(jobs) = terms.concurrency {
        file += &format!("concurrency = {jobs}\n");
    }
    if let Some(jobs) = terms.rate {
        file += &format!("rate = \"{jobs}/s\"\n");
    }
    file
}
