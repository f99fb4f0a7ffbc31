//! Signatures by the Standard Webhooks specification: secrets, message ids, and the value of
//! `webhook-signature`.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::time::UNIX_EPOCH;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use crate::handler::Job;

/// The prefix of a secret as text.
const PREFIX: &str = "whsec_";

/// A key that only sender and receiver know. It is parsed from `whsec_` and base64, 24 to 64 bytes.
#[derive(Clone)]
pub(super) struct Secret(Hmac<Sha256>);

impl FromStr for Secret {
    type Err = &'static str;

    /// # Errors
    /// The rule; it never quotes the text.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let key = text.strip_prefix(PREFIX);
        let key = key.and_then(|key| STANDARD.decode(key).ok());
        match key {
            Some(key) if (24..=64).contains(&key.len()) => Ok(Secret(
                Hmac::new_from_slice(&key).expect("a key of any length will do"),
            )),
            _ => Err(
                "a secret is not valid: write whsec_ and then 24 to 64 random bytes in base64, as \
                 `printf whsec_; openssl rand -base64 32` does",
            ),
        }
    }
}

/// Does not show the key.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

/// The id of a message, by which a receiver recognises a repeat: `msg_` and 32 hex digits.
///
/// It is a digest of the facts in the idempotency key, job key and time of the first schedule. So
/// it is the same for all attempts of a job, differs for the next job of the same name, and is
/// ASCII whatever the key holds.
pub(super) fn message_id(job: &Job) -> String {
    let scheduled = job.first_scheduled_at().duration_since(UNIX_EPOCH);
    let scheduled = scheduled.unwrap_or_default();
    let ms = u64::try_from(scheduled.as_millis()).unwrap_or(u64::MAX);
    let mut hash = Sha256::new();
    hash.update(job.key().as_str());
    hash.update(ms.to_be_bytes());
    // Records of older versions have whole milliseconds, and their messages keep their ids.
    match scheduled.subsec_micros() % 1000 {
        0 => {}
        us => hash.update(us.to_be_bytes()),
    }
    let mut id = String::from("msg_");
    for byte in &hash.finalize()[..16] {
        let _ = write!(id, "{byte:02x}");
    }
    id
}

/// The value of `webhook-signature`: one signature by each secret, separated by spaces, so that a
/// receiver may know the old secret or the new one. `timestamp` is in seconds since the Unix epoch.
pub(super) fn signatures(secrets: &[Secret], id: &str, timestamp: u64, body: &[u8]) -> String {
    let sign = |Secret(secret): &Secret| {
        let mut signer = secret.clone();
        signer.update(format!("{id}.{timestamp}.").as_bytes());
        signer.update(body);
        format!("v1,{}", STANDARD.encode(signer.finalize().into_bytes()))
    };
    let signed: Vec<String> = secrets.iter().map(sign).collect();
    signed.join(" ")
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    /// The example of the libraries of the specification.
    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const SIGNED: &str = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";

    #[test]
    fn signatures_follow_the_specification() {
        let secret: Secret = SECRET.parse().unwrap();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        let one = signatures(std::slice::from_ref(&secret), id, 1614265330, body);
        assert_eq!(one, SIGNED);
        let two = signatures(&[secret.clone(), secret], id, 1614265330, body);
        assert_eq!(two, format!("{SIGNED} {SIGNED}"));
    }

    #[test]
    fn an_id_is_the_same_for_all_retries_of_one_job() {
        let now = SystemTime::now();
        let id = |key: &str, attempt, at| {
            let job = Job::sample(key).attempt(attempt).first_scheduled_at(at);
            message_id(&job.build())
        };
        let first = id("app1:trans:notice:ä1", 1, now);
        assert_eq!(first.len(), 36);
        assert!(
            first
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        );
        assert_eq!(first, id("app1:trans:notice:ä1", 2, now));
        assert_ne!(first, id("app1:trans:notice:2", 1, now));
        let later = now + Duration::from_millis(1);
        assert_ne!(first, id("app1:trans:notice:ä1", 1, later));
    }

    #[test]
    fn a_text_that_is_no_secret_is_refused_and_not_repeated() {
        for text in [
            "",
            "whsec_",
            "geheim",
            "whsec_geheim",
            "whsec_Z2VoZWlt",
            &SECRET[6..],
        ] {
            let told = text.parse::<Secret>().unwrap_err();
            assert!(told.contains("24 to 64 random bytes") && !told.contains("geheim"));
        }
        assert_eq!(format!("{:?}", SECRET.parse::<Secret>().unwrap()), "Secret");
    }
}
