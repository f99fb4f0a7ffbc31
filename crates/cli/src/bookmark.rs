//! How far an export or an import has come, in a file, so that it can go on from there.

use std::fs;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

/// What the file says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mark {
    /// What is exported or imported, so that nobody goes on with something else.
    pub(crate) of: String,
    /// Where to go on, as `--after` takes it.
    pub(crate) after: String,
    /// How many bytes of the output belong to what is done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<u64>,
}

/// The file, if one was named.
pub(crate) struct Bookmark(Option<PathBuf>);

impl Bookmark {
    pub(crate) fn new(path: Option<PathBuf>) -> Self {
        Bookmark(path)
    }

    /// Where the last one came to that was `of` the same; `None` if there was none.
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
            .with_context(|| format!("{shown} is no cursor file: name another"))?;
        if mark.of != of {
            bail!(
                "{shown} belongs to {}, and this is {of}: name another cursor file",
                mark.of
            );
        }
        Ok(Some(mark))
    }

    /// From now on that is where to go on. It stands there whole, or the last one does.
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
    fn a_bookmark_is_found_again_by_what_it_belongs_to() {
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
