//! Makes one server announce the events that the worker needs, and keeps track of whether it does.
//!
//! The setting `notify-keyspace-events` is looked up with each new connection, again after it was
//! changed, and whenever jobs fall due without an event. Silence does not show that changes of keys
//! go unannounced, so a worker that adopts keys also looks it up at intervals. Where the setting
//! may not be read, the announcement is [proved](Server::prove) with a key of its own.

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

/// Shortest time between two look-ups that doubts cause.
const AT_LEAST: Duration = Duration::from_secs(3);

/// How long after a change of the flags they are looked up again: another instance may have read
/// the old flags before, and written them after.
const ONCE_MORE: Duration = Duration::from_secs(1);

/// How often a worker that adopts keys looks the setting up. Changes may go unheard for this long;
/// one look-up costs Redis some microseconds.
const NOW_AND_THEN: Duration = Duration::from_secs(5);

/// How long a proof is valid; up to half as long again at random, since each instance makes its
/// own. A proof costs Redis a connection and about ten messages.
const PROVEN_FOR: Duration = Duration::from_secs(10);

/// How often keys are searched for while changes go unannounced or unheard: then only the search
/// finds new keys.
const SEARCH_DEAF: Duration = Duration::from_secs(15);

/// How long the connection for changes may be down before that is logged.
const DEAF: Duration = Duration::from_secs(3);

/// Time limit of one look-up.
const PATIENCE: Duration = Duration::from_secs(5);

/// The state of the events of one server.
pub(crate) struct Events {
    server: Arc<Server>,
    /// The id of this instance.
    instance: String,
    /// Told when changes of keys are heard.
    hearing: Arc<ChangeCoverage>,
    /// Finds the changes that went unheard.
    search: Arc<KeySearch>,
    /// The events that have to be announced: expired keys, or all changes.
    wanted: WantedEvents,
    /// Patterns of the keys that are adopted.
    globs: Vec<String>,
    /// Records whether events and wake-ups are heard.
    heard_at: Arc<ReadinessByServer>,
    /// The reported problems of the server.
    conditions: Arc<Conditions>,
    /// When the connection for changes of keys went down; `None` while it is up.
    deaf_since: Mutex<Option<Instant>>,
    /// Number of heard events that concern this worker.
    heard: AtomicU64,
    /// Requests a look-up, because events may be missing.
    doubted: Notify,
    /// Requests another look-up, because the last result may not last.
    unsettled: Notify,
    /// Until when the last proof is valid.
    proven_until: Mutex<Option<Instant>>,
}

impl Events {
    /// Nothing is known yet. `globs` are the patterns of adopted keys; if there are none, only
    /// expired keys have to be announced.
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

    /// Records whether events and wake-ups are heard from now on.
    pub(crate) fn are_heard(&self, heard: bool) {
        self.heard_at.set(self.server.place(), heard);
    }

    /// Whether neither events nor wake-ups are heard now.
    pub(crate) fn are_unheard(&self) -> bool {
        !self.heard_at.is_heard(self.server.place())
    }

    /// Whether there was no attempt to hear them yet.
    pub(crate) fn were_never_tried(&self) -> bool {
        !self.heard_at.is_known(self.server.place())
    }

    /// Counts a heard event.
    pub(crate) fn hear(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
        if self.conditions.end(Condition::ExpiryUnannounced) {
            tracing::info!("Redis announces expired keys now");
        }
    }

    /// Number of events heard so far.
    pub(crate) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Reports that triggers were touched when they were due, and no event followed. Somebody may
    /// have turned events off, or there is a harmless reason, so this only causes a look-up.
    pub(crate) fn doubt(&self) {
        self.doubted.notify_one();
    }

    /// Takes in a new connection for events.
    pub(crate) async fn begin(&self) {
        self.are_heard(true);
        self.doubt_proof();
        if self.look(false).await {
            self.hear_changes();
        }
    }

    /// Takes in a new connection for changes of keys. Earlier changes may have gone unheard.
    pub(crate) async fn begin_changes(&self) {
        let deaf_since = self.deaf_since.lock().expect("no panic while held").take();
        if self.conditions.end(Condition::ChangesUnheard)
            && let Some(since) = deaf_since
        {
            tracing::info!(after = ?since.elapsed(), "changes of keys arrive again");
        }
        self.doubt_proof();
        self.look(false).await;
        self.hear_changes();
    }

    /// Takes in that changes of keys go unheard from now on, because of this error.
    pub(crate) fn end_changes(&self, error: &Error) {
        tracing::debug!(%error, "changes of keys do not arrive");
        self.hearing.begin(false);
        let mut deaf_since = self.deaf_since.lock().expect("no panic while held");
        let since = *deaf_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= DEAF
            && !self.are_unheard()
            && self.conditions.begin(Condition::ChangesUnheard)
        {
            tracing::warn!(
                %error,
                "changes of keys do not arrive; the worker searches for plain keys every {} s",
                SEARCH_DEAF.as_secs(),
            );
        }
    }

    fn are_changes_unannounced(&self) -> bool {
        self.conditions.holds(Condition::ChangesUnannounced)
    }

    /// Whether the connection for changes of keys is up.
    fn hears_changes(&self) -> bool {
        self.deaf_since
            .lock()
            .expect("no panic while held")
            .is_none()
    }

