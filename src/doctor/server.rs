//! Checks of the server itself: version, role, schema, `hz`, and its treatment of idle connections.

use super::checks::{
    CLIENT_TIMEOUT, SCHEMA_KNOWN, SERVER_HZ, SERVER_LOADING, SERVER_ROLE, SERVER_VERSION,
    TCP_KEEPALIVE,
};
use super::finding::{Finding, other_version};
use crate::phrase::Phrase;
use crate::store::{Info, SCHEMA, ServerReport};

/// The longest acceptable time between two TCP keepalive probes, in seconds: the default of Redis.
const KEEPALIVE: u64 = 300;

/// Adds the findings of this file. Errors are an old version, a server that loads its data, a
/// replica and an unknown schema, since no client can work with them. A `timeout` other than 0 and
/// a `tcp-keepalive` outside of 1 to [`KEEPALIVE`] are warnings; `hz` other than 10 is information.
pub(super) fn look(info: &Info, vitals: &ServerReport, found: &mut Vec<Finding>) {
    found.push(version(info));
    found.push(if info.text("loading") == "1" {
        let rest = info.text("loading_eta_seconds");
        Finding::error(
            &SERVER_LOADING,
            Phrase::new(
                "found.loading",
                "the server is loading its data, for about {} s more",
                [rest.into()],
            ),
            Phrase::new("remedy.loading", "wait until the server has finished", []),
        )
    } else {
        let loaded = Phrase::new("found.loaded", "the server has loaded its data", []);
        Finding::fine(&SERVER_LOADING, loaded)
    });
    found.push(if info.is_replica() {
        let primary = format!("{}:{}", info.text("master_host"), info.text("master_port"));
        Finding::error(
            &SERVER_ROLE,
            Phrase::new("found.replica", "a replica of {}", [(&primary).into()]),
            Phrase::new(
                "remedy.primary",
                "connect to the primary: redis://{}",
                [primary.into()],
            ),
        )
    } else {
        Finding::fine(&SERVER_ROLE, Phrase::new("found.primary", "a primary", []))
    });
    found.push(schema(vitals));
    found.push(match info.text("configured_hz") {
        "10" => Finding::fine(&SERVER_HZ, "hz 10"),
        hz => Finding {
            remedy: Some("CONFIG SET hz 10".into()),
            ..Finding::info(&SERVER_HZ, format!("hz {hz}"))
        },
    });
    let timeout = vitals.setting("timeout");
    found.push(Finding::of(&CLIENT_TIMEOUT, timeout, |check, timeout| {
        if timeout == "0" {
            return Finding::fine(check, "timeout 0");
        }
        Finding::warning(check, format!("timeout {timeout}"), "CONFIG SET timeout 0")
    }));
    let keepalive = vitals.setting("tcp-keepalive");
    found.push(Finding::of(&TCP_KEEPALIVE, keepalive, |check, seconds| {
        let found = format!("tcp-keepalive {seconds}");
        let fits = seconds
            .parse()
            .is_ok_and(|it: u64| (1..=KEEPALIVE).contains(&it));
        if fits {
            return Finding::fine(check, found);
        }
        Finding::warning(check, found, "CONFIG SET tcp-keepalive 60")
    }));
}

/// The finding about the version: an error below Redis 6.2. Every Valkey is new enough.
fn version(info: &Info) -> Finding {
    let found = match info.text("valkey_version") {
        "" => format!("Redis {}", info.text("redis_version")),
        version => format!("Valkey {version}"),
    };
    if info.is_too_old() {
        return Finding::error(
            &SERVER_VERSION,
            found,
            Phrase::new(
                "remedy.version",
                "install Redis 6.2 or later, or Valkey",
                [],
            ),
        );
    }
    Finding::fine(&SERVER_VERSION, found)
}

/// The finding about the schema of the stored data: an error if it is not the schema that this
/// version of Keyfall writes. An empty namespace has no schema yet, which is fine.
fn schema(vitals: &ServerReport) -> Finding {
    Finding::of(
        &SCHEMA_KNOWN,
        vitals.schema.clone(),
        |check, schema| match schema {
            None => {
                let none = Phrase::new("found.no-schema", "no schema yet: nothing is stored", []);
                Finding::fine(check, none)
            }
            Some(schema) if schema == SCHEMA.to_string() => Finding::fine(
                check,
                Phrase::new("found.schema", "schema {}", [schema.into()]),
            ),
            Some(schema) => Finding::error(
                check,
                Phrase::new(
                    "found.other-schema",
                    "schema {}, and this version writes {}",
                    [schema.into(), SCHEMA.to_string().into()],
                ),
                other_version(),
            ),
        },
    )
}
