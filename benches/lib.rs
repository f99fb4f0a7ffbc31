//! Micro-benchmarks of the library: `names.rs`. The library itself does not depend on their tools.
