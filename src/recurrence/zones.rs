//! The time zone database of this machine.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

/// The folders in which jiff looks for the database, in this order, behind `TZDIR`.
const FOLDERS: [&str; 3] = [
    "/usr/share/zoneinfo",
    "/usr/share/lib/zoneinfo",
    "/etc/zoneinfo",
];

/// The version of the database, such as `2026a`. Empty if the database does not say, or if there is
/// none, and the one that is compiled in counts.
pub(crate) fn database_version() -> String {
    let named = std::env::var_os("TZDIR").map(PathBuf::from);
    let known = FOLDERS.iter().map(PathBuf::from);
    let mut folders = named.into_iter().chain(known);
    let folder = folders.find(|folder| folder.is_dir());
    folder.and_then(|it| version_in(&it)).unwrap_or_default()
}

/// Reads the first line of a text of the database: `# version 2026a` on most systems, `2026a` on
/// some.
fn version_in(folder: &Path) -> Option<String> {
    let first_line = |name| {
        let mut line = String::new();
        let file = File::open(folder.join(name)).ok()?;
        BufReader::new(file).read_line(&mut line).ok()?;
        Some(line)
    };
    let text = first_line("tzdata.zi").or_else(|| first_line("+VERSION"))?;
    let version = text.trim_start_matches("# version").trim();
    let is_version = version.len() <= 16 && version.starts_with(|it: char| it.is_ascii_digit());
    is_version.then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_stands_in_the_first_line() {
        let folder = std::env::temp_dir().join(format!("keyfall-zones-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        assert_eq!(version_in(&folder), None);
        for (name, text) in [
            ("+VERSION", "2025c\n"),
            ("tzdata.zi", "# version 2026a\n# redo posix_only\n"),
        ] {
            std::fs::write(folder.join(name), text).unwrap();
            let expected = text.split_whitespace().find(|word| word.starts_with("20"));
            assert_eq!(version_in(&folder).as_deref(), expected);
        }
        std::fs::write(folder.join("tzdata.zi"), "no database\n").unwrap();
        assert_eq!(version_in(&folder), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
