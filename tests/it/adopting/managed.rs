//! A Redis with unreadable settings, such as a rented one: workers prove its announcements.

use std::process::Command;
use std::time::{Duration, Instant};

use keyfall::doctor::Severity;
use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, Handler, MissingKey, Router, Worker};
use keyfall_testing::files::Folder;
use keyfall_testing::process::TalkingProcess;

use super::Adopting;
use crate::log::Log;
use crate::runs::{Recorder, eventually, recorder};
use crate::site::{Running, Site};

const FLAGS: &str = "notify-keyspace-events";

/// The flags for adoption without one of them, and the first events that then do not arrive.
const TOO_FEW: [(&str, &str); 6] = [
    (
        "",
        "`set` (K$), `expire` (Kg), `expired` (Kx), `__keyevent…:expired` (Ex)",
    ),
    ("Exg$", "`set` (K$), `expire` (Kg), `expired` (Kx)"),
    ("Kxg$", "`__keyevent…:expired` (Ex)"),
    ("EKg$", "`expired` (Kx), `__keyevent…:expired` (Ex)"),
    ("EKx$", "`expire` (Kg)"),
    ("EKxg", "`set` (K$)"),
];

/// A Redis that refuses `CONFIG` to all users.
async fn rented(flags: &str) -> Embedded {
    let renamed = [
        "--rename-command",
        "CONFIG",
        "",
        "--notify-keyspace-events",
        flags,
    ];
    Embedded::options().args(renamed).start().await.unwrap()
}

/// A Redis that refuses `CONFIG` to the user `worker`, which has the other rights of `acl.conf`.
/// The second site is of this user, and the first of a user that may set flags.
async fn guarded(app: &str, flags: &str) -> (Embedded, Site, Site) {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), app).await;
    set_flags(&admin, flags).await;
    let rules = include_str!("../../../acl.conf");
    let adopter = rules
        .lines()
        .find_map(|it| it.strip_prefix("user keyfall-adopter "));
    let rule = adopter
        .unwrap()
        .replace("app1:trans:notice", &format!("{app}:it:job"));
    let rule = rule.replace("app1", app);
    let words = ["ACL", "SETUSER", "worker"].into_iter();
    let words: Vec<&str> = words.chain(rule.split_whitespace()).collect();
    let () = admin.command(&words).await;
    let url = format!("{}?user=worker&pass=change-me-three", server.url());
    let mut site = Site::found_by(&url, &server.url(), app).await;
    site.url = url;
    (server, admin, site)
}

async fn set_flags(admin: &Site, flags: &str) {
    let () = admin.command(&["CONFIG", "SET", FLAGS, flags]).await;
}

fn adopting(site: &Site, log: &Recorder, missing: MissingKey) -> Worker {
    let route = log.done().into_route().adopt(missing);
    site.worker(Router::new().route(&site.pattern(), route))
}

async fn unannounced(worker: &Worker) -> impl AsyncFn(bool) -> String + use<> {
    let readiness = worker.readiness();
    async move |is_ready: bool| {
        eventually("keys are known not to be announced", async || {
            let said = readiness.unannounced()?;
            (readiness.is_ready() == is_ready).then_some(said)
        })
        .await
    }
}

#[tokio::test]
async fn an_adopting_route_does_not_start_without_key_events() {
    for (flags, unheard) in TOO_FEW {
        let server = rented(flags).await;
        let site = Site::at(&server.url(), "managed-few").await;
        let (log, _) = recorder();
        let worker = Running::start(adopting(&site, &log, MissingKey::Run));
        let error = worker.ended().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{flags}: {error}");
        let text = error.to_string();
        for said in [
            unheard,
            "ExKg$",
            "a DEL cancels nothing",
            "allow_unannounced",
        ] {
            assert!(text.contains(said), "{flags}: {said} in {text}");
        }
        assert!(
            text.contains(&format!("did not arrive: {unheard})")),
            "{flags}: {text}"
        );
    }
}

