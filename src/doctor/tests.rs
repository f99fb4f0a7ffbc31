//! The checks and the files that they are held together with.

use std::collections::BTreeSet;

use super::finding::{Finding, Severity};
use super::{CHECKS, crowd, disk, memory, replication, server};
use crate::store::{Info, ServerReport};

const CONF: &str = include_str!("../../redis.conf");

#[test]
fn every_setting_of_redis_conf_is_checked_and_no_other_is_expected() {
    let lines = CONF.lines().map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
    let shipped: Vec<&str> = lines.collect();
    let mut expected: Vec<&str> = CHECKS
        .iter()
        .flat_map(|check| check.settings)
        .copied()
        .collect();
    let mut sorted = shipped.clone();
    sorted.sort_unstable();
    expected.sort_unstable();
    assert_eq!(expected, sorted);
}

/// `docs/doctor.md` has a row for each check, in this form.
#[test]
fn the_manual_lists_every_check() {
    let manual = include_str!("../../docs/doctor.md");
    let mut sections = manual.split("\n## ");
    let rows = sections.find(|text| text.starts_with("What is looked at?"));
    let rows = rows.unwrap();
    let mut rows = rows.lines().filter(|line| line.starts_with("| `"));
    for check in CHECKS {
        let row = format!("| `{}` | {} | {} |", check.id, check.expected, check.why);
        assert_eq!(rows.next(), Some(&*row));
    }
    assert_eq!(rows.next(), None);
}

#[test]
fn each_check_has_a_name_of_its_own() {
    let ids: BTreeSet<&str> = CHECKS.iter().map(|check| check.id).collect();
    assert_eq!(ids.len(), CHECKS.len());
    for id in ids {
        let is_kebab = id
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(is_kebab, "{id}");
    }
}

/// The findings from an INFO, on a server that hides its settings: id, severity and text of each
/// check.
fn found(info: &str) -> Vec<(&'static str, Severity, String)> {
    let info = Info::parse(info);
    let vitals = ServerReport::unseen();
    let mut found: Vec<Finding> = Vec::new();
    server::look(&info, &vitals, &mut found);
    memory::look(&info, &mut found);
    disk::look(&info, &vitals, &mut found);
    replication::look(&info, &vitals, &mut found);
    crowd::look(&info, 3, 100, &mut found);
    let seen = found.into_iter().filter(|it| it.is_seen);
    seen.map(|it| (it.check.id, it.severity, it.found.to_string()))
        .collect()
}

#[test]
fn a_primary_that_sentinels_watch_needs_replicas_for_its_writes() {
    let info = Info::parse("connected_slaves:0");
    let mut vitals = ServerReport::unseen();
    vitals.is_watched = true;
    let mut found = Vec::new();
    replication::look(&info, &vitals, &mut found);
    assert_eq!(found[0].severity, Severity::Warning);
    assert!(found[0].found.contains("sentinels may promote another"));
}

