//! How many files this process may have open: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What is open beside the connections: to Redis, and what the process is made of.
const OWN: u64 = 64;

/// Raises the limit of this process, which is 1024 where services are usually started, so that it
/// does not stand in the way of so many connections.
pub(crate) fn allow_connections(connections: usize) {
    let wanted = (connections as u64).saturating_add(OWN);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // No limit is `None`.
    if current.is_none_or(|current| current >= wanted) {
        return;
    }
    let raised = maximum.map_or(wanted, |most| most.min(wanted));
    let new = Rlimit {
        current: Some(raised),
        maximum,
    };
    if setrlimit(Resource::Nofile, new).is_err() || raised < wanted {
        tracing::warn!(
            connections,
            files = raised,
            "the system lets this process have fewer files open than `http.max_connections` \
             needs: raise its limit, LimitNOFILE or `ulimit -n`, or lower that setting"
        );
    }
}
