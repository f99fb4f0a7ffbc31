//! Kinds leave records of their ended jobs for an archive: from their first job on, by the terms of
//! the longest prefix, until the records are forgotten.

use std::time::Duration;

use keyfall::{
    ArchiveTerms, Client, Dropped, EndedJob, ErrorKind, JobEnd, Kind, NewJob, Outcome, Router,
    Shards,
};

use crate::runs::{eventually, recorder};
use crate::shell::{Ran, keyfall};
use crate::site::Site;

const HOUR: Duration = Duration::from_secs(3600);

impl Site {
    /// The records of a kind of this app.
    pub(crate) async fn ended(&self, kind: &str) -> Vec<EndedJob> {
        let kind = Kind::parse(kind).unwrap();
        self.client
            .ended(&kind, Shards::All, 10_000)
            .await
            .unwrap()
            .jobs
    }

    async fn end(&self, key: &str) {
        self.client.schedule(key, &1).after(HOUR).await.unwrap();
        self.client.cancel(key).await.unwrap();
    }
}

#[tokio::test]
async fn a_kind_that_begins_later_leaves_records_from_its_first_job_on() {
    let site = Site::new("archive-later").await;
    let app = format!("{}:", site.app);
    let terms = ArchiveTerms::new().payload(100);
    let kinds = site.client.prefix(&app).archive(terms).by("anna").await;
    assert_eq!(kinds.unwrap(), []);
    // Another client, which has not heard of it.
    let other = Client::connect(&site.url).await.unwrap();
    other.schedule(site.key(1), "x").after(HOUR).await.unwrap();
    other.cancel(site.key(1)).await.unwrap();
    let ended = site.ended(&site.kind()).await;
    assert_eq!((ended.len(), ended[0].end), (1, JobEnd::Cancelled));
    assert_eq!(ended[0].payload.as_deref(), Some(&b"\"x\""[..]));
    let archives = site.client.archives().await.unwrap();
    let archive = archives.iter().find(|it| it.prefix == app).unwrap();
    assert_eq!((archive.terms, archive.by.as_str()), (terms, "anna"));
}

#[tokio::test]
async fn the_longest_prefix_holds_and_a_shorter_one_again_without_it() {
    let site = Site::new("archive-longest").await;
    let client = &site.client;
    let (app, kind) = (format!("{}:", site.app), site.kind());
    let keep = |months| ArchiveTerms::new().keep_months(months);
    site.end(&site.key("before")).await;
    client.prefix(&kind).archive(keep(3)).await.unwrap();
    site.end(&site.key("kind")).await;
    client.prefix(&app).archive(keep(1)).await.unwrap();
    site.end(&site.key("both")).await;
    client
        .prefix(&format!("{app}it:"))
        .archive(keep(2))
        .await
        .unwrap();
    assert_eq!(client.prefix(&kind).stop_archive().await.unwrap().len(), 1);
    site.end(&site.key("module")).await;
    client
        .prefix(&format!("{app}it:"))
        .stop_archive()
        .await
        .unwrap();
    site.end(&site.key("app")).await;
    client.prefix(&app).stop_archive().await.unwrap();
    site.end(&site.key("after")).await;
    let ended = site.ended(&kind).await;
    let found: Vec<_> = ended
        .iter()
        .map(|it| (it.key.id(), it.keep_months))
        .collect();
    assert_eq!(found, [("kind", 3), ("both", 3), ("module", 2), ("app", 1)]);
    let archives = client.archives().await.unwrap();
    assert!(archives.iter().all(|it| !it.prefix.starts_with(&app)));
}

#[tokio::test]
async fn prefixes_and_terms_that_cannot_be_are_refused_by_name() {
    let site = Site::new("archive-refused").await;
    let client = &site.client;
    for (prefix, terms, kind, named) in [
        (
            "archive-refused",
            ArchiveTerms::new(),
            ErrorKind::InvalidKey,
            "ends with a colon",
        ),
        (
            "archive-refused:it",
            ArchiveTerms::new(),
            ErrorKind::InvalidKey,
            "ends with a colon",
        ),
        (
            "archive-refused:it:job:4",
            ArchiveTerms::new(),
            ErrorKind::InvalidKey,
            "id",
        ),
        ("", ArchiveTerms::new(), ErrorKind::InvalidKey, "empty"),
        (
            "archive-refused:",
            ArchiveTerms::new().waiting(1),
            ErrorKind::InvalidSetting,
            "`waiting`",
        ),
        (
            "archive-refused:",
            ArchiveTerms::new().keep_months(2000),
            ErrorKind::InvalidSetting,
            "`keep_months` is 2000",
        ),
    ] {
        let error = client.prefix(prefix).archive(terms).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{prefix}: {error}");
        assert!(error.to_string().contains(named), "{prefix}: {error}");
    }
    let archives = client.archives().await.unwrap();
    assert!(
        archives
            .iter()
            .all(|it| !it.prefix.starts_with("archive-refused"))
    );
    // The command tells before it connects: nobody listens there.
    for (words, named) in [
        (
            ["--keep-months", "2000"],
            "`keep_months` is 2000: write up to 1200",
        ),
        (["--keep-dead-months", "1201"], "`keep_dead_months` is 1201"),
        (
            ["--payload", "2000000"],
            "`payload` is 2000000 bytes: write up to 1048576",
        ),
        (["--waiting", "1"], "`waiting` is 1 bytes"),
    ] {
        let set = ["archive", "set", "a:b:", "--api", "http://127.0.0.1:1"];
        let set: Vec<&str> = set.into_iter().chain(words).collect();
        Ran::of(keyfall(&set)).await.fails(2, named);
    }
}

