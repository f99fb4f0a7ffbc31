//! The library: installed, compared, replaced, removed, and refused where it cannot work.

use keyfall::doctor::Severity;
use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, LibraryState};

use super::{server, site};
use crate::shell::{Ran, keyfall};
use crate::site::Site;
use crate::version::ServerVersion;

/// Loads the library with this text replaced by the other.
async fn load_changed(site: &Site, from: &str, to: &str) {
    let source = site.client.functions().source().replace(from, to);
    let _: String = site
        .command(&["FUNCTION", "LOAD", "REPLACE", &source])
        .await;
}

/// The finding of the doctor on the functions.
async fn diagnosed(client: &Client) -> (Severity, String, Option<String>) {
    let diagnosis = client.diagnose().only(["functions"]).await.unwrap();
    let [finding] = &diagnosis.findings[..] else {
        panic!("{diagnosis:?}");
    };
    let told = finding.clone();
    let remedy = told.remedy.map(|remedy| remedy.to_string());
    (told.severity, told.found.to_string(), remedy)
}

#[tokio::test]
async fn a_library_is_replaced_unless_it_is_newer_or_foreign() {
    let Some((_server, site)) = server().await else {
        return;
    };
    let functions = || site.client.functions();
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
    assert_eq!(functions().install().await.unwrap(), LibraryState::Absent);
    assert_eq!(functions().install().await.unwrap(), LibraryState::Fits);
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
    let version = functions().version();
    let differs = |version: &str| LibraryState::Differs {
        version: version.to_owned(),
    };
    for (to, state) in [
        ("keyfall 0.0.9 schema", differs("0.0.9")),
        (&*format!("keyfall {version} schema"), differs(version)),
    ] {
        let from = format!("keyfall {version} schema");
        load_changed(&site, "pcall(cjson", "pcall( cjson").await;
        load_changed(&site, &from, to).await;
        if to == from {
            load_changed(&site, "pcall(cjson", "pcall( cjson").await;
        }
        let (severity, found, remedy) = diagnosed(&site.client).await;
        assert_eq!(severity, Severity::Warning, "{found}");
        assert!(
            remedy
                .unwrap()
                .ends_with("functions install --library keyfall")
        );
        assert_eq!(functions().install().await.unwrap(), state);
        assert_eq!(functions().state().await.unwrap(), LibraryState::Fits);
    }
    let from = format!("-- keyfall {version} schema 1 namespace keyfall\n");
    for (to, state) in [
        (
            "-- keyfall 99.1.0 schema 1 namespace keyfall\n",
            differs("99.1.0"),
        ),
        (
            "-- keyfall 0.1.0 schema 1 namespace other\n",
            LibraryState::Elsewhere {
                namespace: "other".to_owned(),
            },
        ),
        ("-- somebody else's\n", LibraryState::Foreign),
    ] {
        load_changed(&site, &from, to).await;
        assert_eq!(functions().state().await.unwrap(), state);
        let (severity, _, remedy) = diagnosed(&site.client).await;
        assert_eq!(severity, Severity::Warning);
        let remedy = remedy.unwrap();
        assert!(remedy.ends_with("keyfall --replace"), "{remedy}");
        let error = functions().install().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Incompatible);
        let told = error.to_string();
        assert!(
            told.ends_with("`--replace` replaces or removes it anyway"),
            "{told}"
        );
        if state != differs("99.1.0") {
            let error = functions().remove().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Incompatible);
        }
        assert_eq!(functions().state().await.unwrap(), state, "left alone");
        // The remedy, as it is printed.
        let ran = site.run(remedy.strip_prefix("keyfall ").unwrap()).await;
        assert!(ran.out.contains("has replaced"), "{ran:?}");
        assert_eq!(functions().state().await.unwrap(), LibraryState::Fits);
        load_changed(&site, &from, to).await;
        let replacing = functions().replacing();
        assert_eq!(replacing.install().await.unwrap(), state);
        assert_eq!(functions().state().await.unwrap(), LibraryState::Fits);
    }
    let _: String = site.command(&["FUNCTION", "FLUSH"]).await;
    let (severity, found, _) = diagnosed(&site.client).await;
    assert_eq!(severity, Severity::Warning, "{found}");
    functions().install().await.unwrap();
    assert_eq!(functions().remove().await.unwrap(), LibraryState::Fits);
    assert_eq!(functions().remove().await.unwrap(), LibraryState::Absent);
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
    let noted: bool = site
        .command(&["HEXISTS", "keyfall:meta", "functions"])
        .await;
    assert!(!noted);
}

