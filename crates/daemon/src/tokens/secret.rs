//! The text of a token, `kf_<id>_<secret>`, and its stored form.

use std::fmt;

use anyhow::{Context, Result};
use rand::TryRng;
use rand::rngs::SysRng;
use sha2::{Digest, Sha256};

const START: &str = "kf_";

/// A token that was just made. It is shown once: only its hash is kept.
pub struct Secret {
    pub(super) id: String,
    text: String,
}

impl Secret {
    /// Makes a token with 256 random bits of the operating system.
    pub(super) fn make() -> Result<Self> {
        let mut bits = [0; 36];
        SysRng
            .try_fill_bytes(&mut bits)
            .context("the operating system has no random numbers")?;
        let (id, secret) = bits.split_at(4);
        let id = hex(id);
        let text = format!("{START}{id}_{}", hex(secret));
        Ok(Secret { id, text })
    }

    pub(super) fn sha256(&self) -> [u8; 32] {
        hash(&self.text)
    }

    /// The text that a client presents.
    pub fn reveal(&self) -> &str {
        &self.text
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({START}{}_***)", self.id)
    }
}

/// The id of a token, which is not secret.
pub(super) fn id(text: &str) -> Option<&str> {
    Some(text.strip_prefix(START)?.split_once('_')?.0)
}

/// The stored form of a token. Its bits are random, so nobody can guess it, and a slow hash would
/// gain nothing.
pub(super) fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// 64 hexadecimal digits.
pub(super) fn unhex(text: &str) -> Option<[u8; 32]> {
    let is_hex = text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok();
    let bytes: Option<Vec<u8>> = (0..32).map(|at| byte(at).filter(|_| is_hex)).collect();
    bytes?.try_into().ok()
}
