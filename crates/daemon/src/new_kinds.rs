//! Limits the number of new kinds. Their names are kept, so a client with the right to schedule
//! could fill Redis with them, and the memory of every process that reads them.

use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use keyfall::Client;

/// Counts the new kinds of this daemon, and of each token.
pub(crate) struct NewKinds {
    of_all: DefaultDirectRateLimiter,
    of_tokens: DefaultKeyedRateLimiter<String>,
    /// Tokens that were counted for a kind that then could not begin: their next new kind is not
    /// counted again.
    counted: Mutex<HashSet<String>>,
}

impl NewKinds {
    /// Allows this number of new kinds an hour, and this number for each token. They may come all
    /// at once.
    pub(crate) fn an_hour(of_all: NonZeroU32, of_a_token: NonZeroU32) -> Arc<Self> {
        Arc::new(NewKinds {
            of_all: RateLimiter::direct(Quota::per_hour(of_all)),
            of_tokens: RateLimiter::keyed(Quota::per_hour(of_a_token)),
            counted: Mutex::default(),
        })
    }

    /// A client whose new kinds are counted, for this token, if it has one.
    pub(crate) fn limit(self: &Arc<Self>, client: &Client, token: Option<&str>) -> Client {
        let (kinds, token) = (self.clone(), token.map(str::to_owned));
        client.admitting(move |_| kinds.may_begin(token.as_ref()))
    }

    fn may_begin(&self, token: Option<&String>) -> bool {
        let Some(token) = token else {
            return self.of_all.check().is_ok();
        };
        let mut counted = self.counted.lock().expect("no panic while held");
        if !counted.contains(token) && self.of_tokens.check_key(token).is_err() {
            return false;
        }
        let may = self.of_all.check().is_ok();
        match may {
            true => counted.remove(token),
            false => counted.insert(token.clone()),
        };
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_a_limit_of_its_own_and_all_have_one() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let kinds = NewKinds::an_hour(number(5), number(2));
        let (one, other) = ("one".to_owned(), "other".to_owned());
        let begun = |token: Option<&String>| (0..9).filter(|_| kinds.may_begin(token)).count();
        assert_eq!(begun(Some(&one)), 2);
        assert_eq!(begun(Some(&other)), 2);
        assert_eq!(begun(None), 1);
        assert_eq!(begun(Some(&"third".to_owned())), 0);
    }

    #[test]
    fn kinds_that_the_daemon_refuses_do_not_count_for_the_token() {
        let number = |number| NonZeroU32::new(number).unwrap();
        let mut kinds = NewKinds::an_hour(number(1), number(2));
        let one = "one".to_owned();
        let begun = |kinds: &NewKinds| (0..9).filter(|_| kinds.may_begin(Some(&one))).count();
        assert_eq!(begun(&kinds), 1);
        let more = NewKinds::an_hour(number(9), number(2));
        Arc::get_mut(&mut kinds).unwrap().of_all = Arc::into_inner(more).unwrap().of_all;
        assert_eq!(begun(&kinds), 1);
    }
}
