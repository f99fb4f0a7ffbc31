//! The addresses that a URL of a job or a redirect may reach.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use keyfall::{Outcome, target};

use super::receiver::{Receiver, says};
use super::{failure, job, outcome, reason};

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[tokio::test]
async fn the_url_of_a_job_must_be_on_an_allowed_host() {
    let target = target::http("http://127.0.0.1:1/").job_urls([
        "*.hooks.example",
        "127.0.0.1",
        "http://127.0.0.1",
        "plain.example:8080",
        "http://plain.example",
    ]);
    for (url, fault) in [
        // A host without TLS needs `http://` in its entry.
        (
            "http://a.hooks.example/",
            "names a.hooks.example, which the route allows with TLS only: name it with https, or \
             let the route allow it with http:// before it",
        ),
        (
            "http://plain.example:8080/",
            "names plain.example:8080, which the route allows with TLS only",
        ),
        ("http://plain.example:443/", "not among the hosts"),
        ("https://plain.example/", "not among the hosts"),
        (
            "http://evil.example/secret",
            "names evil.example, which is not among",
        ),
        ("http://hooks.example/", "not among the hosts"),
        (
            "http://a.hooks.example:22/",
            "names a.hooks.example:22, which is not",
        ),
        (
            "http://a.hooks.example@evil.example/",
            "has a user or a password",
        ),
        (
            "http://user:geheim@a.hooks.example/",
            "has a user or a password",
        ),
        ("ftp://a.hooks.example/", "is not a URL: write https://"),
        ("geheim", "is not a URL: write https://"),
        // The host is allowed, but its address is a private one.
        (
            "http://127.0.0.1/",
            "127.0.0.1 is not a public internet address",
        ),
        (
            "http://0x7f.1/",
            "127.0.0.1 is not a public internet address",
        ),
        (
            "http://2130706433/",
            "127.0.0.1 is not a public internet address",
        ),
    ] {
        let told = reason(outcome(&target, job().header("url", url).build()).await);
        assert!(told.contains(fault), "{url}: {told}");
        assert!(
            !told.contains("geheim") && !told.contains("secret"),
            "{told}"
        );
    }
    let none = target::http_of_jobs(["hooks.example"]);
    let told = reason(outcome(&none, job().build()).await);
    assert_eq!(told, "it has no header `url`, and its route has no URL");
}

#[tokio::test]
async fn the_url_of_a_job_reaches_no_inside_address() {
    for inside in [
        "127.0.0.1",
        "10.0.0.1",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "0.0.0.0",
        "100.100.100.200",
        "168.63.129.16",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00:ec2::254",
        "ff02::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
    ] {
        let literal = match ip(inside) {
            IpAddr::V4(_) => inside.to_owned(),
            IpAddr::V6(_) => format!("[{inside}]"),
        };
        let target = target::http_of_jobs([format!("http://{literal}")]);
        let named = job().header("url", format!("http://{literal}/")).build();
        let told = reason(outcome(&target, named).await);
        assert!(
            told.contains("not a public internet address"),
            "{inside}: {told}"
        );
        let found = ip(inside);
        let target = target::http_of_jobs(["http://*.hooks.example"])
            .resolve_with(move |_| async move { Ok(vec![ip("1.1.1.1"), found]) });
        let named = job().header("url", "http://a.hooks.example/").build();
        let told = failure(outcome(&target, named).await);
        let expected = format!("a.hooks.example resolves to {found}, which is not a public");
        assert!(told.starts_with(&expected), "{told}");
    }
}

#[tokio::test]
async fn the_address_of_a_name_is_checked_at_each_call() {
    // Each answer closes its connection, so that the name is looked up again.
    let mut receiver = Receiver::start(|_| says("200 OK", "connection: close\r\n", "")).await;
    let asked: Arc<AtomicUsize> = Arc::default();
    let lookups = asked.clone();
    let port = receiver.address.port();
    let host = format!("http://a.hooks.example:{port}");
    let target = target::http_of_jobs([host.clone()])
        .networks(["127.0.0.1"])
        .resolve_with(move |name| {
            assert_eq!(name, "a.hooks.example");
            let number = lookups.fetch_add(1, Ordering::Relaxed);
            // The second address is private as well, and not allowed.
            let address = ["127.0.0.1", "127.0.0.2"][number % 2];
            async move { Ok(vec![ip(address)]) }
        });
    let url = format!("{host}/");
    for number in 0..4 {
        let outcome = outcome(&target, job().header("url", &url).build()).await;
        if number % 2 == 0 {
            assert_eq!(outcome, Outcome::Done);
        } else {
            assert!(failure(outcome).contains("resolves to 127.0.0.2"));
        }
    }
    assert_eq!(asked.load(Ordering::Relaxed), 4);
    assert_eq!(receiver.rest().len(), 2);
}

