//! The number of jobs in each state, for pages that are loaded again and again: each kind is asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use keyfall_daemon::shapes::{CountIn, CountOut};
use tokio::sync::Mutex as Turn;

use crate::api::{Call, Caller};
use crate::fault::Fault;

/// Numbers are shown for so many times as long as the count took, so that all pages together count
/// for a twentieth of the time: a few kinds are counted at each look.
const TIMES: u32 = 20;

/// The longest time for which numbers are shown.
const LONGEST: Duration = Duration::from_secs(30);

/// The most prefixes whose numbers are kept.
const PREFIXES: usize = 256;

#[derive(Default)]
pub(crate) struct Totals(Mutex<HashMap<String, Arc<Turn<Option<Kept>>>>>);

struct Kept {
    until: Instant,
    counts: Arc<CountOut>,
}

impl Totals {
    /// The numbers of the jobs with this prefix; all jobs, if it is empty. The caller has to be one
    /// who may see them.
    pub(crate) async fn latest(
        &self,
        caller: &Caller,
        prefix: &str,
    ) -> Result<Arc<CountOut>, Fault> {
        // Others who want the same numbers wait meanwhile, and get them.
        let place = self.place(prefix);
        let mut kept = place.lock().await;
        let begun = Instant::now();
        if let Some(kept) = &*kept
            && begun < kept.until
        {
            return Ok(kept.counts.clone());
        }
        let wanted = CountIn {
            prefix: Some(prefix.to_owned()).filter(|prefix| !prefix.is_empty()),
        };
        let call = Call::get(&["jobs", "count"]).asking(&wanted);
        let counts = Arc::new(caller.ask::<CountOut>(call).await?);
        *kept = Some(Kept {
            until: Instant::now() + kept_for(begun.elapsed()),
            counts: counts.clone(),
        });
        Ok(counts)
    }

    fn place(&self, prefix: &str) -> Arc<Turn<Option<Kept>>> {
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if places.len() >= PREFIXES && !places.contains_key(prefix) {
            places.clear();
        }
        places.entry(prefix.to_owned()).or_default().clone()
    }
}

/// How long numbers are shown whose count took so long.
fn kept_for(took: Duration) -> Duration {
    took.saturating_mul(TIMES).min(LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_count_is_made_less_often() {
        let millis = Duration::from_millis;
        assert_eq!(kept_for(millis(1)), millis(20));
        assert_eq!(kept_for(millis(300)), millis(6000));
        assert_eq!(kept_for(Duration::MAX), LONGEST);
    }

    #[test]
    fn the_kept_prefixes_are_bounded() {
        let totals = Totals::default();
        for number in 0..3 * PREFIXES {
            totals.place(&number.to_string());
            assert!(totals.0.lock().unwrap().len() <= PREFIXES);
        }
    }
}