#[tokio::test]
async fn two_namespaces_have_two_libraries_or_a_refusal() {
    let Some((server, site)) = site().await else {
        return;
    };
    let other = Client::builder(&server.url()).namespace("other");
    let other = other.connect().await.unwrap();
    let error = other.functions().install().await.unwrap_err();
    assert!(error.to_string().contains("--library NAME"), "{error}");
    let named = other.functions().named("second").unwrap();
    assert_eq!(named.install().await.unwrap(), LibraryState::Absent);
    assert_eq!(named.state().await.unwrap(), LibraryState::Fits);
    assert_eq!(
        site.client.functions().state().await.unwrap(),
        LibraryState::Fits
    );
    let key = site.key("1");
    let words = ["FCALL", "second_schedule", "1", &key, "x", "EX", "3600"];
    site.tries(&words).await.unwrap();
    assert!(other.get(&key).await.unwrap().is_some());
    assert!(site.client.get(&key).await.unwrap().is_none());
    assert!(other.stats(&site.kind()).await.unwrap().is_balanced());
    for name in ["", "a-b", "a:b"] {
        let error = other.functions().named(name).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidSetting);
    }
}

#[tokio::test]
async fn a_restart_keeps_the_library() {
    let Some((mut server, mut site)) = site().await else {
        return;
    };
    site.placed("1", &["x", "EX", "3600"]).await;
    server.restart().await.unwrap();
    site.reconnect().await;
    let word: String = site.fcall("cancel", "1", &[]).await;
    assert_eq!(word, "cancelled");
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_command_installs_checks_shows_and_removes() {
    let Some((_server, mut site)) = server().await else {
        return;
    };
    site.run("functions check").await.fails(3, "is not loaded");
    site.run("functions remove").await.fails(3, "no library");
    let told = site.run("functions install --json").await.value();
    assert_eq!(
        (&told["library"], &told["state"]),
        (&"keyfall".into(), &"absent".into())
    );
    let told = site.run("functions check --json").await.value();
    assert_eq!(told["state"], "fits");
    assert!(
        site.run("functions check")
            .await
            .out
            .contains("is of this version")
    );
    let shown = site.run("functions show").await.out;
    assert_eq!(shown, site.client.functions().source());
    let told = site.run("functions show --json").await.value();
    assert_eq!(told["source"], *shown);
    load_changed(&site, "-- keyfall 0.", "-- keyfall 99.").await;
    let told = site.run("functions check --json").await;
    assert_eq!(told.code, 1, "{told:?}");
    let says = told.out.contains("\"differs\"") && told.err.contains("use that version");
    assert!(says, "{told:?}");
    site.run("functions install").await.fails(1, "--replace");
    let ran = site.run("functions install --replace").await;
    assert!(ran.out.contains("has replaced"), "{ran:?}");
    site.run("functions install --library a-b")
        .await
        .fails(2, "must be 1 to 64");
    // By other means, as the help describes.
    let _: String = site.command(&["FUNCTION", "FLUSH"]).await;
    let _: String = site.command(&["FUNCTION", "LOAD", &shown]).await;
    let _: u64 = site
        .command(&[
            "HSET",
            "keyfall:meta",
            "schema",
            "1",
            "functions",
            "keyfall:wake:0 keyfall",
        ])
        .await;
    assert_eq!(
        site.run("functions check --json").await.value()["state"],
        "fits"
    );
    assert_eq!(
        site.run("functions remove --json").await.value()["state"],
        "fits"
    );
    site = site.through_a_daemon();
    site.run("functions check")
        .await
        .fails(2, "a daemon does not offer");
}

#[tokio::test]
async fn a_server_without_functions_is_refused_with_the_reason() {
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "fcall").await;
    if ServerVersion::of(&mut site.redis()).await >= ServerVersion::Redis(7, 0) {
        return;
    }
    let error = site.client.functions().install().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().contains("need Redis 7.0"), "{error}");
    site.run("functions install").await.fails(1, "Redis 7.0");
    assert_eq!(diagnosed(&site.client).await.0, Severity::Ok);
}

#[tokio::test]
async fn a_cluster_is_refused() {
    let options = Embedded::options().args(["--cluster-enabled", "yes"]);
    let Ok(server) = options.start().await else {
        return;
    };
    let functions = Client::builder(&server.url()).functions().unwrap();
    let error = functions.install().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
}

#[tokio::test]
async fn several_servers_are_refused_with_the_remedy() {
    let first = Embedded::start().await.unwrap();
    let second = Embedded::start().await.unwrap();
    let url = format!("{} {}", first.url(), second.url());
    let functions = Client::builder(&url).functions().unwrap();
    let error = functions.install().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let told = error.to_string();
    assert!(told.contains("schedule by HTTP (docs/daemon.md)"), "{told}");
    let install = keyfall(&["functions", "install", "--redis-url", &url]);
    Ran::of(install).await.fails(1, "schedule by HTTP");
}
