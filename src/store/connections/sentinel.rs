//! Finds the primary that sentinels watch.
//!
//! The client library asks the sentinels in the order of the URL, and takes the first primary that
//! one of them names. A sentinel that was cut off names the old primary, and so does for a moment a
//! sentinel that has not heard of a fail-over yet. This module asks all of them and takes the
//! newest configuration. It also subscribes to each: an announced change makes all connections ask
//! again at once, since an old primary may take writes for seconds.
//!
//! See <https://redis.io/docs/latest/develop/reference/sentinel-clients/>.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout, timeout_at};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::LinkSettings;
use crate::store::connections::fault::{Fault, TLS, is_locked_out};
use crate::store::connections::url;

/// Default port of a sentinel.
const PORT: u16 = 26379;

/// How long to wait for the other sentinels when one has answered.
const OTHERS: Duration = Duration::from_millis(300);

/// A subscription that was silent for this long is checked with a ping.
const SILENCE: Duration = Duration::from_secs(2);

/// Pause before a sentinel that does not answer is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long a majority of the sentinels has to report older epochs than the known one, before they
/// are believed. Each sentinel tells the others of a fail-over within two seconds, so after this time
/// they have begun anew: they were reset, or watch the primary as a new one.
const ANEW: Duration = Duration::from_secs(10);

/// Channel on which sentinels announce a new primary: its name, the old and the new address.
const SWITCH: &str = "+switch-master";

/// The sentinels of one primary, and the newest address that they gave.
pub(crate) struct Sentinels {
    /// The name of the primary, as the sentinels know it.
    master: String,
    /// A client for each sentinel.
    connection_slots: Vec<redis::Client>,
    /// The URL of the primary without host and port, which stand between `before` and `behind`.
    before: String,
    behind: String,
    /// The number of the database in the URL; 0 if it names none.
    database: i64,
    /// For connections to the primary, and timeouts for the sentinels.
    settings: LinkSettings,
    /// The newest report of the primary's address.
    known: Mutex<Option<PrimaryReport>>,
    /// Since when a majority of the sentinels has reported only older epochs.
    outvoted: Mutex<Option<Instant>>,
    /// How many times the address has changed.
    moves: watch::Sender<u64>,
    /// A task for each sentinel that listens to its announcements.
    watchers: Mutex<Vec<JoinHandle<()>>>,
}

/// A host and a port.
type HostPort = (String, u16);

/// A sentinel's report on the primary.
#[derive(Clone)]
struct PrimaryReport {
    /// Its configuration epoch, which grows with each fail-over.
    epoch: u64,
    /// The primary's address.
    place: HostPort,
}