#[tokio::test]
async fn a_page_of_ended_jobs_is_small_while_jobs_may_fall_due() {
    let site = Site::new("archive-pages").await;
    let (client, kind) = (&site.client, Kind::parse(&site.kind()).unwrap());
    let selection = client.prefix(kind.as_str());
    selection.archive(ArchiveTerms::new()).await.unwrap();
    let jobs = (0..300).map(|id| NewJob::new(site.key(id), &()).after(HOUR));
    for placed in client.schedule_many(jobs).await {
        placed.unwrap();
    }
    client.prefix(kind.as_str()).cancel().await.unwrap();
    let page = async || client.ended(&kind, Shards::All, 1_000).await.unwrap();
    // Whether jobs fall due is not known yet.
    let first = page().await;
    assert_eq!((first.jobs.len(), first.waiting), (250, 300));
    eventually("no job falls due", async || {
        (page().await.jobs.len() == 300).then_some(())
    })
    .await;
}

#[tokio::test]
async fn records_stay_until_they_are_forgotten_and_keep_their_kind() {
    let site = Site::new("archive-forgotten").await;
    let (client, kind) = (&site.client, Kind::parse(&site.kind()).unwrap());
    client
        .prefix(kind.as_str())
        .archive(ArchiveTerms::new())
        .await
        .unwrap();
    for id in 0..5 {
        site.end(&site.key(id)).await;
    }
    let two = client.ended(&kind, Shards::All, 2).await.unwrap();
    assert_eq!((two.jobs.len(), two.waiting, two.is_archived), (2, 5, true));
    site.end(&site.key("meanwhile")).await;
    assert_eq!(client.forget_ended(&kind, &two).await.unwrap(), 2);
    assert_eq!(client.forget_ended(&kind, &two).await.unwrap(), 0);
    let rest = client.ended(&kind, Shards::All, 100).await.unwrap();
    assert_eq!(rest.jobs.len(), 4);
    assert_eq!(rest.jobs[3].key.id(), "meanwhile");
    let dropped = client.drop_kind(kind.as_str()).await.unwrap();
    let Dropped::InUse(why) = dropped else {
        panic!("{dropped:?}");
    };
    assert!(why.contains("wait for the archive"), "{why}");
    client.forget_ended(&kind, &rest).await.unwrap();
    assert_eq!(
        client.drop_kind(kind.as_str()).await.unwrap(),
        Dropped::Dropped
    );
    // It begins anew, and leaves records.
    site.end(&site.key(1)).await;
    assert_eq!(
        client
            .ended(&kind, Shards::All, 100)
            .await
            .unwrap()
            .jobs
            .len(),
        1
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shards_that_a_reshard_has_left_keep_their_records() {
    let site = Site::new("archive-reshard").await;
    let (client, kind) = (&site.client, Kind::parse(&site.kind()).unwrap());
    client
        .prefix(kind.as_str())
        .archive(ArchiveTerms::new())
        .await
        .unwrap();
    site.end(&site.key("first")).await;
    let (log, mut runs) = recorder();
    let worker = site.serve(Router::new().route(&site.pattern(), log.then(|_| Outcome::Done)));
    for (round, shards) in [4, 1].into_iter().enumerate() {
        client.reshard(kind.as_str(), shards).await.unwrap();
        for id in 0..40 {
            let key = site.key(format_args!("{round}-{id}"));
            client.schedule(&key, &1).await.unwrap();
        }
        runs.take(40).await;
    }
    site.all_ended().await;
    worker.stop().await;
    let ended = client.ended(&kind, Shards::All, 100).await.unwrap();
    assert_eq!((ended.jobs.len(), ended.is_archived), (81, true));
    let done = ended.jobs.iter().filter(|it| it.end == JobEnd::Done);
    assert_eq!(done.count(), 80);
    assert_eq!(client.forget_ended(&kind, &ended).await.unwrap(), 81);
    assert_eq!(
        client.ended(&kind, Shards::All, 100).await.unwrap().waiting,
        0
    );
}

/// A ledger that has lost its terms gets them again.
#[tokio::test]
async fn lost_terms_are_set_again() {
    let site = Site::new("archive-lost").await;
    let (client, kind) = (&site.client, Kind::parse(&site.kind()).unwrap());
    let terms = ArchiveTerms::new();
    client.prefix(kind.as_str()).archive(terms).await.unwrap();
    site.end(&site.key(1)).await;
    let calls = format!("keyfall:{{{kind}/0}}:calls");
    let _: u64 = site.command(&["HDEL", &calls, "archive"]).await;
    assert!(
        !client
            .ended(&kind, Shards::All, 100)
            .await
            .unwrap()
            .is_archived
    );
    client.archive_again(&kind).await.unwrap();
    assert!(
        client
            .ended(&kind, Shards::All, 100)
            .await
            .unwrap()
            .is_archived
    );
    site.end(&site.key(2)).await;
    assert_eq!(site.ended(&site.kind()).await.len(), 2);
}
