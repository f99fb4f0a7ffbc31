//! Calls without a worker: jobs are stored and reported.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use keyfall::{Cancelled, Client, JobState, NewJob, Placed, Rescheduled, Updated};

use super::place::{Place, site};
use crate::site::{HOUR, assert_about};

pub(super) async fn a_job_is_scheduled_changed_and_cancelled<P: Place>() {
    let site = site::<P>("changed").await;
    let client = &site.client;
    let key = site.key(1);
    assert!(client.get(&key).await.unwrap().is_none());
    let scheduled = client.schedule(&key, &1).after(HOUR).await.unwrap();
    assert_eq!(scheduled.placed, Placed::Created);
    assert!(scheduled.armed);
    let again = client.schedule(&key, &2).after(HOUR).if_absent();
    assert!(again.await.is_ok());
    let view = site.view(&key).await;
    assert_eq!(view.json::<u32>().unwrap(), 1);
    assert_eq!(view.state(), JobState::Pending);

    let moved = client.reschedule(&key).after(2 * HOUR).await.unwrap();
    assert!(matches!(moved, Rescheduled::Moved(_)), "{moved:?}");
    assert_about(site.view(&key).await.due(), 2 * HOUR);
    let updated = client.update_payload(&key, &3).await.unwrap();
    assert!(matches!(updated, Updated::Updated(_)), "{updated:?}");
    assert_eq!(site.view(&key).await.json::<u32>().unwrap(), 3);
    let replaced = client.schedule(&key, &4).after(HOUR).await.unwrap();
    assert_eq!(replaced.placed, Placed::Replaced);

    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Cancelled);
    assert_eq!(client.cancel(&key).await.unwrap(), Cancelled::Absent);
    assert!(client.get(&key).await.unwrap().is_none());
    let told = client.happenings(&key).await.unwrap();
    assert!(!told.is_empty(), "its history is told");
    let stats = site.stats().await;
    assert_eq!((stats.accepted, stats.replaced, stats.cancelled), (2, 1, 1));
    site.assert_balanced().await;
}

pub(super) async fn simultaneous_calls_are_each_answered<P: Place>() {
    let site = site::<P>("together").await;
    let keys: Vec<String> = (0..3)
        .flat_map(|kind| (0..300).map(move |id| format!("job{kind}:{id}")))
        .map(|name| format!("{}:it:{name}", site.app))
        .collect();
    let calls = keys.iter().map(async |key| {
        let call = site.client.schedule(key, key).after(HOUR);
        call.await.unwrap().placed
    });
    let placed = join_all(calls).await;
    assert!(placed.iter().all(|placed| *placed == Placed::Created));
    let views = join_all(keys.iter().map(|key| site.view(key))).await;
    for (key, view) in keys.iter().zip(&views) {
        assert_eq!(view.json::<String>().unwrap(), *key);
    }
    let calls = keys.iter().map(async |key| {
        let cancelled = site.client.cancel(key).await.unwrap();
        assert_eq!(cancelled, Cancelled::Cancelled, "{key}");
    });
    join_all(calls).await;
    let counts = site.client.count(&format!("{}:", site.app)).await.unwrap();
    assert_eq!(counts.pending, 0);
    site.assert_balanced().await;
}

pub(super) async fn many_jobs_are_counted_listed_and_changed_at_once<P: Place>() {
    let site = site::<P>("many").await;
    let client = &site.client;
    let app = format!("{}:", site.app);
    let keys: BTreeSet<String> = (0..5)
        .flat_map(|kind| (0..120).map(move |id| (kind, id)))
        .map(|(kind, id)| format!("{app}it:job{kind}:{id:03}"))
        .collect();
    let jobs = keys.iter().map(|key| NewJob::new(key, &0).after(HOUR));
    for answer in client.schedule_many(jobs).await {
        assert_eq!(answer.unwrap().unwrap().placed, Placed::Created);
    }
    assert_eq!(client.count(&app).await.unwrap().pending, 600);
    let kinds = client.kinds().await.unwrap();
    let own = kinds
        .iter()
        .filter(|kind| kind.to_string().starts_with(&app));
    assert_eq!(own.count(), 5);

    let mut listed = BTreeSet::new();
    let mut next = None;
    loop {
        let list = client.list(&app, JobState::Pending).limit(70);
        let page = match next.take() {
            Some(cursor) => list.after(cursor).await.unwrap(),
            None => list.await.unwrap(),
        };
        for job in &page.jobs {
            assert!(listed.insert(job.key().to_string()), "{} twice", job.key());
        }
        next = page.next;
        if next.is_none() {
            break;
        }
    }
    assert_eq!(listed, keys);

    let due = client.prefix(&app).upcoming(2 * HOUR).spans(2).await;
    let due = due.unwrap();
    assert_eq!(due.spans.iter().sum::<u64>(), 600, "{due:?}");
    assert_eq!((due.overdue, due.earlier, due.later), (0, 0, 0));

    let dry = client.prefix(&app).postpone().by(HOUR).dry_run().await;
    assert_eq!(dry.unwrap().matched, 600);
    let postponed = client.prefix(&app).postpone().by(HOUR).await.unwrap();
    assert_eq!((postponed.matched, postponed.done), (600, 600));
    assert_about(site.view(keys.first().unwrap()).await.due(), 2 * HOUR);
    let cancelled = client.prefix(&format!("{app}it:job3:0")).cancel().await;
    assert_eq!(cancelled.unwrap().done, 100);
    assert_eq!(client.count(&app).await.unwrap().pending, 500);
    for kind in 0..5 {
        let report = client.audit(&format!("{app}it:job{kind}")).await.unwrap();
        assert!(report.is_clean(), "{report:?}");
    }
    assert_eq!(client.prefix(&app).cancel().await.unwrap().done, 500);
    site.assert_balanced().await;
}

/// Two clients see the same jobs, and a client with another namespace sees none.
pub(super) async fn another_namespace_has_other_jobs<P: Place>() {
    let site = site::<P>("other").await;
    let key = site.key(1);
    let scheduled = site.client.schedule(&key, &1).after(HOUR).await;
    assert!(scheduled.unwrap().armed);
    let same = Client::connect(&site.url).await.unwrap();
    assert!(same.get(&key).await.unwrap().is_some());
    let other = Client::builder(&site.url).namespace("elsewhere");
    let other = other.connect().await.unwrap();
    assert!(other.get(&key).await.unwrap().is_none());
    same.cancel(&key).await.unwrap();
    assert!(site.client.get(&key).await.unwrap().is_none());
    site.assert_balanced().await;
}
