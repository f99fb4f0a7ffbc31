//! The text of the files in `lua/`, which is compiled into the program.

/// The text of one file, as `&'static str`. The literals together are its path in `lua/`.
macro_rules! lua {
    ($($part:literal),+) => {
        $crate::store::lua::text(
            concat!($($part),+),
            include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/lua/", $($part),+)),
        )
    };
}
pub(crate) use lua;

/// The text that was compiled in.
#[cfg(not(feature = "internals"))]
pub(crate) fn text(_: &str, compiled: &'static str) -> &'static str {
    compiled
}

/// The file of this path in the folder that `KEYFALL_LUA` names, else the text that was compiled
/// in. `make mutants` plants faults in scripts this way, without a build for each.
#[cfg(feature = "internals")]
pub(crate) fn text(path: &str, compiled: &'static str) -> &'static str {
    use std::path::PathBuf;
    use std::sync::LazyLock;

    static FOLDER: LazyLock<Option<PathBuf>> =
        LazyLock::new(|| std::env::var_os("KEYFALL_LUA").map(PathBuf::from));
    let planted = FOLDER
        .as_ref()
        .and_then(|it| std::fs::read_to_string(it.join(path)).ok());
    planted.map_or(compiled, |text| text.leak())
}
