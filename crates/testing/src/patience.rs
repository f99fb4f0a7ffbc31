//! Waits for conditions, for as long as a busy machine may take.

use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The limit of every wait of a test. Only a failure takes that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The limit of a wait for an operation of many steps.
pub const AT_LAST: Duration = Duration::from_secs(180);

/// The pauses between two questions: they grow to the last one within a second, so that a long wait takes
/// little processor time.
const PAUSES: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(25));

/// Asks until there is an answer.
///
/// # Panics
/// When there is none in time.
#[track_caller]
pub fn eventually<T>(
    what: &str,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> impl Future<Output = T> {
    let caller = std::panic::Location::caller();
    async move {
        let deadline = Instant::now() + AT_LAST;
        let mut pause = PAUSES.0;
        loop {
            if let Some(answer) = probe().await {
                return answer;
            }
            assert!(Instant::now() < deadline, "{caller}: never {what}");
            sleep(pause).await;
            pause = (pause * 21 / 20).min(PAUSES.1);
        }
    }
}

/// Asks until there is an answer, for so long.
///
/// # Errors
/// When there is none in that time.
pub async fn within<T>(
    time: Duration,
    what: &str,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> Result<T, String> {
    let deadline = Instant::now() + time;
    loop {
        if let Some(answer) = probe().await {
            return Ok(answer);
        }
        if Instant::now() > deadline {
            return Err(format!("never: {what}"));
        }
        sleep(Duration::from_millis(20)).await;
    }
}
