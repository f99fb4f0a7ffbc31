//! Durable calls: how far a write must get before its call returns, and how far it got.
//!
//! [`Durable`] is the demand, [`Reached`] the answer. `docs/durability.md` has the reasons.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};

/// The default waiting time: longer than the second after which `appendfsync everysec` writes the
/// log.
const WITHIN: Duration = Duration::from_millis(1500);

/// The longest waiting time that can be set.
pub(crate) const LONGEST: Duration = Duration::from_secs(10);

/// How far a write must get before its call returns. A number stands for that many replicas.
///
/// If the level is not reached in time, the call succeeds all the same: the write was made, and
/// [`Reached`] in the answer says how far it got.
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
    /// The number of replicas that must have the write.
    pub(crate) replicas: u32,
    /// Whether the logs must be on disk.
    pub(crate) fsynced: bool,
    /// The longest wait after the write, from 1 ms to [`LONGEST`].
    pub(crate) within: Duration,
}

/// How far the write of a [durable](Durable) call got.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reached {
    /// Whether the write reached all that the call asked for.
    pub is_met: bool,
    /// The number of replicas that have it, at least in memory.
    pub replicas: u32,
    /// Whether the log of the primary has it, on disk. `None` if the server cannot tell: before
    /// Redis 7.2 and Valkey 7.2, or if the ACL lacks `+waitaof`.
    pub on_disk: Option<bool>,
    /// The number of replicas that have it in their logs, on disk. `None` as with
    /// [`on_disk`](Self::on_disk).
    pub replicas_on_disk: Option<u32>,
}

impl Reached {
    /// The answer to a call that had nothing to write.
    pub(crate) const NOTHING: Reached = Reached {
        is_met: true,
        replicas: 0,
        on_disk: None,
        replicas_on_disk: None,
    };
}

impl Durable {
    /// Asks for this many replicas, which have the write at least in memory. With 0 the call does
    /// not wait for replicas, and the answer says how many have the write by then.
    pub fn replicas(count: u32) -> Self {
        Durable {
            replicas: count,
            fsynced: false,
            within: WITHIN,
        }
    }

    /// Also asks for disks: the primary and as many replicas have the write in their logs, on disk.
    /// All of these servers need a log, `appendonly yes`. If the server cannot tell, as before
    /// Redis 7.2, the call does not wait for disks, and the answer says so.
    pub fn fsynced(mut self) -> Self {
        self.fsynced = true;
        self
    }

    /// Sets how long the call waits once the write is made, from 1 ms to 10 s. The call may take
    /// that much longer. Defaults to 1.5 s.
    pub fn within(mut self, limit: Duration) -> Self {
        self.within = limit;
        self
    }

    /// Checks the waiting time.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if it is not from 1 ms to 10 s.
    pub(crate) fn check(&self) -> Result<()> {
        if (Duration::from_millis(1)..=LONGEST).contains(&self.within) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "a durable call waits for {:?}, and must wait from 1 ms to 10 s",
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
