//! Answers for which each kind is asked. They are gathered in the background, only while somebody
//! looks, and less often the longer that takes; pages show the last ones.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::api::Call;
use crate::cx::Cx;
use crate::fault::Fault;

/// How long a page waits for an answer that is being gathered. Where there are few kinds, each look
/// gets a new one.
const PATIENCE: Duration = Duration::from_millis(40);

/// An answer is shown for so many times as long as it took: gathering takes a twentieth of the time,
/// however many kinds and readers there are.
const TIMES: u32 = 20;

/// The longest time after which an answer is gathered again.
const LONGEST: Duration = Duration::from_secs(30);

/// An older answer is not shown: nobody has looked for a while.
const OLDEST: Duration = Duration::from_secs(120);

/// The most answers that are kept.
const ANSWERS: usize = 256;

/// The kept answers, each by the name of what it is about.
pub(crate) struct Gathered {
    places: Mutex<HashMap<String, Place>>,
    patience: Duration,
}

/// An answer that was gathered.
pub(crate) struct Seen<T> {
    pub(crate) answer: Arc<T>,
    /// By the clock of the daemon.
    pub(crate) at: SystemTime,
}

type Place = Arc<watch::Sender<State>>;

#[derive(Default)]
struct State {
    last: Option<Last>,
    is_running: bool,
}

struct Last {
    answer: Result<Arc<dyn Any + Send + Sync>, Fault>,
    ended: Instant,
    at: SystemTime,
    took: Duration,
}

impl Default for Gathered {
    fn default() -> Self {
        Gathered::waiting(PATIENCE)
    }
}

impl Gathered {
    /// Pages wait for so long.
    pub(crate) fn waiting(patience: Duration) -> Self {
        Gathered {
            places: Mutex::default(),
            patience,
        }
    }

    /// The last answer of this call, which is about the jobs with this prefix; `None` if it is being
    /// gathered for the first time.
    ///
    /// # Errors
    /// That of the last call, until another one succeeds.
    pub(crate) async fn ask<T: DeserializeOwned + Send + Sync + 'static>(
        &self,
        cx: &Cx,
        prefix: &str,
        call: Call,
    ) -> Result<Option<Seen<T>>, Fault> {
        let name = call.path().to_owned();
        let caller = cx.caller.clone();
        let make = async move { caller.ask::<T>(call).await };
        self.get(cx, prefix, &name, Duration::ZERO, make).await
    }

    /// The last answer of this name, at least so old as `rest` before it is made again. The name says
    /// everything that the answer depends on, besides the rights of the reader.
    pub(crate) async fn get<T: Send + Sync + 'static>(
        &self,
        cx: &Cx,
        prefix: &str,
        name: &str,
        rest: Duration,
        make: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Result<Option<Seen<T>>, Fault> {
        // Others may see less.
        if !cx.page.may("read", prefix) {
            let seen = |answer| Seen {
                answer: Arc::new(answer),
                at: cx.page.now,
            };
            return make.await.map(seen).map(Some);
        }
        let place = self.place(name);
        let mut changes = place.subscribe();
        let mut is_due = false;
        let mut begins = false;
        place.send_if_modified(|state| {
            is_due = state.last.as_ref().is_none_or(|last| last.is_due(rest));
            begins = is_due && !state.is_running;
            state.is_running |= begins;
            false
        });
        if begins {
            tokio::spawn(gather(place.clone(), make));
        }
        if is_due {
            // Without a change in time, the last answer has to do.
            let _ = timeout(self.patience, changes.changed()).await;
        }
        let state = changes.borrow();
        let Some(last) = state
            .last
            .as_ref()
            .filter(|last| last.ended.elapsed() < OLDEST)
        else {
            return Ok(None);
        };
        let answer = last.answer.clone()?.downcast::<T>();
        Ok(answer.ok().map(|answer| Seen {
            answer,
            at: last.at,
        }))
    }

    /// Forgets an answer, because something was changed.
    pub(crate) fn forget(&self, name: &str) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.remove(name);
    }

    fn place(&self, name: &str) -> Place {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= ANSWERS && !places.contains_key(name) {
            places.clear();
        }
        places.entry(name.to_owned()).or_default().clone()
    }
}

