//! The scenarios that every target passes.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use keyfall::{Cancelled, JobState, Stats};
use keyfall_testing::proxies::FreezingProxy;

use super::target::{Delivery, Ends, RouteTerms, Target, Vanished};
use crate::runs::{PATIENCE, eventually};
use crate::site::{HOUR, Site, assert_about, ms};
use crate::workers::STEADY;

/// The lease of a consumer that falls silent.
const SHORT: Duration = Duration::from_secs(4);
/// The lease of a consumer that does not.
const LONG: Duration = Duration::from_secs(60);

/// A proxy recognizes the reply to the claim by this text.
const MARK: &str = "the job as it was claimed";

/// Three attempts: the second follows at once, and the third does not begin during a test, unless
/// it is fired.
const LADDER: &str = "0s 1h";

/// A target with its site, and a job.
struct Scene<T> {
    site: Site,
    target: T,
    key: String,
}

impl<T: Target> Scene<T> {
    async fn new(scenario: &str, lease: Duration) -> Self {
        Scene::with(scenario, lease, |_| {}).await
    }

    async fn with(scenario: &str, lease: Duration, set: impl FnOnce(&mut RouteTerms)) -> Self {
        let site = Site::new(&format!("cf-{}-{scenario}", T::NATURE.name)).await;
        let mut terms = RouteTerms {
            retry: LADDER,
            lease,
            concurrency: None,
            rate: None,
        };
        set(&mut terms);
        let target = T::new(&site, terms).await;
        let key = site.key("1");
        Scene { site, target, key }
    }

    async fn schedule(&self) {
        self.site.client.schedule(&self.key, &MARK).await.unwrap();
    }

    async fn schedule_many(&self, count: usize) {
        for key in self.site.keys(count) {
            self.site.client.schedule(&key, &MARK).await.unwrap();
        }
    }

    /// Panics unless this is the job, in the attempt with this number.
    #[track_caller]
    fn assert_is(&self, delivery: &Delivery, attempt: u32) {
        assert_eq!(delivery.key, self.key);
        assert_eq!(delivery.payload, format!("{MARK:?}").into_bytes());
        if let Some(told) = &delivery.told {
            assert_eq!((told.attempt, told.max_attempts), (attempt, 3));
        }
    }

    /// Time passes, and the holder of the job falls silent.
    async fn passes(&self) {
        if let Vanished::Lapses = T::NATURE.vanished {
            self.site.lapse(1).await;
            self.site.sweep().await;
        } else {
            self.target.silence().await;
        }
    }

    /// Waits until all jobs have ended; no other job was delivered.
    async fn ended(&self) -> Stats {
        let stats = self.site.all_ended().await;
        if let Some(delivery) = self.target.next(ms(100)).await {
            panic!("{} is delivered once more", delivery.key);
        }
        self.site.assert_balanced().await;
        stats
    }
}

/// The later delivery shows that it is the later one.
#[track_caller]
fn assert_fenced(earlier: &Delivery, later: &Delivery) {
    if earlier.told.is_some() {
        assert!(earlier.told().fence < later.told().fence);
    }
}

pub(super) async fn a_job_is_delivered_once<T: Target>() {
    let scene = Scene::<T>::new("once", LONG).await;
    let _worker = scene.target.start(&scene.site.url).await;
    let call = scene.site.client.schedule(&scene.key, &MARK);
    call.after(ms(300)).await.unwrap();
    let due = scene.site.view(&scene.key).await.due();
    let delivery = scene.target.take().await;
    scene.assert_is(&delivery, 1);
    if let Some(told) = &delivery.told {
        assert_eq!(told.due, due);
        assert!(told.fence > 0);
    }
    delivery.done().await;
    let stats = scene.ended().await;
    let bad = (stats.failed, stats.lapsed, stats.returned, stats.dead);
    assert_eq!((stats.done, bad), (1, (0, 0, 0, 0)), "{stats:?}");
}

pub(super) async fn failures_climb_the_ladder_and_are_buried<T: Target>() {
    let scene = Scene::<T>::new("fails", LONG).await;
    let (site, target, key) = (&scene.site, &scene.target, &scene.key);
    let _worker = target.start(&site.url).await;
    scene.schedule().await;
    let first = target.take().await;
    scene.assert_is(&first, 1);
    first.fails("the shop is closed").await;
    let second = target.take().await;
    scene.assert_is(&second, 2);
    second.fails("it is on fire").await;
    let view = site.reaches(key, JobState::Retrying).await;
    assert!(view.last_error().unwrap().contains("on fire"), "{view:?}");
    assert_about(view.due(), HOUR);
    site.client.fire_now(key).await.unwrap();
    let third = target.take().await;
    scene.assert_is(&third, 3);
    third.fails("it was here").await;
    let view = site.reaches(key, JobState::Dead).await;
    assert!(view.last_error().unwrap().contains("was here"), "{view:?}");
    let stats = scene.ended().await;
    assert_eq!((stats.failed, stats.buried, stats.done), (2, 1, 0));
}

