//! `keyfall bench` measures all its figures, and leaves nothing behind.

use std::process::{Child, Command, Output, Stdio};

use keyfall::embedded::Embedded;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::runs::eventually;
use crate::site::{Site, command};

/// A bench with few jobs, and all phases.
const TINY: &str = "--jobs 100 --burst 200 --pending 300 --window 500ms";

/// The same bench with these further flags, separated by blanks.
fn bench(flags: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
    command.arg("bench").args(flags.split_whitespace());
    command.env("KEYFALL_LOG", "error");
    command.env("RUST_BACKTRACE", "0");
    command
}

/// The object that the bench prints.
fn measured(output: &Output) -> Value {
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The number at this path, whose parts are separated by dots.
fn number(object: &Value, path: &str) -> f64 {
    let value = object.pointer(&format!("/{}", path.replace('.', "/")));
    let number = value.and_then(Value::as_f64);
    number.unwrap_or_else(|| panic!("no number {path} in {object}"))
}

#[test]
fn all_phases_yield_a_figure_in_one_object() {
    let temp = std::env::temp_dir().join(format!("bench-it-{:016x}", rand::random::<u64>()));
    std::fs::create_dir(&temp).unwrap();
    let output = bench(&format!("{TINY} --json --instances 2 --runs 2"))
        .env("TMPDIR", &temp)
        .output();
    let object = measured(&output.unwrap());
    for figure in [
        "schedule_jobs_per_s",
        "schedule_to_bare",
        "schedule_bulk_jobs_per_s",
        "schedule_bulk_to_bare",
        "bytes_per_pending_job",
        "burst_jobs_per_s",
        "burst_to_bare",
        "burst_redis_cpu_us_per_job",
        "redis_cpu_us_per_job",
        "idle_commands_per_s",
        "heartbeats.plain.per_s",
        "heartbeats.plain.redis_cpu_us",
        "heartbeats.per_s",
        "heartbeats.redis_cpu_us",
        "heartbeats.commands",
        "heartbeats.bytes",
        "heartbeats.reschedule.per_s",
        "heartbeats.paced.redis_cpu_us",
        "heartbeats.paced.commands",
        "heartbeats.silent_ms.p50",
        "http_schedule_jobs_per_s",
        "http_batch_jobs_per_s",
        "http_pull_jobs_per_s",
        "in_process_schedule_jobs_per_s",
        "in_process_batch_jobs_per_s",
        "in_process_pull_jobs_per_s",
        "function_jobs_per_s",
        "callback_jobs_per_s",
        "list_jobs_per_s",
        "stream_jobs_per_s",
        "pop_jobs_per_s",
        "pop_in_process_jobs_per_s",
    ] {
        assert!(number(&object, figure) > 0.0, "{figure} in {object}");
    }
    for what in ["schedule", "batch", "pull"] {
        let ratio = number(&object, &format!("http_{what}_ratio"));
        assert!(ratio > 0.0, "{what}: {object}");
    }
    for what in ["callback", "list", "stream", "pop"] {
        let ratio = number(&object, &format!("{what}_ratio"));
        assert!(ratio > 0.0, "{what}: {object}");
    }
    // A job is scheduled, claimed and settled, and each of the three reads and writes.
    assert!(number(&object, "commands_per_job") > 1.0, "{object}");
    assert!(number(&object, "claims_per_job") >= 1.0, "{object}");
    assert_eq!(number(&object, "early"), 0.0);
    assert_eq!(number(&object, "heartbeats.false_alarms"), 0.0);
    let lateness = ["p50", "p90", "p99", "p999", "max"];
    let lateness = lateness.map(|share| number(&object, &format!("lateness_ms.{share}")));
    assert!(lateness.is_sorted() && lateness[0] > 0.0, "{lateness:?}");
    for (setting, value) in [("jobs", 100.0), ("pending", 300.0), ("window_s", 0.5)] {
        assert_eq!(number(&object, &format!("settings.{setting}")), value);
    }
    // The command fails if the server is not empty.
    std::fs::remove_dir(&temp).unwrap();
}

#[test]
fn the_table_has_the_chosen_phases_and_the_plain_figures() {
    let flags = "--jobs 200 --window 300ms --only lateness --plain";
    let output = bench(flags).output().unwrap();
    assert!(output.status.success());
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("lateness p99.9"), "{table}");
    assert_eq!(table.matches("bars grow").count(), 2, "{table}");
    // The plain form has a column, and this line has no other value.
    let lost = table.lines().find(|line| line.starts_with("  lost "));
    assert_eq!(
        lost.unwrap().split_whitespace().nth(2),
        Some("jobs"),
        "{table}"
    );
    assert!(!table.contains("burst  "), "{table}");
}