/// Makes an answer, and puts it into its place.
async fn gather<T: Send + Sync + 'static>(
    place: Place,
    make: impl Future<Output = Result<T, Fault>> + Send + 'static,
) {
    let begun = Instant::now();
    // A call that panics leaves its place free for the next one.
    let made = tokio::spawn(make).await;
    let made = made.unwrap_or_else(|error| Err(Fault::unexpected(&error.to_string())));
    place.send_modify(|state| {
        state.is_running = false;
        state.last = Some(Last {
            answer: made.map(|answer| Arc::new(answer) as Arc<dyn Any + Send + Sync>),
            ended: Instant::now(),
            at: SystemTime::now(),
            took: begun.elapsed(),
        });
    });
}

impl Last {
    fn is_due(&self, rest: Duration) -> bool {
        let kept = match &self.answer {
            Ok(_) => kept_for(self.took).max(rest),
            Err(_) => Duration::ZERO,
        };
        self.ended.elapsed() >= kept
    }
}

/// How long an answer is shown that took so long.
fn kept_for(took: Duration) -> Duration {
    took.saturating_mul(TIMES).min(LONGEST)
}

/// The time of the oldest of some answers, if it is worth a word.
pub(crate) fn oldest(
    times: impl IntoIterator<Item = SystemTime>,
    now: SystemTime,
) -> Option<SystemTime> {
    let oldest = times.into_iter().min()?;
    let age = now.duration_since(oldest).unwrap_or_default();
    (age >= Duration::from_secs(2)).then_some(oldest)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::sync::Notify;

    use super::*;
    use crate::tests::cx;

    /// A source of answers, which can be held up.
    #[derive(Default, Clone)]
    struct Source {
        made: Arc<AtomicU32>,
        gate: Arc<Notify>,
    }

    impl Source {
        async fn look(&self, gathered: &Gathered, is_held: bool) -> Option<u32> {
            let Source { made, gate } = self.clone();
            let make = async move {
                if is_held {
                    gate.notified().await;
                }
                Ok::<u32, Fault>(made.fetch_add(1, Ordering::SeqCst) + 1)
            };
            let seen = gathered.get(&cx(), "", "x", Duration::ZERO, make).await;
            seen.unwrap().map(|seen| *seen.answer)
        }
    }

    #[test]
    fn a_long_answer_is_gathered_less_often() {
        let millis = Duration::from_millis;
        assert_eq!(kept_for(millis(1)), millis(20));
        assert_eq!(kept_for(millis(300)), millis(6000));
        assert_eq!(kept_for(Duration::MAX), LONGEST);
    }

    #[tokio::test]
    async fn many_who_look_share_one_answer_and_wait_no_longer_than_patience() {
        let source = Source::default();
        let gathered = Gathered::waiting(Duration::from_millis(1));
        for _ in 0..10 {
            assert_eq!(source.look(&gathered, true).await, None);
        }
        assert_eq!(source.made.load(Ordering::SeqCst), 0);
        source.gate.notify_one();
        let patient = Gathered {
            patience: Duration::from_secs(60),
            ..gathered
        };
        assert_eq!(source.look(&patient, true).await, Some(1));
    }

    #[tokio::test]
    async fn an_error_is_shown_until_an_answer_comes() {
        let gathered = Gathered::waiting(Duration::from_secs(60));
        let fails = async { Err::<u32, _>(Fault::unexpected("away")) };
        let seen = gathered.get(&cx(), "", "x", Duration::ZERO, fails).await;
        assert!(seen.is_err());
        assert_eq!(Source::default().look(&gathered, false).await, Some(1));
    }

    #[test]
    fn the_kept_answers_are_bounded() {
        let gathered = Gathered::default();
        for number in 0..3 * ANSWERS {
            gathered.place(&number.to_string());
            assert!(gathered.places.lock().unwrap().len() <= ANSWERS);
        }
    }
}
