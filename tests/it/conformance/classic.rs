//! A client of classic delay queues. It gets only the id and the body of a job, and can only report
//! that the job is done.

use std::time::Duration;

use keyfall::RetryPolicy;
use keyfall_testing::process::TalkingProcess;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::daemon::{Line, serve};
use super::target::{Delivery, Doomed, End, Ends, Nature, RouteTerms, Target, Vanished, text};
use crate::runs::PATIENCE;
use crate::site::Site;

pub(super) struct Classic {
    app: String,
    terms: RouteTerms,
    line: Line,
}

impl Target for Classic {
    const NATURE: Nature = Nature {
        name: "classic",
        ends: Ends::Lease,
        vanished: Vanished::Lapses,
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        Classic {
            app: site.app.clone(),
            terms,
            line: Line::new(),
        }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let policy: RetryPolicy = self.terms.retry.parse().unwrap();
        let mut command = serve(redis);
        command
            .args(["--classic-listen", "127.0.0.1:0"])
            .args(["--classic-prefix", &format!("{}:it", self.app)])
            .args(["--classic-ttr", &format!("{}s", self.terms.lease.as_secs())])
            .args(["--classic-deliveries", &policy.max_attempts().to_string()]);
        let daemon = TalkingProcess::spawn(command);
        daemon.line();
        self.line.dial(&daemon, "classic interface on ");
        daemon.into()
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        let until = Instant::now() + patience;
        let topic = json!({"topic": "job"});
        let job = done(&self.line, "/pop", &topic, until).await?;
        let (id, line) = (text(&job, "id"), self.line.clone());
        Some(Delivery {
            key: format!("{}:it:job:{id}", self.app),
            payload: text(&job, "body").into_bytes(),
            told: None,
            end: Box::new(move |end| {
                Box::pin(async move {
                    if let End::Failed(_) = end {
                        unreachable!("there is no word for it");
                    }
                    let until = Instant::now() + PATIENCE;
                    let finished = done(&line, "/finish", &json!({"id": id}), until).await;
                    assert!(finished.is_some());
                })
            }),
        })
    }
}

/// The data of a call that must succeed, if it is answered in time.
async fn done(line: &Line, call: &str, body: &Value, until: Instant) -> Option<Value> {
    let mut answer = line.post(call, body, until).await?;
    assert_eq!(answer["code"], 0, "{call}: {answer}");
    Some(answer["data"].take())
}