#[tokio::test]
async fn a_hanging_lookup_delays_no_other_host_and_is_reported() {
    let good = Receiver::always("200 OK", "").await;
    let port = good.address.port();
    let asked: Arc<AtomicUsize> = Arc::default();
    let lookups = asked.clone();
    let target = target::http_of_jobs([format!("http://*.example:{port}")])
        .networks(["127.0.0.1"])
        // The other host is called meanwhile, on a busy machine as well.
        .connect_timeout(Duration::from_secs(10))
        .resolve_with(move |name| {
            if name.starts_with("hangs") {
                lookups.fetch_add(1, Ordering::Relaxed);
            }
            async move {
                match name.starts_with("hangs") {
                    true => std::future::pending().await,
                    false => Ok(vec![ip("127.0.0.1")]),
                }
            }
        });
    let call = |host: &str| {
        let url = format!("http://{host}:{port}/");
        let (target, job) = (target.clone(), job().header("url", url).build());
        tokio::spawn(async move { outcome(&target, job).await })
    };
    // One host has sixteen calls at a time.
    let hanging: Vec<_> = (0..16).map(|_| call("hangs.example")).collect();
    while asked.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(call("fast.example").await.unwrap(), Outcome::Done);
    assert!(hanging.iter().all(|one| !one.is_finished()));
    for one in hanging {
        let told = failure(one.await.unwrap());
        let expected = "the address of hangs.example was not found within 8s";
        assert!(told.contains(expected), "{told}");
    }
    assert_eq!(asked.load(Ordering::Relaxed), 1, "one lookup for all");
}

/// The look-ups of a zone at a time are limited, and a job that waits for a look-up uses no
/// attempt.
#[tokio::test]
async fn a_job_that_waits_for_lookups_of_others_is_put_off() {
    const NAMES: usize = 32;
    let receiver = Receiver::always("200 OK", "").await;
    let port = receiver.address.port();
    let asked: Arc<AtomicUsize> = Arc::default();
    let (answer, answered) = tokio::sync::watch::channel(false);
    let lookups = asked.clone();
    let target = target::http_of_jobs([format!("http://*.example:{port}")])
        .networks(["127.0.0.1"])
        .connect_timeout(Duration::from_secs(30))
        .breaker_failures(1)
        .resolve_with(move |_| {
            lookups.fetch_add(1, Ordering::Relaxed);
            let mut answered = answered.clone();
            async move {
                let _ = answered.wait_for(|it| *it).await;
                Ok(vec![ip("127.0.0.1")])
            }
        });
    let call = |name: &str| {
        let url = format!("http://{name}.shared.example:{port}/");
        let call = job().header("url", url).timeout(Duration::from_secs(120));
        let (target, job) = (target.clone(), call.build());
        tokio::spawn(async move { outcome(&target, job).await })
    };
    let names: Vec<String> = (0..NAMES).map(|n| format!("{n}.tenant{}", n % 9)).collect();
    let hanging: Vec<_> = names.iter().map(|name| call(name)).collect();
    while asked.load(Ordering::Relaxed) < NAMES {
        tokio::task::yield_now().await;
    }
    let put_off = call("good").await.unwrap();
    let told = format!("{put_off:?}");
    assert!(
        matches!(put_off, Outcome::SnoozeBecause { .. })
            && told.contains("too many other look-ups"),
        "{told}"
    );
    assert_eq!(asked.load(Ordering::Relaxed), NAMES);
    answer.send_replace(true);
    for one in hanging {
        assert_eq!(one.await.unwrap(), Outcome::Done);
    }
    // Its host is not blamed either.
    assert_eq!(call("good").await.unwrap(), Outcome::Done);
}

#[tokio::test]
async fn the_url_of_the_route_may_be_inside() {
    let receiver = Receiver::always("200 OK", "").await;
    let port = receiver.address.port();
    let target = target::http(format!("http://inside.example:{port}/"))
        .resolve_with(async |_| Ok(vec![ip("127.0.0.1")]));
    assert_eq!(outcome(&target, job().build()).await, Outcome::Done);
    // For such a target, the `url` of a job is a header like any other.
    let named = job().header("url", "http://evil.example/").build();
    assert_eq!(outcome(&target, named).await, Outcome::Done);
}

/// A server that redirects all requests to this URL.
async fn pointing(to: String) -> Receiver {
    let head = format!("location: {to}\r\n");
    Receiver::start(move |_| says("307 Temporary Redirect", &head, "")).await
}