    /// Looks the setting up after each doubt, and at intervals if the worker adopts keys. Starts
    /// searches while changes are missed. Runs for ever.
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
            // Set even if the look-up fails: a recorder may forget a gauge that is not set again.
            if self.are_changes_unannounced() {
                counters::changes_are_announced(&self.server.address(), false);
            }
            // Without a connection nothing is heard, under any setting.
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

    /// Takes in that another instance found changes of keys unannounced, and has set the flags.
    pub(crate) fn were_unheard(&self) {
        if self.wanted == WantedEvents::Changes {
            self.hear_changes();
        }
    }

    /// Tells the other instances that changes went unannounced: they see only the corrected
    /// setting.
    async fn tell_of_gap(&self, until: Instant) {
        if self.wanted == WantedEvents::Changes {
            let word = format!("unheard {}", self.instance);
            if let Err(error) = self.server.tell(&word, until).await {
                tracing::debug!(%error, "the other instances could not be told about a gap");
            }
        }
    }

    /// Takes in that changes may have gone unheard until now, and starts a search. Later changes
    /// are heard, unless they are unannounced or the connection is down.
    fn hear_changes(&self) {
        let is_missed = self.are_changes_unannounced();
        self.hearing.begin(self.hears_changes() && !is_missed);
        self.search.begin();
    }

    /// Looks up which events Redis announces, and sets missing flags. `in_doubt` means that jobs
    /// fall due without an event. Returns whether changes of keys were unannounced until now, and
    /// are announced from now on.
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
                        "this user may not read the server's `notify-keyspace-events`, so it is \
                         unknown whether Redis announces {}; make sure that the server's \
                         configuration has `{}`",
                        self.wanted.missing(""),
                        self.wanted.flags(),
                    );
                }
                false
            }
            Announced::Unanswered(error) => {
                tracing::debug!(%error, "it is not known yet which events Redis announces");
                self.unsettled.notify_one();
                false
            }
        }
    }

    /// Proves that changes are announced, if the last proof is not valid any more and the setting
    /// cannot be looked up. Returns the same as [`look`](Self::look).
    async fn prove(&self, refused: &Error, until: Instant) -> bool {
        let proven_until = *self.proven_until.lock().expect("no panic while held");
        if proven_until.is_some_and(|until| Instant::now() < until) {
            return false;
        }
        let unproved = match self.server.prove(&self.globs, until).await {
            Ok(proof) => match proof.unheard() {
                None => return self.proved(refused),
                Some(unheard) => {
                    format!("a test key expired, and these events did not arrive: {unheard}")
                }
            },
            // Absence and being a replica are reported elsewhere, and will be over.
            Err(error) if error.is_retryable() && error.kind() != ErrorKind::Full => {
                tracing::debug!(
                    %error,
                    "a test key could not prove yet which events Redis announces"
                );
                self.unsettled.notify_one();
                return false;
            }
            Err(error) => {
                format!("the flags can be neither read nor proved by a test key: {error}")
            }
        };
        self.say_of_changes(&unproved);
        false
    }

    /// Takes in a successful proof. Returns the same as [`look`](Self::look).
    fn proved(&self, refused: &Error) -> bool {
        let time = PROVEN_FOR.mul_f64(1.0 + rand::random::<f64>() / 2.0);
        let until = Instant::now() + time;
        *self.proven_until.lock().expect("no panic while held") = Some(until);
        self.conditions.end(Condition::ExpiryUnannounced);
        if self.conditions.begin(Condition::SettingUnknown) {
            tracing::info!(
                error = %refused,
                "this user may not read the server's `notify-keyspace-events`, so a test key \
                 checks now and then that events arrive; make sure that the server's configuration \
                 has `{}`",
                self.wanted.flags(),
            );
        }
        self.announces_changes()
    }

    /// Invalidates the last proof.
    fn doubt_proof(&self) {
        *self.proven_until.lock().expect("no panic while held") = None;
    }

    /// Takes in that changes of keys are announced. Returns whether the opposite was reported
    /// before.
    fn announces_changes(&self) -> bool {
        if self.wanted == WantedEvents::Changes {
            self.heard_at.set_unannounced(self.server.place(), None);
            counters::changes_are_announced(&self.server.address(), true);
        }
        let was_missed = self.conditions.end(Condition::ChangesUnannounced);
        if was_missed {
            tracing::info!("Redis announces changes of keys now");
        }
        was_missed
    }

    /// Logs that expired keys are not announced, once.
    fn say(&self, error: &Error) {
        if self.conditions.begin(Condition::ExpiryUnannounced) {
            tracing::warn!(
                %error,
                "Redis does not announce expired keys, and this user may not change the setting: \
                 set `notify-keyspace-events {}` in the server's configuration; until then jobs \
                 start some 20 ms late",
                self.wanted.flags(),
            );
        }
    }

    /// Reports that changes of keys are not announced, once: in the log, the metrics and the
    /// readiness.
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
    /// Resets the metric: this worker adopts no keys any more, so none are lost.
    fn drop(&mut self) {
        if self.are_changes_unannounced() {
            counters::changes_are_announced(&self.server.address(), true);
        }
    }
}
