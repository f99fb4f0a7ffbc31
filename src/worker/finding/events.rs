//! Sees to it that Redis announces what is to be heard: the setting is looked up with each new
//! connection, again after it was changed, and whenever jobs fall due and nothing is heard of
//! them. That no change of a key is heard nobody can tell from silence, so who adopts keys looks
//! now and then; and where the setting may not be read, it is [proved](Server::prove).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tokio::time::sleep;

use crate::counters;
use crate::error::{Error, ErrorKind};
use crate::store::{Announced, Server, WantedEvents};
use crate::worker::adopting::coverage::ChangeCoverage;
use crate::worker::adopting::search::KeySearch;
use crate::worker::conditions::{Condition, Conditions};
use crate::worker::readiness::ReadinessByServer;

/// How often the setting is looked up at the most, whoever doubts it.
const AT_LEAST: Duration = Duration::from_secs(3);

/// After how long it is looked up whether flags that were set still are: somebody may have read
/// them before, and set them after.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// How often who adopts keys looks. As long may changes go unheard, and one look costs Redis some
/// microseconds.
const NOW_AND_THEN: Duration = Duration::from_secs(5);

/// For how long a proof is believed; half as long again at random, since each instance makes its own.
/// One costs Redis a connection and some ten messages.
const PROVEN_FOR: Duration = Duration::from_secs(10);

/// How often keys are searched for while nobody announces what happens to them: then it is all
/// that finds new ones.
const SEARCH_DEAF: Duration = Duration::from_secs(15);

/// For how long there may be no connection for changes before that is said.
const DEAF: Duration = Duration::from_secs(3);

/// How long a look may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What is known of the events of a server.
pub(crate) struct Events {
    server: Arc<Server>,
    /// The id of this one.
    instance: String,
    /// Is told when changes of keys are heard.
    hearing: Arc<ChangeCoverage>,
    search: Arc<KeySearch>,
    wanted: WantedEvents,
    /// What the keys look like that are adopted.
    globs: Vec<String>,
    /// Whether events and wake-ups are heard.
    heard_at: Arc<ReadinessByServer>,
    /// What was said to be wrong.
    conditions: Arc<Conditions>,
    /// Since when there is no connection on which changes of keys are heard.
    deaf_since: Mutex<Option<Instant>>,
    /// How many were heard that concern this worker.
    heard: AtomicU64,
    doubted: Notify,
    /// What was looked up may not last.
    unsettled: Notify,
    /// Until when it is taken for proved what is announced.
    proven_until: Mutex<Option<Instant>>,
}

impl Events {
    pub(crate) fn new(
        server: Arc<Server>,
        instance: &str,
        globs: Vec<String>,
        hearing: Arc<ChangeCoverage>,
        search: Arc<KeySearch>,
        heard_at: Arc<ReadinessByServer>,
        conditions: Arc<Conditions>,
    ) -> Self {
        Events {
            server,
            instance: instance.to_owned(),
            hearing,
            search,
            wanted: match globs.is_empty() {
                true => WantedEvents::Expiry,
                false => WantedEvents::Changes,
            },
            globs,
            heard_at,
            conditions,
            deaf_since: Mutex::new(Some(Instant::now())),
            heard: AtomicU64::new(0),
            doubted: Notify::new(),
            unsettled: Notify::new(),
            proven_until: Mutex::default(),
        }
    }

    /// Whether events and wake-ups are heard from now on.
    pub(crate) fn are_heard(&self, heard: bool) {
        self.heard_at.set(self.server.place(), heard);
    }

    /// Whether neither events nor wake-ups are heard.
    pub(crate) fn are_unheard(&self) -> bool {
        !self.heard_at.is_heard(self.server.place())
    }

    /// Whether nobody has tried yet to hear them.
    pub(crate) fn were_never_tried(&self) -> bool {
        !self.heard_at.is_known(self.server.place())
    }

