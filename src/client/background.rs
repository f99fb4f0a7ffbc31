//! Background calls carry large batches: they wait for each other, and leave a server time for due jobs
//! while jobs fall due there.

use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard};
use tokio::time::{Instant, sleep, timeout};

/// When calls have taken this long, a pause follows. Timers count whole milliseconds, so a pause after
/// each short call would make batches slower, and many times so where calls travel alone.
const BUSY: Duration = Duration::from_millis(1);

/// A pause lasts so many times as long as the calls before it, so large batches take little of the time
/// of Redis and of the cores, and due jobs have the rest.
const PAUSE_FACTOR: u32 = 12;

/// The same when calls have been held up for [`LASTING`] without a [`LULL`]: with longer pauses, a steady
/// flow of rows would wait ever longer.
const LASTING_FACTOR: u32 = 3;

/// After how long a flow of calls gets shorter pauses.
const LASTING: Duration = Duration::from_secs(5);

/// A flow of calls ends when none had to wait for a pause for so long. A transaction between two batches
/// is shorter.
const LULL: Duration = Duration::from_secs(1);

/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// When a call has taken this long, the next one begins.
const LONG_CALL: Duration = Duration::from_millis(5);

/// How often a server is asked how many of its keys have expired. Each job that falls due is such a key.
const ASKING: Duration = Duration::from_millis(100);

/// When no key has expired for so long, calls make no pauses.
const QUIET: Duration = Duration::from_secs(1);

/// How long a call waits for the next of the others to begin: a call that its caller does not poll never
/// ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// The background calls of each server: one at a time, with pauses between them.
pub(super) struct Background(Box<[Turns]>);

/// The turns of the calls of a server.
struct Turns {
    load: Mutex<Load>,
    /// How many calls have begun.
    begun: AtomicU64,
}

/// How much of the time of a server the calls took.
struct Load {
    /// How long they took since the last pause.
    busy: Duration,
    /// When the last one was answered.
    ended: Instant,
    /// Since when they have been held up, without a lull.
    flowing: Instant,
    /// When one last had to wait for a pause.
    waited: Instant,
    /// When the server was last asked, and how many keys had expired; `None` without an answer.
    asked: Option<Instant>,
    expired: Option<u64>,
    /// When that number was last seen to change, or was unknown.
    fell_due: Instant,
}

impl Background {
    pub(super) fn new(servers: usize) -> Self {
        let now = Instant::now();
        let idle = |_| Turns {
            load: Mutex::new(Load {
                busy: Duration::ZERO,
                ended: now,
                flowing: now,
                waited: now,
                asked: None,
                expired: None,
                fell_due: now,
            }),
            begun: AtomicU64::new(0),
        };
        Background((0..servers).map(idle).collect())
    }

    /// Makes a call on the server at this place, after the calls that wait already. The next call does
    /// not wait for a long one: a node of a cluster that does not answer must not hold up the others.
    ///
    /// `expired` asks the server how many of its keys have expired. `None` if that cannot be known.
    /// `call` learns whether jobs may fall due.
    pub(super) async fn call<F: Future>(
        &self,
        server: usize,
        expired: impl Future<Output = Option<u64>>,
        call: impl FnOnce(bool) -> F,
    ) -> F::Output {
        let Some(mut load) = self.0[server].take().await else {
            return call(true).await;
        };
        let jobs_fall_due = load.ask(expired).await;
        if !jobs_fall_due || load.waited.elapsed() >= LULL {
            load.flowing = Instant::now();
        }
        let rest = load.pause().saturating_sub(load.ended.elapsed());
        if rest.is_zero() || !jobs_fall_due {
            load.busy = Duration::ZERO;
        } else if load.busy >= BUSY {
            load.waited = Instant::now();
            sleep(rest).await;
            load.busy = Duration::ZERO;
        }
        let (mut call, began) = (pin!(call(jobs_fall_due)), Instant::now());
        let answer = timeout(LONG_CALL, call.as_mut()).await;
        load.busy += began.elapsed();
        load.ended = Instant::now();
        drop(load);
        match answer {
            Ok(answer) => answer,
            Err(_) => call.await,
        }
    }
}

