//! Faults between this process and Redis: their class decides whether a request is repeated and a
//! connection dropped, and their error tells the caller the cause and the remedy.

use std::time::Duration;

use redis::{RedisError, ServerError, ServerErrorKind};

use crate::error::{Error, ErrorKind};
use crate::store::connections::cluster::Node;
#[cfg(feature = "worker")]
use crate::store::servers::health::Ailment;

/// The start of the address of a server that is reached by TLS.
pub(crate) const TLS: &str = "rediss://";

/// The remedy for a silent server, as a question. A Redis that is reached by TLS on a port without
/// TLS is silent: it waits for the end of a command.
fn remedy_of_silence(address: &str) -> &'static str {
    if address.starts_with(TLS) {
        "is it running and reachable, and is this its port with TLS?"
    } else {
        "is it running and reachable?"
    }
}

/// A failed request: the error for the caller, and its class for the link.
#[derive(Debug)]
pub(crate) struct Fault {
    /// For the caller: kind, cause and remedy.
    error: Error,
    /// For the link: whether it repeats the request, and drops the connection.
    class: Class,
    /// The node of a cluster that failed.
    node: Option<Node>,
    /// The server's error message, verbatim.
    told: Option<Box<ServerError>>,
}

/// A redirection: the node that a request belongs to, from a node that does not serve its slot.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::store) struct Redirect {
    /// The slot of the request.
    pub(in crate::store) slot: u16,
    /// The node to send it to.
    pub(in crate::store) node: Node,
    /// True for this request only (`ASK`): the slot is being moved. False if the node serves the
    /// slot from now on (`MOVED`).
    pub(in crate::store) is_ask: bool,
}

/// The classes of faults, by their consequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    /// No connection: nothing was sent.
    Unreachable,
    /// The connection broke or hung: the request may have been carried out.
    Broken,
    /// The server cannot serve right now, and said so.
    Busy,
    /// The server is no longer the primary: the new one has to be found.
    Demoted,
    /// Another node serves the slot, or the slot is being moved to one.
    Elsewhere,
    /// A part of the ledger is on a node that does not serve it.
    Torn,
    /// The node that serves the ledger has no part of it.
    Unfounded,
    /// The server does not know the script.
    NoScript,
    /// The server did not let us in, or a setting is wrong, here or there.
    Refused,
    /// The server did not let us in, although it did before.
    LockedOut,
    /// A key holds something of another type.
    WrongType,
    /// Trying again at once changes nothing.
    Final,
}

impl Fault {
    /// A fault without a node and a message of a server.
    fn new(class: Class, error: Error) -> Self {
        Fault {
            error,
            class,
            node: None,
            told: None,
        }
    }

    /// A copy for another call that waits for the same answer.
    pub(in crate::store) fn duplicate(&self) -> Self {
        Fault {
            error: self.error.duplicate(),
            class: self.class,
            node: self.node.clone(),
            told: self.told.clone(),
        }
    }

    /// The same fault, from this node of a cluster.
    pub(in crate::store) fn at_node(mut self, node: Option<&Node>) -> Self {
        self.node = node.cloned();
        // A link to a cluster follows redirections, as long as there is time.
        if let (Some(node), Some(to)) = (node, self.redirect()) {
            let text = format!(
                "{node} says that slot {} is on {}: it is moving, or has moved, and there was no \
                 time left to ask there; try again",
                to.slot, to.node
            );
            self.error = Error::new(ErrorKind::Unavailable, text);
        }
        self
    }