#[test]
fn the_settings_of_a_server_are_judged() {
    use Severity::{Error, Info, Ok as Fine, Warning};
    for (info, id, severity, words) in [
        (
            "redis_version:6.0.16",
            "server-version",
            Error,
            "Redis 6.0.16",
        ),
        ("redis_version:6.2.0", "server-version", Fine, "Redis 6.2.0"),
        (
            "redis_version:7.2.4\nvalkey_version:9.1.2",
            "server-version",
            Fine,
            "Valkey 9.1.2",
        ),
        (
            "loading:1\nloading_eta_seconds:7",
            "server-loading",
            Error,
            "7 s more",
        ),
        (
            "role:slave\nmaster_host:a\nmaster_port:1",
            "server-role",
            Error,
            "a:1",
        ),
        ("role:master", "server-role", Fine, ""),
        ("maxmemory:0", "memory-headroom", Fine, ""),
        (
            "maxmemory:1000\nused_memory:799",
            "memory-headroom",
            Fine,
            "79 %",
        ),
        (
            "maxmemory:1000\nused_memory:800",
            "memory-headroom",
            Warning,
            "80 %",
        ),
        (
            "maxmemory:1000\nused_memory:960",
            "memory-headroom",
            Error,
            "96 %",
        ),
        // Buffers for replicas do not count.
        (
            "maxmemory:1000\nused_memory:960\nmem_not_counted_for_evict:500",
            "memory-headroom",
            Fine,
            "46 %",
        ),
        (
            "maxmemory:9\ntotal_system_memory:10",
            "memory-limit",
            Fine,
            "",
        ),
        (
            "maxmemory:11\ntotal_system_memory:10",
            "memory-limit",
            Warning,
            "",
        ),
        // The setting of snapshots is hidden here.
        ("aof_enabled:0", "persistence", Warning, "does not show"),
        ("aof_enabled:1", "persistence", Fine, ""),
        (
            "aof_last_write_status:err",
            "disk-writes",
            Error,
            "last write",
        ),
        (
            "rdb_last_bgsave_status:err",
            "disk-writes",
            Error,
            "snapshot",
        ),
        (
            "aof_last_bgrewrite_status:err",
            "disk-writes",
            Warning,
            "rewrite",
        ),
        ("rdb_last_bgsave_status:ok", "disk-writes", Fine, ""),
        ("connected_slaves:0", "min-replicas", Fine, ""),
        ("connected_slaves:2", "min-replicas", Warning, "2 replicas"),
        // INFO has this field only if a write needs a replica.
        (
            "connected_slaves:2\nmin_slaves_good_slaves:2",
            "min-replicas",
            Fine,
            "",
        ),
        ("db0:keys=9,expires=9,avg_ttl=0", "expiry-crowd", Fine, ""),
        // Measured: 40 s late beside 16,000 foreign keys.
        (
            "db3:keys=9,expires=16100,avg_ttl=0",
            "expiry-crowd",
            Info,
            "16000 foreign",
        ),
        (
            "db3:keys=9,expires=16100,avg_ttl=0",
            "expiry-crowd",
            Info,
            "40 s late",
        ),
        (
            "hz:100\ndb3:keys=9,expires=16100,avg_ttl=0",
            "expiry-crowd",
            Info,
            "4 s late",
        ),
        ("db3:expires=500100", "expiry-crowd", Info, "20 min late"),
    ] {
        let all = found(info);
        let one = all.iter().find(|(it, ..)| *it == id).expect(id);
        assert_eq!(one.1, severity, "{info}: {one:?}");
        assert!(one.2.contains(words), "{info}: {one:?}");
    }
}

#[test]
fn a_remedy_is_for_the_operator_if_config_is_refused() {
    let check = CHECKS.iter().find(|it| it.id == "memory-policy");
    let check = check.unwrap_or(&CHECKS[0]);
    let mut finding = Finding::warning(
        check,
        "allkeys-lru",
        "CONFIG SET maxmemory-policy noeviction",
    );
    finding.without_config();
    let remedy = finding.remedy.unwrap();
    assert!(
        remedy.starts_with("set `maxmemory-policy noeviction` in redis.conf"),
        "{remedy}"
    );
    assert!(!remedy.contains("CONFIG SET"), "{remedy}");
    let mut finding = Finding::warning(check, "", "attach replicas");
    finding.without_config();
    assert_eq!(finding.remedy.as_deref(), Some("attach replicas"));
}

#[test]
fn no_remedy_gives_redis_more_memory_than_the_machine_has() {
    let remedy = |machine: u64| {
        let info = format!("maxmemory:1000\nused_memory:960\ntotal_system_memory:{machine}");
        let mut found: Vec<Finding> = Vec::new();
        memory::look(&Info::parse(&info), &mut found);
        let is_headroom = |it: &Finding| it.check.id == "memory-headroom";
        found.into_iter().find(is_headroom).unwrap().remedy.unwrap()
    };
    assert_eq!(remedy(2000), "CONFIG SET maxmemory 2000");
    assert!(!remedy(1999).contains("CONFIG SET"));
}
