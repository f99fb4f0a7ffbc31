//! Audits: the books of a kind, and missing parts of its jobs.

use keyfall::{ErrorKind, Flaw, Handler, JobState, NewJob, Outcome, RetryPolicy, Router};

use crate::runs::{eventually, recorder};
use crate::site::{HOUR, Site, ms};

impl Site {
    /// A key of the ledger of this site's kind.
    fn part(&self, part: &str) -> String {
        format!("keyfall:{{{}/0}}:{part}", self.kind())
    }

    async fn filled(app: &str, count: usize) -> Site {
        let site = Site::new(app).await;
        let jobs = site
            .keys(count)
            .map(|key| NewJob::new(key, "x").after(HOUR));
        for answer in site.client.schedule_many(jobs).await {
            answer.unwrap();
        }
        site
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn audits_find_nothing_while_jobs_come_and_go() {
    let site = Site::new("audit-busy").await;
    let (log, mut runs) = recorder();
    let handler = log.then(|job| match (job.key().id().len(), job.attempt()) {
        (6, _) => Outcome::bury("no"),
        (7, 1) => Outcome::again(),
        _ => Outcome::Done,
    });
    let route = handler.retry(RetryPolicy::fixed(ms(5)).unwrap());
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    // No job ends before the first audit.
    let kind = site.kind();
    site.client.prefix(&kind).pause().await.unwrap();
    let jobs = (0..4000).map(|n| {
        let delay = ms(200 + n % 50 * 20);
        NewJob::new(site.key(format_args!("{:0>1$}", n, 5 + n as usize % 3)), "").after(delay)
    });
    for answer in site.client.schedule_many(jobs).await {
        answer.unwrap();
    }
    let mut audits = 0;
    eventually("all have ended", async || {
        let report = site.client.audit(&kind).repair().await.unwrap();
        assert!(report.is_clean(), "{report:?}");
        audits += 1;
        if audits == 1 {
            site.client.prefix(&kind).resume().await.unwrap();
        }
        (report.stats.pending + report.stats.leased == 0).then_some(())
    })
    .await;
    assert!(audits > 1);
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.done + stats.buried), (4000, 4000));
    worker.stop().await;
    assert!(runs.rest().len() > 4000);
    site.assert_balanced().await;
}

#[tokio::test]
async fn missing_parts_are_reported_and_repaired_on_request() {
    let site = Site::filled("audit-flaws", 300).await;
    let audit = || site.client.audit("audit-flaws:it:job");
    let clean = audit().await.unwrap();
    assert!(clean.is_clean() && clean.scanned >= 600, "{clean:?}");

    for id in ["00007", "00100"] {
        let _: u64 = site.command(&["HDEL", &site.part("shadow"), id]).await;
    }
    let _: u64 = site.command(&["ZREM", &site.part("due"), "00200"]).await;
    let report = audit().await.unwrap();
    assert!(!report.is_clean() && !report.is_consistent && report.is_complete);
    assert_eq!(report.stats.difference(), 1);
    let mut found: Vec<_> = report
        .flawed
        .iter()
        .map(|f| (f.name.clone(), f.flaw))
        .collect();
    found.sort_unstable_by(|one, other| one.0.cmp(&other.0));
    let flaws = [
        (site.key("00007"), Flaw::DueWithoutRecord),
        (site.key("00100"), Flaw::DueWithoutRecord),
        (site.key("00200"), Flaw::RecordAlone),
    ];
    assert_eq!(found, flaws);
    assert!(report.flawed.iter().all(|flawed| !flawed.repaired));
    assert!(!audit().await.unwrap().is_clean(), "nothing was changed");

    let report = audit().repair().await.unwrap();
    assert_eq!(report.flawed.len(), 3);
    assert!(report.flawed.iter().all(|flawed| flawed.repaired));
    assert!(report.is_consistent && report.stats.is_balanced());
    assert!(audit().await.unwrap().is_clean());
    for (id, payload) in [("00007", ""), ("00200", "\"x\"")] {
        let letter = site.view(&site.key(id)).await;
        assert_eq!(letter.state(), JobState::Dead);
        assert_eq!(&letter.payload()[..], payload.as_bytes());
        assert!(letter.last_error().unwrap().contains("an audit found"));
    }
    // All parts of the job are stored, and it can continue.
    let requeued = site
        .client
        .prefix(&site.key("00200"))
        .requeue()
        .await
        .unwrap();
    assert_eq!(requeued.done, 1);
    assert_eq!(
        site.view(&site.key("00200"))
            .await
            .json::<String>()
            .unwrap(),
        "x"
    );
    assert!(audit().await.unwrap().is_clean());
    site.assert_balanced().await;
}

