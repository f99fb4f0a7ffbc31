//! Signatures, checked by independent code: by this file, which follows the specification word for
//! word, and by the official library for Python, which `sh scripts/standardwebhooks.sh` installs.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use keyfall::{Outcome, target};
use keyfall_testing::files::repository;
use sha2::{Digest, Sha256};

use super::receiver::{Received, Receiver};
use super::{job, outcome};

pub(super) const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEXT: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD0Zb9gCmG8l8=";
const OTHER: &str = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";

/// RFC 2104.
fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let pad = |with: u8| {
        let mut padded = [with; 64];
        padded
            .iter_mut()
            .zip(key)
            .for_each(|(pad, key)| *pad ^= key);
        padded
    };
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message);
    let outer = Sha256::new().chain_update(pad(0x5c));
    outer.chain_update(inner.finalize()).finalize().to_vec()
}

/// Whether a receiver with this secret accepts the request.
pub(super) fn is_genuine(received: &Received, secret: &str) -> bool {
    let key = STANDARD
        .decode(secret.strip_prefix("whsec_").unwrap())
        .unwrap();
    let (id, timestamp) = (
        received.header("webhook-id"),
        received.header("webhook-timestamp"),
    );
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs();
    if now.abs_diff(timestamp.parse().unwrap()) > 300 {
        return false;
    }
    let mut message = format!("{id}.{timestamp}.").into_bytes();
    message.extend(&received.body);
    let expected = format!("v1,{}", STANDARD.encode(hmac(&key, &message)));
    let mut signatures = received.header("webhook-signature").split(' ');
    signatures.any(|signature| signature == expected)
}

/// The request of a target with both secrets.
async fn signed(payload: &str) -> Received {
    let mut receiver = Receiver::always("200 OK", "").await;
    let target = target::http(receiver.url("/")).secret(SECRET).secret(NEXT);
    let job = job()
        .raw_payload(payload.to_owned())
        .header("webhook-id", "x");
    assert_eq!(outcome(&target, job.build()).await, Outcome::Done);
    receiver.next().await
}

#[tokio::test]
async fn a_receiver_accepts_only_signed_requests() {
    for payload in ["{\"order\": 42}", "", "ä ö ü"] {
        let received = signed(payload).await;
        assert!(is_genuine(&received, SECRET) && is_genuine(&received, NEXT));
        assert!(!is_genuine(&received, OTHER));
        let altered = |name: &str, value: &str| {
            let mut received = received.clone();
            received.headers.insert(name.to_owned(), value.to_owned());
            is_genuine(&received, SECRET)
        };
        assert!(!altered("webhook-id", "msg_x"));
        let second = received.header("webhook-timestamp").parse::<u64>().unwrap();
        assert!(!altered("webhook-timestamp", &(second + 1).to_string()));
        assert!(!altered("webhook-timestamp", &(second - 301).to_string()));
        let mut other = received.clone();
        other.body.push(b' ');
        assert!(!is_genuine(&other, SECRET));
    }
}

#[tokio::test]
#[ignore = "needs the library of the specification: `make webhooks-check` brings it"]
async fn the_library_of_the_specification_accepts_the_signatures() {
    let python = std::env::var("KEYFALL_STANDARDWEBHOOKS").expect("the Python that has it");
    let verify = |received: &Received, secret: &str| {
        let path = std::env::temp_dir().join(format!("keyfall-{:016x}", rand::random::<u64>()));
        std::fs::write(&path, &received.body).unwrap();
        let mut command = Command::new(&python);
        command.arg(repository().join("scripts/standardwebhooks_verify.py"));
        command.arg(secret).arg(&path);
        for name in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            command.arg(received.header(name));
        }
        let output = command.output().unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    for payload in ["{\"order\": 42}", "[]", "\"ä ö ü\""] {
        let received = signed(payload).await;
        assert_eq!(verify(&received, SECRET), "genuine");
        assert_eq!(verify(&received, NEXT), "genuine");
        assert_eq!(verify(&received, OTHER), "No matching signature found");
        let altered = |name: &str, value: String| {
            let mut received = received.clone();
            received.headers.insert(name.to_owned(), value);
            verify(&received, SECRET)
        };
        let none = "No matching signature found";
        assert_eq!(altered("webhook-id", "msg_x".into()), none);
        let second: u64 = received.header("webhook-timestamp").parse().unwrap();
        assert_eq!(altered("webhook-timestamp", (second + 1).to_string()), none);
        let stale = altered("webhook-timestamp", (second - 600).to_string());
        assert_eq!(stale, "Message timestamp too old");
        let mut other = received.clone();
        other.body.push(b' ');
        assert_eq!(verify(&other, SECRET), none);
    }
}