/// First the consumer is silent for too long, then it is gone.
pub(super) async fn a_consumer_vanishes<T: Target>() {
    let lease = match T::NATURE.ends {
        // The silence is a timeout.
        Ends::Run => SHORT,
        Ends::Written | Ends::Lease => STEADY,
    };
    let scene = Scene::<T>::new("vanish", lease).await;
    let (site, target, key) = (&scene.site, &scene.target, &scene.key);
    let _worker = target.start(&site.url).await;
    scene.schedule().await;
    let first = target.take().await;
    scene.assert_is(&first, 1);
    if let Vanished::Done = T::NATURE.vanished {
        let stats = scene.ended().await;
        assert_eq!((stats.done, stats.lapsed, stats.failed), (1, 0, 0));
        return;
    }
    scene.passes().await;
    let second = target.take().await;
    scene.assert_is(&second, 2);
    assert_fenced(&first, &second);
    drop(second);
    scene.passes().await;
    let why = match T::NATURE.vanished {
        Vanished::Fails(why) => {
            let view = site.reaches(key, JobState::Retrying).await;
            assert!(view.last_error().unwrap().contains(why), "{view:?}");
            assert_about(view.due(), HOUR);
            site.client.fire_now(key).await.unwrap();
            why
        }
        Vanished::Lapses => "lapsed in attempt 3",
        Vanished::Done => unreachable!("seen to"),
    };
    let third = target.take().await;
    scene.assert_is(&third, 3);
    drop(third);
    scene.passes().await;
    // For a pull target, only a waiting consumer shows this.
    let view = tokio::select! {
        view = site.reaches(key, JobState::Dead) => view,
        Some(more) = target.next(2 * PATIENCE) => panic!("{} is delivered again", more.key),
    };
    assert!(view.last_error().unwrap().contains(why), "{view:?}");
    let stats = scene.ended().await;
    assert_eq!((stats.buried, stats.done), (1, 0));
}

pub(super) async fn a_job_is_cancelled_in_time<T: Target>() {
    let scene = Scene::<T>::new("cancel", LONG).await;
    let (site, target) = (&scene.site, &scene.target);
    let _worker = target.start(&site.url).await;
    let early = site.key("early");
    // No job begins before the cancel, however long the cancel takes.
    let kind = site.kind();
    site.client.prefix(&kind).pause().await.unwrap();
    for key in [&early, &scene.key] {
        site.client.schedule(key, &MARK).await.unwrap();
    }
    let cancelled = site.client.cancel(&early).await.unwrap();
    assert_eq!(cancelled, Cancelled::Cancelled);
    site.client.prefix(&kind).resume().await.unwrap();
    let delivery = target.take().await;
    scene.assert_is(&delivery, 1);
    delivery.done().await;
    let stats = scene.ended().await;
    assert_eq!((stats.done, stats.cancelled), (1, 1));
}

pub(super) async fn the_concurrency_is_kept<T: Target>() {
    const JOBS: usize = 8;
    const MOST: usize = 3;
    let set = |terms: &mut RouteTerms| terms.concurrency = Some(MOST);
    let scene = Scene::<T>::with("limit", LONG, set).await;
    let target = &scene.target;
    let _worker = target.start(&scene.site.url).await;
    scene.schedule_many(JOBS).await;
    let mut seen = HashSet::new();
    if T::NATURE.ends == Ends::Written {
        // The limit holds for jobs that are being written; after that they have no owner.
        assert_eq!(scene.site.all_ended().await.done, JOBS as u64);
        while seen.len() < JOBS {
            assert!(seen.insert(target.take().await.key));
        }
    }
    let mut out = VecDeque::new();
    while seen.len() < JOBS {
        while out.len() < MOST {
            let delivery = target.take().await;
            assert!(seen.insert(delivery.key.clone()));
            out.push_back(delivery);
        }
        let more = target.next(ms(300)).await;
        assert!(more.is_none(), "more than {MOST} are out");
        out.pop_front().expect("there are some").done().await;
    }
    for delivery in out {
        delivery.done().await;
    }
    let stats = scene.ended().await;
    assert_eq!((stats.done, stats.lapsed), (JOBS as u64, 0));
}

pub(super) async fn jobs_do_not_wait_for_each_other<T: Target>() {
    const JOBS: usize = 50;
    let scene = Scene::<T>::new("crowd", LONG).await;
    let _worker = scene.target.start(&scene.site.url).await;
    scene.schedule_many(JOBS).await;
    let mut out = Vec::new();
    while out.len() < JOBS {
        out.push(scene.target.take().await);
    }
    let keys: HashSet<&str> = out.iter().map(|it| &*it.key).collect();
    assert_eq!(keys.len(), JOBS);
    for delivery in out {
        delivery.done().await;
    }
    assert_eq!(scene.ended().await.done, JOBS as u64);
}

