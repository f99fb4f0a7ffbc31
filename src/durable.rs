//! How far a write is to get before it is answered, and how far it got.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// How long is waited where nobody says: longer than the second after which a log is written
/// with `appendfsync everysec`.
const WITHIN: Duration = Duration::from_millis(1500);

/// The longest that can be waited.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// How far a write is to get before its call is answered. A number stands for so many replicas.
///
/// What was not reached in time is no error: the write was made, and the answer
/// [says](Reached) how far it got.
///
/// ```no_run
/// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
/// use keyfall::Durable;
/// use std::time::Duration;
///
/// let key = "app1:trans:notice:1615283234";
/// let scheduled = client
///     .schedule(key, "")
///     .after(Duration::from_secs(900))
///     .durable(1)
///     .await?;
/// if scheduled.reached.is_none_or(|reached| !reached.is_met) {
///     eprintln!("{key} would be lost with the primary");
/// }
///
/// let on_disk = Durable::replicas(1).fsynced().within(Duration::from_secs(3));
/// let (cancelled, reached) = client.cancel(key).durable(on_disk).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "hand it to `durable`"]
pub struct Durable {
    pub(crate) replicas: u32,
    pub(crate) fsynced: bool,
    pub(crate) within: Duration,
}

/// How far a write got that was to be [durable](Durable).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// Whether all was reached that was asked for.
    pub is_met: bool,
    /// How many replicas have it, in memory at the least.
    pub replicas: u32,
    /// Whether the log of the primary has it, on its disk. `None` where the server does not tell:
    /// before Redis 7.2 and Valkey 7.2, or if the ACL lacks `+waitaof`.
    pub on_disk: Option<bool>,
    /// How many replicas have it in their logs, on their disks.
    pub replicas_on_disk: Option<u32>,
}

impl Reached {
    /// Of a call that had nothing to write.
    pub(crate) const NOTHING: Reached = Reached {
        is_met: true,
        replicas: 0,
        on_disk: None,
        replicas_on_disk: None,
    };
}

impl Durable {
    /// So many replicas have it, in memory at the least; of none, the answer says how many have it
    /// at once.
    pub fn replicas(count: u32) -> Self {
        Durable {
            replicas: count,
            fsynced: false,
            within: WITHIN,
        }
    }

    /// It is also on disk: on that of the primary, and on those of as many replicas. All of them
    /// need a log, `appendonly yes`. A server that cannot tell, one before Redis 7.2, is not
    /// waited for, and the answer says so.
    pub fn fsynced(mut self) -> Self {
        self.fsynced = true;
        self
    }

    /// For how long that is waited for once the write is made, from 1 ms to 10 s. The call may
    /// take so much longer. Defaults to 1.5 s.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    pub(crate) fn check(&self) -> Result<()> {
        if (Duration::from_millis(1)..=LONGEST).contains(&self.within) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "a durable call waits for {:?}: let it wait from 1 ms to 10 s",
                self.within
            ),
        ))
    }
}

impl From<u32> for Durable {
    fn from(replicas: u32) -> Self {
        Durable::replicas(replicas)
    }
}
