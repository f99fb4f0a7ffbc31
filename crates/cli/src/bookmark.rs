//! The progress of an export or an import, in a file, so that it can go on from there.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// The contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    /// The identity of the export or import, so that no other export or import goes on from here.
    pub(crate) of: String,
    /// The place to go on from, in the form of `--after`.
    pub(crate) after: String,
    /// The length of the finished part of the output, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
}

/// The file, if one was named.
pub(crate) struct Bookmark(Option<PathBuf>);

impl Bookmark {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Bookmark(path)
    }

    /// The mark of an earlier run of `of`, the same export or import; `None` if there is none.
    pub(crate) fn read(&self, of: &str) -> anyhow::Result<Option<Mark>> {
        let Some(path) = &self.0 else {
            return Ok(None);
        };
        let shown = path.display();
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(format!("{shown} cannot be read")),
        };
        let mark: Mark = serde_json::from_slice(&text)
            .with_context(|| format!("{shown} is not a cursor file: name another"))?;
        if mark.of != of {
            bail!(
                "{shown} belongs to {}, and this is {of}: name another cursor file",
                mark.of
            );
        }
        Ok(Some(mark))
    }

    /// Stores this mark. After a crash the file holds the whole mark, or the whole mark before it.
    pub(crate) fn write(&self, mark: &Mark) -> anyhow::Result<()> {
        let Some(path) = &self.0 else {
            return Ok(());
        };
        let mut aside = path.clone().into_os_string();
        aside.push(".new");
        let write = || {
            let mut file = fs::File::create(&aside)?;
            serde_json::to_writer(&mut file, mark)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            fs::rename(&aside, path)
        };
        write().with_context(|| format!("{} cannot be written", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bookmark_is_found_again_by_its_subject() {
        let path = std::env::temp_dir().join(format!("keyfall-mark-{}", std::process::id()));
        let bookmark = Bookmark::new(Some(path.clone()));
        assert_eq!(bookmark.read("a:").unwrap(), None);
        let mark = |after: &str| Mark {
            of: "a:".to_owned(),
            after: after.to_owned(),
            bytes: Some(7),
        };
        bookmark.write(&mark("pending")).unwrap();
        bookmark.write(&mark("dead")).unwrap();
        assert_eq!(bookmark.read("a:").unwrap(), Some(mark("dead")));
        assert!(bookmark.read("b:").is_err());
        fs::write(&path, "pending").unwrap();
        assert!(bookmark.read("a:").is_err());
        fs::remove_file(path).unwrap();
        let none = Bookmark::new(None);
        none.write(&mark("dead")).unwrap();
        assert_eq!(none.read("a:").unwrap(), None);
    }
}
