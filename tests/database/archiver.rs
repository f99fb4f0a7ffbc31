//! The archiver: each ended job is stored once, whatever is killed meanwhile.

use std::time::Duration;

use keyfall::embedded::Embedded;
use keyfall::{ArchiveTerms, Client, Kind, Outcome, Router, Shards, Stats, Worker};
use keyfall_database::Archiver;
use keyfall_testing::patience::eventually;
use keyfall_testing::postgres::Postgres;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::site::Site;

const HOUR: Duration = Duration::from_secs(3600);

/// An archiver at work. Dropping it stops it as a kill does.
struct Running(JoinHandle<()>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Site {
    /// Starts an archiver, with connections of its own.
    async fn archiver(&self) -> Running {
        let client = Client::connect(&self.redis).await.unwrap();
        let archiver = Archiver::new(client, self.database());
        Running(tokio::spawn(archiver.run_until(std::future::pending())))
    }

    /// A worker whose jobs end in each way.
    fn worker(&self) -> JoinHandle<keyfall::Result<()>> {
        let router = Router::new().route(
            &format!("{}:{{id}}", self.kind()),
            async |job: keyfall::Job| match job.key().id() {
                id if id.starts_with("dead") => Outcome::bury("it cannot be done"),
                _ => Outcome::Done,
            },
        );
        let worker = Worker::new(self.client.clone(), router);
        tokio::spawn(worker.run_until(std::future::pending()))
    }

    async fn archives(&self, terms: ArchiveTerms) {
        let kind = self.kind();
        self.client.prefix(&kind).archive(terms).await.unwrap();
    }

    /// Has jobs end in each way.
    async fn end_some(&self, round: usize) {
        for at in 0..10 {
            let schedule = async |id: String| {
                let key = self.key(&id);
                self.client.schedule(&key, &id).await.unwrap();
            };
            schedule(format!("done{round}-{at}")).await;
            schedule(format!("dead{round}-{at}")).await;
            let key = self.key(format_args!("cancelled{round}-{at}"));
            for _ in 0..2 {
                self.client.schedule(&key, "x").after(HOUR).await.unwrap();
            }
            self.client.cancel(&key).await.unwrap();
        }
    }

    /// Waits until no job is left and no record waits. Returns the counters.
    async fn all_archived(&self) -> Stats {
        let kind = Kind::parse(&self.kind()).unwrap();
        eventually("all is in the archive", async || {
            let stats = self.client.stats(kind.as_str()).await.ok()?;
            let ended = self.client.ended(&kind, Shards::All, 1).await.ok()?;
            (stats.pending + stats.leased + ended.waiting == 0).then_some(stats)
        })
        .await
    }

    /// Verifies that the archive has each ended job once.
    async fn assert_complete(&self, stats: &Stats) {
        let read = "SELECT how, count(*), count(DISTINCT (key, accepted_at, ended_at))
            FROM keyfall_archive GROUP BY how";
        let rows = self.sql.query(read, &[]).await.unwrap();
        let of = |how: &str| {
            let row = rows.iter().find(|row| row.get::<_, &str>(0) == how);
            row.map_or((0, 0), |row| (row.get::<_, i64>(1), row.get::<_, i64>(2)))
        };
        for (how, counted) in [
            ("done", stats.done),
            ("buried", stats.buried),
            ("cancelled", stats.cancelled),
            ("replaced", stats.replaced),
            ("skipped", stats.skipped),
        ] {
            let counted = i64::try_from(counted).unwrap();
            assert_eq!(of(how), (counted, counted), "{how}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_job_is_stored_with_all_that_is_known_of_it() {
    let (_redis, site) = Site::alone("archiver-row").await;
    site.archives(ArchiveTerms::new().payload(100).keep_months(24))
        .await;
    let worker = site.worker();
    let _archiver = site.archiver().await;
    let key = site.key("dead-42");
    let schedule = site.client.schedule(&key, &7).header("tenant", "acme");
    schedule.await.unwrap();
    let stats = site.all_archived().await;
    site.assert_complete(&stats).await;
    let read = "SELECT key, kind, how, keep_months, attempts, error, headers->>'tenant',
            convert_from(payload, 'UTF8'), letter, lag_ms >= 0, duration_ms >= 0,
            accepted_at <= begun_at AND begun_at <= ended_at AND due_at <= ended_at, fence > 0
        FROM keyfall_archive";
    let row = site.sql.query_one(read, &[]).await.unwrap();
    let text = |at: usize| row.get::<_, String>(at);
    assert_eq!(
        [text(0), text(1), text(2)],
        [key, site.kind(), "buried".into()]
    );
    // Dead letters are kept for ever by these terms.
    assert_eq!((row.get::<_, i16>(3), row.get::<_, i32>(4)), (0, 1));
    assert_eq!(
        [text(5), text(6), text(7)],
        ["it cannot be done", "acme", "7"]
    );
    assert_eq!(row.get::<_, i64>(8), 1);
    for at in 9..=12 {
        assert!(row.get::<_, bool>(at), "column {at}");
    }
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn archivers_that_are_killed_at_any_time_store_each_job_once() {
    let (_redis, site) = Site::alone("archiver-kills").await;
    site.archives(ArchiveTerms::new().payload(100)).await;
    let worker = site.worker();
    let _steady = site.archiver().await;
    for round in 0..40 {
        let archiver = site.archiver().await;
        site.end_some(round).await;
        // Somewhere between the read and the removal.
        sleep(Duration::from_micros(500 * round as u64)).await;
        archiver.0.abort();
    }
    let stats = site.all_archived().await;
    assert_eq!((stats.done, stats.buried), (400, 400));
    assert_eq!((stats.cancelled, stats.replaced), (400, 400));
    site.assert_complete(&stats).await;
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_wait_while_postgresql_or_redis_is_away() {
    let mut postgres = Postgres::start();
    let mut redis = Embedded::options()
        .args(["--appendonly", "yes"])
        .start()
        .await
        .unwrap();
    let mut site = Site::on(&postgres, &redis.url(), "archiver-away").await;
    site.database().migrate().await.unwrap();
    site.archives(ArchiveTerms::new()).await;
    let worker = site.worker();
    let _archivers = [site.archiver().await, site.archiver().await];
    for round in 0..3 {
        site.end_some(3 * round).await;
        postgres.kill();
        site.end_some(3 * round + 1).await;
        postgres.begin();
        redis.kill_server().await.unwrap();
        redis.restart().await.unwrap();
        eventually("Redis is back", async || {
            site.client.stats(&site.kind()).await.ok()
        })
        .await;
        site.end_some(3 * round + 2).await;
    }
    let stats = site.all_archived().await;
    site.sql = crate::site::connect(&site.url).await;
    assert!(stats.done >= 90, "{stats:?}");
    site.assert_complete(&stats).await;
    worker.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_last_records_of_a_kind_are_stored_when_it_leaves_no_more() {
    let (_redis, site) = Site::alone("archiver-last").await;
    site.archives(ArchiveTerms::new()).await;
    let worker = site.worker();
    site.end_some(0).await;
    eventually("all have ended", async || {
        let stats = site.stats().await;
        (stats.pending + stats.leased == 0).then_some(())
    })
    .await;
    let before = site.stats().await;
    site.client
        .prefix(&site.kind())
        .stop_archive()
        .await
        .unwrap();
    site.end_some(1).await;
    let _archiver = site.archiver().await;
    site.all_archived().await;
    site.assert_complete(&before).await;
    worker.abort();
}

/// A table that somebody changed stops the archive, and loses nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_wait_while_the_table_cannot_be_written() {
    let (_redis, site) = Site::alone("archiver-changed").await;
    site.archives(ArchiveTerms::new()).await;
    let worker = site.worker();
    let rename = "ALTER TABLE keyfall_archive RENAME COLUMN worker TO employee";
    site.sql.batch_execute(rename).await.unwrap();
    let _archiver = site.archiver().await;
    site.end_some(0).await;
    let kind = Kind::parse(&site.kind()).unwrap();
    eventually("the records wait", async || {
        let ended = site.client.ended(&kind, Shards::All, 1).await.unwrap();
        (ended.waiting == 40).then_some(())
    })
    .await;
    let rename = "ALTER TABLE keyfall_archive RENAME COLUMN employee TO worker";
    site.sql.batch_execute(rename).await.unwrap();
    let stats = site.all_archived().await;
    site.assert_complete(&stats).await;
    worker.abort();
}
