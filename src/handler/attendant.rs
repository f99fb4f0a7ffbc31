//! What runs beside the handler of a route, where jobs end outside of it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::client::Client;
use crate::retry::RetryPolicy;

/// A task that each worker with a route runs beside its handlers, for as long as it has the route.
/// Several workers do so at the same time. It goes on until it is dropped.
#[derive(Clone)]
pub(crate) struct Attendant(Arc<dyn Fn(Attendance) -> BoxFuture<'static, ()> + Send + Sync>);

/// What an attendant works with.
pub(crate) struct Attendance {
    /// Settles and extends leases.
    pub(crate) client: Client,
    /// What the route says of jobs without a policy of their own.
    pub(crate) retry: RetryPolicy,
    /// How long a lease of the route is.
    pub(crate) lease: Duration,
}

impl Attendant {
    pub(crate) fn new(
        attend: impl Fn(Attendance) -> BoxFuture<'static, ()> + Send + Sync + 'static,
    ) -> Self {
        Attendant(Arc::new(attend))
    }

    pub(crate) fn attend(&self, attendance: Attendance) -> BoxFuture<'static, ()> {
        (self.0)(attendance)
    }
}

impl fmt::Debug for Attendant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Attendant")
    }
}