impl Sentinels {
    /// Parses `redis+sentinel://user:password@host:port,host:port/master/database`; nothing for a
    /// URL with another scheme.
    pub(in crate::store) fn parse(url: &str, settings: &LinkSettings) -> Result<Option<Self>> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(None);
        };
        let Some(scheme) = scheme.strip_suffix("+sentinel") else {
            return Ok(None);
        };
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (format!("{user}@"), rest),
            None => (String::new(), rest),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (master, database) = path.split_once('/').unwrap_or((path, ""));
        if master.is_empty() {
            return Err(wrong(
                "the name of the primary is missing, behind the hosts",
            ));
        }
        let options = SentinelOptions::parse(query)?;
        let before = format!("{scheme}://{user}");
        let behind = format!("/{database}");
        let (of_primary, of_seats) = apart(settings, scheme, options.tls);
        // Errors in these parts are reported as for any URL.
        let example = url::client(&format!("{before}primary{behind}"), &of_primary)?;
        let credentials = match (&options.user, &options.password) {
            (None, None) => String::new(),
            (user, password) => format!(
                "{}:{}@",
                user.unwrap_or_default(),
                password.unwrap_or_default()
            ),
        };
        let scheme = if options.tls { "rediss" } else { "redis" };
        let connection_slot = |host: &str| {
            if host.is_empty() {
                return Err(wrong("a host is missing between the commas"));
            }
            let port = match host.rsplit_once(':') {
                Some((_, port)) if !port.ends_with(']') => String::new(),
                _ => format!(":{PORT}"),
            };
            url::client(&format!("{scheme}://{credentials}{host}{port}"), &of_seats)
        };
        Ok(Some(Sentinels {
            master: master.to_owned(),
            connection_slots: hosts
                .split(',')
                .map(connection_slot)
                .collect::<Result<_>>()?,
            before,
            behind,
            database: example.get_connection_info().redis_settings().db(),
            settings: of_primary,
            known: Mutex::default(),
            outvoted: Mutex::default(),
            moves: watch::Sender::new(0),
            watchers: Mutex::default(),
        }))
    }

    /// The same sentinels for use on another runtime. Their tasks start on the runtime of the first
    /// [`find`](Self::find).
    #[cfg(feature = "worker")]
    pub(in crate::store) fn apart(&self) -> Self {
        let known = self.known.lock().expect("no panic while held").clone();
        Sentinels {
            master: self.master.clone(),
            connection_slots: self.connection_slots.clone(),
            before: self.before.clone(),
            behind: self.behind.clone(),
            database: self.database,
            settings: self.settings.clone(),
            known: Mutex::new(known),
            outvoted: Mutex::default(),
            moves: watch::Sender::new(0),
            watchers: Mutex::default(),
        }
    }

    /// A client of the primary. Asks all sentinels, and then the server for its role.
    ///
    /// # Errors
    /// A fault that passes if no sentinel answers, or the server is still a replica; a refusal if
    /// the sentinels know no primary of this name, or want a password.
    pub(in crate::store) async fn find(self: &Arc<Self>) -> Result<redis::Client, Fault> {
        self.watch();
        let (told, answered) = self.ask().await?;
        self.compare(told.epoch, answered, Instant::now());
        let (host, port) = self.learn(told);
        let host_in_url = match host.contains(':') {
            true => format!("[{host}]"),
            false => host,
        };
        let url = format!("{}{host_in_url}:{port}{}", self.before, self.behind);
        let client = url::client(&url, &self.settings).map_err(Fault::refused)?;
        self.check_role(&client).await?;
        Ok(client)
    }

    /// Verifies that the server that the sentinels name as the primary has that role.
    async fn check_role(&self, client: &redis::Client) -> Result<(), Fault> {
        let ask = async {
            let mut connection = self.connect(client).await?;
            let mut info = redis::cmd("INFO");
            info.arg("replication")
                .query_async::<String>(&mut connection)
                .await
        };
        let told = ask
            .await
            .map_err(|error| Fault::from_connecting(error, &self.address()))?;
        match told.contains("role:master") {
            true => Ok(()),
            false => Err(Fault::no_primary(&self.address())),
        }
    }

    /// Forgets the known epoch if a majority of the sentinels has reported only older ones for
    /// [`ANEW`]. `newest` is the newest of so many reports.
    fn compare(&self, newest: u64, reports: usize, now: Instant) {
        let mut outvoted = self.outvoted.lock().expect("no panic while held");
        let mut known = self.known.lock().expect("no panic while held");
        let Some(known) = known.as_mut().filter(|known| known.epoch > newest) else {
            *outvoted = None;
            return;
        };
        if 2 * reports > self.connection_slots.len() && now - *outvoted.get_or_insert(now) >= ANEW {
            let (epoch, master) = (known.epoch, &self.master);
            tracing::warn!(
                master,
                epoch,
                newest,
                "the sentinels have forgotten their epoch"
            );
            known.epoch = newest;
        }
    }

    /// Takes in the report of a sentinel. Returns the address by the newest report.
    fn learn(&self, told: PrimaryReport) -> HostPort {
        let mut known = self.known.lock().expect("no panic while held");
        match &*known {
            Some(known) if known.epoch > told.epoch => return known.place.clone(),
            Some(known) if known.place != told.place => {
                let (host, port) = &told.place;
                tracing::info!(master = self.master, host, port, "the primary has changed");
                // Calls on the old primary end by this.
                self.moves.send_modify(|moves| *moves += 1);
            }
            _ => {}
        }
        let place = told.place.clone();
        *known = Some(told);
        place
    }

    /// How many times the primary's address has changed.
    pub(in crate::store) fn moves(&self) -> u64 {
        *self.moves.borrow()
    }

    /// Returns when [`moves`](Self::moves) differs from `since`.
    pub(in crate::store) async fn moved(&self, since: u64) {
        // Cannot fail: the sender is a field of this struct.
        let _ = self
            .moves
            .subscribe()
            .wait_for(|moves| *moves != since)
            .await;
    }

    /// The primary's latest address, or else the addresses of the sentinels; without credentials.
    pub(in crate::store) fn address(&self) -> String {
        let known = self.known.lock().expect("no panic while held");
        match known.as_ref().map(|told| &told.place) {
            Some((host, port)) => {
                let tls = match self.before.starts_with(TLS) {
                    true => TLS,
                    false => "",
                };
                format!("{tls}{host}:{port} ({})", self.master)
            }
            None => format!("the primary {} of {}", self.master, self.places()),
        }
    }

    /// The number of the database.
    pub(in crate::store) fn database(&self) -> i64 {
        self.database
    }

    /// The addresses of the sentinels, for errors.
    fn places(&self) -> String {
        let places: Vec<String> = self.connection_slots.iter().map(place_of).collect();
        format!("sentinels {}", places.join(", "))
    }

    /// The primary's address by the newest configuration that any sentinel knows, and the number of
    /// sentinels that answered.
    async fn ask(&self) -> Result<(PrimaryReport, usize), Fault> {
        let mut asked: FuturesUnordered<_> =
            self.connection_slots
                .iter()
                .map(|connection_slot| async move {
                    (connection_slot, self.ask_one(connection_slot).await)
                })
                .collect();
        let mut newest: Option<PrimaryReport> = None;
        let (mut answered, mut fault) = (0, None);
        let mut until = Instant::now() + self.settings.connect_timeout;
        while let Ok(Some((connection_slot, told))) = timeout_at(until.into(), asked.next()).await {
            match told {
                Ok(told) => {
                    answered += 1;
                    until = until.min(Instant::now() + OTHERS);
                    if newest.as_ref().is_none_or(|known| told.epoch > known.epoch) {
                        newest = Some(told);
                    }
                }
                Err(error) => fault = Some(self.fault(connection_slot, error)),
            }
        }
        match newest {
            Some(told) => Ok((told, answered)),
            None => Err(fault.unwrap_or_else(|| Fault::unreachable(&self.places()))),
        }
    }

    /// Asks one sentinel for the epoch and the address.
    async fn ask_one(&self, connection_slot: &redis::Client) -> Result<PrimaryReport, RedisError> {
        let mut connection = self.connect(connection_slot).await?;
        // In the middle of a fail-over only the second command gives the new address.
        let mut both = redis::pipe();
        both.cmd("SENTINEL").arg("MASTER").arg(&self.master);
        both.cmd("SENTINEL")
            .arg("GET-MASTER-ADDR-BY-NAME")
            .arg(&self.master);
        let (told, place): (HashMap<String, String>, HostPort) =
            both.query_async(&mut connection).await?;
        let epoch = told.get("config-epoch").and_then(|text| text.parse().ok());
        Ok(PrimaryReport {
            epoch: epoch.unwrap_or(0),
            place,
        })
    }

    /// Opens a connection with the timeouts of the link.
    async fn connect(&self, client: &redis::Client) -> Result<MultiplexedConnection, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.connect_timeout))
            .set_response_timeout(Some(self.settings.response_timeout));
        let connect = client.get_multiplexed_async_connection_with_config(&config);
        connect.await
    }

    /// The failure of a sentinel, with a remedy for a wrong name, password or port.
    fn fault(&self, connection_slot: &redis::Client, error: RedisError) -> Fault {
        let place = place_of(connection_slot);
        if error.to_string().contains("No such master") {
            let text = format!(
                "the sentinel at {place} watches no primary named {}: check the name behind the \
                 hosts, and `sentinel monitor` in the configuration of the sentinel",
                self.master
            );
            return Fault::refused(Error::new(ErrorKind::InvalidSetting, text));
        }
        if is_locked_out(&error) {
            let text = format!(
                "the sentinel at {place} refuses the password: set sentinel_user and \
                 sentinel_password behind the `?` of the URL, or `redis.sentinel_password_file`; \
                 the user and the password before the `@` are for Redis"
            );
            return Fault::refused(Error::new(ErrorKind::Denied, text));
        }
        if error.to_string().contains("unknown command") {
            let text = format!(
                "the server at {place} is not a sentinel: name the sentinels, whose default port \
                 is {PORT}, or write redis:// for a Redis"
            );
            return Fault::refused(Error::new(ErrorKind::InvalidSetting, text));
        }
        Fault::from_connecting(
            error,
            &format!("{place}, which the URL names as a sentinel"),
        )
    }

    /// Starts a task for each sentinel that listens to its announcements; they end with this
    /// struct.
    fn watch(self: &Arc<Self>) {
        let mut watchers = self.watchers.lock().expect("no panic while held");
        // The runtime of the tasks may be gone.
        if !watchers.is_empty() && !watchers.iter().any(JoinHandle::is_finished) {
            return;
        }
        for old in watchers.drain(..) {
            old.abort();
        }
        let watch = |connection_slot: &redis::Client| {
            tokio::spawn(listen(
                Arc::downgrade(self),
                connection_slot.clone(),
                self.settings.connect_timeout,
            ))
        };
        watchers.extend(self.connection_slots.iter().map(watch));
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        let watchers = self.watchers.get_mut().expect("no panic while held");
        watchers.iter().for_each(JoinHandle::abort);
    }
}

