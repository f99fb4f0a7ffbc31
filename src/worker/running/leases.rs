//! The leases that this worker holds. They are renewed while their jobs run, and given up in time.
//!
//! The age of a lease counts from before its last successful claim or renewal was sent, by a clock
//! that continues while the machine sleeps. So a lease ends here before it ends in Redis.
//!
//! In the life of a lease, [`Leases::run`] acts at these ages:
//!
//! | age | action |
//! |---|---|
//! | [`LeaseLength::renewal`] | renews it, together with others of the same ledger and length, in batches; repeated until it succeeds |
//! | [`LeaseLength::safe`] minus [`LeaseLength::notice`] | raises the cancellation signal of its job |
//! | [`LeaseLength::safe`] | ends the run: the lease counts as lost |

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio::sync::{Notify, oneshot};

use crate::error::Result;
use crate::handler::CancelSignal;
use crate::key::JobKey;
use crate::moment::Moment;
use crate::settings::{BATCH, LeaseLength};
use crate::store::{Answered, Extent, Ledger, Word};

/// Longest time between two looks at the leases, however long these are, so that the worker acts
/// soon after the machine has slept. Timers do not count the sleep.
const AWAKE: Duration = Duration::from_millis(100);

/// The reason why a run has to end before its handler does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The lease is over, or another worker holds it.
    Lost,
    /// The worker stops, and gives the job back.
    HandBack,
}

/// The owner of a lease, as far as this process knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LeaseStatus {
    Ours,
    /// The last renewal is so old that another worker may have the job.
    Doubtful,
    Lost,
}

/// All leases that the worker holds.
pub(crate) struct Leases {
    /// The leases, by their numbers in this process.
    held: Mutex<HashMap<u64, HeldLease>>,
    numbers: AtomicU64,
    /// Notified when the first lease is added, and when a lease has to be renewed or is to run out.
    changed: Notify,
    /// Notified of each answer to a renewal.
    answered: Notify,
    /// Shortest lease of any route.
    shortest: LeaseLength,
}

/// One lease, with the job and the token by which Redis knows it.
struct HeldLease {
    ledger: Arc<Ledger>,
    key: JobKey,
    token: Arc<str>,
    /// When the last successful claim or renewal was sent.
    since: Moment,
    /// Whether a renewal is under way.
    renewing: bool,
    length: LeaseLength,
    /// The cancellation signal of the job.
    signal: CancelSignal,
    /// Whether the job is handed on, so that its consumer may extend the lease, too.
    is_shared: bool,
    /// Ends the run; `None` once it was used.
    stop: Option<oneshot::Sender<Stop>>,
    /// Whether Redis refused a renewal, or the lease became too old.
    is_lost: bool,
    last: Option<Last>,
}

/// The last renewal of a lease: another owner has its job from then on.
struct Last {
    length: LeaseLength,
    /// Whether the last renewal is under way.
    is_sent: bool,
    /// Dropped when Redis knows, or cannot be told any more.
    _told: oneshot::Sender<Infallible>,
}

/// Keeps a lease: the worker renews it until the guard is dropped.
pub(crate) struct LeaseGuard {
    leases: Arc<Leases>,
    /// The number of the lease in [`Leases`].
    number: u64,
    /// Receives the reason if the run has to end early.
    pub(crate) stop: oneshot::Receiver<Stop>,
}

/// The leases of one ledger that have to be renewed in the same way.
struct Stale {
    ledger: Arc<Ledger>,
    extent: Extent,
    /// How long the renewal is tried.
    until: Instant,
    numbers: Vec<u64>,
    /// Id and token of each lease.
    pairs: Vec<(String, Arc<str>)>,
}

/// The answer to one renewal call, with the numbers of its leases.
type Renewal = (Vec<u64>, Result<(Vec<Answered>, Moment)>);

impl Leases {
    /// `shortest` is the shortest lease of any route; it sets how often leases are looked at.
    pub(crate) fn new(shortest: LeaseLength) -> Arc<Self> {
        Arc::new(Leases {
            held: Mutex::default(),
            numbers: AtomicU64::new(0),
            changed: Notify::new(),
            answered: Notify::new(),
            shortest,
        })
    }

