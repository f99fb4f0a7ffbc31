//! The doctor: finds settings, rights, clocks and jobs that can cause trouble, and names the
//! remedies.
//!
//! ```no_run
//! # async fn example() -> keyfall::Result<()> {
//! let client = keyfall::Client::connect("redis://127.0.0.1:6379").await?;
//! let diagnosis = client.diagnose().await?;
//! for finding in diagnosis.findings.iter().filter(|it| it.severity > keyfall::doctor::Severity::Info) {
//!     println!("{finding}");
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`CHECKS`] lists all checks. The doctor changes nothing, unless [`fix`](Diagnose::fix) asks for
//! it, and its cost does not grow with the number of jobs. `docs/doctor.md` in the repository gives
//! the reasons.
//!
//! Each part reads a report of Redis or of the workers, and adds one [`Finding`] for each of its
//! checks; [`Diagnose`] puts them together.
//!
//! | part | subject |
//! |---|---|
//! | `server`, `events`, `memory`, `disk`, `replication` | the settings and the state of Redis |
//! | `clock` | the clock of Redis, and the round trip to it |
//! | `crowd` | foreign keys with a TTL in the same database |
//! | `rights` | the rights of this user |
//! | `functions` | the Redis functions, where they are used |
//! | `ledgers`, `rules`, `instances` | the jobs, recurring ones, and the live workers |
//! | `archive` | the records that ended jobs leave for an archive |
//! | `copy` | the copy of pending jobs in a database |
//! | `adoption` | routes that adopt plain keys |
//! | `slots` | keys on a node of a cluster that does not serve their slot |
//! | `mend` | repairs on request |

mod adoption;
mod archive;
mod checks;
mod clock;
mod copy;
mod crowd;
mod diagnose;
mod disk;
mod events;
mod finding;
mod functions;
mod instances;
mod ledgers;
mod memory;
mod mend;
mod replication;
mod rights;
mod rules;
mod server;
mod slots;
#[cfg(test)]
mod tests;

pub use checks::{CHECKS, Check};
pub use diagnose::{Diagnose, Diagnosis};
pub use finding::{Finding, Severity};

pub(crate) use checks::{EVICTION_POLICY, NOTIFY_FLAGS, SERVER_LOADING};
pub(crate) use diagnose::of_server;
