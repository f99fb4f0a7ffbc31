//! The history: its typed events, tails that follow it, and stories of single jobs.

use keyfall::{ErrorKind, Happening, JobState, Outcome, Router, Source, Tail, Tidings, What};

use crate::runs::{PATIENCE, eventually, recorder};
use crate::site::{HOUR, Running, Site, ms};

/// The events up to the first of this sort, in order.
async fn until(tail: &mut Tail, what: What) -> Vec<Happening> {
    let mut told = Vec::new();
    loop {
        let next = tokio::time::timeout(PATIENCE, tail.next());
        match next.await.expect("it is told").unwrap() {
            Tidings::Happened(it) => told.push(it),
            other => panic!("{other:?}"),
        }
        if told.last().unwrap().what == what {
            return told;
        }
    }
}

fn words(told: &[Happening]) -> Vec<&'static str> {
    told.iter().map(|it| it.what.as_str()).collect()
}

#[tokio::test]
async fn a_tail_shows_a_run_from_start_to_end() {
    let site = Site::new("tailrun").await;
    // The tail has begun once it reports this job. The kind of the next job does not exist yet.
    let other = site.client.schedule("tailrun:it:other:1", "").after(HOUR);
    other.await.unwrap();
    let mut tail = site.client.tail().prefix("tailrun:").unwrap().last(1);
    until(&mut tail, What::Scheduled).await;
    let nothing = tokio::time::timeout(ms(10), tail.next());
    nothing.await.expect_err("nothing has happened yet");
    let handler = async |job: keyfall::Job| match job.attempt() {
        1 => Outcome::retry_after(ms(1), "the bank is closed"),
        _ => Outcome::bury("it stays closed"),
    };
    let worker = site.serve(Router::new().route(&site.pattern(), handler));
    site.client
        .schedule(site.key(7), "")
        .after(ms(50))
        .await
        .unwrap();
    let told = until(&mut tail, What::Buried).await;
    let expected = ["scheduled", "claimed", "failed", "claimed", "buried"];
    assert_eq!(words(&told), expected);
    assert!(
        told.iter()
            .all(|it| it.key().unwrap().as_str() == site.key(7))
    );
    assert!(told.iter().all(|it| !it.by.is_empty()));
    let [scheduled, claimed, failed, _, buried] = &told[..] else {
        unreachable!();
    };
    assert_eq!(claimed.due, scheduled.due);
    assert!(claimed.source.is_some() && claimed.lag().is_some());
    assert!(scheduled.source.is_none() && scheduled.lag().is_none());
    assert_eq!(failed.attempt, Some(1));
    assert_eq!(failed.note.as_deref(), Some("the bank is closed"));
    assert!(failed.took.is_some() && failed.due.unwrap() >= failed.at);
    assert_eq!((buried.attempt, buried.letter), (Some(2), Some(1)));
    assert_eq!(site.client.happenings(site.key(7)).await.unwrap(), told);
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_tail_starts_with_the_last_events_of_its_prefix() {
    let site = Site::new("tailprefix").await;
    for id in ["a1", "b1", "a2", "b2", "a3"] {
        site.client
            .schedule(site.key(id), "")
            .after(HOUR)
            .await
            .unwrap();
    }
    let tail = site.client.tail().prefix(&site.key("a")).unwrap();
    let mut tail = tail.last(2);
    let ids = async |tail: &mut Tail| {
        let told = until(tail, What::Scheduled).await;
        told[0].id.clone().unwrap()
    };
    assert_eq!(ids(&mut tail).await, "a2");
    assert_eq!(ids(&mut tail).await, "a3");
    for id in ["b3", "a4"] {
        site.client
            .schedule(site.key(id), "")
            .after(HOUR)
            .await
            .unwrap();
    }
    assert_eq!(ids(&mut tail).await, "a4");
    assert!(site.client.tail().prefix("no key").is_err());
    site.assert_balanced().await;
}

/// Writes entries about jobs of this kind, all of them at one instant.
async fn write(site: &Site, kind: &str, count: usize) {
    let write = "for n = 1, ARGV[1] do redis.call('XADD', KEYS[1], '*', 'what', 'cancelled', \
                 'by', 'web-1:42', 'jobs', '- - w' .. n, 'note', '') end";
    let (history, count) = (format!("keyfall:{{{kind}/0}}:history"), count.to_string());
    let _: () = site.command(&["EVAL", write, "1", &history, &count]).await;
}

#[tokio::test]
async fn a_tail_finds_the_last_of_a_job_among_many_others_and_follows_some_changes_only() {
    let site = Site::new("taillast").await;
    let key = site.key("few");
    site.client.schedule(&*key, "").after(HOUR).await.unwrap();
    site.client.fire_now(&*key).await.unwrap();
    write(&site, &site.kind(), 900).await;
    let tail = || site.client.tail().prefix(&key).unwrap();
    let told = until(&mut tail().last(2), What::Fired).await;
    assert_eq!(words(&told), ["scheduled", "fired"]);
    let told = until(&mut tail().last(1), What::Fired).await;
    assert_eq!(words(&told), ["fired"]);
    // The selection applies to the last two events, and to the following ones.
    let mut some = tail().last(2).only([What::Scheduled, What::Cancelled]);
    assert_eq!(
        words(&until(&mut some, What::Scheduled).await),
        ["scheduled"]
    );
    site.client.reschedule(&*key).after(HOUR).await.unwrap();
    site.client.cancel(&*key).await.unwrap();
    assert_eq!(
        words(&until(&mut some, What::Cancelled).await),
        ["cancelled"]
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_busy_kind_among_many_is_told_whole_and_holds_up_no_other() {
    let site = Site::new("tailbusy").await;
    let kind = |number: usize| format!("tailbusy:it:k{number}");
    for number in 0..40 {
        let key = format!("{}:1", kind(number));
        site.client.schedule(key, "").after(HOUR).await.unwrap();
    }
    let mut tail = site.client.tail().prefix("tailbusy:").unwrap().last(1);
    until(&mut tail, What::Scheduled).await;
    write(&site, &kind(7), 900).await;
    let other = format!("{}:1", kind(8));
    site.client.fire_now(&*other).await.unwrap();
    let (mut ids, mut before) = (Vec::new(), None);
    while ids.len() < 900 || before.is_none() {
        let next = tokio::time::timeout(PATIENCE, tail.next());
        match next.await.expect("it is told").unwrap() {
            Tidings::Happened(it) if it.what == What::Fired => before = Some(ids.len()),
            Tidings::Happened(it) => ids.extend(it.id),
            other => panic!("{other:?}"),
        }
    }
    let expected: Vec<String> = (1..=900).map(|number| format!("w{number}")).collect();
    assert_eq!(ids, expected);
    assert!(before.unwrap() < 900, "it came with the first of them");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_tail_reports_events_that_it_missed() {
    let site = Site::new("tailmissed").await;
    let place = async |id: usize| {
        let call = site.client.schedule(site.key(id), "").after(HOUR);
        call.await.unwrap();
    };
    place(0).await;
    let mut tail = site.client.tail().prefix("tailmissed:").unwrap().last(1);
    assert_eq!(until(&mut tail, What::Scheduled).await.len(), 1);
    let keep = site.client.prefix("tailmissed:").keep_history(1);
    assert_eq!(keep.await.unwrap().len(), 1);
    for id in 1..500 {
        place(id).await;
    }
    let first = tail.next().await.unwrap();
    assert!(
        matches!(&first, Tidings::Missed(kind) if kind.as_str() == site.kind()),
        "{first:?}"
    );
    let told = until(&mut tail, What::Scheduled).await;
    assert_ne!(told[0].id.as_deref(), Some("1"));
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_tail_summarises_a_backlog_and_notices_a_history_turned_off() {
    let site = Site::new("tailoff").await;
    let client = &site.client;
    client.schedule(site.key(1), "").await.unwrap();
    let worker = site.serve(Router::new().route(&site.pattern(), async || {}));
    let mut tail = client.tail().prefix("tailoff:").unwrap().last(9);
    let told = until(&mut tail, What::Done).await;
    let claimed = told.iter().find(|it| it.what == What::Claimed).unwrap();
    let found = [
        Some(Source::Reconciler),
        Some(Source::Backlog),
        Some(Source::Event),
    ];
    assert!(found.contains(&claimed.source), "{claimed:?}");

    assert!(client.history_kept(&site.kind()).await.unwrap() > 0);
    client.prefix("tailoff:").keep_history(0).await.unwrap();
    assert_eq!(client.history_kept(&site.kind()).await.unwrap(), 0);
    client.schedule(site.key(2), "").after(HOUR).await.unwrap();
    assert_eq!(client.happenings(site.key(2)).await.unwrap(), []);
    let error = client
        .prefix("tailoff:")
        .keep_history(1_000_001)
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    let error = client
        .prefix(&site.key(1))
        .keep_history(1)
        .await
        .unwrap_err();
    assert!(error.to_string().contains("whole kinds"), "{error}");
    worker.stop().await;
    site.assert_balanced().await;
}

/// The reason why the job waits, in plain words, and its latest event.
async fn waits(site: &Site, key: &str) -> (String, What) {
    let story = site.client.story(key).await.unwrap();
    assert!(story.is_whole && story.gap(|_| String::new()).is_none());
    let words: Vec<String> = story
        .waits
        .iter()
        .map(|wait| wait.sentence(|_| "then".into()).to_string())
        .collect();
    (words.join("; "), story.happenings.last().unwrap().what)
}

#[tokio::test]
async fn a_story_says_why_a_pending_job_waits() {
    let site = Site::new("storywait").await;
    let (client, key) = (&site.client, site.key(1));
    client.schedule(&*key, "").after(HOUR).await.unwrap();
    let (words, last) = waits(&site, &key).await;
    assert!(words.starts_with("it is due then, in "), "{words}");
    assert!(words.contains("no live instance has a route"), "{words}");
    assert_eq!(last, What::Scheduled);

    client.prefix("storywait:it:").pause().await.unwrap();
    client.fire_now(&*key).await.unwrap();
    let (words, last) = waits(&site, &key).await;
    assert!(
        words.starts_with("its kind has been paused since then, by a pause of storywait:it:"),
        "{words}"
    );
    assert_eq!(last, What::Fired);
    client.prefix("storywait:it:").resume().await.unwrap();
    let unrouted = waits(&site, &key).await.0;
    assert!(unrouted.starts_with("no live instance"), "{unrouted}");

    // A worker whose only slot is taken.
    let (notes, mut runs) = recorder();
    let router = Router::new().route(&site.pattern(), notes.until_stopped(|| Outcome::Done));
    let worker = Running::start(site.worker(router).concurrency(1));
    runs.next().await;
    let (words, last) = waits(&site, &key).await;
    assert!(words.starts_with("it runs, lease held by "), "{words}");
    assert!(
        words.contains(" until then, unless it is renewed"),
        "{words}"
    );
    assert_eq!(last, What::Claimed);
    let next = site.key(2);
    client.schedule(&*next, "").await.unwrap();
    eventually("it is said to be full", async || {
        let words = waits(&site, &next).await.0;
        words
            .starts_with("there is no free slot and no waiting consumer in the only")
            .then_some(())
    })
    .await;
    client.cancel(&*key).await.unwrap();
    eventually("the other one runs", async || {
        let (words, _) = waits(&site, &next).await;
        words.starts_with("it runs").then_some(())
    })
    .await;
    // The slot of the job was free before the job was settled.
    let story = eventually("it is settled", async || {
        let story = client.story(&*key).await.unwrap();
        story.job.is_none().then_some(story)
    })
    .await;
    assert!(story.waits.is_empty());
    assert_eq!(
        words_of(&story),
        [
            "scheduled",
            "paused",
            "fired",
            "resumed",
            "claimed",
            "stopping",
            "done"
        ]
    );
    // Events before the job began do not belong to its story.
    let later = site.key(3);
    client.schedule(&*later, "").after(HOUR).await.unwrap();
    assert_eq!(
        words_of(&client.story(&*later).await.unwrap()),
        ["scheduled"]
    );
    client.cancel(&*next).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

fn words_of(story: &keyfall::Story) -> Vec<&'static str> {
    let before = story.happenings.iter().map(|it| it.what.as_str());
    before.collect()
}

#[tokio::test]
async fn a_story_names_the_actor_for_a_stuck_job() {
    let site = Site::new("storystill").await;
    let key = site.key("dies");
    site.client.schedule(&*key, "").await.unwrap();
    let router = Router::new().route(&site.key("dies"), async || Outcome::bury("no such account"));
    let worker = site.worker(router);
    let worker = Running::start(worker);
    site.reaches(&key, JobState::Dead).await;
    let (words, last) = waits(&site, &key).await;
    assert!(
        words.starts_with("it is dead letter 1: no such account; `keyfall dead"),
        "{words}"
    );
    assert_eq!(last, What::Buried);

    worker.stop().await;

    // A run without an end.
    let key = site.key("hangs");
    site.client.schedule(&*key, "").await.unwrap();
    let part = |part: &str| format!("keyfall:{{{}/0}}:{part}", site.kind());
    let _: u64 = site.command(&["ZREM", &part("due"), "hangs"]).await;
    let _: u64 = site.command(&["ZADD", &part("leased"), "1", "hangs"]).await;
    let lease = ["HSET", &part("lease"), "hangs", "nobody 1 0 1 -"];
    let _: u64 = site.command(&lease).await;
    let (words, last) = waits(&site, &key).await;
    assert!(
        words.starts_with("the lease lapsed at then: another instance"),
        "{words}"
    );
    assert!(words.contains("; no live instance has a route"), "{words}");
    assert_eq!(last, What::Scheduled);
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_story_reports_its_gaps() {
    let site = Site::new("storygap").await;
    let (client, key) = (&site.client, site.key(1));
    let gap = async |key: &str| {
        let story = client.story(key).await.unwrap();
        let gap = story.gap(|_| "then".to_owned());
        (
            words_of(&story),
            gap.map(|gap| gap.to_string()).unwrap_or_default(),
        )
    };
    let (told, said) = gap(&key).await;
    assert!(
        told.is_empty() && said.contains("which is empty, knows of none"),
        "{said}"
    );
    client.schedule(&*key, "").after(HOUR).await.unwrap();
    client.update_payload(&*key, "new").await.unwrap();
    assert_eq!(
        gap(&key).await,
        (vec!["scheduled", "updated"], String::new())
    );

    // The record has events that the history has forgotten.
    let all = || client.prefix("storygap:");
    all().keep_history(0).await.unwrap();
    let (told, said) = gap(&key).await;
    assert_eq!(told, ["scheduled", "updated"]);
    assert!(
        said.contains("is off: the story comes from its record"),
        "{said}"
    );
    all().keep_history(100).await.unwrap();
    client.reschedule(&*key).after(2 * HOUR).await.unwrap();
    let (told, said) = gap(&key).await;
    assert_eq!(told, ["scheduled", "updated", "postponed"]);
    assert!(
        said.contains("reaches back to then: earlier steps come"),
        "{said}"
    );

    // The story of a job without a record comes from the history alone.
    client.cancel(&*key).await.unwrap();
    assert_eq!(
        gap(&key).await,
        (vec!["postponed", "cancelled"], String::new())
    );
    all().keep_history(0).await.unwrap();
    let (told, said) = gap(&key).await;
    assert!(
        told.is_empty() && said.contains("ends of earlier jobs are unknown"),
        "{said}"
    );
    site.assert_balanced().await;
}
