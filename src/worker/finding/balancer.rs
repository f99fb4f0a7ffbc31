//! The balancer: has shares of limits moved to the ledgers where jobs wait.
//!
//! A limit over several ledgers is divided among them. Where jobs wait for a share, a claim or a
//! sweep says so, and the instance that paces the ledger looks at all ledgers of the limit. It looks
//! again while jobs wait: soon if a ledger has less than its part until runs end elsewhere, and then
//! less and less often, at least once a second. No look is made while none waits.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep_until;
use tokio_util::sync::CancellationToken;

use crate::error::Result;
use crate::key::Kind;
use crate::limit::LimitScope;
use crate::settings::LONGEST_SLEEP;
use crate::store::{Balance, GroupsWait, Held, Store, unique_id};
use crate::worker::instances::PeerTable;
use crate::worker::served::ServedLedger;

/// The shortest time between two looks at one limit.
const SHORTEST: Duration = Duration::from_millis(50);

/// The time between two looks while jobs wait, and all shares are as they should be.
const CALM: Duration = Duration::from_secs(1);

/// The least time between two looks for each ledger: so many calls a second cost little.
const EACH: Duration = Duration::from_millis(5);

/// Time limit of one look.
const PATIENCE: Duration = Duration::from_secs(5);

/// Moves shares of limits.
pub(crate) struct Balancer {
    store: Arc<Store>,
    instances: Arc<PeerTable>,
    /// The unique name of this balancer.
    id: String,
    /// The kinds whose jobs wait for a share.
    asked: Mutex<BTreeSet<Kind>>,
    told: Notify,
}

/// The looks at one limit.
struct Looks {
    /// The last one.
    last: Option<Instant>,
    /// The next one, if jobs wait.
    next: Option<Instant>,
    /// The shortest time between two.
    pause: Duration,
    /// How long to wait for runs that keep leases which other ledgers are to get.
    owed: Duration,
    /// The kinds of which jobs wait, as far as is known.
    waiting: BTreeSet<Kind>,
    /// The number of a look by somebody else.
    after: u64,
}

impl Looks {
    /// Jobs of this kind wait. If the last look has not seen that, the next one comes as soon as it
    /// may.
    fn ask(&mut self, kind: Kind, now: Instant) {
        if !self.waiting.insert(kind) && self.next.is_some() {
            return;
        }
        let earliest = self.last.map_or(now, |last| last + self.pause);
        self.next = Some(self.next.map_or(earliest, |next| next.min(earliest)));
    }

    /// Takes in the result of a look, and plans the next one, if jobs wait.
    fn see(&mut self, balance: &Result<Balance>, now: Instant) {
        self.last = Some(now);
        let wait = match balance {
            Ok(Balance::Alone) => None,
            Ok(Balance::Shared {
                ledgers,
                waiting,
                owes,
                groups,
            }) => {
                self.waiting.clone_from(waiting);
                self.pause = SHORTEST.max(EACH * u32::try_from(*ledgers).unwrap_or(u32::MAX));
                let owes = *owes || *groups == GroupsWait::Owed;
                self.owed = match owes {
                    true => (self.owed * 2).clamp(self.pause * 2, CALM.max(self.pause * 2)),
                    false => Duration::ZERO,
                };
                let is_over = waiting.is_empty() && *groups == GroupsWait::None;
                match (groups, owes) {
                    (GroupsWait::More, _) => Some(self.pause),
                    (_, true) => Some(self.owed),
                    _ => (!is_over).then_some(CALM.max(self.pause)),
                }
            }
            Ok(Balance::Overtaken(after)) => {
                self.after = *after;
                // Somebody else looks, and this one sees to it that somebody does.
                Some(CALM + self.pause)
            }
            Err(_) => Some(CALM),
        };
        self.next = wait.map(|wait| now + wait);
    }
}

impl Balancer {
    /// A balancer. It does nothing until [`run`](Self::run) is called.
    pub(crate) fn new(store: Arc<Store>, instances: Arc<PeerTable>) -> Arc<Self> {
        Arc::new(Balancer {
            store,
            instances,
            id: unique_id(),
            asked: Mutex::default(),
            told: Notify::new(),
        })
    }

    /// Takes in that due jobs of this ledger wait for the limit of their kind. Ignored unless the
    /// ledger shares its limit with others, and this instance paces it.
    pub(crate) fn is_held(&self, served: &ServedLedger, held: Held) {
        if held.is_shared && self.instances.paces(served) {
            let mut asked = self.asked.lock().expect("no panic while held");
            asked.insert(served.ledger.kind().clone());
            drop(asked);
            self.told.notify_one();
        }
    }