pub(super) async fn the_rate_is_kept<T: Target>() {
    const JOBS: usize = 15;
    const RATE: u32 = 5;
    let set = |terms: &mut RouteTerms| terms.rate = Some(RATE);
    let scene = Scene::<T>::with("rate", LONG, set).await;
    let target = &scene.target;
    let _worker = target.start(&scene.site.url).await;
    let began = Instant::now();
    scene.schedule_many(JOBS).await;
    for number in 1..=JOBS {
        let delivery = target.take().await;
        // The jobs of one second may come at once.
        let may = RATE as f64 * (1.0 + began.elapsed().as_secs_f64());
        assert!(number as f64 <= may, "{number} came, where {may} may");
        delivery.done().await;
    }
    assert_eq!(scene.ended().await.done, JOBS as u64);
}

/// The worker has claimed the job, and does not know it.
pub(super) async fn the_worker_dies_before<T: Target>() {
    let scene = Scene::<T>::new("before", STEADY).await;
    let (site, target) = (&scene.site, &scene.target);
    let proxy = FreezingProxy::at(&site.url).await;
    proxy.freeze_at(MARK);
    let worker = target.start(&proxy.url).await;
    scene.schedule().await;
    let (delivery, _worker) = tokio::join!(target.take(), async {
        eventually("it is claimed", async || {
            (site.stats().await.leased == 1).then_some(())
        })
        .await;
        worker.dies();
        site.lapse(1).await;
        target.start(&site.url).await
    });
    scene.assert_is(&delivery, 2);
    delivery.done().await;
    let stats = scene.ended().await;
    assert_eq!((stats.done, stats.lapsed), (1, 1), "{stats:?}");
}

/// A consumer has the job, and ends it afterwards.
pub(super) async fn the_worker_dies_meanwhile<T: Target>() {
    let scene = Scene::<T>::new("meanwhile", lease_of::<T>()).await;
    let (site, target) = (&scene.site, &scene.target);
    let worker = target.start(&site.url).await;
    scene.schedule().await;
    let delivery = target.take().await;
    scene.assert_is(&delivery, 1);
    if T::NATURE.ends == Ends::Written {
        site.all_ended().await;
    }
    worker.dies();
    if T::NATURE.ends == Ends::Run {
        site.lapse(1).await;
    }
    let _worker = target.start(&site.url).await;
    if T::NATURE.ends == Ends::Run {
        let again = target.take().await;
        scene.assert_is(&again, 2);
        assert_fenced(&delivery, &again);
        // No consumer sees the first delivery.
        delivery.fails("it is late").await;
        again.done().await;
    } else {
        delivery.done().await;
    }
    let stats = scene.ended().await;
    let lapsed = u64::from(T::NATURE.ends == Ends::Run);
    assert_eq!((stats.done, stats.failed, stats.lapsed), (1, 0, lapsed));
}

/// A consumer has the job and ends it, but the worker can no longer write to the ledger.
pub(super) async fn the_worker_dies_after<T: Target>() {
    let scene = Scene::<T>::new("after", lease_of::<T>()).await;
    let (site, target) = (&scene.site, &scene.target);
    let proxy = FreezingProxy::at(&site.url).await;
    proxy.end_with(MARK);
    let worker = target.start(&proxy.url).await;
    scene.schedule().await;
    let delivery = target.take().await;
    scene.assert_is(&delivery, 1);
    let is_told = T::NATURE.ends == Ends::Lease;
    let ((), _worker) = tokio::join!(delivery.done(), async {
        worker.dies();
        if !is_told {
            site.lapse(1).await;
        }
        target.start(&site.url).await
    });
    if !is_told {
        let again = target.take().await;
        scene.assert_is(&again, 2);
        again.done().await;
    }
    let stats = scene.ended().await;
    let lapsed = u64::from(!is_told);
    assert_eq!((stats.done, stats.failed, stats.lapsed), (1, 0, lapsed));
}

pub(super) async fn worker_and_consumer_die_together<T: Target>() {
    let scene = Scene::<T>::new("both", STEADY).await;
    let (site, target) = (&scene.site, &scene.target);
    let worker = target.start(&site.url).await;
    scene.schedule().await;
    let first = target.take().await;
    scene.assert_is(&first, 1);
    drop(first);
    worker.dies();
    scene.passes().await;
    let _worker = target.start(&site.url).await;
    let second = target.take().await;
    scene.assert_is(&second, 2);
    second.done().await;
    let stats = scene.ended().await;
    assert_eq!((stats.done, stats.lapsed + stats.failed), (1, 1));
}

/// A target that delivers the job of a dead worker again does so soon; other targets never do.
fn lease_of<T: Target>() -> Duration {
    match T::NATURE.ends {
        Ends::Run | Ends::Written => STEADY,
        Ends::Lease => LONG,
    }
}
