//! The library of Redis functions: installed, looked at, removed.

use std::fmt;

use crate::client::Client;
use crate::error::{Error, ErrorKind, Result};
use crate::store::{Loaded, VERSION, library};

/// What the library and its functions are called where nobody says otherwise.
const NAME: &str = "keyfall";

/// The library of Redis functions by which any client, in any language, schedules, cancels and
/// looks up jobs: `FCALL keyfall_schedule`, `FCALL keyfall_cancel`, `FCALL_RO keyfall_get`; from
/// [`Client::functions`].
///
/// It needs one server, Redis 7.0 or later or Valkey: neither a cluster nor several servers.
/// `docs/functions.md` says what the functions take and answer.
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

/// What is loaded in a Redis under the name of a library.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibraryState {
    /// The library that this version of Keyfall makes, and this database is prepared for it.
    Fits,
    /// The same, but this database was not prepared: its functions refuse to work there.
    Unprepared,
    /// Nothing.
    Absent,
    /// A library of another version of Keyfall, or one that was changed by hand.
    Differs {
        /// Its version.
        version: String,
    },
    /// A library of Keyfall for another namespace.
    Elsewhere {
        /// That namespace.
        namespace: String,
    },
    /// A library of somebody else.
    Foreign,
}

impl Client {
    /// The library of Redis functions for jobs of this client's namespace.
    pub fn functions(&self) -> Functions {
        Functions {
            client: self.clone(),
            name: NAME.to_owned(),
            replaces: false,
        }
    }
}

impl Functions {
    /// Another name than `keyfall` for the library, and for its functions, `NAME_schedule` and so
    /// on: where several namespaces share a server, which has one function of a name.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidSetting`] if it is not 1 to 64 ASCII letters, digits and `_`.
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

    /// Lets [`install`](Self::install) and [`remove`](Self::remove) take the place of any library
    /// of the name: a newer one, that of another namespace, somebody else's.
    pub fn replacing(mut self) -> Self {
        self.replaces = true;
        self
    }

    /// What the library is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The version that this program makes.
    pub fn version(&self) -> &'static str {
        VERSION
    }

    /// Where Redis is; without credentials.
    pub fn server(&self) -> String {
        self.client.store().address()
    }

    /// The library, as `FUNCTION LOAD` takes it.
    pub fn source(&self) -> String {
        library(&self.name, self.client.store().names())
    }

    /// What is loaded. Changes nothing.
    ///
    /// # Errors
    /// If the server has no functions, is a cluster or one of several, does not answer in time, or
    /// does not let this user look.
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

    /// Loads the library, in the place of one of the same version or an older one, and prepares the
    /// database of this client for it. The library belongs to the whole server; each database in
    /// which it is to be used has to be prepared. Returns what was there before.
    ///
    /// # Errors
    /// As [`state`](Self::state); and unless it is [`replacing`](Self::replacing),
    /// [`ErrorKind::Incompatible`] if what is loaded is newer, for another namespace, or not ours.
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

    /// Removes the library from the server, and the note that this database is prepared for it.
    /// Returns what was there before.
    ///
    /// # Errors
    /// As [`install`](Self::install), but for a newer version, which is removed.
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

    fn refuse_to_replace(&self, state: &LibraryState) -> Result<()> {
        if self.replaces || !state.is_kept() {
            return Ok(());
        }
        let (why, remedy) = match state {
            LibraryState::Differs { version } => (
                format!("is of keyfall {version}, which is newer than this, {VERSION}"),
                "use that version",
            ),
            LibraryState::Elsewhere { namespace } => (
                format!("is for the namespace {namespace}"),
                "`--library NAME` gives that of this namespace, and its functions, another name",
            ),
            _ => (
                "is not of Keyfall".to_owned(),
                "`--library NAME` gives ours, and its functions, another name",
            ),
        };
        let (name, server) = (&self.name, self.server());
        Err(Error::new(
            ErrorKind::Incompatible,
            format!(
                "the library {name} in Redis at {server} {why}: {remedy}; `--replace` takes it \
                 away all the same"
            ),
        ))
    }
}

impl LibraryState {
    /// Whether it stays where it is unless somebody says that it is to be replaced.
    pub(crate) fn is_kept(&self) -> bool {
        match self {
            LibraryState::Foreign | LibraryState::Elsewhere { .. } => true,
            LibraryState::Differs { version } => is_newer(version),
            _ => false,
        }
    }

    /// What puts it right, unless nothing has to be done.
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

    /// In a word: `fits`, `unprepared`, `absent`, `differs`, `elsewhere`, `foreign`.
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

/// In a sentence whose subject is the library.
impl fmt::Display for LibraryState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LibraryState::Fits => write!(f, "is that of this version, keyfall {VERSION}"),
            LibraryState::Unprepared => {
                f.write_str("is that of this version, and this database was not prepared for it")
            }
            LibraryState::Absent => f.write_str("is not loaded"),
            LibraryState::Differs { version } if version == VERSION => {
                write!(
                    f,
                    "says it is of keyfall {version}, and is not what that makes"
                )
            }
            LibraryState::Differs { version } => {
                write!(f, "is of keyfall {version}, and this is {VERSION}")
            }
            LibraryState::Elsewhere { namespace } => {
                write!(f, "is for the namespace {namespace}")
            }
            LibraryState::Foreign => f.write_str("is not of Keyfall"),
        }
    }
}

/// Whether this version is newer than that of this program. What is no version is.
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