#[tokio::test]
async fn redirects_reach_no_inside_address() {
    let mut inside = Receiver::always("200 OK", "").await;
    let name = format!("http://private.example:{}/", inside.address.port());
    for to in [inside.url("/"), name] {
        let first = pointing(to.clone()).await;
        let target = target::http(first.url("/"))
            .redirects(3)
            .resolve_with(async |_| Ok(vec![ip("127.0.0.1")]));
        let told = failure(outcome(&target, job().build()).await);
        assert!(
            told.contains("not a public internet address"),
            "{to}: {told}"
        );
    }
    assert!(inside.rest().is_empty());
    let first = pointing(inside.url("/b")).await;
    let target = target::http(first.url("/"))
        .redirects(1)
        .networks(["127.0.0.1"])
        .header("Authorization", "Bearer geheim")
        .header("X-Api-Key", "geheim")
        .secret(super::signing::SECRET);
    let with_cookie = job().header("cookie", "a=b").header("tenant", "t1");
    assert_eq!(outcome(&target, with_cookie.build()).await, Outcome::Done);
    let received = inside.next().await;
    assert_eq!(
        (received.path.as_str(), &*received.body),
        ("/b", &b"\"hello\""[..])
    );
    assert_eq!(received.header("tenant"), "t1");
    received.header("webhook-signature");
    for name in ["authorization", "cookie", "x-api-key"] {
        assert!(!received.headers.contains_key(name), "{name}");
    }
}

#[tokio::test]
async fn redirects_are_followed_up_to_the_limit_of_the_route() {
    let mut last = Receiver::always("200 OK", "").await;
    let second = pointing(last.url("/")).await;
    let mut first = pointing(second.url("/")).await;
    let target = |count| {
        let target = target::http(first.url("/")).networks(["127.0.0.1"]);
        target.header("authorization", "Bearer x").redirects(count)
    };
    let told = failure(outcome(&target(1), job().build()).await);
    assert!(told.contains("answered 307 Temporary Redirect"), "{told}");
    assert!(last.rest().is_empty());
    assert_eq!(outcome(&target(2), job().build()).await, Outcome::Done);
    assert_eq!(last.rest().len(), 1);
    assert_eq!(first.next().await.header("authorization"), "Bearer x");
}

#[tokio::test]
async fn redirects_reach_only_allowed_hosts() {
    let last = Receiver::always("200 OK", "").await;
    let first = pointing(last.url("/")).await;
    let target = target::http_of_jobs([first.url("")])
        .networks(["127.0.0.1"])
        .redirects(3);
    let named = || job().header("url", first.url("/")).build();
    let told = failure(outcome(&target, named()).await);
    assert!(
        told.contains("which is not among the hosts that the route allows"),
        "{told}"
    );
    let both = [first.url(""), last.url("")];
    assert_eq!(
        outcome(&target.job_urls(both), named()).await,
        Outcome::Done
    );
}

#[tokio::test]
async fn an_invalid_target_is_refused_with_the_remedy() {
    let ok = || target::http("https://shop.example.org/");
    let pem = "-----BEGIN CERTIFICATE-----";
    for (target, fault) in [
        (
            target::http("shop.example.org"),
            "is not a URL: write https://",
        ),
        (
            target::http("https://a:geheim@shop.example.org"),
            "send them in a header",
        ),
        (target::http_of_jobs::<&str>([]), "`job_urls` has no host"),
        (
            ok().job_urls(["https://a.org"]),
            "`job_urls`: \"https://a.org\" is not a host",
        ),
        (
            ok().networks(["10.0.0.0/99"]),
            "is not a network: write a network such as 10.0.0.0/8",
        ),
        (
            ok().secret("geheim"),
            "`secret`: a secret is not valid: write whsec_",
        ),
        (
            ok().header("a b", "geheim"),
            "is not a valid name of a header",
        ),
        (
            ok().header("a", "geheim\n"),
            "the value of a does not fit on one line",
        ),
        (
            ok().header("host", "geheim"),
            "`header`: host is set by Keyfall",
        ),
        (
            ok().connect_timeout(std::time::Duration::ZERO),
            "`connect_timeout` is zero",
        ),
        (ok().host_concurrency(0), "`host_concurrency` is 0"),
        (ok().breaker_failures(0), "`breaker_failures` is 0"),
        (
            ok().breaker_pause(std::time::Duration::ZERO),
            "`breaker_pause` is zero",
        ),
        (
            ok().ca_certificate("geheim"),
            "`ca_certificate` holds no certificate",
        ),
        (
            ok().ca_certificate_file("/no/such"),
            "/no/such cannot be read",
        ),
        (
            ok().client_certificate(pem, "geheim"),
            "`client_certificate` holds no certificate",
        ),
    ] {
        let error = target.check().unwrap_err();
        assert_eq!(error.kind(), keyfall::ErrorKind::InvalidSetting);
        assert!(error.to_string().contains(fault), "{error}");
        let routed = keyfall::Router::<()>::new().try_route("cb:it:job:*", target);
        let told = routed.expect_err("it is refused").to_string();
        assert!(
            told.contains("route `cb:it:job:*`: ") && told.contains(fault),
            "{told}"
        );
        assert!(!told.contains("geheim"), "{told}");
    }
}
