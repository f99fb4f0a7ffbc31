//! What can go wrong between this process and Redis, and what follows from it.

use std::time::Duration;

use redis::{RedisError, ServerError, ServerErrorKind};

use crate::error::{Error, ErrorKind};
use crate::store::connections::cluster::Node;
#[cfg(feature = "worker")]
use crate::store::servers::health::Ailment;

/// What the address of a server begins with that is spoken to by TLS.
pub(crate) const TLS: &str = "rediss://";

/// What to ask of a server that is silent. A Redis that is spoken to by TLS on a port without
/// waits for the end of what it takes for a command.
fn remedy_of_silence(address: &str) -> &'static str {
    if address.starts_with(TLS) {
        "is it running and reachable, and is this its port with TLS?"
    } else {
        "is it running and reachable?"
    }
}

/// A failed request.
#[derive(Debug)]
pub(crate) struct Fault {
    error: Error,
    class: Class,
    /// The node of a cluster that said so.
    node: Option<Node>,
    /// In which words.
    told: Option<Box<ServerError>>,
}

/// Where a request belongs, as a node of a cluster says that does not have it.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) struct Redirect {
    pub(in crate::store) slot: u16,
    pub(in crate::store) node: Node,
    /// For this time only: the slot is on its way.
    pub(in crate::store) is_ask: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// No connection: nothing was sent.
    Unreachable,
    /// The connection broke or hung: the request may have been carried out.
    Broken,
    /// The server cannot serve right now, and said so.
    Busy,
    /// The server is no longer the primary: its successor has to be found.
    Demoted,
    /// The slot is another node's, or on its way to one.
    Elsewhere,
    /// A part of the ledger is on a node that does not serve it.
    Torn,
    /// Nothing of the ledger is on the node that serves it.
    Unfounded,
    /// The server does not know the script.
    NoScript,
    /// The server did not let us in.
    Refused,
    /// A key holds something of another type.
    WrongType,
    /// Trying again at once changes nothing.
    Final,
}

impl Fault {
    fn new(class: Class, error: Error) -> Self {
        Fault {
            error,
            class,
            node: None,
            told: None,
        }
    }

    /// The same, for another one that waits for the same answer.
    pub(in crate::store) fn duplicate(&self) -> Self {
        Fault {
            error: self.error.duplicate(),
            class: self.class,
            node: self.node.clone(),
            told: self.told.clone(),
        }
    }

    /// The same, from a node of a cluster.
    pub(in crate::store) fn at_node(mut self, node: Option<&Node>) -> Self {
        self.node = node.cloned();
        self
    }

