//! How jobs reach consumers, where no functions of a worker run them: the configuration of the
//! daemons, and the addresses of all processes.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::daemons::{DAEMONS, Ports};
use crate::plain::{CANCEL, RUN};
use crate::worker::LEASE;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Consumers pull from daemons.
    Pull,
    /// Daemons call receivers.
    Callback,
    /// An acknowledged list, on a Redis of its own.
    List,
    /// An acknowledged stream, on a Redis of its own.
    Stream,
    /// Clients of a classic delay queue pop from daemons.
    Classic,
}

/// The addresses of all processes. A process that is started again has the same one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ways {
    pub(crate) target: Transport,
    /// The ports of the HTTP API of each daemon.
    pub(crate) api: Ports,
    /// The ports of the classic interface of each daemon.
    pub(crate) classic: Ports,
    /// The port of all receivers: they share it, as behind a load balancer.
    pub(crate) receivers: u16,
    /// The URL of the Redis of the list or the stream.
    pub(crate) outlet: String,
    /// The lease of consumers.
    pub(crate) lease: Duration,
}

/// How long a callback may take, in seconds. Shorter than a lease.
pub(crate) const CALL: i64 = 1;

/// The list, or the stream; and its group.
pub(crate) const OUTLET: &str = "chaos-jobs";
pub(crate) const GROUP: &str = "chaos-group";

/// The start of the keys of all jobs; their topics follow.
pub(crate) const PREFIX: &str = "chaos:load";

impl Transport {
    /// Whether there is another Redis between daemons and consumers.
    pub(crate) fn has_an_outlet(self) -> bool {
        matches!(self, Transport::List | Transport::Stream)
    }

    /// Whether jobs come one by one, and not many with one request.
    pub(crate) fn is_one_by_one(self) -> bool {
        self != Transport::Pull
    }

    /// Whether consumers can bury a job.
    pub(crate) fn can_bury(self) -> bool {
        self != Transport::Classic
    }
}

impl Ways {
    pub(crate) fn new(target: Transport, outlet: String, lease: Duration) -> io::Result<Self> {
        let mut ports = Ports::free(2 * DAEMONS + 1);
        let receivers = ports.0.pop().expect("one is left over");
        let classic = Ports(ports.0.split_off(DAEMONS));
        Ok(Ways {
            target,
            api: ports,
            classic,
            receivers,
            outlet,
            lease,
        })
    }

    /// The configuration of the daemon of this number.
    pub(crate) fn config(&self, number: usize) -> String {
        let lease = self.lease.as_secs();
        let url = &self.outlet;
        // As for the workers of the other scenarios: so many attempts that a fault does not use
        // them up.
        let route = |pattern: String, target: &str| {
            format!(
                "[[route]]\npattern = \"{pattern}\"\nlease = \"{lease}s\"\n\
                 retry = {{ fixed = \"100ms\", attempts = 1000 }}\ntarget = {target}\n"
            )
        };
        let adopting = |target: &str| {
            let run = route(format!("{RUN}:*"), target) + "adoption = \"run\"\n";
            run + &route(format!("{CANCEL}:*"), target) + "adoption = \"cancel\"\n"
        };
        // No more than consumers of an unoptimised build finish in so short a lease: it runs while
        // a document waits in a list, and is extended for each entry that waits in a stream. A
        // forgotten job stays out for as long as its lease is.
        let most = 100 * (lease / LEASE.as_secs());
        let out = |outlet: &str| format!("{{ {outlet} }}\nconcurrency = {most}");
        let target = match self.target {
            Transport::Pull => "\"pull\"".into(),
            Transport::Callback => format!(
                // The receiver is down for moments only.
                "{{ http = {{ url = \"http://127.0.0.1:{}/\", breaker_pause = \"1s\" }} }}\n\
                 timeout = \"{CALL}s\"",
                self.receivers
            ),
            Transport::List => out(&format!(
                "list = {{ key = \"{OUTLET}\", acknowledged = true, url = \"{url}\" }}"
            )),
            Transport::Stream => out(&format!(
                "stream = {{ key = \"{OUTLET}\", group = \"{GROUP}\", url = \"{url}\" }}"
            )),
            // The classic interface brings a route of its own.
            Transport::Classic => {
                let port = self.classic.0[number];
                return format!(
                    "{}[classic]\nlisten = \"127.0.0.1:{port}\"\nprefix = \"{PREFIX}\"\n\
                     ttr = \"{lease}s\"\n",
                    // The transport has no keys of its own that could be adopted.
                    adopting("\"pull\"")
                );
            }
        };
        route(format!("{PREFIX}:*:*"), &target) + &adopting(&target)
    }
}