    /// Keeps a lease whose claim was sent at `since`. `signal` is the cancellation signal of the
    /// job.
    pub(crate) fn hold(
        self: &Arc<Self>,
        ledger: Arc<Ledger>,
        key: JobKey,
        token: Arc<str>,
        since: Moment,
        length: LeaseLength,
        signal: CancelSignal,
    ) -> LeaseGuard {
        let (stop, stopped) = oneshot::channel();
        let lease = HeldLease {
            ledger,
            key,
            token,
            since,
            renewing: false,
            length,
            is_shared: false,
            signal,
            stop: Some(stop),
            is_lost: false,
            last: None,
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut held = self.lock();
        held.insert(number, lease);
        if held.len() == 1 {
            self.changed.notify_one();
        }
        LeaseGuard {
            leases: self.clone(),
            number,
            stop: stopped,
        }
    }

    /// Raises the cancellation signal of a job, if it runs here.
    pub(crate) fn cancel(&self, kind: &str, id: &str) {
        for lease in self.lock().values() {
            if lease.key.id() == id && lease.key.kind() == kind {
                lease.signal.raise();
            }
        }
    }

    /// Ends all runs, so that their jobs are given back.
    pub(crate) fn hand_back_all(&self) {
        for lease in self.lock().values_mut() {
            lease.end(Stop::HandBack);
        }
    }

    /// Renews leases, warns runs and ends them, for ever.
    pub(crate) async fn run(&self) {
        let tick = tick(self.shortest);
        let mut renewals: FuturesUnordered<BoxFuture<'static, Renewal>> = FuturesUnordered::new();
        loop {
            if self.lock().is_empty() && renewals.is_empty() {
                self.changed.notified().await;
            }
            let now = Moment::now();
            self.end_overdue(&now);
            renewals.extend(self.step(&now));
            tokio::select! {
                () = tokio::time::sleep(tick) => {}
                () = self.changed.notified() => {}
                Some((numbers, answer)) = renewals.next() => {
                    self.renewed(&numbers, answer);
                    self.answered.notify_waiters();
                }
            }
        }
    }

    /// Warns the runs whose lease is about to end, and ends the runs whose lease has ended.
    fn end_overdue(&self, now: &Moment) {
        for lease in self.lock().values_mut() {
            let safe = lease.length.safe();
            let age = now.since(&lease.since);
            if age + lease.length.notice() >= safe {
                lease.signal.raise();
            }
            if age >= safe {
                lease.end(Stop::Lost);
            }
        }
    }

    /// The renewal calls that are due now. One that fails is repeated after a tick.
    fn step(&self, now: &Moment) -> Vec<BoxFuture<'static, Renewal>> {
        let mut due: HashMap<(String, Extent), Stale> = HashMap::new();
        for (number, lease) in self.lock().iter_mut() {
            let is_due = lease.is_doubtful(now) || lease.last.is_some();
            // A lost lease is not renewed: other workers take its job when it lapses.
            if lease.renewing || lease.is_lost || !is_due {
                continue;
            }
            lease.renewing = true;
            let length = lease.last.as_mut().map_or(lease.length, |last| {
                last.is_sent = true;
                last.length
            });
            let extent = lease.extent(length);
            let call = (lease.ledger.subject().to_owned(), extent);
            let stale = due.entry(call).or_insert_with(|| Stale {
                ledger: lease.ledger.clone(),
                extent,
                until: tried_until(now.instant, length),
                numbers: Vec::new(),
                pairs: Vec::new(),
            });
            stale.numbers.push(*number);
            let pair = (lease.key.id().to_owned(), lease.token.clone());
            stale.pairs.push(pair);
        }
        let tick = tick(self.shortest);
        let mut calls: Vec<BoxFuture<'static, Renewal>> = Vec::new();
        for stale in due.into_values() {
            let batches = stale.numbers.chunks(BATCH).zip(stale.pairs.chunks(BATCH));
            for (numbers, pairs) in batches {
                let ledger = stale.ledger.clone();
                let (numbers, pairs) = (numbers.to_vec(), pairs.to_vec());
                let (extent, until) = (stale.extent, stale.until);
                calls.push(Box::pin(async move {
                    let answer = ledger.renew(&pairs, extent, until).await;
                    if answer.is_err() {
                        tokio::time::sleep(tick).await;
                    }
                    (numbers, answer)
                }));
            }
        }
        calls
    }