#[tokio::test]
async fn one_repair_may_uncover_the_next() {
    let site = Site::filled("audit-chain", 3).await;
    let _: u64 = site
        .command(&["ZADD", &site.part("leased"), "1", "00001"])
        .await;
    let _: u64 = site
        .command(&["HINCRBY", &site.part("stats"), "accepted", "1"])
        .await;
    let report = site.client.audit(&site.kind()).repair().await.unwrap();
    let flaws: Vec<Flaw> = report.flawed.iter().map(|flawed| flawed.flaw).collect();
    assert_eq!(flaws, [Flaw::DueAndLeased, Flaw::LeaseWithoutHolder]);
    assert!(site.client.audit(&site.kind()).await.unwrap().is_clean());
    // A takeover replaces the lost run by the pending job.
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.done()));
    let view = site.reaches(&site.key("00001"), JobState::Pending).await;
    assert!(view.due() > std::time::SystemTime::now());
    site.client.prefix("audit-chain:").cancel().await.unwrap();
    site.all_ended().await;
    worker.stop().await;
    runs.assert_no_more();
    site.assert_balanced().await;
}

#[tokio::test]
async fn many_flaws_are_reported_a_thousand_at_a_time() {
    let site = Site::filled("audit-many", 1500).await;
    let _: u64 = site.command(&["DEL", &site.part("shadow")]).await;
    let report = site.client.audit(&site.kind()).await.unwrap();
    assert!(!report.is_complete && report.flawed.len() >= 1000);
    let mut repaired = 0;
    for _ in 0..2 {
        let report = site.client.audit(&site.kind()).repair().await.unwrap();
        repaired += report.flawed.len();
    }
    assert_eq!(repaired, 1500);
    let report = site.client.audit(&site.kind()).await.unwrap();
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.stats.dead, report.stats.pending), (1500, 0));
    let error = site.client.audit("audit-many:it").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidKey);
    site.assert_balanced().await;
}

#[tokio::test]
async fn an_unknown_kind_is_not_clean_and_an_unlisted_one_can_be_listed() {
    let site = Site::filled("audit-known", 3).await;
    let misspelt = format!("{}:it:jbo", site.app);
    for audit in [
        site.client.audit(&misspelt),
        site.client.audit(&misspelt).repair(),
    ] {
        let report = audit.await.unwrap();
        assert!(!report.is_known && !report.is_clean(), "{report:?}");
        assert!(report.stats.is_balanced() && report.is_complete);
    }
    let kinds = site.client.kinds().await.unwrap();
    assert!(kinds.iter().all(|kind| kind.as_str() != misspelt));

    let kind = site.kind();
    let audit = || site.client.audit(&kind);
    assert!(audit().await.unwrap().is_clean());
    let _: u64 = site.command(&["HDEL", "keyfall:kinds", &kind]).await;
    assert!(!audit().await.unwrap().is_known);
    assert!(audit().repair().await.unwrap().is_clean());
    assert!(audit().await.unwrap().is_clean());
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_number_of_a_letter_is_not_used_again() {
    let site = Site::new("audit-numbers").await;
    let (log, _runs) = recorder();
    let buries = log.then(|_| Outcome::bury("no"));
    let worker = site.serve(Router::new().route(&site.pattern(), buries));
    let buried = async |id: &str| {
        site.client.schedule(site.key(id), "").await.unwrap();
        let letter = site.reaches(&site.key(id), JobState::Dead).await;
        letter.letter().unwrap()
    };
    assert_eq!(buried("first").await, 1);
    let record = "{\"v\":1}\n0\n";
    let _: u64 = site
        .command(&[
            "HSET",
            &site.part("grave"),
            "theirs",
            "7",
            "theirs:7",
            record,
        ])
        .await;
    let _: u64 = site
        .command(&["ZADD", &site.part("dead"), "99999999999999", "theirs:7"])
        .await;
    let report = site.client.audit(&site.kind()).repair().await.unwrap();
    assert_eq!(report.damaged[0].field.as_deref(), Some("skipped"));
    assert!(report.damaged[0].repaired, "{report:?}");
    assert_eq!(buried("second").await, 8);
    worker.stop().await;
}
