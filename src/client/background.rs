//! Background calls carry large batches: they wait for each other, and leave a server time for due jobs.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};

/// The shortest and the longest pause. When calls have taken the shortest, their server is left alone
/// for as long as they took: so large batches take half of the time of Redis and of the cores, and due
/// jobs the other half. Timers count whole milliseconds, so a pause after each short call would make
/// batches slower, and many times so where calls travel alone.
const PAUSE: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(5));

/// How long a call waits for the others: a call that its caller does not poll never ends.
const PATIENCE: Duration = Duration::from_secs(1);

/// The background calls of each server: one at a time, with pauses between them.
pub(super) struct Background(Box<[Mutex<Load>]>);

/// How much of the time of a server the calls took.
struct Load {
    /// How long they took since the last pause.
    busy: Duration,
    /// When the last one was answered.
    ended: Instant,
}

impl Background {
    pub(super) fn new(servers: usize) -> Self {
        let idle = |_| {
            Mutex::new(Load {
                busy: Duration::ZERO,
                ended: Instant::now(),
            })
        };
        Background((0..servers).map(idle).collect())
    }

    /// Makes a call on the server at this place, after the calls that wait already. If it takes longer
    /// than the longest pause, the next call begins: a node of a cluster that does not answer must not
    /// hold up the other nodes.
    pub(super) async fn call<T>(&self, server: usize, call: impl Future<Output = T>) -> T {
        let Ok(mut load) = timeout(PATIENCE, self.0[server].lock()).await else {
            return call.await;
        };
        let rest = load.busy.min(PAUSE.1).saturating_sub(load.ended.elapsed());
        if rest.is_zero() {
            load.busy = Duration::ZERO;
        } else if load.busy >= PAUSE.0 {
            sleep(rest).await;
            load.busy = Duration::ZERO;
        }
        let (mut call, began) = (pin!(call), Instant::now());
        let answer = timeout(PAUSE.1, call.as_mut()).await;
        load.busy += began.elapsed();
        load.ended = Instant::now();
        drop(load);
        match answer {
            Ok(answer) => answer,
            Err(_) => call.await,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;
    use futures_util::future::{Either, join, select};

    use super::*;

    /// Makes a call that takes so many ms. Returns when it began, in ms since `start`.
    async fn call(background: &Background, server: usize, start: Instant, ms: u64) -> u128 {
        let call = async {
            let began = start.elapsed().as_millis();
            sleep(Duration::from_millis(ms)).await;
            began
        };
        background.call(server, call).await
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_waits_for_the_last_one_and_a_pause_as_long() {
        let (background, start) = (Background::new(2), Instant::now());
        let (one, other) = join(
            call(&background, 0, start, 3),
            call(&background, 0, start, 3),
        )
        .await;
        assert_eq!([one, other], [0, 6]);
        assert_eq!(call(&background, 1, start, 3).await, 9, "another server");
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_has_passed_by_itself_is_a_pause() {
        let (background, start) = (Background::new(1), Instant::now());
        call(&background, 0, start, 3).await;
        sleep(Duration::from_millis(2)).await;
        assert_eq!(call(&background, 0, start, 3).await, 6);
        sleep(Duration::from_millis(20)).await;
        assert_eq!(call(&background, 0, start, 3).await, 29);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_takes_long_lets_the_next_one_begin() {
        let (background, start) = (Background::new(1), Instant::now());
        let stuck = pin!(background.call(0, pending::<()>()));
        let next = pin!(call(&background, 0, start, 1));
        let Either::Right((began, _)) = select(stuck, next).await else {
            unreachable!("it is never answered")
        };
        assert_eq!(began, 10, "the longest wait and the longest pause");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_nobody_polls_holds_the_others_up_for_a_second() {
        let (background, start) = (Background::new(1), Instant::now());
        let mut forgotten = pin!(background.call(0, pending::<()>()));
        assert!(forgotten.as_mut().now_or_never().is_none());
        assert_eq!(call(&background, 0, start, 1).await, 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_holds_nobody_up() {
        let (background, start) = (Background::new(1), Instant::now());
        let given_up = timeout(
            Duration::from_millis(2),
            background.call(0, pending::<()>()),
        )
        .await;
        assert!(given_up.is_err());
        assert_eq!(call(&background, 0, start, 1).await, 2);
    }
}
