//! Limits the open tails of a daemon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::problem::Problem;
use super::rate::Who;

/// The number of open tails for each token or address, and the limits. Clones share the counts.
#[derive(Clone)]
pub(super) struct Tails {
    open: Arc<Mutex<HashMap<Who, usize>>>,
    /// The sort of the tails, in messages.
    sort: &'static str,
    /// The most open tails.
    most: usize,
    /// The most open tails of one token, or of one address without a token.
    share: usize,
}

/// The place of one open tail; dropping it frees the place.
pub(super) struct TailPermit {
    tails: Tails,
    who: Who,
}

impl Tails {
    /// Tails of which each has a connection to Redis of its own.
    pub(super) fn alone() -> Self {
        Tails::limited("tails", 64, 16)
    }

    /// Tails that share one reader: each costs memory and a connection of the client.
    pub(super) fn shared() -> Self {
        Tails::limited("shared tails", 512, 128)
    }

    fn limited(sort: &'static str, most: usize, share: usize) -> Self {
        Tails {
            open: Arc::default(),
            sort,
            most,
            share,
        }
    }

    /// Takes a place for one more tail, if there is one.
    pub(super) fn take(&self, who: &Who) -> Result<TailPermit, Problem> {
        let (mut open, sort) = (self.lock(), self.sort);
        let (most, share) = (self.most, self.share);
        if open.get(who).is_some_and(|own| *own >= share) {
            return Err(Problem::too_many_tails(format!(
                "{share} {sort} of this token or address are open on this daemon, which allows no \
                 more: end one, follow several prefixes in one tail, or ask another daemon"
            )));
        }
        if open.values().sum::<usize>() >= most {
            return Err(Problem::too_many_tails(format!(
                "this daemon serves {most} {sort} already, and serves no more: end one, or ask \
                 another daemon"
            )));
        }
        *open.entry(who.clone()).or_default() += 1;
        Ok(TailPermit {
            tails: self.clone(),
            who: who.clone(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Who, usize>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
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
        let tails = Tails::alone();
        let take = |name: &str| tails.take(&who(name)).ok().unwrap();
        let mut own: Vec<TailPermit> = (0..tails.share).map(|_| take("one")).collect();
        assert!(refused(&tails, "one").contains("16 tails of this token"));
        let mut others: Vec<TailPermit> = Vec::new();
        for name in ["two", "three", "four"] {
            others.extend((0..tails.share).map(|_| take(name)));
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
