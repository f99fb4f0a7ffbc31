//! The file that keeps the tokens: read as a whole, and replaced as a whole.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::grant::{Grant, Scope, check_prefix};
use super::secret::{Secret, hex, unhex};

const HEAD: &str = "\
# The tokens of `keyfall serve`. `keyfall token` writes this file; the daemon reads it again when
# it changes. It holds no token, only the hashes of tokens.
";

/// The contents of a token file.
#[derive(Debug, Default)]
pub struct TokenFile {
    pub grants: Vec<Grant>,
}

/// The stamp by which a changed file is detected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    /// The inode, which changes if the file is replaced.
    #[cfg(unix)]
    inode: u64,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(deny_unknown_fields)]
struct Written {
    #[serde(default)]
    token: Vec<WrittenToken>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenToken {
    id: String,
    sha256: String,
    scopes: Vec<Scope>,
    prefixes: Vec<String>,
    #[serde(default)]
    note: String,
    made: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires: Option<Timestamp>,
}

impl TokenFile {
    /// # Errors
    /// If the file cannot be read, or is invalid; the error names the place.
    pub fn read(path: &Path) -> Result<Self> {
        let shown = path.display();
        let text = fs::read_to_string(path).with_context(|| {
            format!("the file of tokens, {shown}, cannot be read; `keyfall token make` makes one")
        })?;
        let written: Written = toml::from_str(&text).map_err(|error| {
            let before = &text[..error.span().map_or(0, |span| span.start)];
            let line = before.matches('\n').count() + 1;
            anyhow::anyhow!("{shown}:{line}: {}", error.message())
        })?;
        let grants = written.token.into_iter().map(|token| {
            let id = token.id.clone();
            Grant::try_from(token).with_context(|| format!("{shown}: token {id:?}"))
        });
        let grants = grants.collect::<Result<Vec<_>>>()?;
        let mut ids = HashSet::new();
        for Grant { id, .. } in &grants {
            ensure!(
                ids.insert(id),
                "{shown}: the id {id:?} occurs twice: remove one of them"
            );
        }
        Ok(TokenFile { grants })
    }

    /// Makes a token, and the file, if there is none.
    ///
    /// # Errors
    /// If a prefix is not valid, or the file cannot be used.
    pub fn make(
        path: &Path,
        scopes: Vec<Scope>,
        prefixes: Vec<String>,
        note: String,
        expires: Option<Timestamp>,
    ) -> Result<(Secret, Grant)> {
        let secret = Secret::make()?;
        let grant = Grant {
            id: secret.id.clone(),
            sha256: secret.sha256(),
            scopes,
            prefixes,
            note,
            // Whole seconds are enough for people.
            made: Timestamp::from_second(Timestamp::now().as_second())?,
            expires,
        };
        grant.check()?;
        TokenFile::change(path, |file| {
            file.grants.push(grant.clone());
            Some(())
        })?;
        Ok((secret, grant))
    }

    /// Takes a token out. `None` if there is none with this id.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn revoke(path: &Path, id: &str) -> Result<Option<Grant>> {
        ensure!(path.exists(), "there is no file {}", path.display());
        TokenFile::change(path, |file| {
            let at = file.grants.iter().position(|grant| grant.id == id);
            at.map(|at| file.grants.remove(at))
        })
    }

    /// Changes the file, or creates it, in one step: a reader sees all of the change or nothing. A
    /// file without a change stays as it is.
    fn change<T>(
        path: &Path,
        change: impl FnOnce(&mut TokenFile) -> Option<T>,
    ) -> Result<Option<T>> {
        // The target of a link is replaced, not the link.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let new = New::beside(&path)?;
        let mut file = if path.exists() {
            TokenFile::read(&path)?
        } else {
            TokenFile::default()
        };
        let answer = change(&mut file);
        if answer.is_some() {
            new.take_the_place_of(&path, &file.text()?)?;
        }
        Ok(answer)
    }

    fn text(&self) -> Result<String> {
        let token = self
            .grants
            .iter()
            .cloned()
            .map(WrittenToken::from)
            .collect();
        Ok(format!(
            "{HEAD}\n{}\n",
            toml::to_string(&Written { token })?
        ))
    }
}

/// A new file that will replace another. While it exists, no other process changes the other file.
struct New {
    path: PathBuf,
    file: File,
}

impl New {
    fn beside(path: &Path) -> Result<Self> {
        let mut name = OsString::from(path);
        name.push(".new");
        let new = PathBuf::from(name);
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        match options.open(&new) {
            Ok(file) => Ok(New { path: new, file }),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => bail!(
                "{0} exists, so {1} is being changed; if no process changes {1}, remove {0}",
                new.display(),
                path.display()
            ),
            Err(error) => Err(error).with_context(|| format!("{} cannot be made", new.display())),
        }
    }

    fn take_the_place_of(mut self, path: &Path, text: &str) -> Result<()> {
        let mut write = || {
            #[cfg(unix)]
            if let Ok(old) = fs::metadata(path) {
                use std::os::unix::fs::{MetadataExt, chown};
                // The new file keeps the permissions of the old one.
                chown(&self.path, Some(old.uid()), Some(old.gid()))?;
                self.file.set_permissions(old.permissions())?;
            }
            self.file.write_all(text.as_bytes())?;
            self.file.sync_all()?;
            fs::rename(&self.path, path)
        };
        write().with_context(|| format!("{} cannot be written", path.display()))
    }
}

impl Drop for New {
    fn drop(&mut self) {
        // The new file is gone if it replaced the other.
        let _ = fs::remove_file(&self.path);
    }
}

impl Stamp {
    /// `None` if there is no file.
    pub(super) fn of(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        Some(Stamp {
            modified: metadata.modified().ok(),
            bytes: metadata.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(&metadata),
        })
    }
}

impl Grant {
    fn check(&self) -> Result<()> {
        let is_id = |c: char| c.is_ascii_alphanumeric() || c == '-';
        ensure!(
            !self.id.is_empty() && self.id.len() <= 64 && self.id.chars().all(is_id),
            "an id has 1 to 64 ASCII letters, digits and `-`"
        );
        ensure!(
            !self.scopes.is_empty(),
            "it has no scope, so it would allow nothing: give it one of read, schedule, consume, \
             operate"
        );
        ensure!(
            !self.prefixes.is_empty(),
            "it has no prefix, so it would allow nothing: give it one; \"\" begins all job keys"
        );
        for prefix in &self.prefixes {
            check_prefix(prefix).map_err(anyhow::Error::msg)?;
        }
        Ok(())
    }
}

impl TryFrom<WrittenToken> for Grant {
    type Error = anyhow::Error;

    fn try_from(token: WrittenToken) -> Result<Self> {
        let sha256 =
            unhex(&token.sha256).context("its sha256 does not have 64 hexadecimal digits")?;
        let grant = Grant {
            id: token.id,
            sha256,
            scopes: token.scopes,
            prefixes: token.prefixes,
            note: token.note,
            made: token.made,
            expires: token.expires,
        };
        grant.check()?;
        Ok(grant)
    }
}

impl From<Grant> for WrittenToken {
    fn from(grant: Grant) -> Self {
        WrittenToken {
            id: grant.id,
            sha256: hex(&grant.sha256),
            scopes: grant.scopes,
            prefixes: grant.prefixes,
            note: grant.note,
            made: grant.made,
            expires: grant.expires,
        }
    }
}
