//! The library of Redis functions: install, inspect and remove it.

use std::fmt;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Loaded, VERSION, library};

/// The default name of the library, and the prefix of its functions.
const NAME: &str = "keyfall";

/// The library of Redis functions. With it, clients in any language schedule, cancel and look up
/// jobs: `FCALL keyfall_schedule`, `FCALL keyfall_cancel`, `FCALL_RO keyfall_get`; from
/// [`Client::functions`].
///
/// It needs a single server, Redis 7.0 or later or Valkey: neither a cluster nor several servers.
/// `docs/functions.md` describes the arguments and answers of the functions.
///
/// ```no_run
/// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
/// client.functions().install().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[must_use = "call `install`, `state`, `remove` or `source`"]
pub struct Functions {
    client: Client,
    name: String,
    replaces: bool,
}

/// The library that a Redis server has under a name.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibraryState {
    /// The library of this version of Keyfall, and this database is prepared for it.
    Fits,
    /// The library of this version, but this database is not prepared: the functions refuse to work
    /// in it.
    Unprepared,
    /// No library of this name.
    Absent,
    /// A library of another version of Keyfall, or an edited library.
    Differs {
        /// The version that the library states.
        version: String,
    },
    /// A library of Keyfall that serves another namespace.
    Elsewhere {
        /// The namespace that it serves.
        namespace: String,
    },
    /// A library that is not of Keyfall.
    Foreign,
}

impl Client {
    /// The library of Redis functions for the jobs of this client's namespace, under the name
    /// `keyfall`. Nothing is sent before one of its methods is called.
    pub fn functions(&self) -> Functions {
        Functions {
            client: self.clone(),
            name: NAME.to_owned(),
            replaces: false,
        }
    }
}

impl Functions {
    /// Sets another name for the library and its functions, `NAME_schedule` and so on: for several
    /// namespaces on one server, which has only one function of a name. Defaults to `keyfall`.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if the name is not 1 to 64 ASCII letters, digits and `_`.
    pub fn named(mut self, name: &str) -> Result<Self> {
        let is_allowed = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(is_allowed) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("library {name:?} must be 1 to 64 ASCII letters, digits and `_`"),
            ));
        }
        name.clone_into(&mut self.name);
        Ok(self)
    }

    /// Lets [`install`](Self::install) and [`remove`](Self::remove) replace any library of the
    /// name: a newer version, one for another namespace, or a foreign one. By default they refuse.
    pub fn replacing(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// The name of the library.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version of the library that this program installs: the version of Keyfall.
    pub fn version(&self) -> &'static str {
        VERSION
    }

    /// The address of Redis, without credentials.
    pub fn server(&self) -> String {
        self.client.store().address()
    }

    /// The source text of the library, for `FUNCTION LOAD`.
    pub fn source(&self) -> String {
        library(&self.name, self.client.store().names())
    }

    /// Looks up the library of this name on the server. Changes nothing.
    ///
    /// # Errors
    /// If the server has no functions, is a cluster or one of several servers, does not answer in
    /// time, or denies this user the command.
    pub async fn state(&self) -> Result<LibraryState> {
        let (store, until) = (self.client.store(), self.client.deadline());
        let server = store.check_functions(until).await?;
        Ok(match server.loaded(&self.name, until).await? {
            None => LibraryState::Absent,
            Some(Loaded::Foreign) => LibraryState::Foreign,
            Some(Loaded::Ours { namespace, .. }) if namespace != store.names().namespace() => {
                LibraryState::Elsewhere { namespace }
            }
            Some(Loaded::Ours {
                version,
                is_same: false,
                ..
            }) => LibraryState::Differs { version },
            Some(Loaded::Ours { .. }) => match server.prepared(until).await? {
                Some((_, channel)) if server.is_wake(&channel) => LibraryState::Fits,
                _ => LibraryState::Unprepared,
            },
        })
    }

    /// Loads the library, replacing one of the same version or an older one, and prepares the
    /// database of this client. The library belongs to the whole server; each database that uses it
    /// needs its own preparation. Returns the state before.
    ///
    /// # Errors
    /// As [`state`](Self::state). Unless the call is [`replacing`](Self::replacing), also
    /// [`ErrorKind::Incompatible`] if the loaded library is newer, for another namespace, or
    /// foreign.
    pub async fn install(&self) -> Result<LibraryState> {
        let before = self.state().await?;
        let (store, until) = (self.client.store(), self.client.deadline());
        store
            .check(self.client.settings().allow_eviction, until)
            .await?;
        let server = store.only()?;
        match &before {
            LibraryState::Fits => return Ok(before),
            LibraryState::Unprepared => {}
            LibraryState::Absent => server.load(&self.name, false, until).await?,
            _ => {
                self.refuse_to_replace(&before)?;
                server.load(&self.name, true, until).await?;
            }
        }
        server.prepare(&self.name, until).await?;
        Ok(before)
    }

    /// Removes the library from the server, and the mark that this database is prepared for it.
    /// Returns the state before.
    ///
    /// # Errors
    /// As [`install`](Self::install), except that a newer version is no error: it is removed.
    pub async fn remove(&self) -> Result<LibraryState> {
        let before = self.state().await?;
        if !matches!(before, LibraryState::Differs { .. }) {
            self.refuse_to_replace(&before)?;
        }
        let (server, until) = (self.client.store().only()?, self.client.deadline());
        if before != LibraryState::Absent {
            server.unload(&self.name, until).await?;
        }
        let prepared = server.prepared(until).await?;
        if prepared.is_some_and(|(name, _)| name == self.name) {
            server.forget_functions(until).await?;
        }
        Ok(before)
    }

    /// Fails if the loaded library may not be replaced without [`replacing`](Self::replacing).
    fn refuse_to_replace(&self, state: &LibraryState) -> Result<()> {
        if self.replaces || !state.is_kept() {
            return Ok(());
        }
        let (why, remedy) = match state {
            LibraryState::Differs { version } => (
                format!("is of keyfall {version}, which is newer than this program, {VERSION}"),
                "use that version",
            ),
            LibraryState::Elsewhere { namespace } => (
                format!("is for the namespace {namespace}"),
                "`--library NAME` gives the library of this namespace, and its functions, another \
                 name",
            ),
            _ => (
                "is not of Keyfall".to_owned(),
                "`--library NAME` gives the library of Keyfall, and its functions, another name",
            ),
        };
        let (name, server) = (&self.name, self.server());
        Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "the library {name} in Redis at {server} {why}: {remedy}; `--replace` replaces or \
                 removes it anyway"
            ),
        ))
    }
}

