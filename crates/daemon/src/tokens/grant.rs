//! The rights of a token.

use jiff::Timestamp;
use keyfall::JobKey;
use serde::{Deserialize, Serialize};

/// A scope: one sort of rights of a token.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum,
)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// To look at jobs, dead letters, kinds and instances
    Read,
    /// To schedule, change and cancel jobs
    Schedule,
    /// To take jobs, and to end their leases
    Consume,
    /// To change many at once, requeue and delete dead letters, pause and resume
    Operate,
}

impl Scope {
    pub fn as_str(self) -> &'static str {
        match self {
            Scope::Read => "read",
            Scope::Schedule => "schedule",
            Scope::Consume => "consume",
            Scope::Operate => "operate",
        }
    }
}

/// The stored form of a token, and its rights.
#[derive(Debug, Clone)]
pub struct Grant {
    pub id: String,
    pub(super) sha256: [u8; 32],
    pub scopes: Vec<Scope>,
    /// The prefixes of the job keys that the token is for; the empty prefix stands for all.
    pub prefixes: Vec<String>,
    /// The holder of the token, and its purpose.
    pub note: String,
    pub made: Timestamp,
    pub expires: Option<Timestamp>,
}

impl Grant {
    /// Whether the token has this right for a job key, or for all job keys with a prefix: all of
    /// them must be its own. The keys of a kind begin with the kind and a colon.
    pub fn allows(&self, scope: Scope, keys: &str) -> bool {
        self.has(scope) && self.prefixes.iter().any(|it| keys.starts_with(it.as_str()))
    }

    /// Whether the token has this right for any job key at all.
    pub fn has(&self, scope: Scope) -> bool {
        self.scopes.contains(&scope)
    }

    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}

/// # Errors
/// The fault of a prefix, and the remedy. A prefix that ends within app, module or biz would begin
/// other names, too: `app1` begins `app10`.
pub(super) fn check_prefix(prefix: &str) -> Result<(), String> {
    if prefix.is_empty() {
        return Ok(());
    }
    let colons = prefix.matches(':').count();
    if colons < 3 && !prefix.ends_with(':') {
        return Err(format!(
            "the prefix {prefix:?} would begin other names, too: end it with a colon, {:?}",
            format!("{prefix}:")
        ));
    }
    // A key with this beginning.
    let mut key = prefix.to_owned();
    key.push_str(match colons {
        1 => "x:x:x",
        2 => "x:x",
        _ if prefix.ends_with(':') => "x",
        _ => "",
    });
    match key.parse::<JobKey>() {
        Ok(_) => Ok(()),
        Err(_) => Err(format!(
            "no job key begins with {prefix:?}: write the beginning of one, such as \"app1:\", \
             \"app1:trans:notice:\" or \"app1:trans:notice:2026-\""
        )),
    }
}