#[tokio::test]
async fn a_worker_proves_unreadable_flags_and_adopts_no_probe() {
    let server = rented("AKE").await;
    let log = Log::read();
    let site = Site::at(&server.url(), "managed-all").await;
    let mut it = Adopting::at(site, |log| log.done().into_route()).await;
    it.does("k", "SET v PX 1500").await;
    assert_eq!(it.runs.next().await.key().id(), "k");
    assert_eq!(log.with("a test key checks now and then").len(), 1);
    assert_eq!(log.warnings(), [""; 0]);
    let stats = it.site.all_ended().await;
    assert_eq!((stats.done, stats.dead), (1, 0), "{stats:?}");
    let left: Vec<String> = it.site.command(&["KEYS", "*probe*"]).await;
    assert_eq!(left, [""; 0]);
    it.ends().await;
}

/// A route that names a whole key subscribes to the events of that key alone.
#[tokio::test]
async fn a_route_of_one_key_is_proved_by_another() {
    let server = rented("AKE").await;
    let site = Site::at(&server.url(), "managed-one").await;
    let (log, mut runs) = recorder();
    let route = log.done().into_route().adopt(MissingKey::Cancel);
    let worker = site.serve(Router::new().route(&site.key("one"), route));
    worker.ready().await;
    let () = site
        .command(&["SET", &site.key("one"), "v", "PX", "1500"])
        .await;
    assert_eq!(runs.next().await.key().id(), "one");
    site.all_ended().await;
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_worker_that_allows_missing_flags_starts_and_reports_the_loss() {
    let server = rented("Ex").await;
    let log = Log::read();
    let site = Site::at(&server.url(), "managed-accepted").await;
    let (runs, _) = recorder();
    let worker = adopting(&site, &runs, MissingKey::Run).allow_unannounced(true);
    let said = unannounced(&worker).await;
    let worker = Running::start(worker);
    let said = said(true).await;
    assert!(said.contains("a DEL cancels nothing"), "{said}");
    assert_eq!(log.warnings().len(), 1, "{:?}", log.warnings());
    // A search finds the key, if it lives long enough.
    let () = site
        .command(&["SET", &site.key("k"), "v", "EX", "3600"])
        .await;
    site.reaches(&site.key("k"), keyfall::JobState::Pending)
        .await;
    site.client.cancel(site.key("k")).await.unwrap();
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn flags_removed_later_are_reported_until_they_are_back() {
    let (_server, admin, site) = guarded("managed-later", "AKE").await;
    let log = Log::read();
    let (runs, mut heard) = recorder();
    let worker = adopting(&site, &runs, MissingKey::Cancel);
    let said = unannounced(&worker).await;
    let worker = Running::start(worker);
    worker.ready().await;
    let diagnosis = site.client.diagnose().only(["notify-flags"]).await.unwrap();
    let proved = &diagnosis.findings[0];
    assert_eq!(proved.severity, Severity::Ok, "{proved}");
    assert!(proved.found.contains("proved"), "{proved}");

    // Redis does not announce this change, and no connection breaks.
    set_flags(&admin, "ExKg").await;
    let why = said(false).await;
    assert!(why.contains("did not arrive: `set` (K$))"), "{why}");
    let errors = log.warnings();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert!(errors[0].contains("a DEL cancels nothing"), "{errors:?}");
    let diagnosis = site.client.diagnose().only(["notify-flags"]).await.unwrap();
    let missed = &diagnosis.findings[0];
    assert_eq!(missed.severity, Severity::Error, "{missed}");
    assert!(missed.found.contains("a DEL cancels nothing"), "{missed}");
    // Changes made meanwhile are found when the flags are back.
    let _: redis::Value = admin
        .command(&["SET", &site.key("k"), "v", "EX", "3600"])
        .await;
    set_flags(&admin, "AKE").await;
    worker.ready().await;
    site.reaches(&site.key("k"), keyfall::JobState::Pending)
        .await;
    let _: u32 = admin.command(&["PEXPIRE", &site.key("k"), "300"]).await;
    assert_eq!(heard.next().await.key().id(), "k");
    assert_eq!(log.with("Redis announces changes of keys now").len(), 1);
    assert_eq!(log.warnings().len(), 1);
    site.all_ended().await;
    worker.stop().await;
}

/// The proof comes long before the regular one.
#[tokio::test]
async fn key_events_are_proved_on_each_new_connection() {
    // The shortest time between two regular proofs.
    const APART: Duration = Duration::from_secs(10);
    let (_server, admin, site) = guarded("managed-again", "AKE").await;
    let (runs, _) = recorder();
    let worker = adopting(&site, &runs, MissingKey::Cancel);
    let said = unannounced(&worker).await;
    let worker = Running::start(worker);
    // On a busy machine a round may take as long as that.
    for round in 1.. {
        worker.ready().await;
        let proved = Instant::now();
        set_flags(&admin, "ExKg").await;
        let _: u64 = admin.command(&["CLIENT", "KILL", "TYPE", "pubsub"]).await;
        said(false).await;
        if proved.elapsed() < APART {
            break;
        }
        assert!(round < 5, "it is proved now and then only");
        set_flags(&admin, "AKE").await;
    }
    set_flags(&admin, "AKE").await;
    worker.ready().await;
    worker.stop().await;
}

#[tokio::test]
async fn each_of_several_servers_must_announce_its_keys() {
    for flags in [["AKE", "Ex"], ["Ex", "AKE"]] {
        let servers = [rented(flags[0]).await, rented(flags[1]).await];
        let both = format!("{} {}", servers[0].url(), servers[1].url());
        let client = Client::connect(&both).await.unwrap();
        let (log, _) = recorder();
        let route = log.done().into_route().adopt(MissingKey::Run);
        let router = Router::new().route("managed-pair:it:job:{id}", route);
        let worker = Running::start(Worker::new(client, router));
        let error = worker.ended().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
        let text = error.to_string();
        assert!(text.contains("a DEL cancels nothing"), "{text}");
    }
}

/// A daemon on a Redis that announces no changes, and on a Redis that stops announcing them.
#[tokio::test]
async fn a_daemon_reports_missing_events_in_readyz_and_metrics() {
    let (_server, admin, site) = guarded("managed-daemon", "").await;
    // Fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::new();
    let folder = Folder::new("managed-daemon");
    let command = |worker: &str| {
        let pattern = site.pattern();
        let route =
            format!("[[route]]\npattern = \"{pattern}\"\nadoption = \"run\"\ntarget = \"pull\"\n");
        folder.write("keyfall.toml", &format!("{worker}\n{route}"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command.args(["serve", "--http-listen", "127.0.0.1:0"]);
        command.env("KEYFALL_REDIS_URL", &site.url);
        command.args(["--config", &folder.path("keyfall.toml")]);
        command
    };
    let refused = tokio::process::Command::from(command(""))
        .output()
        .await
        .unwrap();
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        !refused.status.success() && told.contains("worker.allow_unannounced"),
        "{told}"
    );

    let url = async |process: &TalkingProcess| {
        eventually("it listens", async || {
            let line = process.lines.try_recv().ok()?;
            Some(line.strip_prefix("listening on ").unwrap().to_owned())
        })
        .await
    };
    let readyz = async |url: &str, status: u16| {
        eventually(&format!("/readyz answers {status}"), async || {
            let answer = http.get(format!("{url}/readyz")).send().await.unwrap();
            (answer.status() == status).then_some(answer.text().await.unwrap())
        })
        .await
    };
    let gauge = async |url: &str| {
        let all = http
            .get(format!("{url}/metrics"))
            .send()
            .await
            .unwrap()
            .text()
            .await
            .unwrap();
        let mut lines = all
            .lines()
            .filter(|it| it.starts_with("keyfall_unannounced{"));
        lines.next().unwrap().rsplit_once(' ').unwrap().1.to_owned()
    };
    // The setting accepts the loss: the daemon serves, and reports the loss.
    let accepted = TalkingProcess::spawn(command("[worker]\nallow_unannounced = true"));
    let at = url(&accepted).await;
    let body = readyz(&at, 200).await;
    assert!(
        body.contains("\"unannounced\"") && body.contains("a DEL cancels nothing"),
        "{body}"
    );
    assert_eq!(gauge(&at).await, "1");
    drop(accepted);
    // The setting does not accept the loss, which comes later.
    set_flags(&admin, "AKE").await;
    let served = TalkingProcess::spawn(command(""));
    let at = url(&served).await;
    readyz(&at, 204).await;
    assert_eq!(gauge(&at).await, "0");
    set_flags(&admin, "Ex").await;
    let body = readyz(&at, 503).await;
    assert!(
        body.contains("\"unannounced\"") && body.contains("a DEL cancels nothing"),
        "{body}"
    );
    assert_eq!(gauge(&at).await, "1");
}