    /// No node is known to serve some of the slots.
    pub(in crate::store) fn uncovered(address: &str) -> Self {
        Fault::new(
            Class::Unreachable,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "{address}: no node serves some of the slots; see `CLUSTER INFO` and \
                     `redis-cli --cluster check`"
                ),
            ),
        )
    }

    /// All of a ledger is on a node that does not serve its slot.
    pub(in crate::store) fn strayed(subject: &str, slot: u16, holder: &Node) -> Self {
        let what = format!("is on {holder}, which does not serve its slot {slot}");
        Fault::new(Class::Torn, torn(subject, &what))
    }

    /// An unfinished repair keeps all of a ledger aside, under names that begin with `start`.
    pub(in crate::store) fn aside(subject: &str, start: &str) -> Self {
        let what = format!("is kept as `{start}mending:…` by an unfinished repair");
        Fault::new(Class::Torn, torn(subject, &what))
    }

    /// The node that serves a ledger has no part of it, and the search for it on other nodes failed
    /// with this fault. The call itself was refused.
    pub(in crate::store) fn while_looking(self, subject: &str, slot: u16) -> Self {
        let told = format!(
            "the node that serves the slot {slot} has no part of the ledger {subject}, and it is \
             unknown whether another node has it: do all nodes of the cluster answer?"
        );
        let error = Error::new(ErrorKind::Unavailable, told).because(self.error);
        Fault { error, ..self }
    }

    /// A node has more keys of a slot that it does not serve than the `looked_at` that were
    /// searched.
    pub(in crate::store) fn crowded(slot: u16, holder: &Node, looked_at: usize) -> Self {
        let told = format!(
            "{holder} has more than {looked_at} keys of the slot {slot}, which it does not serve, \
             and some of them may belong to this ledger: `keyfall cluster mend` moves them"
        );
        Fault::new(Class::Torn, Error::new(ErrorKind::Unavailable, told))
    }

    /// Adds the missing part to the fault of a torn ledger; leaves other faults as they are.
    pub(in crate::store) fn of_ledger(mut self, subject: &str, slot: u16) -> Self {
        if let (Class::Torn, Some(missing)) = (self.class, self.missing()) {
            let what = format!("lacks {missing} on the node that serves its slot {slot}");
            self.error = torn(subject, &what);
        }
        self
    }

    /// No connection in time: nothing was sent.
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

    /// The server that should be the primary is a replica, maybe not yet promoted.
    pub(crate) fn no_primary(address: &str) -> Self {
        Fault::new(
            Class::Unreachable,
            Error::new(
                ErrorKind::Unavailable,
                format!("Redis at {address} is still a replica: is a fail-over under way?"),
            ),
        )
    }

    /// A setting must be changed, here or on the server; a repeat does not help.
    pub(crate) fn refused(error: Error) -> Self {
        Fault::new(Class::Refused, error)
    }

    /// The primary is at another address now: answers of this server do not count any more.
    pub(crate) fn moved(address: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!("the primary is no longer at {address}"),
            ),
        )
    }

    /// The subscriber does not keep up with the events named by `what`.
    #[cfg(feature = "worker")]
    pub(crate) fn behind(address: &str, what: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "Redis at {address} announces more {what} than this process can read: unread \
                     messages are dropped, and the reconciler searches for their jobs"
                ),
            ),
        )
    }

    /// The subscription has heard nothing, although messages come all the time.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn silent(address: &str) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                format!(
                    "Redis at {address} delivers no messages: is it cut off from the rest of its \
                     cluster?"
                ),
            ),
        )
    }

    /// The server closed the connection.
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

    /// No answer within `after`; 0 if the call had no time left. The request may have been carried
    /// out.
    pub(crate) fn timed_out(address: &str, after: Duration) -> Self {
        Fault::new(
            Class::Broken,
            Error::new(
                ErrorKind::Unavailable,
                match after.as_millis() {
                    0 => {
                        format!("Redis at {address} did not answer before the deadline of the call")
                    }
                    ms => format!("Redis at {address} did not answer within {ms} ms"),
                },
            ),
        )
    }

    /// The fault of an attempt to connect; the request was not sent.
    pub(crate) fn from_connecting(error: RedisError, address: &str) -> Self {
        if error.kind() == redis::ErrorKind::Parse {
            return Fault::refused(
                Error::new(
                    ErrorKind::Incompatible,
                    format!(
                        "the server at {address} does not speak the protocol of Redis: check host \
                         and port, and write rediss:// if the port needs TLS"
                    ),
                )
                .because(error),
            );
        }
        #[cfg(feature = "tls")]
        if let Some((kind, remedy)) = crate::store::connections::tls::remedy(&error) {
            let text = format!("Redis at {address}: {error}; {remedy}");
            return Fault::refused(Error::new(kind, text));
        }
        let is_dropped = error.is_connection_dropped() && !error.is_connection_refusal();
        let mut fault = Fault::from_redis(error, address);
        // A port with TLS drops clients without it in this way.
        if is_dropped
            && fault.class == Class::Broken
            && ![TLS, "/"].iter().any(|start| address.starts_with(start))
        {
            let text = format!("{} Or does this port need TLS, rediss://?", fault.error);
            fault.error = Error::new(fault.error.kind(), text);
        }
        fault.class = match fault.class {
            Class::Broken => Class::Unreachable,
            Class::Final => Class::Refused,
            other => other,
        };
        fault
    }

    /// The fault for an error of the client library, with its class, kind and remedy.
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
                "the server is loading its data: wait until it has finished",
            ),
            (_, "BUSY") => (
                Class::Busy,
                ErrorKind::Unavailable,
                "the server is running a long script of another program: wait, or end the script \
                 with SCRIPT KILL",
            ),
            (redis::ErrorKind::Server(Server::ClusterDown | Server::MasterDown), _) => (
                Class::Busy,
                ErrorKind::Unavailable,
                "the cluster usually recovers by itself; if it does not, see `CLUSTER INFO`",
            ),
            (_, "TORN") => (
                Class::Torn,
                ErrorKind::Unavailable,
                "a part of the ledger is on another node",
            ),
            (_, "UNFOUNDED") => (
                Class::Unfounded,
                ErrorKind::Unavailable,
                "another node may have the ledger: see `keyfall cluster mend`",
            ),
            (redis::ErrorKind::Server(Server::TryAgain), _) => (
                Class::Elsewhere,
                ErrorKind::Unavailable,
                "the slot is moving to another node",
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
                "this server is not part of a cluster: write redis://host:port",
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
                "the server's log file gives the reason",
            ),
            (_, "OOM") => (
                Class::Final,
                ErrorKind::Full,
                "the server has reached its maxmemory: raise the limit or free memory",
            ),
            (redis::ErrorKind::Server(Server::NoPerm), _) | (_, "NOPERM") => (
                Class::Final,
                ErrorKind::Denied,
                "the ACL user lacks a right: `keyfall doctor --only \
                 rights-schedule,rights-run,rights-adopt,rights-look` names the missing rules, and \
                 acl.conf has all rules",
            ),
            (redis::ErrorKind::AuthenticationFailed, _) | (_, "NOAUTH" | "WRONGPASS") => {
                (Class::Final, ErrorKind::Denied, "check user and password")
            }
            (_, "WRONGTYPE") => (
                Class::WrongType,
                ErrorKind::Damaged,
                "a key holds a value that Keyfall did not write: `keyfall audit` names the key, \
                 and `keyfall audit --repair` moves it out of the way",
            ),
            (_, "ERR" | "") if error.to_string().contains("DB index is out of range") => (
                Class::Final,
                ErrorKind::InvalidSetting,
                "the server has no database of the number in the URL: see `databases` in its \
                 configuration",
            ),
            (_, "ERR" | "") if error.to_string().contains("max number of clients") => (
                Class::Busy,
                ErrorKind::Unavailable,
                "the server has reached its maxclients: raise the limit, or close connections",
            ),
            (redis::ErrorKind::InvalidClientConfig, _) => {
                (Class::Final, ErrorKind::InvalidSetting, "check the URL")
            }
            (redis::ErrorKind::Server(_) | redis::ErrorKind::Extension, _) => (
                Class::Final,
                ErrorKind::Damaged,
                "Keyfall does not expect this answer from Redis 6.2 or newer",
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

    /// The fault of an attempt to connect to a server that has let this process in before. A wrong
    /// password may pass, then: a server at its `maxclients` refuses the first command of a
    /// connection, and the client library takes each refusal of `AUTH` for a wrong password.
    pub(crate) fn after_success(mut self) -> Self {
        if self.class == Class::Refused && self.error.kind() == ErrorKind::Denied {
            self.class = Class::LockedOut;
        }
        self
    }

    /// The node of a cluster that failed, if it is known.
    pub(in crate::store) fn node(&self) -> &Option<Node> {
        &self.node
    }

    /// The redirection in this fault, if it is one.
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

    /// The refusal of a command as its answer.
    ///
    /// # Errors
    /// The fault itself, if no server refused the command, or a repeat can help.
    #[cfg(feature = "worker")]
    pub(in crate::store) fn into_answer(self) -> Result<redis::Value, Self> {
        match self.told {
            Some(told) if !self.is_passing() => Ok(redis::Value::ServerError(*told)),
            told => Err(Fault { told, ..self }),
        }
    }

    /// True if the same request, sent again soon, can be answered differently.
    pub(crate) fn is_passing(&self) -> bool {
        match self.class {
            Class::Unreachable | Class::Broken | Class::Busy | Class::LockedOut => true,
            // A redirection can be followed only by a link that knows nodes.
            Class::Elsewhere => self.node.is_some(),
            _ => false,
        }
    }

    /// True if the server is no primary any more.
    pub(crate) fn is_demoted(&self) -> bool {
        self.class == Class::Demoted
    }

    /// True if the connection must not be used any more.
    pub(crate) fn breaks_connection(&self) -> bool {
        matches!(self.class, Class::Broken | Class::Demoted)
    }

    /// True if an operator, or time, can make the same request succeed.
    pub(crate) fn may_be_mended(&self) -> bool {
        self.error.is_retryable()
            || self.error.kind() == ErrorKind::Denied
            || matches!(self.class, Class::NoScript | Class::Refused)
    }

    /// The ailment of the whole server; nothing if the fault concerns only this request.
    #[cfg(feature = "worker")]
    pub(crate) fn ailment(&self) -> Option<Ailment> {
        match self.class {
            Class::Unreachable | Class::Broken => Some(Ailment::Away),
            Class::Busy => Some(Ailment::Busy),
            Class::Refused | Class::LockedOut => Some(Ailment::Refusing),
            Class::Demoted => Some(Ailment::Demoted),
            Class::Final if self.error.kind() == ErrorKind::ReadOnly => Some(Ailment::ReadOnly),
            Class::Final | Class::WrongType | Class::NoScript | Class::Elsewhere => None,
            Class::Torn | Class::Unfounded => None,
        }
    }

    /// The error for the caller.
    pub(crate) fn error(&self) -> &Error {
        &self.error
    }

    /// True if a key holds another type than the command needs.
    #[cfg(feature = "worker")]
    pub(crate) fn is_wrong_type(&self) -> bool {
        self.class == Class::WrongType
    }

    /// True if a part of the ledger, or all of it, is on a node that does not serve it.
    pub(in crate::store) fn is_torn(&self) -> bool {
        self.class == Class::Torn
    }

    /// True if the node that serves the ledger has no part of it.
    pub(in crate::store) fn is_unfounded(&self) -> bool {
        self.class == Class::Unfounded
    }

    /// The missing parts of a torn ledger, as the script names them.
    pub(in crate::store) fn missing(&self) -> Option<&str> {
        self.told.as_ref()?.details()
    }

    /// True if the server does not know the script: load it, and repeat the call.
    pub(crate) fn is_no_script(&self) -> bool {
        self.class == Class::NoScript
    }

    /// True if the request may have been carried out, although no answer came.
    pub(in crate::store) fn is_outcome_unknown(&self) -> bool {
        self.error.kind() == ErrorKind::OutcomeUnknown
    }

    /// The fault as seen by a caller: if an earlier try may have carried the request out, and the
    /// server is unavailable, the kind becomes [`ErrorKind::OutcomeUnknown`].
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

/// The error of a ledger that is torn, or in the wrong place.
fn torn(subject: &str, what: &str) -> Error {
    let told = format!(
        "the ledger {subject} {what}: calls on it and its jobs wait until `keyfall cluster mend` \
         has joined its parts"
    );
    Error::new(ErrorKind::Unavailable, told)
}

/// The server's error; of several commands that were sent together, the first error and the index
/// of its command.
fn told(error: &RedisError) -> Option<(usize, ServerError)> {
    let told = error.clone().into_server_errors()?;
    told.first().cloned()
}

/// True if a server, or a sentinel, refuses the password, or wants one.
pub(in crate::store) fn is_locked_out(error: &RedisError) -> bool {
    let told = told(error);
    let code = told.as_ref().map_or("", |(_, told)| told.code());
    error.kind() == redis::ErrorKind::AuthenticationFailed || matches!(code, "NOAUTH" | "WRONGPASS")
}

/// The code that says why a command failed. If a script sent the command, Redis 6.2 hides the code
/// within its message, and no version has a code for a command that an ACL forbids. If the script
/// caught the error and passed it on, the message of Redis 6.2 begins with a place in the script.
fn code_behind<'a>(code: &'a str, message: &'a str) -> &'a str {
    const FORBIDDEN: [&str; 2] = ["The user executing the script", "ACL failure in script"];
    const PLACE: &str = "@user_script:";
    // The answer to `WAIT` and `WAITAOF` from a server that was the primary a moment ago.
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

    fn refusal(line: &[u8]) -> RedisError {
        match redis::parse_redis_value(line).unwrap() {
            redis::Value::ServerError(error) => error.into(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_redirection_within_a_cluster_is_no_mistake_of_its_user() {
        let node = Node::new("10.0.0.5:7001");
        for line in [
            &b"-ASK 7 10.0.0.6:7001\r\n"[..],
            b"-MOVED 7 10.0.0.6:7001\r\n",
        ] {
            let outside = Fault::from_redis(refusal(line), "10.0.0.5:7001");
            assert_eq!(outside.error().kind(), ErrorKind::Incompatible);
            let within = outside.at_node(Some(&node));
            assert!(within.error().is_retryable() && within.may_be_mended());
            assert!(
                within
                    .error()
                    .to_string()
                    .contains("slot 7 is on 10.0.0.6:7001")
            );
            let unknown = within.after_sending(true);
            assert_eq!(unknown.error().kind(), ErrorKind::OutcomeUnknown);
        }
    }

    #[test]
    fn the_error_of_a_script_is_found_in_the_message_of_each_server() {
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
