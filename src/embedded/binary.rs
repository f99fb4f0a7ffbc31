//! The search for the server's binary, and the advice how to install one.

use std::env;
use std::ffi::{OsStr, OsString};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// The environment variable that names the server's binary.
pub(super) const VARIABLE: &str = "KEYFALL_REDIS_BIN";

/// The names that are searched in `PATH`, in this order.
const NAMES: [&str; 2] = ["redis-server", "valkey-server"];

/// The last part of the error for a missing binary: how to install a server on common systems.
const REMEDY: &str = "\
Install one:
  Debian, Ubuntu   sudo apt-get install redis-server
  Fedora, RHEL     sudo dnf install valkey
  Alpine           sudo apk add redis
  Arch             sudo pacman -S valkey
  macOS            brew install redis
or set KEYFALL_REDIS_BIN to the path of a redis-server or valkey-server";

/// The absolute path of the binary: the one that the caller names, or else the environment
/// variable, or else the first of [`NAMES`] that is in `PATH`.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if there is none, with advice.
pub(super) fn find(named: Option<&Path>) -> Result<PathBuf> {
    let named = match named {
        Some(path) => Some(path.as_os_str().to_owned()),
        None => env::var_os(VARIABLE).filter(|name| !name.is_empty()),
    };
    search(named, &env::var_os("PATH").unwrap_or_default())
}

/// Finds the binary `named`, or else one of [`NAMES`], in the directories of `path`.
fn search(named: Option<OsString>, path: &OsStr) -> Result<PathBuf> {
    if let Some(name) = named {
        return locate(&name, path).ok_or_else(|| {
            missing(format_args!(
                "the embedded Redis cannot start: `{}` is not an executable file. {REMEDY}",
                name.display()
            ))
        });
    }
    NAMES
        .iter()
        .find_map(|name| locate(OsStr::new(name), path))
        .ok_or_else(|| {
            missing(format_args!(
                "the embedded Redis cannot start: neither redis-server nor valkey-server \
                 is in PATH. {REMEDY}"
            ))
        })
}

/// The absolute path of an executable file. A bare name is searched in `path`, as a shell does;
/// anything else is the path of a file.
///
/// Symbolic links are not resolved: the server is often one, and its behaviour depends on its name.
fn locate(name: &OsStr, path: &OsStr) -> Option<PathBuf> {
    let file = Path::new(name);
    let found = if file.components().count() > 1 || file.is_absolute() {
        Some(file.to_owned()).filter(|file| is_executable(file))
    } else {
        env::split_paths(path)
            .map(|dir| dir.join(file))
            .find(|file| is_executable(file))
    };
    // Absolute, since the server is started in a directory of its own.
    found.and_then(|file| std::path::absolute(file).ok())
}

/// Whether this is a file that some user may execute.
fn is_executable(file: &Path) -> bool {
    file.metadata()
        .is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

fn missing(message: std::fmt::Arguments<'_>) -> Error {
    Error::new(ErrorKind::InvalidSetting, message.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_server_the_error_says_what_to_install() {
        let error = search(None, OsStr::new("/nonexistent")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        for part in [
            "neither redis-server nor valkey-server is in PATH",
            "sudo apt-get install redis-server",
            "sudo dnf install valkey",
            "brew install redis",
            VARIABLE,
        ] {
            assert!(error.to_string().contains(part), "{part:?} in {error}");
        }
    }

    #[test]
    fn a_named_binary_must_exist() {
        let error = search(Some("/nonexistent/redis".into()), OsStr::new("/bin")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
        assert!(
            error.to_string().contains("`/nonexistent/redis`"),
            "{error}"
        );
    }

    #[test]
    fn a_bare_name_is_looked_up_in_path() {
        let found = search(Some("sh".into()), OsStr::new("/nonexistent:/bin")).unwrap();
        assert_eq!(found, Path::new("/bin/sh"));
    }

    #[test]
    fn a_directory_is_no_binary() {
        assert!(search(Some("/bin".into()), OsStr::new("")).is_err());
    }
}
