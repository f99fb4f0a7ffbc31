//! A handler in the process of its worker.

use std::time::Duration;

use keyfall::{Job, Outcome, Router};
use tokio::sync::oneshot;

use super::target::{
    Delivery, Doomed, End, Ends, Inbox, Nature, RouteTerms, Target, Told, Vanished,
};
use crate::site::Site;
use crate::workers::Mortal;

pub(super) struct Function {
    pattern: String,
    terms: RouteTerms,
    inbox: Inbox,
}

impl Target for Function {
    const NATURE: Nature = Nature {
        name: "fn",
        ends: Ends::Run,
        vanished: Vanished::Fails("the handler panicked"),
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        Function {
            pattern: site.pattern(),
            terms,
            inbox: Inbox::new(),
        }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let deliveries = self.inbox.sender.clone();
        let handler = async move |job: Job| {
            let (end, ended) = oneshot::channel();
            // The test may have ended.
            let _ = deliveries.send(Delivery {
                key: job.key().to_string(),
                payload: job.payload().to_vec(),
                told: Some(Told::by_job(&job)),
                end: Box::new(move |said| {
                    // Its worker may have died.
                    let _ = end.send(said);
                    Box::pin(async {})
                }),
            });
            match ended.await.expect("whoever has it says how it ends") {
                End::Done => Outcome::Done,
                End::Failed(why) => Outcome::retry(why),
            }
        };
        let router = Router::new().route(&self.pattern, self.terms.of(handler));
        Mortal::start(redis, router, self.terms.lease).into()
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        self.inbox.next(patience).await
    }
}
