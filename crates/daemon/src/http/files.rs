//! The limit of open files of this process: each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Files beside the connections of clients: connections to Redis, and the files of the process
/// itself.
const OWN: u64 = 64;

/// Raises the limit of this process, usually 1024 for services, so that it allows this number of
/// connections.
pub(crate) fn allow_connections(connections: usize) {
    let wanted = (connections as u64).saturating_add(OWN);
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // `None` stands for no limit.
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