/// Runs a workload of `make cost`, and returns its parts.
fn parts(flags: &str) -> String {
    let output = bench(&format!("--jobs 300 {flags}")).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{flags}: {complaint}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_workload_prints_its_parts_with_their_jobs() {
    for (flags, expected) in [
        ("--workload schedule", "warm-up 512\nschedule 300\n"),
        ("--workload bulk", "warm-up 512\nbulk 300\n"),
        ("--workload bare", "warm-up 512\nscript 300\ncommands 300\n"),
        (
            "--workload burst --instances 2",
            "warm-up 512\nschedule 300\nwait 300\nrun 300\n",
        ),
        (
            "--workload paced --window 300ms",
            "warm-up 512\nschedule 300\nwait 300\nrun 300\n",
        ),
        (
            "--workload idle --window 1s",
            "warm-up 300\nalone 1\nstart 1\nidle 1\n",
        ),
    ] {
        assert_eq!(parts(flags), expected, "{flags}");
    }
}

#[test]
fn the_tools_of_make_cost_pass_their_tests() {
    let tests = concat!(env!("CARGO_MANIFEST_DIR"), "/../../benches/cost/tests.py");
    let output = Command::new("python3").arg(tests).output().unwrap();
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaint}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bench_on_a_given_server_touches_only_its_own_keys() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "theirs").await;
    site.client
        .schedule(site.key("1"), &1)
        .after(crate::site::HOUR)
        .await
        .unwrap();
    let keys = async || {
        let mut keys: Vec<String> = command(&mut site.redis(), &["KEYS", "*"]).await;
        keys.sort();
        keys
    };
    let before = keys().await;
    let mut bench = bench(&format!("{TINY} --json --url {}", server.url()));
    let output = tokio::task::spawn_blocking(move || bench.output())
        .await
        .unwrap();
    let object = measured(&output.unwrap());
    assert_eq!(object["settings"]["embedded"], Value::Bool(false));
    assert!(number(&object, "burst_jobs_per_s") > 0.0);
    assert_eq!(keys().await, before);
    site.assert_balanced().await;
}

/// Starts a long bench, and interrupts it when it has jobs on this server.
async fn interrupted(server: &Embedded, site: &Site) -> Child {
    let slow = "--jobs 300 --pending 700 --window 1m --only lateness";
    let child = bench(&format!("{slow} --url {}", server.url()))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("it has scheduled its jobs", async || {
        let count: usize = command(&mut site.redis(), &["DBSIZE"]).await;
        (count > 900).then_some(())
    })
    .await;
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    child
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ctrl_c_ends_the_bench_and_removes_its_jobs() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "theirs").await;
    let child = interrupted(&server, &site).await;
    let output = tokio::task::spawn_blocking(|| child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.ends_with("error: interrupted\n"), "{complaint}");
    let left: Vec<String> = command(&mut site.redis(), &["KEYS", "bench*"]).await;
    assert!(left.is_empty(), "{left:?}");
    site.assert_balanced().await;
}

#[test]
fn flags_without_a_measurement_are_refused_with_the_remedy() {
    for (flags, remedy) in [
        ("--jobs 0", "write 1 or more"),
        ("--burst 0", "write 1 or more"),
        ("--pending 0", "write 1 or more"),
        ("--concurrency 0", "write 1 or more"),
        ("--window 0", "such as 20s"),
        ("--window 20", "such as 20s"),
        ("--window 2h", "from 100ms to 50m"),
        ("--instances 0", "1..=256"),
        ("--only speed", "lateness"),
        ("--url nonsense", "redis://"),
        ("--plain --url redis://127.0.0.1", "cannot be used with"),
    ] {
        // Clap would first complain of the repeated flag.
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        let output = command
            .arg("bench")
            .args(flags.split(' '))
            .output()
            .unwrap();
        assert!(!output.status.success(), "{flags}");
        let complaint = String::from_utf8(output.stderr).unwrap();
        assert!(complaint.contains(remedy), "{flags}: {complaint}");
        assert!(output.stdout.is_empty(), "{flags}");
    }
}