    /// Of some slots nobody says whose they are.
    pub(in crate::store) fn uncovered(address: &str) -> Self {
        Fault::new(
            Class::Unreachable,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{address}: nobody serves some of the slots; see `CLUSTER INFO` and \
                     `redis-cli --cluster check`"
                ),
            ),
        )
    }

    /// The whole of a ledger is on a node that does not serve it.
    pub(in crate::store) fn strayed(subject: &str, slot: u16, holder: &Node) -> Self {
        let what = format!("is on {holder}, which does not serve its slot {slot}");
        Fault::new(Class::Torn, torn(subject, &what))
    }

    /// The whole of a ledger is kept by a mending that has not ended.
    pub(in crate::store) fn aside(subject: &str, start: &str) -> Self {
        let what = format!("is kept as `{start}mending:…` by a mending that has not ended");
        Fault::new(Class::Torn, torn(subject, &what))
    }

    /// So it could not be seen whether a ledger is elsewhere, of which nothing is where it is served. The
    /// call itself was refused for that.
    pub(in crate::store) fn while_looking(self, subject: &str, slot: u16) -> Self {
        let told = format!(
            "nothing of the ledger {subject} is where its slot {slot} is served, and whether another \
             node has it could not be seen: do all nodes of the cluster answer?"
        );
        let error = Error::new(ErrorKind::Unavailable, told).because(self.error);
        Fault { error, ..self }
    }

    /// A node has more keys of a slot that it does not serve than are looked at.
    pub(in crate::store) fn crowded(slot: u16, holder: &Node, looked_at: usize) -> Self {
        let told = format!(
            "{holder} has more than {looked_at} keys of the slot {slot}, which it does not serve, and \
             there may be some of this ledger among them: `keyfall cluster mend` moves them"
        );
        Fault::new(Class::Torn, Error::new(ErrorKind::Unavailable, told))
    }

    /// Of a ledger of which a part is missing: which one it is.
    pub(in crate::store) fn of_ledger(mut self, subject: &str, slot: u16) -> Self {
        if let (Class::Torn, Some(missing)) = (self.class, self.missing()) {
            let what = format!("lacks {missing} where its slot {slot} is served");
            self.error = torn(subject, &what);
        }
        self
    }

    pub(crate) fn unreachable(address: &str) -> Self {
        Fault::new(
            Class::Unreachable,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "no connection to Redis at {address} in time: {}",
                    remedy_of_silence(address)
                ),
            ),
        )
    }

    /// What is to be the primary is none, or not yet.
    pub(crate) fn no_primary(address: &str) -> Self {
        Fault::new(
            Class::Unreachable,
            Error::new(
                ErrorKind::Unavailable,
                format!("Redis at {address} is a replica still: is a fail-over under way?"),
            ),
        )
    }

    /// Somebody has to change a setting, here or there.
    pub(crate) fn refused(error: Error) -> Self {
        Fault::new(Class::Refused, error)
    }

    pub(crate) fn moved(address: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!("the primary is at {address} no more"),
            ),
        )
    }

    #[cfg(feature = "worker")]
    pub(crate) fn behind(address: &str, what: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "Redis at {address} announces more {what} than can be heard: what was not \
                     heard yet is dropped, and looked for"
                ),
            ),
        )
    }

    #[cfg(feature = "worker")]
    pub(in crate::store) fn silent(address: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "Redis at {address} passes nothing on: is it cut off from the rest of its cluster?"
                ),
            ),
        )
    }

    #[cfg(feature = "worker")]
    pub(crate) fn closed(address: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "Redis at {address} closed the connection: is it restarting, or was the subscriber too slow?"
                ),
            ),
        )
    }

    pub(crate) fn timed_out(address: &str, after: Duration) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                match after.as_millis() {
                    0 => format!("Redis at {address} did not answer before the call had to end"),
                    ms => format!("Redis at {address} did not answer within {ms} ms"),
                },
            ),
        )
    }

    pub(crate) fn from_connecting(error: RedisError, address: &str) -> Self {
        if error.kind() == redis::ErrorKind::Parse {
            return Fault::refused(Error::new(
                ErrorKind::Incompatible,
                format!("what answers at {address} does not speak as Redis does: check host and port, and write rediss:// if it wants TLS"),
            ).because(error));
        }
        #[cfg(feature = "tls")]
        if let Some((kind, remedy)) = crate::store::connections::tls::remedy(&error) {
            let text = format!("Redis at {address}: {error}; {remedy}");
            return Fault::refused(Error::new(kind, text));
        }
        let is_dropped = error.is_connection_dropped() && !error.is_connection_refusal();
        let mut fault = Fault::from_redis(error, address);
        // So does a port with TLS treat those who come without.
        if is_dropped
            && fault.class == Class::Broken
            && ![TLS, "/"].iter().any(|start| address.starts_with(start))
        {
            let text = format!("{} Or does this port want TLS, rediss://?", fault.error);
            fault.error = Error::new(fault.error.kind(), text);
        }
        fault.class = match fault.class {
            Class::Broken => Class::Unreachable,
            Class::Final => Class::Refused,
            other => other,
        };
        fault
    }

    pub(crate) fn from_redis(error: RedisError, address: &str) -> Self {
        use ServerErrorKind as Server;
        let told = told(&error);
        let (told, message) = told.as_ref().map_or(("", ""), |(_, told)| {
            (told.code(), told.details().unwrap_or_default())
        });
        let code = code_behind(told, message);
        let (class, kind, remedy) = match (error.kind(), code) {
            (redis::ErrorKind::Server(Server::NoScript), _) => (
                Class::NoScript,
                ErrorKind::Unavailable,
                "the script will be loaded again",
            ),
            (redis::ErrorKind::Server(Server::BusyLoading), _) => (
                Class::Busy,
                ErrorKind::Unavailable,
                "it is loading its data set: wait until it has finished",
            ),
            (_, "BUSY") => (
                Class::Busy,
                ErrorKind::Unavailable,
                "a long script of somebody else is running: wait, or end it with SCRIPT KILL",
            ),
            (redis::ErrorKind::Server(Server::ClusterDown | Server::MasterDown), _) => (
                Class::Busy,
                ErrorKind::Unavailable,
                "it will serve again by itself; if not, see `CLUSTER INFO`",
            ),
            (_, "TORN") => (
                Class::Torn,
                ErrorKind::Unavailable,
                "a part of the ledger is on another node",
            ),
            (_, "UNFOUNDED") => (
                Class::Unfounded,
                ErrorKind::Unavailable,
                "it may be another node that has the ledger: see `keyfall cluster mend`",
            ),
            (redis::ErrorKind::Server(Server::TryAgain), _) => (
                Class::Elsewhere,
                ErrorKind::Unavailable,
                "the slot is on its way to another node",
            ),
            (redis::ErrorKind::Server(Server::Moved | Server::Ask), _) => (
                Class::Elsewhere,
                ErrorKind::Incompatible,
                "this server is part of a cluster: write redis+cluster://host:port",
            ),
            (redis::ErrorKind::Server(Server::CrossSlot), _) => (
                Class::Final,
                ErrorKind::Incompatible,
                "this server is part of a cluster: write redis+cluster://host:port",
            ),
            (_, "ERR") if error.to_string().contains("cluster support disabled") => (
                Class::Final,
                ErrorKind::InvalidSetting,
                "this server is no part of a cluster: write redis://host:port",
            ),
            (redis::ErrorKind::Server(Server::ReadOnly), _) | (_, "READONLY" | "UNBLOCKED") => (
                Class::Demoted,
                ErrorKind::ReadOnly,
                "this server is a replica: name the primary",
            ),
            (_, "NOREPLICAS") => (
                Class::Final,
                ErrorKind::ReadOnly,
                "attach replicas, or lower min-replicas-to-write",
            ),
            (_, "MISCONF") => (
                Class::Final,
                ErrorKind::ReadOnly,
                "see the server's log for what it is missing",
            ),
            (_, "OOM") => (
                Class::Final,
                ErrorKind::Full,
                "it is at its maxmemory: raise the limit or free memory",
            ),
            (redis::ErrorKind::Server(Server::NoPerm), _) | (_, "NOPERM") => (
                Class::Final,
                ErrorKind::Denied,
                "the rules of the ACL user lack something: `keyfall doctor --only \
                 rights-schedule,rights-run,rights-adopt,rights-look` says what, and acl.conf has \
                 them all",
            ),
            (redis::ErrorKind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => {
                (Class::Final, ErrorKind::Denied, "check user and password")
            }
            (_, "WRONGTYPE") => (
                Class::WrongType,
                ErrorKind::Damaged,
                "a key holds something that Keyfall did not write: `keyfall audit` names it, and with \
                 `--repair` moves it out of the way",
            ),
            (_, "ERR" | "") if error.to_string().contains("DB index is out of range") => (
                Class::Final,
                ErrorKind::InvalidSetting,
                "there is no database of the number in the URL: see `databases` in its configuration",
            ),
            (redis::ErrorKind::InvalidClientConfig, _) => {
                (Class::Final, ErrorKind::InvalidSetting, "check the URL")
            }
            (redis::ErrorKind::Server(_) | redis::ErrorKind::Extension, _) => (
                Class::Final,
                ErrorKind::Damaged,
                "this is not an answer that Keyfall expects from Redis 6.2 or newer",
            ),
            _ => (
                Class::Broken,
                ErrorKind::Unavailable,
                remedy_of_silence(address),
            ),
        };
        let text = format!("Redis at {address}: {error}; {remedy}");
        Fault {
            told: ServerError::try_from(error).ok().map(Box::new),
            ..Fault::new(class, Error::new(kind, text))
        }
    }

    /// The node of a cluster that it came from.
    pub(in crate::store) fn node(&self) -> &Option<Node> {
        &self.node
    }

    /// Where the request belongs instead.
    pub(in crate::store) fn redirect(&self) -> Option<Redirect> {
        let told = self.told.as_ref()?;
        let is_ask = match told.kind()? {
            ServerErrorKind::Ask => true,
            ServerErrorKind::Moved => false,
            _ => return None,
        };
        let (slot, place) = told.details()?.split_once(' ')?;
        Some(Redirect {
            slot: slot.parse().ok()?,
            node: self.node.as_ref()?.named_by(place),
            is_ask,
        })
    }

    /// The answer of a command that was refused by itself, and not for want of a server.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn into_answer(self) -> Result<redis::Value, Self> {
        match self.told {
            Some(told) if !self.is_passing() => Ok(redis::Value::ServerError(*told)),
            told => Err(Fault { told, ..self }),
        }
    }

    /// Whether the same request, sent again soon, can be answered differently.
    pub(crate) fn is_passing(&self) -> bool {
        match self.class {
            Class::Unreachable | Class::Broken | Class::Busy => true,
            // Only who knows the nodes can go there.
            Class::Elsewhere => self.node.is_some(),
            _ => false,
        }
    }

    /// Whether the server is no primary any more.
    pub(crate) fn is_demoted(&self) -> bool {
        self.class == Class::Demoted
    }

    /// Whether the connection must not be used any more.
    pub(crate) fn breaks_connection(&self) -> bool {
        matches!(self.class, Class::Broken | Class::Demoted)
    }

    /// Whether an operator, or time, can make the same request succeed.
    pub(crate) fn may_be_mended(&self) -> bool {
        self.error.is_retryable()
            || self.error.kind() == ErrorKind::Denied
            || matches!(self.class, Class::NoScript | Class::Refused)
    }

    /// What the whole server ails from, if it is not only about this request.
    #[cfg(feature = "worker")]
    pub(crate) fn ailment(&self) -> Option<Ailment> {
        match self.class {
            Class::Unreachable | Class::Broken => Some(Ailment::Away),
            Class::Busy => Some(Ailment::Busy),
            Class::Refused => Some(Ailment::Refusing),
            Class::Demoted => Some(Ailment::Demoted),
            Class::Final if self.error.kind() == ErrorKind::ReadOnly => Some(Ailment::ReadOnly),
            Class::Final | Class::WrongType | Class::NoScript | Class::Elsewhere => None,
            Class::Torn | Class::Unfounded => None,
        }
    }

    pub(crate) fn error(&self) -> &Error {
        &self.error
    }

    #[cfg(feature = "worker")]
    pub(crate) fn is_wrong_type(&self) -> bool {
        self.class == Class::WrongType
    }

    /// Whether a part of the ledger is missing, or all of it on another node.
    pub(in crate::store) fn is_torn(&self) -> bool {
        self.class == Class::Torn
    }

    /// Whether nothing of the ledger is there.
    pub(in crate::store) fn is_unfounded(&self) -> bool {
        self.class == Class::Unfounded
    }

    /// Which parts are missing of a torn ledger, as the script says.
    pub(in crate::store) fn missing(&self) -> Option<&str> {
        self.told.as_ref()?.details()
    }

    pub(crate) fn is_no_script(&self) -> bool {
        self.class == Class::NoScript
    }

    /// The fault as seen by a caller whose request may have been carried out by a try
    /// before the last one.
    pub(crate) fn after_sending(mut self, maybe_done: bool) -> Self {
        if maybe_done && self.error.kind() == ErrorKind::Unavailable {
            self.error = Error::new(
                ErrorKind::OutcomeUnknown,
                format!(
                    "{}; the call may have been carried out, and may be repeated",
                    self.error
                ),
            );
        }
        self
    }
}