    /// Looks at limits until the shutdown.
    pub(crate) async fn run(&self, shutdown: &CancellationToken) {
        shutdown.run_until_cancelled(self.look_out()).await;
    }

    async fn look_out(&self) {
        let mut limits: BTreeMap<LimitScope, Looks> = BTreeMap::new();
        loop {
            self.meet(&mut limits).await;
            let now = Instant::now();
            let planned = limits.iter_mut().filter(|(_, looks)| looks.next.is_some());
            let next = planned.min_by_key(|(_, looks)| looks.next);
            match next {
                Some((scope, looks)) if looks.next.is_some_and(|next| next <= now) => {
                    let until = now + PATIENCE;
                    let look = self
                        .store
                        .balance_limit(scope, &self.id, looks.after, until);
                    let balance = look.await;
                    if let Err(error) = &balance {
                        tracing::debug!(%scope, %error, "the shares of a limit could not be moved");
                    }
                    looks.see(&balance, Instant::now());
                }
                next => {
                    let next = next.and_then(|(_, looks)| looks.next);
                    tokio::select! {
                        () = sleep_until(next.unwrap_or(now + LONGEST_SLEEP).into()) => {}
                        () = self.told.notified() => {}
                    }
                }
            }
        }
    }

    /// Takes in the kinds whose jobs wait.
    async fn meet(&self, limits: &mut BTreeMap<LimitScope, Looks>) {
        let asked = std::mem::take(&mut *self.asked.lock().expect("no panic while held"));
        for kind in asked {
            let until = Instant::now() + PATIENCE;
            let scope = match self.store.limit_of(&kind, until).await {
                Ok(Some((scope, _))) => scope,
                Ok(None) => {
                    // Its limit was removed while the kind began.
                    if let Err(error) = self.store.free_of_limit(&kind, until).await {
                        tracing::debug!(%kind, %error, "a limit that was removed still holds");
                    }
                    continue;
                }
                // The next claim or sweep asks again.
                Err(error) => {
                    tracing::debug!(%kind, %error, "the limit of a kind is unknown");
                    continue;
                }
            };
            let now = Instant::now();
            let looks = limits.entry(scope).or_insert(Looks {
                last: None,
                next: None,
                pause: SHORTEST,
                owed: Duration::ZERO,
                waiting: BTreeSet::new(),
                after: 0,
            });
            looks.ask(kind, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_go_on_while_jobs_wait_or_a_share_is_owed() {
        let [one, other] = ["app1:mail:send", "app1:mail:bulk"].map(|it| Kind::parse(it).unwrap());
        let now = Instant::now();
        let mut looks = Looks {
            last: None,
            next: None,
            pause: SHORTEST,
            owed: Duration::ZERO,
            waiting: BTreeSet::new(),
            after: 0,
        };
        let balance = |waiting: &[&Kind], owes, groups| {
            Ok(Balance::Shared {
                ledgers: 2,
                waiting: waiting.iter().map(|kind| (*kind).clone()).collect(),
                owes,
                groups,
            })
        };
        let shared = |waiting: &[&Kind], owes| balance(waiting, owes, GroupsWait::None);
        looks.ask(one.clone(), now);
        assert_eq!(looks.next, Some(now), "nobody has looked yet");
        looks.see(&shared(&[&one], false), now);
        assert_eq!(looks.next, Some(now + CALM), "kinds that wait take turns");
        looks.ask(one.clone(), now);
        assert_eq!(looks.next, Some(now + CALM), "the look has seen that");
        looks.ask(other, now);
        assert_eq!(looks.next, Some(now + SHORTEST));
        looks.see(&shared(&[], true), now);
        assert_eq!(looks.next, Some(now + 2 * SHORTEST), "a lease is owed");
        looks.see(&shared(&[], false), now);
        assert_eq!(looks.next, None, "nobody waits");
        looks.see(&balance(&[], false, GroupsWait::Some), now);
        assert_eq!(looks.next, Some(now + CALM), "groups take turns");
        looks.ask(one.clone(), now);
        assert_eq!(looks.next, Some(now + SHORTEST), "another group waits");
        looks.see(&balance(&[], false, GroupsWait::More), now);
        assert_eq!(looks.next, Some(now + SHORTEST), "the look was too short");
        looks.see(&balance(&[], false, GroupsWait::Owed), now);
        assert_eq!(looks.next, Some(now + 2 * SHORTEST), "a lease is owed");
        looks.see(&Ok(Balance::Overtaken(7)), now);
        assert!(looks.next.is_some() && looks.after == 7);
    }
}
