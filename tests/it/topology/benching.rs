//! `keyfall bench` on more than one server.

use std::process::Command;

use serde_json::Value;

use super::clusters::Clustered;
use super::sentinels::Sentineled;
use crate::outages::durable_redis;

/// Few jobs.
const TINY: &str = "--jobs 300 --burst 500 --pending 600 --window 500ms --json";

/// The object that the bench prints, and its error output.
async fn measured(url: &str, flags: &str) -> (Value, String) {
    let mut bench = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    bench.args(["bench", "--url", url]);
    bench.args(TINY.split_whitespace());
    bench.args(flags.split_whitespace());
    bench.env("KEYFALL_LOG", "error");
    bench.env("RUST_BACKTRACE", "0");
    let output = tokio::task::spawn_blocking(move || bench.output());
    let output = output.await.unwrap().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{complaint}");
    (serde_json::from_slice(&output.stdout).unwrap(), complaint)
}

/// Panics unless each of these has a figure above zero.
fn has(object: &Value, figures: &[&str]) {
    for figure in figures {
        let value = object.pointer(&format!("/{}", figure.replace('.', "/")));
        let number = value.and_then(Value::as_f64);
        assert!(
            number.is_some_and(|it| it > 0.0),
            "{figure} is {number:?} in {object}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bench_on_a_cluster_uses_shards_and_leaves_no_key() {
    let cluster = Clustered::start().await;
    let (object, complaint) = measured(&cluster.url(), "--shards 3 --instances 2").await;
    has(
        &object,
        &[
            "schedule_jobs_per_s",
            "schedule_bulk_jobs_per_s",
            "bare_jobs_per_s",
            "bytes_per_pending_job",
            "lateness_ms.p50",
            "commands_per_job",
            "redis_cpu_us_per_job",
            "burst_jobs_per_s",
            "idle_commands_per_s",
            "http_schedule_ratio",
            "http_batch_ratio",
            "http_pull_ratio",
        ],
    );
    for phase in ["schedule", "bulk", "bare", "firing", "burst"] {
        for part in [
            "redis_cpu_us",
            "commands",
            "scripts",
            "bytes_in",
            "bytes_out",
        ] {
            has(&object, &[&format!("cost.{phase}.{part}")]);
        }
    }
    // Each job is named in a claim once, wherever its ledger is.
    assert!(
        object["claims_per_job"].as_f64().unwrap() >= 1.0,
        "{object}"
    );
    assert_eq!(object["early"], 0, "{object}");
    assert_eq!(object["settings"]["servers"], 3);
    assert_eq!(object["settings"]["shards"], 3);
    // Phases that do not work on a cluster are reported, and the others are measured.
    let is_measured = !object["list_jobs_per_s"].is_null();
    let is_told = complaint.contains("targets is left out");
    assert_ne!(is_measured, is_told, "{complaint}");
    for node in &cluster.nodes[..3] {
        let left: Vec<String> = node.ask("KEYS *bench*").await;
        assert!(left.is_empty(), "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_sentinels_watch_is_measured() {
    let site = Sentineled::start().await;
    let (object, _) = measured(&site.url(), "--only bulk,lateness,idle").await;
    has(
        &object,
        &[
            "schedule_bulk_jobs_per_s",
            "lateness_ms.p50",
            "idle_commands_per_s",
            "cost.firing.commands",
        ],
    );
    assert_eq!(object["settings"]["servers"], 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_servers_are_measured_as_one() {
    let servers = [durable_redis().await, durable_redis().await];
    let url = format!("{} {}", servers[0].url(), servers[1].url());
    let flags = "--only schedule,bulk,bare,lateness --shards 4";
    let (object, _) = measured(&url, flags).await;
    has(
        &object,
        &[
            "schedule_jobs_per_s",
            "schedule_bulk_jobs_per_s",
            "bare_jobs_per_s",
            "lateness_ms.p50",
            "cost.firing.commands",
        ],
    );
    assert_eq!(object["settings"]["servers"], 2);
    assert_eq!(object["settings"]["shards"], 4);
}
