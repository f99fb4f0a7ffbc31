//! Limits the open tails of a daemon: each has a connection to Redis of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::problem::Problem;
use super::rate::Who;

/// The most open tails.
const MOST: usize = 64;

/// The most open tails of one token, or of one address without a token.
const SHARE: usize = 16;

/// The number of open tails for each token or address. Clones share the counts.
#[derive(Clone, Default)]
pub(super) struct Tails(Arc<Mutex<HashMap<Who, usize>>>);

/// The place of one open tail; dropping it frees the place.
pub(super) struct TailPermit {
    tails: Tails,
    who: Who,
}

impl Tails {
    /// Takes a place for one more tail, if there is one.
    pub(super) fn take(&self, who: &Who) -> Result<TailPermit, Problem> {
        let mut open = self.lock();
        if open.get(who).is_some_and(|own| *own >= SHARE) {
            return Err(Problem::too_many_tails(format!(
                "{SHARE} tails of this token or address are open on this daemon, which allows no \
                 more: end one, follow several prefixes in one tail, or ask another daemon"
            )));
        }
        if open.values().sum::<usize>() >= MOST {
            return Err(Problem::too_many_tails(format!(
                "this daemon serves {MOST} tails already, and each has a connection to Redis: end \
                 one, or ask another daemon"
            )));
        }
        *open.entry(who.clone()).or_default() += 1;
        Ok(TailPermit {
            tails: self.clone(),
            who: who.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Who, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for TailPermit {
    fn drop(&mut self) {
        let mut open = self.tails.lock();
        if let Some(own) = open.get_mut(&self.who) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.who);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> Who {
        Who::Token(name.into())
    }

    #[track_caller]
    fn refused(tails: &Tails, name: &str) -> String {
        let refused = tails.take(&who(name)).err().expect("it is one too many");
        assert_eq!(refused.status(), 429);
        refused.detail
    }

    #[test]
    fn one_takes_its_share_and_leaves_the_others_theirs() {
        let tails = Tails::default();
        let take = |name: &str| tails.take(&who(name)).ok().unwrap();
        let mut own: Vec<TailPermit> = (0..SHARE).map(|_| take("one")).collect();
        assert!(refused(&tails, "one").contains("16 tails of this token"));
        let mut others: Vec<TailPermit> = Vec::new();
        for name in ["two", "three", "four"] {
            others.extend((0..SHARE).map(|_| take(name)));
        }
        assert!(refused(&tails, "five").contains("serves 64 tails"));
        // A tail that ends leaves its place, to its own token first of all.
        own.pop();
        assert!(refused(&tails, "two").contains("16 tails"));
        own.push(take("one"));
        others.clear();
        take("five");
        own.clear();
        assert!(tails.lock().is_empty());
    }
}