fn torn(subject: &str, what: &str) -> Error {
    let told = format!(
        "the ledger {subject} {what}: calls on it and its jobs wait until `keyfall cluster mend` \
         has brought its parts together"
    );
    Error::new(ErrorKind::Unavailable, told)
}

/// What the server said; of several commands that were sent together, to the first that failed.
fn told(error: &RedisError) -> Option<(usize, ServerError)> {
    let told = error.clone().into_server_errors()?;
    told.first().cloned()
}

/// Whether a server, or a sentinel, lets nobody in without another password.
pub(in crate::store) fn is_locked_out(error: &RedisError) -> bool {
    let told = told(error);
    let code = told.as_ref().map_or("", |(_, told)| told.code());
    error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(code, "NOAUTH" | "WRONGPASS")
}

/// The code that says why a command failed. Where a script sent the command, Redis 6.2 hides
/// the code within its message, and no version has one for what an ACL forbids. Where the
/// script caught the error and handed it on, the message of Redis 6.2 begins with the place.
fn code_behind<'a>(code: &'a str, message: &'a str) -> &'a str {
    const FORBIDDEN: [&str; 2] = ["The user executing the script", "ACL failure in script"];
    const PLACE: &str = "@user_script:";
    // What `WAIT` and `WAITAOF` are answered by a primary of a moment ago.
    const NO_WAIT: &str = "cannot be used with replica instances";
    if code != "ERR" && code != PLACE {
        return code;
    }
    if FORBIDDEN.iter().any(|text| message.contains(text)) {
        return "NOPERM";
    }
    if message.contains(NO_WAIT) {
        return "READONLY";
    }
    let behind = match message.rsplit_once(PLACE) {
        Some((_, behind)) => behind,
        None if code == PLACE => message,
        None => return code,
    };
    let line = |c: char| c.is_ascii_digit() || matches!(c, ' ' | ':' | '-');
    let word = behind.trim_start_matches(line).split(' ').next();
    word.filter(|word| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase()))
        .unwrap_or(code)
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        fault.error
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_failed_in_a_script_is_found_in_what_each_server_says_of_it() {
        const CALL: &str = "Error running script (call to f_8d28a382061fbc05)";
        for (told, message, code) in [
            (
                "OOM",
                "command not allowed script: 8d28, on @user_script:1.",
                "OOM",
            ),
            ("WRONGTYPE", "Operation against a key", "WRONGTYPE"),
            (
                "ERR",
                "@user_script:56: @user_script: 56: -OOM command not allowed",
                "OOM",
            ),
            (
                "ERR",
                "@user_script:5: WRONGTYPE Operation against a key",
                "WRONGTYPE",
            ),
            (
                "ERR",
                "@user_script:1: @user_script: 1: -READONLY You can't",
                "READONLY",
            ),
            (
                "ERR",
                "The user executing the script can't run this command",
                "NOPERM",
            ),
            (
                "ERR",
                "ACL failure in script: User u has no permissions",
                "NOPERM",
            ),
            ("ERR", "@user_script:7: attempt to index a nil value", "ERR"),
            (
                "ERR",
                "value is not an integer script: 8d28, on @user_script:1.",
                "ERR",
            ),
            ("ERR", "unknown command", "ERR"),
            (
                "ERR",
                "WAIT cannot be used with replica instances. Please also note",
                "READONLY",
            ),
        ] {
            assert_eq!(code_behind(told, message), code, "{message}");
            let within = format!("{CALL}: {message}");
            assert_eq!(code_behind(told, &within), code, "{within}");
        }
        let handed_on = |message| code_behind("@user_script:", message);
        assert_eq!(handed_on("114: -OOM command not allowed"), "OOM");
        assert_eq!(
            handed_on("1: The user executing the script can't"),
            "NOPERM"
        );
    }
}
