//! The faults that this process has, in a copy of the repository that `tests/mutants/run.py` makes.

use std::sync::OnceLock;

/// Whether this process has the fault: `KEYFALL_PLANTED` has its name, among others after commas.
pub fn is(name: &str) -> bool {
    static PLANTED: OnceLock<Vec<String>> = OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let names = std::env::var("KEYFALL_PLANTED").unwrap_or_default();
        names.split(',').map(str::to_owned).collect()
    });
    planted.iter().any(|planted| planted == name)
}
