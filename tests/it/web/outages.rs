//! Redis is away, and comes back.

use super::Person;
use crate::http::{Daemon, own_redis};
use crate::runs::eventually;

#[tokio::test]
async fn the_page_says_that_redis_is_away_and_recovers() {
    let (mut redis, site) = own_redis("web-away").await;
    let daemon = Daemon::with(&site, &["--redis-call-timeout", "1s"]);
    let person = Person::at(format!("{}/ui/", daemon.url));
    person.look("").await;
    redis.kill_server().await.unwrap();
    eventually("the page says so", async || {
        let shown = person.get("").await;
        let is_said = shown.status == 503 && shown.body.contains("http-equiv=\"refresh\"");
        is_said.then_some(())
    })
    .await;
    redis.restart().await.unwrap();
    eventually("the page recovers", async || {
        (person.get("").await.status == 200).then_some(())
    })
    .await;
}
