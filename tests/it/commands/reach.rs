//! How commands reach a Redis or a daemon, and what they say if they cannot.

use keyfall::embedded::Embedded;
use keyfall_testing::files::Folder;

use crate::http::{Daemon, own_redis};
use crate::runs::eventually;
use crate::shell::{Ran, keyfall};
use crate::site::Site;

#[tokio::test]
async fn an_unreachable_redis_has_its_own_exit_code() {
    let mut command = keyfall(&["count"]);
    command.env("KEYFALL_REDIS_URL", "redis://:hunter2@127.0.0.1:1");
    let ran = Ran::of(command).await;
    ran.fails(4, "127.0.0.1:1");
    assert!(!ran.err.contains("hunter2"), "{ran:?}");
    let ran = Ran::of(keyfall(&["count", "--redis-url", "127.0.0.1"])).await;
    ran.fails(2, "Redis URL is not valid");
    let mut command = keyfall(&["count", "--help"]);
    command.env("KEYFALL_REDIS_URL", "redis://:hunter2@127.0.0.1:1");
    let help = Ran::of(command).await;
    assert!(help.out.contains("KEYFALL_REDIS_URL"), "{help:?}");
    assert!(!help.out.contains("hunter2"), "{help:?}");
}

#[tokio::test]
async fn an_address_without_a_daemon_differs_from_an_unreachable_one() {
    let site = Site::new("cmd_nowhere").await;
    let count = async |args: &[&str]| {
        let mut command = keyfall(&[&["count"], args].concat());
        command.env("KEYFALL_REDIS_URL", &site.url);
        Ran::of(command).await
    };
    let ran = count(&["--api", "http://127.0.0.1:1"]).await;
    ran.fails(4, "the daemon at http://127.0.0.1:1/ cannot be reached");

    // Another web server.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(async || "Welcome to nginx!");
    tokio::spawn(async move { axum::serve(listener, router).await });
    count(&["--api", &url])
        .await
        .fails(1, "there is no Keyfall at");

    for (url, hint) in [
        ("127.0.0.1:9276", "is not the URL of a daemon"),
        ("redis://127.0.0.1", "is not the URL of a daemon"),
        ("http://user:secret@127.0.0.1", "without a token"),
    ] {
        let ran = count(&["--api", url]).await;
        ran.fails(2, hint);
        assert!(!ran.err.contains("secret"), "{ran:?}");
    }
    let ran = count(&["--api", &url, "--redis-url", "redis://127.0.0.1"]).await;
    ran.fails(2, "both name a place");
    let mut command = keyfall(&["count"]);
    command.env("KEYFALL_API", &url);
    command.env("KEYFALL_REDIS_URL", &site.url);
    Ran::of(command).await.fails(2, "both name a place");
    // A flag beats the environment.
    let mut command = keyfall(&["count", "--redis-url", &site.url]);
    command.env("KEYFALL_API", &url);
    assert_eq!(Ran::of(command).await.code, 0);
    site.assert_balanced().await;
}

#[tokio::test]
async fn commands_reach_a_daemon_with_token_and_ca() {
    // A separate server: this test audits all kinds, and other tests damage their data.
    let server = Embedded::start().await.unwrap();
    let site = Site::at(&server.url(), "cmd_token").await;
    let folder = Folder::new("cmd-token");
    let tokens = folder.path("tokens");
    let make = |scope, prefix| {
        let args = [
            "token", "make", "--file", &tokens, "--scope", scope, "--prefix", prefix,
        ];
        let made = keyfall(&args);
        async move { Ran::of(made).await.out.trim_end().to_owned() }
    };
    let app = format!("{}:", site.app);
    let (reader, all) = (make("read", &app).await, make("read,operate", "").await);
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca_key = rcgen::KeyPair::generate().unwrap();
    let ca = rcgen::CertifiedIssuer::self_signed(params, ca_key).unwrap();
    let key = rcgen::KeyPair::generate().unwrap();
    let named = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    folder.write("ca.pem", &ca.pem());
    folder.write("tls.pem", &named.signed_by(&key, &ca).unwrap().pem());
    folder.write("tls.key", &key.serialize_pem());
    let flags = [
        ("--tokens-file", tokens.as_str()),
        ("--http-tls-cert-file", &folder.path("tls.pem")),
        ("--http-tls-key-file", &folder.path("tls.key")),
    ];
    let flags: Vec<&str> = flags
        .into_iter()
        .flat_map(|(flag, path)| [flag, path])
        .collect();
    let daemon = site.daemon(&flags);
    let ca_file = folder.path("ca.pem");
    let run = async |words: &str, token: &str| {
        let mut args: Vec<&str> = words.split_whitespace().collect();
        args.extend(["--api", &daemon.url, "--ca-file", &ca_file]);
        let mut command = keyfall(&args);
        command.env("KEYFALL_TOKEN", token);
        Ran::of(command).await
    };
    assert!(daemon.url.starts_with("https://"), "{}", daemon.url);
    let ran = run(&format!("count {app}"), &reader).await;
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
    run("count", &reader).await.fails(1, "for all jobs");
    run(&format!("cancel --prefix {app} --yes"), &reader)
        .await
        .fails(1, "the scope `operate`");
    run("count", "").await.fails(1, "a token is needed");
    run("count", "kf_wrong").await.fails(1, "not known here");
    assert_eq!(run("audit", &all).await.code, 0);

    folder.write("token", &format!("{reader}\n"));
    let of_file = format!("count {app} --token-file {}", folder.path("token"));
    assert_eq!(
        run(&of_file, "kf_wrong").await.code,
        0,
        "a flag beats the environment"
    );
    let mut untrusting = keyfall(&["count", "--api", &daemon.url]);
    untrusting.env("KEYFALL_TOKEN", &reader);
    Ran::of(untrusting).await.fails(1, "`--ca-file`");
    folder.write("ca.pem", "no certificate");
    run("count", &reader).await.fails(2, "holds no certificate");
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_probe_says_whether_a_daemon_is_ready() {
    let probe = async |url: &str| Ran::of(keyfall(&["probe", "--api", url])).await;
    let (mut redis, site) = own_redis("cmd_probe").await;
    let daemon = Daemon::start(&site);
    eventually("it is ready", async || {
        let ran = probe(&daemon.url).await;
        (ran.code == 0 && ran.out.is_empty()).then_some(())
    })
    .await;
    let mut command = keyfall(&["probe"]);
    command.env("KEYFALL_API", &daemon.url);
    // A system without the certificates of any CA.
    command
        .env("SSL_CERT_FILE", "/none")
        .env("SSL_CERT_DIR", "/none");
    let ran = Ran::of(command).await;
    assert_eq!(ran.code, 0, "{ran:?}");

    redis.kill_server().await.unwrap();
    let ran = eventually("it is not ready", async || {
        let ran = probe(&daemon.url).await;
        (ran.code != 0).then_some(ran)
    })
    .await;
    ran.fails(4, "Redis");

    probe("http://127.0.0.1:1")
        .await
        .fails(4, "cannot be reached");
    probe("redis://127.0.0.1")
        .await
        .fails(2, "--api is not the URL of a daemon");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let other = format!("http://{}", listener.local_addr().unwrap());
    let router = axum::Router::new().fallback(async || "Welcome to nginx!");
    tokio::spawn(async move { axum::serve(listener, router).await });
    probe(&other).await.fails(1, "there is no Keyfall at");
}
