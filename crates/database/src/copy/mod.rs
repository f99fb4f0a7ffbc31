//! The copy: of kinds that ask for it, every pending job is mirrored, so that a Redis that is lost can
//! be built again.
//!
//! | module | contents |
//! |---|---|
//! | `copier` | the loop: takes changes from Redis, and stores them |
//! | `guard` | whether Redis has the data set that was copied |
//! | `rebuild` | brings back what Redis has lost |
//! | [`row`] | the plain types: changes that Redis hands over, its ledgers, rows |
//! | [`lock`] | the lock of a kind, within which a copier works |
//! | [`judge`] | whether Redis has lost what it handed over before |
//! | `last_batch` | the same of a batch that Redis has not acknowledged |
//! | [`store`] | writes changes: the newest version of a key wins |
//! | [`pages`] | reads pending jobs page by page, for a rebuild |
//! | [`status`] | which data set was copied, and how much of each kind |
//! | [`remove`] | removes tombstones that are old, and kinds that are copied no more |
//!
//! A copier takes the [lock](lock::KindLock) of a kind, asks Redis for the oldest changes of its
//! ledgers, judges, stores and commits, and only then tells Redis that it has them:
//!
//! ```text
//! take ──▶ (Redis: changes and marks) ──▶ judge ──▶ store ──▶ commit ──▶ (Redis: acknowledge)
//! ```
//!
//! Whatever is killed in between, the changes are handed over and stored again.
//!
//! Each look at Redis has a number, and so has each row that the outbox has passed on and keeps. Both
//! come from one sequence: a look with a higher number began after the row was passed on, and what it
//! read includes the effect of the row. So no clocks are compared.

mod copier;
mod guard;
mod judge;
mod last_batch;
mod lock;
mod pages;
mod rebuild;
mod remove;
mod row;
mod status;
mod store;

pub use copier::Copier;
pub use judge::{Judged, Lost, RolledBack};
pub use lock::KindLock;
pub use rebuild::{Missing, Rebuild, Rebuilt};
pub use row::{Change, CopiedRow, LedgerMark, LedgerRow, Stored};
pub use status::{CopiedKind, CopyState};