/// Listens to the announcements of one sentinel until the last user of the sentinels is gone.
async fn listen(sentinels: Weak<Sentinels>, connection_slot: redis::Client, patience: Duration) {
    while let Some(of) = sentinels.upgrade() {
        let subscribe = async {
            let mut pubsub = connection_slot.get_async_pubsub().await?;
            pubsub.subscribe(SWITCH).await?;
            Ok::<_, RedisError>(pubsub.split())
        };
        let Ok(Ok((mut sink, mut stream))) = timeout(patience, subscribe).await else {
            drop(of);
            sleep(AGAIN).await;
            continue;
        };
        let master = of.master.clone();
        drop(of);
        // A change that was announced before the subscription is in its answer.
        let mut is_news = true;
        loop {
            if is_news {
                let Some(of) = sentinels.upgrade() else {
                    return;
                };
                if let Ok(Ok(told)) = timeout(patience, of.ask_one(&connection_slot)).await {
                    of.learn(told);
                    is_news = false;
                }
            }
            // A question without an answer is asked again.
            let wait = if is_news { AGAIN } else { SILENCE };
            match timeout(wait, stream.next()).await {
                Ok(Some(message)) => {
                    let text: String = message.get_payload().unwrap_or_default();
                    is_news |= text.split(' ').next() == Some(&*master);
                }
                Err(_) if is_news => {}
                Ok(None) => {
                    sleep(AGAIN).await;
                    break;
                }
                Err(_) => match timeout(patience, sink.ping::<redis::Value>()).await {
                    Ok(Ok(_)) => {}
                    _ => break,
                },
            }
        }
    }
}