    /// An event was heard.
    pub(crate) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        if self.conditions.end(Condition::ExpiryUnannounced) {
            tracing::info!("expired keys are announced now");
        }
    }

    /// How many events were heard so far.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Triggers were touched when they were due, and no event followed: has somebody turned
    /// them off? There may be a harmless reason, so it is only looked up.
    pub(crate) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// The connection is new.
    pub(crate) async fn begin(&self) {
        self.are_heard(true);
        self.doubt_proof();
        if self.look(false).await {
            self.hear_changes();
        }
    }

    /// So is that on which changes of keys are heard. Whatever was done before may have gone
    /// unheard.
    pub(crate) async fn begin_changes(&self) {
        let deaf_since = self.deaf_since.lock().expect("no panic while held").take();
        if self.conditions.end(Condition::ChangesUnheard)
            && let Some(since) = deaf_since
        {
            tracing::info!(after = ?since.elapsed(), "changes of keys are heard again");
        }
        self.doubt_proof();
        self.look(false).await;
        self.hear_changes();
    }

    /// Changes of keys go unheard from now on, for this reason.
    pub(crate) fn end_changes(&self, error: &Error) {
        tracing::debug!(%error, "changes of keys are not heard");
        self.hearing.begin(false);
        let mut deaf_since = self.deaf_since.lock().expect("no panic while held");
        let since = *deaf_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= DEAF
            && !self.are_unheard()
            && self.conditions.begin(Condition::ChangesUnheard)
        {
            tracing::warn!(
                %error,
                "changes of keys are not heard; plain keys are searched for every {} s",
                SEARCH_DEAF.as_secs(),
            );
        }
    }

    fn are_changes_unannounced(&self) -> bool {
        self.conditions.holds(Condition::ChangesUnannounced)
    }

    fn hears_changes(&self) -> bool {
        self.deaf_since
            .lock()
            .expect("no panic while held")
            .is_none()
    }

    /// Looks the setting up whenever somebody doubts it, for ever.
    pub(crate) async fn run(&self) {
        let adopts = self.wanted == WantedEvents::Changes;
        let mut searched = Instant::now();
        loop {
            let in_doubt = tokio::select! {
                () = self.doubted.notified() => true,
                () = self.unsettled.notified() => {
                    sleep(ONCE_MORE).await;
                    false
                }
                () = sleep(NOW_AND_THEN), if adopts => false,
            };
            // Whether or not it can look: a recorder may forget a gauge that is not set again.
            if self.are_changes_unannounced() {
                counters::changes_are_announced(&self.server.address(), false);
            }
            // Whoever is deaf hears nothing whatever the setting is.
            if !self.are_unheard() {
                let was_missed = self.look(in_doubt).await;
                let is_missed = adopts && !self.hears_changes() || self.are_changes_unannounced();
                if was_missed || is_missed && searched.elapsed() >= SEARCH_DEAF {
                    searched = Instant::now();
                    self.hear_changes();
                }
            }
            if in_doubt {
                sleep(AT_LEAST).await;
            }
        }
    }

    /// Another instance found that changes of keys were not announced, and set the flags.
    pub(crate) fn were_unheard(&self) {
        if self.wanted == WantedEvents::Changes {
            self.hear_changes();
        }
    }

    /// Tells the others, who find nothing missing any more.
    async fn tell_of_gap(&self, until: Instant) {
        if self.wanted == WantedEvents::Changes {
            let word = format!("unheard {}", self.instance);
            if let Err(error) = self.server.tell(&word, until).await {
                tracing::debug!(%error, "the other instances could not be told of a gap");
            }
        }
    }

    /// Changes may have gone unheard until now. What is done from now on is heard, unless nobody
    /// announces it or the connection is gone.
    fn hear_changes(&self) {
        let is_missed = self.are_changes_unannounced();
        self.hearing.begin(self.hears_changes() && !is_missed);
        self.search.begin();
    }

    /// Looks up what Redis announces, and sets what is missing. `in_doubt` if nothing is heard
    /// although jobs fall due. Returns whether changes of keys were not announced until now, and
    /// are from now on.
    async fn look(&self, in_doubt: bool) -> bool {
        let until = Instant::now() + PATIENCE;
        match self.server.announce(self.wanted, until).await {
            Announced::Already => {
                self.conditions.end(Condition::ExpiryUnannounced);
                self.announces_changes()
            }
            Announced::FromNow { was, set } => {
                self.unsettled.notify_one();
                self.conditions.end(Condition::ExpiryUnannounced);
                self.wanted.say_set(&was, &set);
                self.announces_changes();
                self.tell_of_gap(until).await;
                self.wanted == WantedEvents::Changes
            }
            Announced::Never { was, error } => {
                if !WantedEvents::Expiry.is_announced_by(&was) {
                    self.say(&error);
                }
                if self.wanted == WantedEvents::Changes {
                    self.say_of_changes(&error.to_string());
                }
                false
            }
            Announced::Unknown(error) if self.wanted == WantedEvents::Changes => {
                if in_doubt {
                    self.doubt_proof();
                }
                self.prove(&error, until).await
            }
            Announced::Unknown(error) if in_doubt => {
                self.say(&error);
                false
            }
            Announced::Unknown(error) => {
                if self.conditions.begin(Condition::SettingUnknown) {
                    tracing::info!(
                        %error,
                        "whether Redis announces {} cannot be looked up: see that \
                         `notify-keyspace-events` in its configuration has `{}`",
                        self.wanted.missing(""),
                        self.wanted.flags(),
                    );
                }
                false
            }
            Announced::Unanswered(error) => {
                tracing::debug!(%error, "what Redis announces is not known yet");
                self.unsettled.notify_one();
                false
            }
        }
    }

    /// What cannot be looked up is not believed but proved, now and then. Returns the same.
    async fn prove(&self, refused: &Error, until: Instant) -> bool {
        let proven_until = *self.proven_until.lock().expect("no panic while held");
        if proven_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let unproved = match self.server.prove(&self.globs, until).await {
            Ok(proof) => match proof.unheard() {
                None => return self.proved(refused),
                Some(unheard) => format!("of a key that it let expire went unheard: {unheard}"),
            },
            // That Redis is away, or a replica, is said elsewhere, and will be over.
            Err(error) if error.is_retryable() && error.kind() != ErrorKind::Full => {
                tracing::debug!(%error, "what Redis announces could not be proved yet");
                self.unsettled.notify_one();
                return false;
            }
            Err(error) => format!("that can be neither looked up nor proved: {error}"),
        };
        self.say_of_changes(&unproved);
        false
    }

    fn proved(&self, refused: &Error) -> bool {
        let time = PROVEN_FOR.mul_f64(1.0 + rand::random::<f64>() / 2.0);
        let until = Instant::now() + time;
        *self.proven_until.lock().expect("no panic while held") = Some(until);
        self.conditions.end(Condition::ExpiryUnannounced);
        if self.conditions.begin(Condition::SettingUnknown) {
            tracing::info!(
                error = %refused,
                "what Redis announces cannot be looked up; it is proved by a key, now and then: see \
                 that `notify-keyspace-events` in its configuration has `{}`",
                self.wanted.flags(),
            );
        }
        self.announces_changes()
    }

    /// What was proved may not hold any more.
    fn doubt_proof(&self) {
        *self.proven_until.lock().expect("no panic while held") = None;
    }

    /// Changes of keys are announced. Returns whether it was said that they are not.
    fn announces_changes(&self) -> bool {
        if self.wanted == WantedEvents::Changes {
            self.heard_at.set_unannounced(self.server.place(), None);
            counters::changes_are_announced(&self.server.address(), true);
        }
        let was_missed = self.conditions.end(Condition::ChangesUnannounced);
        if was_missed {
            tracing::info!("changes of keys are announced now");
        }
        was_missed
    }

    fn say(&self, error: &Error) {
        if self.conditions.begin(Condition::ExpiryUnannounced) {
            tracing::warn!(
                %error,
                "Redis does not announce expired keys, and this user may not change that: set \
                 `notify-keyspace-events {}` in its configuration; until then jobs start some \
                 20 ms late",
                self.wanted.flags(),
            );
        }
    }

    fn say_of_changes(&self, why: &str) {
        if self.conditions.begin(Condition::ChangesUnannounced) {
            self.hearing.begin(false);
            let said = self.server.does_not_announce(why);
            tracing::error!("{said}");
            self.heard_at
                .set_unannounced(self.server.place(), Some(said));
            counters::changes_are_announced(&self.server.address(), false);
        }
    }
}

impl Drop for Events {
    /// Nobody adopts keys here any more, so none are lost.
    fn drop(&mut self) {
        if self.are_changes_unannounced() {
            counters::changes_are_announced(&self.server.address(), true);
        }
    }
}
