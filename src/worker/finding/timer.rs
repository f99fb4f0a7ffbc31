//! The precise timer: wakes an actor at an instant, with an error of about ten microseconds.
//!
//! The timers of the runtime count whole milliseconds and round up, which would be a third of all
//! lateness.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Instant;

use tokio::sync::Notify;

/// A timer for one actor, with a thread of its own. Dropping it ends the thread.
pub(crate) struct PreciseTimer {
    clockwork: Arc<TimerThread>,
}

/// The state that the timer shares with its thread.
struct TimerThread {
    setting: Mutex<Setting>,
    /// Wakes the thread: the time has moved forward, or the timer was dropped.
    changed: Condvar,
    /// Notified when the time has come.
    rung: Notify,
}

/// The request to the thread.
#[derive(Default)]
struct Setting {
    /// The time to ring; `None` if there is none.
    at: Option<Instant>,
    /// Whether the thread has to end.
    is_over: bool,
}

impl PreciseTimer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system refuses another thread.
    pub(crate) fn new() -> io::Result<Self> {
        let clockwork = Arc::new(TimerThread {
            setting: Mutex::default(),
            changed: Condvar::new(),
            rung: Notify::new(),
        });
        let sleeper = clockwork.clone();
        std::thread::Builder::new()
            .name("keyfall-alarm".into())
            .spawn(move || sleeper.run())?;
        Ok(PreciseTimer { clockwork })
    }

    /// Returns at this instant. One call at a time: a second one replaces the time of the first.
    pub(crate) async fn at(&self, at: Instant) {
        self.clockwork.set(at);
        // The ring of an earlier call, which was dropped, may come first.
        while Instant::now() < at {
            self.clockwork.rung.notified().await;
        }
    }
}

// The thread ends soon after; nothing waits for it.
impl Drop for PreciseTimer {
    fn drop(&mut self) {
        self.clockwork.lock().is_over = true;
        self.clockwork.changed.notify_one();
    }
}

impl TimerThread {
    /// Sets the time to ring.
    fn set(&self, at: Instant) {
        let before = self.lock().at.replace(at);
        // A thread that wakes too early goes back to sleep by itself.
        if before.is_none_or(|before| at < before) {
            self.changed.notify_one();
        }
    }

    /// The loop of the thread.
    fn run(&self) {
        let mut setting = self.lock();
        while !setting.is_over {
            let Some(at) = setting.at else {
                setting = self.changed.wait(setting).expect("no panic while held");
                continue;
            };
            let left = at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                setting.at = None;
                self.rung.notify_one();
            } else {
                let woken = self.changed.wait_timeout(setting, left);
                (setting, _) = woken.expect("no panic while held");
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Setting> {
        self.setting.lock().expect("no panic while held")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn the_timer_never_rings_early_and_can_be_set_again() {
        let alarm = PreciseTimer::new().unwrap();
        for ms in [3, 1, 0, 2] {
            let at = Instant::now() + Duration::from_millis(ms);
            alarm.at(at).await;
            assert!(Instant::now() >= at);
        }
    }

    #[tokio::test]
    async fn the_timer_can_be_set_sooner_and_later() {
        let alarm = PreciseTimer::new().unwrap();
        let far = Instant::now() + Duration::from_secs(3600);
        let near = Instant::now() + Duration::from_millis(5);
        tokio::select! {
            biased;
            () = alarm.at(far) => panic!("an hour has passed"),
            () = tokio::task::yield_now() => {}
        }
        alarm.at(near).await;
        let next = Instant::now() + Duration::from_millis(5);
        let later = next + Duration::from_millis(10);
        tokio::select! {
            biased;
            // On a busy machine it may be over before anybody asks.
            () = alarm.at(next) => {}
            () = tokio::task::yield_now() => {}
        }
        alarm.at(later).await;
        assert!(Instant::now() >= later);
    }

    #[test]
    fn the_thread_of_the_timer_ends_with_it() {
        let alarm = PreciseTimer::new().unwrap();
        let clockwork = Arc::downgrade(&alarm.clockwork);
        drop(alarm);
        while clockwork.strong_count() > 0 {
            std::thread::yield_now();
        }
    }
}
