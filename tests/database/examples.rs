//! The examples of this package run.

use keyfall_testing::process::{TalkingProcess, example};

use crate::site::Site;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn orders_that_are_not_paid_expire_and_others_do_not() {
    let (_redis, site) = Site::alone("examples-orders").await;
    let mut orders = example("orders", &site.redis);
    orders.env("KEYFALL_DATABASE_URL", &site.url);
    let printed = tokio::task::spawn_blocking(|| TalkingProcess::spawn(orders).ends());
    assert_eq!(
        printed.await.unwrap(),
        [
            "placed 1 and 2, paid 2",
            "order 1 is expired",
            "order 2 is paid"
        ]
    );
    let stats = site.client.stats("shop:order:expire").await.unwrap();
    assert_eq!((stats.accepted, stats.done, stats.cancelled), (2, 1, 1));
}
