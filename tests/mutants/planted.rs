//! The fault that this process has, in a copy of the repository that `tests/mutants/run.py` makes.

use std::sync::OnceLock;

/// Whether this process has the fault: `KEYFALL_PLANTED` names it.
pub fn is(name: &str) -> bool {
    static PLANTED: OnceLock<Option<String>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| std::env::var("KEYFALL_PLANTED").ok());
    planted.as_deref() == Some(name)
}
