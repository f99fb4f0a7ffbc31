//! What can hurt, and what to do about it.
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
//! [`CHECKS`] lists what is looked at. Nothing is changed, unless [`fix`](Diagnose::fix) asks for
//! it; nothing that is looked at grows with the number of jobs. `docs/doctor.md` in the repository
//! gives the reasons.
//!
//! | part | what it looks at |
//! |---|---|
//! | `server`, `events`, `memory`, `disk`, `replication` | the settings and the state of Redis |
//! | `clock` | its clock, and how far away it is |
//! | `crowd` | the other keys that expire beside ours |
//! | `rights` | what this user may do |
//! | `functions` | the Redis functions, where they are used |
//! | `ledgers`, `instances` | the jobs, and who runs them |
//! | `slots` | keys that are not on the node of a cluster that serves their slot |
//! | `mend` | what is put right on request |

mod adoption;
mod checks;
mod clock;
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
mod server;
mod slots;
#[cfg(test)]
mod tests;

pub use checks::{CHECKS, Check};
pub use diagnose::{Diagnose, Diagnosis};
pub use finding::{Finding, Severity};

pub(crate) use checks::{EVICTION_POLICY, NOTIFY_FLAGS, SERVER_LOADING};
pub(crate) use diagnose::of_server;