    /// Takes in the answer to a renewal call.
    fn renewed(&self, numbers: &[u64], answer: Result<(Vec<Answered>, Moment)>) {
        let mut held = self.lock();
        let (answers, sent) = match answer {
            Ok(answer) => answer,
            Err(error) => {
                tracing::debug!(leases = numbers.len(), %error, "leases could not be renewed");
                for number in numbers {
                    if let Some(lease) = held.get_mut(number) {
                        lease.renewing = false;
                        lease.last.iter_mut().for_each(|last| last.is_sent = false);
                    }
                }
                return;
            }
        };
        for (number, answered) in numbers.iter().zip(answers) {
            // As a rule the job was settled meanwhile, and the answer does not matter.
            let Some(lease) = held.get_mut(number) else {
                continue;
            };
            lease.renewing = false;
            if lease.last.as_ref().is_some_and(|last| last.is_sent) {
                held.remove(number);
                continue;
            }
            match answered.answer {
                Word::Renewed => lease.since = sent,
                Word::Cancelled => {
                    lease.since = sent;
                    lease.signal.raise();
                }
                _ => lease.end(Stop::Lost),
            }
        }
    }

    /// The status of the lease with this number.
    fn standing(&self, number: u64) -> LeaseStatus {
        let now = Moment::now();
        match self.lock().get(&number) {
            Some(lease) if lease.is_over(&now) => LeaseStatus::Lost,
            Some(lease) if lease.is_doubtful(&now) => LeaseStatus::Doubtful,
            Some(_) => LeaseStatus::Ours,
            None => LeaseStatus::Lost,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, HeldLease>> {
        self.held.lock().expect("no panic while held")
    }
}

/// The time between two looks at leases of this length or longer.
fn tick(shortest: LeaseLength) -> Duration {
    let tick = shortest.renewal() / 10;
    tick.clamp(Duration::from_millis(10), AWAKE)
}

/// The deadline of a renewal that is sent now. Then another one is due.
fn tried_until(now: Instant, length: LeaseLength) -> Instant {
    now + length.renewal()
}

impl HeldLease {
    /// The extent of a renewal for this length. One that is late, or repeated, must not shorten a
    /// lease that the consumer of the job has extended meanwhile. All others are exact: after the
    /// clock of Redis was set back, they bring the end of the lease back, too.
    fn extent(&self, length: LeaseLength) -> Extent {
        match self.is_shared && length.0 >= self.length.0 {
            true => Extent::AtLeast(length.0),
            false => Extent::Exactly(length.0),
        }
    }

    /// Whether the lease is over, by the clock of this process.
    fn is_over(&self, now: &Moment) -> bool {
        self.is_lost || now.since(&self.since) >= self.length.safe()
    }

    /// Whether the lease has to be renewed: it is old, or one of the clocks says that it may be.
    fn is_doubtful(&self, now: &Moment) -> bool {
        now.longest_since(&self.since) >= self.length.renewal()
    }

    /// Ends the run of this lease.
    fn end(&mut self, why: Stop) {
        if let Some(stop) = self.stop.take() {
            // The run may have ended by itself.
            let _ = stop.send(why);
        }
        if why == Stop::Lost {
            self.is_lost = true;
            self.signal.raise();
            self.last = None;
        }
    }
}

impl LeaseGuard {
    /// Takes in that the job is handed on, so that its consumer may extend the lease, too.
    pub(crate) fn share(&self) {
        if let Some(lease) = self.leases.lock().get_mut(&self.number) {
            lease.is_shared = true;
        }
    }

    /// Lets the lease run for this length from now, and renews it no more. Returns when Redis has
    /// been told, or cannot be told any more.
    pub(crate) async fn run_out(&self, length: LeaseLength) {
        let (told, known) = oneshot::channel();
        if let Some(lease) = self.leases.lock().get_mut(&self.number) {
            // A lost lease is not renewed, so nothing would drop `told`.
            if lease.is_lost {
                return;
            }
            lease.last = Some(Last {
                length,
                is_sent: false,
                _told: told,
            });
            self.leases.changed.notify_one();
        }
        // Always an error: the sender is dropped.
        let _ = known.await;
    }

    /// Waits until the lease certainly belongs to this worker, and renews it if it is in doubt. It
    /// may be over before the run has begun: because the reply to the claim was slow, this process
    /// was stopped, or the machine slept. A lease that is to be handed back still belongs to this
    /// worker.
    ///
    /// # Errors
    /// The reason to end the run instead.
    pub(crate) async fn ascertain(&mut self) -> Result<(), Stop> {
        let mut is_asked = false;
        loop {
            let answered = self.leases.answered.notified();
            match self.leases.standing(self.number) {
                LeaseStatus::Ours => return Ok(()),
                LeaseStatus::Lost => return Err(Stop::Lost),
                LeaseStatus::Doubtful if is_asked => {}
                LeaseStatus::Doubtful => self.leases.changed.notify_one(),
            }
            is_asked = true;
            tokio::select! {
                () = answered => {}
                stop = &mut self.stop => return Err(stop.unwrap_or(Stop::Lost)),
            }
        }
    }

    /// A function that tells whether the lease certainly belongs to this worker. `false` after the
    /// guard is dropped.
    pub(crate) fn proof(&self) -> impl Fn() -> bool + Send + Sync + 'static {
        let (leases, number) = (self.leases.clone(), self.number);
        move || leases.standing(number) == LeaseStatus::Ours
    }
}

impl Drop for LeaseGuard {
    fn drop(&mut self) {
        self.leases.lock().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::key::Kind;
    use crate::names::Names;
    use crate::settings::LinkSettings;
    use crate::store::Store;

    fn hold(leases: &Arc<Leases>, since: Moment) -> LeaseGuard {
        // This Redis is never called.
        let link = LinkSettings::default();
        let store = Store::new("redis://127.0.0.1:1", Names::new("keyfall"), &link).unwrap();
        let place = crate::shards::Layout::FIRST.place(0);
        let kind = Kind::parse("app:orders:expire").unwrap();
        let (ledger, key) = (store.ledger(&kind, place), kind.key("1").unwrap());
        let length = leases.shortest;
        leases.hold(
            ledger,
            key,
            "token".into(),
            since,
            length,
            CancelSignal::new(),
        )
    }

    #[test]
    fn no_renewal_shortens_a_lease_that_a_consumer_has_extended() {
        let seconds = Duration::from_secs;
        let leases = Leases::new(LeaseLength(seconds(30)));
        let held = hold(&leases, Moment::now());
        let extent = |length| leases.lock()[&held.number].extent(LeaseLength(length));
        assert_eq!(extent(seconds(30)), Extent::Exactly(seconds(30)));
        held.share();
        assert_eq!(extent(seconds(30)), Extent::AtLeast(seconds(30)));
        assert_eq!(extent(seconds(600)), Extent::AtLeast(seconds(600)));
        assert_eq!(extent(seconds(5)), Extent::Exactly(seconds(5)), "as asked");
    }

    #[test]
    fn a_lease_is_ours_until_it_is_lost() {
        let length = LeaseLength(Duration::from_secs(30));
        let leases = Leases::new(length);
        let now = Moment::now();
        let mut held = hold(&leases, now);
        assert_eq!(leases.standing(held.number), LeaseStatus::Ours);
        // The lease stays ours: its run, which may not have begun yet, has to give the job back.
        leases.hand_back_all();
        assert_eq!(leases.standing(held.number), LeaseStatus::Ours);
        assert_eq!(held.stop.try_recv(), Ok(Stop::HandBack));
        leases.end_overdue(&now.plus(length.safe()));
        assert_eq!(leases.standing(held.number), LeaseStatus::Lost);
    }

    #[tokio::test]
    async fn an_answer_that_a_lease_is_lost_ends_it_at_once() {
        let leases = Leases::new(LeaseLength(Duration::from_secs(3600)));
        let held = hold(&leases, Moment::now());
        let answer = Answered::of(Word::Foreign);
        leases.renewed(&[held.number], Ok((vec![answer], Moment::now())));
        let run_out = held.run_out(leases.shortest);
        let waited = tokio::time::timeout(Duration::from_secs(5), run_out).await;
        assert!(waited.is_ok(), "nobody tells of it");
    }

    #[test]
    fn the_age_of_a_renewed_lease_counts_from_the_question() {
        let length = LeaseLength(Duration::from_secs(30));
        let leases = Leases::new(length);
        let now = Moment::now();
        let held = hold(&leases, now);
        // The answer took almost as long as the lease.
        let answers = vec![Answered::of(Word::Renewed)];
        leases.renewed(&[held.number], Ok((answers, now.minus(length.safe()))));
        assert_eq!(leases.standing(held.number), LeaseStatus::Doubtful);
    }

    #[test]
    fn a_renewal_that_failed_is_repeated() {
        let leases = Leases::new(LeaseLength(Duration::from_secs(30)));
        let held = hold(&leases, Moment::now());
        leases.lock().get_mut(&held.number).unwrap().renewing = true;
        let error = Error::new(ErrorKind::Unavailable, "no answer".to_owned());
        leases.renewed(&[held.number], Err(error));
        assert!(!leases.lock()[&held.number].renewing);
    }

    #[test]
    fn a_cancel_reaches_the_job_of_its_kind_only() {
        let leases = Leases::new(LeaseLength(Duration::from_secs(30)));
        let held = hold(&leases, Moment::now());
        let is_raised = || leases.lock()[&held.number].signal.is_raised();
        leases.cancel("app:orders:remind", "1");
        leases.cancel("app:orders:expire", "2");
        assert!(!is_raised());
        leases.cancel("app:orders:expire", "1");
        assert!(is_raised());
    }

    #[tokio::test]
    async fn a_renewed_lease_is_no_longer_in_doubt() {
        let length = LeaseLength(Duration::from_secs(30));
        let leases = Leases::new(length);
        let earlier = Moment::now();
        let mut held = hold(&leases, earlier);
        let number = held.number;
        let (ours, lost) = (LeaseStatus::Ours, LeaseStatus::Lost);
        // The lease is now old enough to be renewed.
        leases.lock().get_mut(&number).unwrap().since = earlier.minus(length.renewal());
        assert_eq!(leases.standing(number), LeaseStatus::Doubtful);
        assert!(!held.proof()());
        let asked = tokio::spawn(async move {
            let certain = held.ascertain().await;
            (held, certain)
        });
        leases.changed.notified().await;
        let renewed = |word| {
            let answer = Answered::of(word);
            leases.renewed(&[number], Ok((vec![answer], Moment::now())));
            leases.answered.notify_waiters();
        };
        renewed(Word::Renewed);
        let (mut held, certain) = asked.await.unwrap();
        assert_eq!((certain, leases.standing(number)), (Ok(()), ours));
        renewed(Word::Foreign);
        assert_eq!(leases.standing(number), lost);
        assert_eq!(held.ascertain().await, Err(Stop::Lost));
    }

    /// Whether this is notified within a moment.
    async fn is_told(notify: &Notify) -> bool {
        let patience = Duration::from_millis(10);
        tokio::time::timeout(patience, notify.notified())
            .await
            .is_ok()
    }

    #[test]
    fn a_run_is_warned_before_its_lease_ends() {
        let length = LeaseLength(Duration::from_secs(30));
        let leases = Leases::new(length);
        let now = Moment::now();
        let mut held = hold(&leases, now);
        let is_warned = || leases.lock()[&0].signal.is_raised();
        let warning = length.safe() - length.notice();
        leases.end_overdue(&now.plus(warning - Duration::from_millis(1)));
        assert!(!is_warned());
        leases.end_overdue(&now.plus(warning));
        assert!(is_warned() && held.stop.try_recv().is_err());
        leases.end_overdue(&now.plus(length.safe()));
        assert_eq!(held.stop.try_recv(), Ok(Stop::Lost));
    }

    #[test]
    fn a_look_comes_between_the_warning_and_the_end_of_a_lease() {
        for seconds in [1, 2, 3, 10, 60, 24 * 3600] {
            let length = LeaseLength(Duration::from_secs(seconds));
            let tick = tick(length);
            assert!(tick <= length.notice(), "{tick:?} for {seconds} s");
            assert!(tick >= Duration::from_millis(10), "{tick:?} is no rest");
        }
    }

    #[test]
    fn a_renewal_is_tried_for_a_while_and_given_up_before_its_lease_ends() {
        for seconds in [1, 10, 24 * 3600] {
            let length = LeaseLength(Duration::from_secs(seconds));
            let now = Instant::now();
            let tried = tried_until(now, length).saturating_duration_since(now);
            assert!(tried >= length.renewal() / 2, "{tried:?} of {seconds} s");
            // The lease is this old when its renewal is due.
            let age = length.renewal() + tried;
            assert!(
                age < length.safe() - length.notice(),
                "{age:?} of {seconds} s"
            );
        }
    }

    #[tokio::test]
    async fn old_leases_are_renewed_once_at_a_time() {
        let length = LeaseLength(Duration::from_secs(30));
        let leases = Leases::new(length);
        let now = Moment::now();
        let held = hold(&leases, now);
        assert!(
            is_told(&leases.changed).await,
            "the renewal sleeps without leases"
        );
        assert!(leases.step(&now).is_empty(), "it is new");
        let old = now.plus(length.renewal());
        assert_eq!(leases.step(&old).len(), 1);
        assert!(leases.step(&old).is_empty(), "a renewal is under way");
        let answer = Answered::of(Word::Cancelled);
        leases.renewed(&[held.number], Ok((vec![answer], old)));
        let lease = |look: fn(&HeldLease) -> bool| look(&leases.lock()[&held.number]);
        assert!(lease(|it| it.signal.is_raised() && !it.is_lost));
        assert!(leases.step(&old).is_empty(), "it was renewed");
        leases.lock().get_mut(&held.number).unwrap().end(Stop::Lost);
        let older = old.plus(length.renewal());
        assert!(leases.step(&older).is_empty(), "it is lost");
        drop(held);
        assert!(leases.lock().is_empty());
    }

    #[tokio::test]
    async fn a_run_in_doubt_asks_once_and_waits_for_the_answer() {
        // In doubt at once, and not over for an hour.
        let leases = Leases::new(LeaseLength(Duration::from_secs(3600)));
        let mut held = hold(&leases, Moment::now());
        assert!(is_told(&leases.changed).await);
        let since = |since| leases.lock().get_mut(&0).unwrap().since = since;
        since(Moment::now().minus(Duration::from_secs(1500)));
        let certain = held.ascertain();
        tokio::pin!(certain);
        let wait = async |certain: std::pin::Pin<&mut _>| {
            let patience = Duration::from_millis(10);
            tokio::time::timeout(patience, certain).await.is_err()
        };
        assert!(wait(certain.as_mut()).await);
        assert!(is_told(&leases.changed).await, "it asks");
        leases.answered.notify_waiters();
        assert!(wait(certain.as_mut()).await);
        assert!(!is_told(&leases.changed).await, "it has asked");
        since(Moment::now());
        leases.answered.notify_waiters();
        assert_eq!(certain.await, Ok(()));
    }

    #[tokio::test]
    async fn a_lease_that_runs_out_is_renewed_for_the_last_time() {
        let leases = Leases::new(LeaseLength(Duration::from_secs(3600)));
        let held = hold(&leases, Moment::now());
        let number = held.number;
        let run_out = held.run_out(LeaseLength(Duration::from_secs(7)));
        tokio::pin!(run_out);
        let patience = Duration::from_millis(10);
        let is_known = tokio::time::timeout(patience, run_out.as_mut())
            .await
            .is_ok();
        assert!(!is_known, "Redis was not told");
        let now = Moment::now();
        assert_eq!(leases.step(&now).len(), 1, "although it is new");
        leases.renewed(&[number], Ok((vec![Answered::of(Word::Renewed)], now)));
        run_out.await;
        assert!(leases.lock().is_empty(), "another owner has the job");
    }
}
