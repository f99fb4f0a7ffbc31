//! The doctor and the list of instances show adopting workers.

use keyfall::doctor::{Diagnosis, Finding, Severity};
use keyfall::embedded::Embedded;
use keyfall::{Handler, MissingKey, Router};

use super::Adopting;
use crate::runs::{eventually, recorder};
use crate::site::{Running, Site};

fn finding<'a>(diagnosis: &'a Diagnosis, id: &str) -> &'a Finding {
    let mut findings = diagnosis.findings.iter();
    findings.find(|it| it.check.id == id).expect(id)
}

async fn set(site: &Site, name: &str, value: &str) {
    let () = site.command(&["CONFIG", "SET", name, value]).await;
}

/// A server, a user with all rights, and a user without `CONFIG`, whose workers cannot repair the
/// faults that the doctor has to find.
async fn two(app: &str) -> (Embedded, Site, Site) {
    let server = Embedded::start().await.unwrap();
    let admin = Site::at(&server.url(), app).await;
    let rule = ["on", ">word", "~*", "&*", "+@all", "-config"];
    let words: Vec<&str> = ["ACL", "SETUSER", "meek"].into_iter().chain(rule).collect();
    let () = admin.command(&words).await;
    let meek = Site::at(&format!("{}?user=meek&pass=word", server.url()), app).await;
    (server, admin, meek)
}

async fn adopting(site: &Site, missing: MissingKey) -> Running {
    let (log, _) = recorder();
    let route = log.done().adopt(missing);
    let worker = site.worker(Router::new().route(&site.pattern(), route));
    let worker = Running::start(worker.allow_unannounced(true));
    worker.ready().await;
    worker
}

#[tokio::test]
async fn change_flags_are_expected_and_mended_while_a_worker_adopts() {
    let (_server, admin, meek) = two("adopt-doctor").await;
    set(&admin, "notify-keyspace-events", "Ex").await;
    let look = async || admin.client.diagnose().await.unwrap();
    let before = look().await;
    assert_eq!(finding(&before, "notify-flags").severity, Severity::Ok);
    let worker = adopting(&meek, MissingKey::Run).await;
    eventually("it is known", async || {
        (!admin.client.instances().await.unwrap().is_empty()).then_some(())
    })
    .await;
    let diagnosis = look().await;
    let flags = finding(&diagnosis, "notify-flags");
    assert_eq!(flags.severity, Severity::Error, "{flags}");
    assert!(flags.found.contains("a DEL cancels nothing"), "{flags}");
    let remedy = flags.remedy.as_deref().unwrap();
    assert!(remedy.ends_with("Kg$"), "{remedy}");
    // Two of the three flags do not suffice.
    set(&admin, "notify-keyspace-events", "ExKg").await;
    let severity = finding(&look().await, "notify-flags").severity;
    assert_eq!(severity, Severity::Error);
    let fixed = admin.client.diagnose().fix().await.unwrap();
    let flags = finding(&fixed, "notify-flags");
    assert_eq!(flags.severity, Severity::Ok, "{flags}");
    let done = flags.fixed.as_deref().unwrap();
    assert!(done.contains("merged ExKg$ into"), "{done}");
    worker.stop().await;
}

#[tokio::test]
async fn an_eviction_policy_that_evicts_adopted_keys_causes_a_warning() {
    let (_server, admin, meek) = two("adopt-evict").await;
    set(&admin, "maxmemory", "1gb").await;
    set(&admin, "maxmemory-policy", "volatile-ttl").await;
    let look = async || admin.client.diagnose().await.unwrap();
    let severity = finding(&look().await, "adopted-keys").severity;
    assert_eq!(severity, Severity::Ok, "nobody adopts");
    let worker = adopting(&meek, MissingKey::Run).await;
    let keys = eventually("it is warned of", async || {
        let keys = finding(&look().await, "adopted-keys").clone();
        (keys.severity == Severity::Warning).then_some(keys)
    })
    .await;
    assert!(keys.found.contains(&admin.pattern()), "{keys}");
    set(&admin, "maxmemory-policy", "noeviction").await;
    let severity = finding(&look().await, "adopted-keys").severity;
    assert_eq!(severity, Severity::Ok);
    worker.stop().await;
}

#[tokio::test]
async fn workers_that_disagree_on_missing_keys_are_found() {
    let (_server, admin, meek) = two("adopt-alike").await;
    let runs = adopting(&meek, MissingKey::Run).await;
    let look = async || admin.client.diagnose().await.unwrap();
    eventually("one lives", async || {
        (admin.client.instances().await.unwrap().len() == 1).then_some(())
    })
    .await;
    let severity = finding(&look().await, "adopters-alike").severity;
    assert_eq!(severity, Severity::Ok);
    let cancels = adopting(&meek, MissingKey::Cancel).await;
    let alike = eventually("it is warned of", async || {
        let alike = finding(&look().await, "adopters-alike").clone();
        (alike.severity == Severity::Warning).then_some(alike)
    })
    .await;
    assert!(alike.found.contains(&admin.pattern()), "{alike}");
    let live = eventually("both live", async || {
        let live = admin.client.instances().await.unwrap();
        (live.len() == 2).then_some(live)
    })
    .await;
    assert!(live.iter().all(|one| one.adopts == [admin.pattern()]));
    let cancelling: Vec<usize> = live.iter().map(|one| one.cancels_missing.len()).collect();
    assert_eq!(cancelling, [0, 1]);
    let ran = admin.run("instances").await;
    assert!(
        ran.out.lines().next().unwrap().contains("adopts"),
        "{ran:?}"
    );
    runs.stop().await;
    cancels.stop().await;
}

/// The instance has a version without adoption.
#[tokio::test]
async fn an_instance_without_adoption_data_adopts_nothing() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "adopt-old").await;
    let it = Adopting::at(site, |log| log.done().into_route()).await;
    let (seconds, _): (u64, u64) = it.site.command(&["TIME"]).await;
    let beat = seconds * 1000 + 500;
    let text = r#"{"host":"a","pid":1,"version":"0","started":1,"routes":[["a:b:c:*",0]]}"#;
    let row = format!("{beat} 1h {text}");
    let _: u64 = it
        .site
        .command(&["HSET", "keyfall:instances", "old", &row])
        .await;
    let live = it.site.client.instances().await.unwrap();
    let old = live.iter().find(|one| one.id == "old");
    assert_eq!(old.map(|one| one.adopts.len()), Some(0), "{live:?}");
    let new = live.iter().find(|one| one.id != "old").unwrap();
    assert_eq!(new.adopts, [it.site.pattern()]);
    let _: u64 = it.site.command(&["HDEL", "keyfall:instances", "old"]).await;
    it.ends().await;
}