impl LibraryState {
    /// Whether the library stays unless the caller asks to replace it.
    pub(crate) fn is_kept(&self) -> bool {
        match self {
            LibraryState::Foreign | LibraryState::Elsewhere { .. } => true,
            LibraryState::Differs { version } => is_newer(version),
            _ => false,
        }
    }

    /// The remedy, as a command; `None` if the library fits.
    pub fn remedy(&self) -> Option<&'static str> {
        match self {
            LibraryState::Fits => None,
            LibraryState::Differs { version } if is_newer(version) => {
                Some("use that version of keyfall, or `keyfall functions install --replace`")
            }
            LibraryState::Foreign | LibraryState::Elsewhere { .. } => {
                Some("`keyfall functions install --library NAME`")
            }
            _ => Some("`keyfall functions install`"),
        }
    }

    /// The state as one word: `fits`, `unprepared`, `absent`, `differs`, `elsewhere`, `foreign`.
    pub fn as_str(&self) -> &'static str {
        match self {
            LibraryState::Fits => "fits",
            LibraryState::Unprepared => "unprepared",
            LibraryState::Absent => "absent",
            LibraryState::Differs { .. } => "differs",
            LibraryState::Elsewhere { .. } => "elsewhere",
            LibraryState::Foreign => "foreign",
        }
    }
}

/// Writes the predicate of a sentence whose subject is the library.
impl fmt::Display for LibraryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibraryState::Fits => write!(f, "is of this version, keyfall {VERSION}"),
            LibraryState::Unprepared => {
                f.write_str("is of this version, but this database is not prepared for it")
            }
            LibraryState::Absent => f.write_str("is not loaded"),
            LibraryState::Differs { version } if version == VERSION => {
                write!(
                    f,
                    "states version {version}, but differs from the library of that version"
                )
            }
            LibraryState::Differs { version } => {
                write!(f, "is of keyfall {version}, and this program is {VERSION}")
            }
            LibraryState::Elsewhere { namespace } => {
                write!(f, "is for the namespace {namespace}")
            }
            LibraryState::Foreign => f.write_str("is not of Keyfall"),
        }
    }
}

/// Whether this version is newer than this program. A text that is no version counts as newer.
fn is_newer(version: &str) -> bool {
    let numbers = |text: &str| -> Option<Vec<u64>> {
        let numbers = text.split(['-', '+']).next()?.split('.');
        numbers.map(|number| number.parse().ok()).collect()
    };
    match numbers(version) {
        Some(theirs) => Some(theirs) > numbers(VERSION),
        None => true,
    }
}

impl fmt::Debug for Functions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Functions")
            .field("server", &self.server())
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}