impl Turns {
    /// Waits for its turn; `None` if none of the calls before it begins in time.
    async fn take(&self) -> Option<MutexGuard<'_, Load>> {
        let mut turn = pin!(self.load.lock());
        loop {
            let begun = self.begun.load(Ordering::Relaxed);
            if let Ok(load) = timeout(PATIENCE, turn.as_mut()).await {
                self.begun.fetch_add(1, Ordering::Relaxed);
                return Some(load);
            }
            if begun == self.begun.load(Ordering::Relaxed) {
                return None;
            }
        }
    }
}

impl Load {
    /// How long the server is left alone after the last call, if jobs fall due.
    fn pause(&self) -> Duration {
        let factor = match self.flowing.elapsed() >= LASTING {
            true => LASTING_FACTOR,
            false => PAUSE_FACTOR,
        };
        (self.busy * factor).min(LONGEST_PAUSE)
    }

    /// Whether jobs fall due on the server, as far as is known.
    async fn ask(&mut self, expired: impl Future<Output = Option<u64>>) -> bool {
        if self.asked.is_none_or(|asked| asked.elapsed() >= ASKING) {
            let before = self.expired;
            self.expired = timeout(LONG_CALL, expired).await.ok().flatten();
            self.asked = Some(Instant::now());
            if self.expired.is_none() || self.expired != before {
                self.fell_due = Instant::now();
            }
        }
        self.fell_due.elapsed() < QUIET
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use futures_util::FutureExt as _;
    use futures_util::future::{Either, join, join_all, select};

    use super::*;

    /// Makes a call that takes so many ms, on a server that does not tell how many keys have expired.
    /// Returns when it began, in ms since `start`.
    async fn call(background: &Background, server: usize, start: Instant, ms: u64) -> u128 {
        let call = |_| taking(start, ms);
        background.call(server, ready(None), call).await
    }

    async fn taking(start: Instant, ms: u64) -> u128 {
        let began = start.elapsed().as_millis();
        sleep(Duration::from_millis(ms)).await;
        began
    }

    /// Makes calls of 2 ms for so many seconds, while so many keys have expired. Returns how many.
    async fn calls(background: &Background, seconds: u64, expired: u64) -> usize {
        let (start, mut calls) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_secs(seconds) {
            let call = |_| taking(start, 2);
            background.call(0, ready(Some(expired)), call).await;
            calls += 1;
        }
        calls
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_on_which_no_job_falls_due_is_not_left_alone() {
        let background = Background::new(1);
        // A call and its pause take 22 ms.
        let paused = calls(&background, 1, 7).await;
        assert!(paused < 50, "nothing is known yet: {paused} calls");
        assert_eq!(calls(&background, 1, 7).await, 500, "nothing falls due");
        let paused = calls(&background, 1, 8).await;
        // The server was asked up to 100 ms later.
        assert!(paused < 100, "a job fell due: {paused} calls");
        let quick = calls(&background, 1, 8).await;
        assert!(quick > 450, "nothing falls due again: {quick} calls");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_learns_whether_jobs_fall_due() {
        let background = Background::new(1);
        let falls_due = async |expired| background.call(0, ready(expired), ready).await;
        assert!(falls_due(Some(7)).await, "nothing is known yet");
        sleep(QUIET).await;
        assert!(!falls_due(Some(7)).await);
        sleep(ASKING).await;
        assert!(falls_due(Some(8)).await);
        sleep(QUIET).await;
        assert!(falls_due(None).await, "the server does not tell");
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_may_fall_due_on_a_server_that_does_not_tell() {
        let (background, start) = (Background::new(1), Instant::now());
        calls(&background, 2, 7).await;
        sleep(ASKING).await;
        let mut began = 0;
        for _ in 0..100 {
            began = background.call(0, pending(), |_| taking(start, 2)).await;
        }
        assert!(began > 2_100 + 90 * 22, "{began}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_last_one_and_a_pause() {
        let (background, start) = (Background::new(2), Instant::now());
        let (one, other) = join(
            call(&background, 0, start, 3),
            call(&background, 0, start, 3),
        )
        .await;
        assert_eq!([one, other], [0, 3 + 20]);
        assert_eq!(call(&background, 1, start, 3).await, 26, "another server");
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_has_passed_by_itself_is_a_pause() {
        let (background, start) = (Background::new(1), Instant::now());
        call(&background, 0, start, 3).await;
        sleep(Duration::from_millis(2)).await;
        assert_eq!(call(&background, 0, start, 1).await, 3 + 20);
        sleep(Duration::from_millis(15)).await;
        assert_eq!(call(&background, 0, start, 1).await, 3 + 20 + 1 + 15);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flow_that_lasts_gets_shorter_pauses_until_a_lull() {
        let (background, start) = (Background::new(1), Instant::now());
        let count = async |seconds| {
            let (start, mut calls) = (Instant::now(), 0);
            while start.elapsed() < Duration::from_secs(seconds) {
                call(&background, 0, start, 2).await;
                calls += 1;
            }
            calls
        };
        // A call and its pause take 22 ms, and later 8 ms.
        let first = count(5).await;
        assert!((225..230).contains(&first), "{first} calls");
        let later = count(5).await;
        assert!((620..630).contains(&later), "{later} calls");
        sleep(LULL).await;
        let again = count(1).await;
        assert!(again < 50, "{again} calls, {:?}", start.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_that_wait_for_no_pause_are_no_flow() {
        let (background, start) = (Background::new(1), Instant::now());
        while start.elapsed() < 2 * LASTING {
            call(&background, 0, start, 1).await;
            sleep(Duration::from_millis(50)).await;
        }
        let first = call(&background, 0, start, 2).await;
        assert_eq!(call(&background, 0, start, 2).await, first + 2 + 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_flow_lasts_while_its_rows_are_read() {
        let (background, start) = (Background::new(1), Instant::now());
        let mut last = 0;
        while start.elapsed() < LASTING + LULL {
            sleep(LULL / 2).await;
            call(&background, 0, start, 2).await;
            last = call(&background, 0, start, 2).await;
        }
        assert_eq!(call(&background, 0, start, 2).await, last + 2 + 6);
    }

    #[tokio::test(start_paused = true)]
    async fn many_calls_wait_for_their_turns_however_long_that_takes() {
        let (background, start) = (Background::new(1), Instant::now());
        let all = (0..200).map(|_| call(&background, 0, start, 2));
        let mut began = join_all(all).await;
        began.sort_unstable();
        // A call and its pause take 22 ms.
        assert!(
            began.windows(2).all(|two| two[1] - two[0] == 22),
            "{began:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_lets_the_next_one_begin() {
        let (background, start) = (Background::new(1), Instant::now());
        let stuck = pin!(background.call(0, ready(None), |_| pending::<()>()));
        let next = pin!(call(&background, 0, start, 1));
        let Either::Right((began, _)) = select(stuck, next).await else {
            unreachable!("it is never answered")
        };
        assert_eq!(began, 5 + 20, "a long call and its pause");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_polls_holds_the_others_up_for_a_second() {
        let (background, start) = (Background::new(1), Instant::now());
        let mut forgotten = pin!(background.call(0, ready(None), |_| pending::<()>()));
        assert!(forgotten.as_mut().now_or_never().is_none());
        assert_eq!(call(&background, 0, start, 1).await, 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_holds_nobody_up() {
        let (background, start) = (Background::new(1), Instant::now());
        let given_up = timeout(
            Duration::from_millis(2),
            background.call(0, ready(None), |_| pending::<()>()),
        )
        .await;
        assert!(given_up.is_err());
        assert_eq!(call(&background, 0, start, 1).await, 2);
    }
}
