//! An HTTP server.

use std::time::Duration;

use keyfall::{Router, target};
use tokio::sync::oneshot;

use super::target::{
    Delivery, Doomed, End, Ends, Inbox, Nature, RouteTerms, Target, Told, Vanished,
};
use crate::callbacks::receiver::{Receiver, Reply, says};
use crate::site::Site;
use crate::workers::Mortal;

pub(super) struct Callback {
    receiver: Receiver,
    pattern: String,
    terms: RouteTerms,
    inbox: Inbox,
}

impl Target for Callback {
    const NATURE: Nature = Nature {
        name: "http",
        ends: Ends::Run,
        vanished: Vanished::Fails("connection closed before"),
    };

    async fn new(site: &Site, terms: RouteTerms) -> Self {
        let inbox = Inbox::new();
        let deliveries = inbox.sender.clone();
        let receiver = Receiver::start(move |received| {
            let header = |name: &str| received.header(name).to_owned();
            let (answer, answered) = oneshot::channel();
            // The test may have ended.
            let _ = deliveries.send(Delivery {
                key: header("keyfall-key"),
                payload: received.body.clone(),
                told: Some(Told::by_names(|name| {
                    header(&format!("keyfall-{}", name.replace('_', "-")))
                })),
                end: Box::new(move |end| {
                    // The caller may have died.
                    let _ = answer.send(match end {
                        End::Done => says("204 No Content", "", ""),
                        End::Failed(why) => says("500 Internal Server Error", "", why),
                    });
                    Box::pin(async {})
                }),
            });
            Reply::Later(answered)
        });
        Callback {
            receiver: receiver.await,
            pattern: site.pattern(),
            terms,
            inbox,
        }
    }

    async fn start(&self, redis: &str) -> Doomed {
        let target = target::http(self.receiver.url("/"));
        let router = Router::new().route(&self.pattern, self.terms.of(target));
        Mortal::start(redis, router, self.terms.lease).into()
    }

    async fn next(&self, patience: Duration) -> Option<Delivery> {
        self.inbox.next(patience).await
    }
}