/// The settings for the primary, and for the sentinels: if only one of the two uses TLS, only that
/// one gets the certificates.
#[cfg(feature = "tls")]
fn apart(settings: &LinkSettings, scheme: &str, tls: bool) -> (LinkSettings, LinkSettings) {
    let plain = || LinkSettings {
        certificates: Default::default(),
        ..settings.clone()
    };
    match (matches!(scheme, "rediss" | "valkeys"), tls) {
        (true, false) => (settings.clone(), plain()),
        (false, true) => (plain(), settings.clone()),
        _ => (settings.clone(), settings.clone()),
    }
}

#[cfg(not(feature = "tls"))]
fn apart(settings: &LinkSettings, _: &str, _: bool) -> (LinkSettings, LinkSettings) {
    (settings.clone(), settings.clone())
}

/// The address of a sentinel; without credentials.
fn place_of(connection_slot: &redis::Client) -> String {
    url::address(connection_slot.get_connection_info().addr())
}

/// The options behind the `?` of the URL.
#[derive(Default)]
struct SentinelOptions<'a> {
    /// User for the sentinels; the URL's own user is for the primary.
    user: Option<&'a str>,
    /// Password for the sentinels.
    password: Option<&'a str>,
    /// True if the sentinels are reached by TLS.
    tls: bool,
}

impl<'a> SentinelOptions<'a> {
    /// Parses `sentinel_user=…&sentinel_password=…&sentinel_tls=true`, each part of which is
    /// optional.
    fn parse(query: &'a str) -> Result<Self> {
        let mut options = SentinelOptions::default();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("sentinel_user", user)) => options.user = Some(user),
                Some(("sentinel_password", password)) => options.password = Some(password),
                Some(("sentinel_tls", "true")) => options.tls = true,
                Some(("sentinel_tls", "false")) => options.tls = false,
                _ => {
                    return Err(wrong(
                        "behind the `?` may be sentinel_user=…, sentinel_password=… and \
                         sentinel_tls=true, joined by `&`",
                    ));
                }
            }
        }
        Ok(options)
    }
}

/// The error of a URL that is not valid, with the right form.
fn wrong(what: &str) -> Error {
    Error::new(
        ErrorKind::InvalidSetting,
        format!(
            "the Redis URL is not valid: {what}; write \
             redis+sentinel://[user:password@]host:port,host:port/master[/database], and \
             rediss+sentinel:// for TLS"
        ),
    )
}

#[cfg(test)]
mod tests;
