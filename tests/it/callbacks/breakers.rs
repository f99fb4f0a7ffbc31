//! Circuit breakers of hosts that are down: attempts of their jobs, reports, and how a breaker
//! closes.

use std::time::Duration;

use keyfall::doctor::Severity;
use keyfall::{Handler, JobState, Outcome, RetryPolicy, Router, target};
use keyfall_testing::files::Folder;
use keyfall_testing::ports::free_port;
use serde_json::{Value, json};

use super::receiver::{Receiver, Reply, says};
use super::{failure, job, outcome};
use crate::runs::{PATIENCE, eventually};
use crate::site::{Site, fails_slowly, steps};

/// An address where no server listens, also none of another test.
fn nobody() -> String {
    format!("127.0.0.1:{}", free_port())
}

#[tokio::test]
async fn jobs_of_a_host_that_is_down_lose_no_attempt() {
    let site = Site::new("cb-breaker").await;
    let host = nobody();
    let target = target::http(format!("http://{host}/"))
        .breaker_failures(3)
        .breaker_pause(Duration::from_secs(1));
    let worker = site.serve(Router::new().route(&site.pattern(), target.retry(fails_slowly())));
    // Real calls count as attempts.
    for number in 0..3 {
        let key = site.key(number);
        site.client.schedule(&key, "").await.unwrap();
        assert_eq!(site.reaches(&key, JobState::Retrying).await.attempts(), 1);
    }
    // This job is put off, tries the host after each pause, and loses no attempt.
    let key = site.key("waits");
    let last = RetryPolicy::none();
    site.client.schedule(&key, "").retry(last).await.unwrap();
    let view = eventually("it was put off three times", async || {
        let view = site.view(&key).await;
        let put_off = steps(&view).iter().filter(|it| **it == "snoozed").count();
        (put_off >= 3 && view.state() == JobState::Pending).then_some(view)
    })
    .await;
    assert_eq!((view.attempts(), view.last_error()), (0, None), "{view:?}");
    let why = view.put_off().unwrap();
    assert!(why.contains(&host) && why.contains("is down"), "{why}");

    let told = eventually("why says so", async || {
        let ran = site.run(&format!("why {key}")).await;
        ran.out
            .contains("it was put off, without an attempt")
            .then_some(ran.out)
    })
    .await;
    assert!(told.contains(&host), "{told}");
    eventually("the instance says so", async || {
        let live = site.client.instances().await.unwrap();
        live.iter()
            .any(|one| one.open_breakers == [host.as_str()])
            .then_some(())
    })
    .await;
    let listed = site.run("breakers").await;
    assert!(listed.out.contains(&host), "{listed:?}");
    let diagnosis = site
        .client
        .diagnose()
        .only(["breakers-closed"])
        .await
        .unwrap();
    let finding = &diagnosis.findings[0];
    assert_eq!(finding.severity, Severity::Warning, "{finding}");
    assert!(finding.found.contains(&host), "{finding}");

    // After the breaker is closed, the host is called again, and the attempt counts.
    let view = eventually("it is called again", async || {
        let closed = site.run(&format!("breakers close {host}")).await;
        assert_eq!(closed.code, 0, "{closed:?}");
        // A job may have tried the host, and the breaker be open again.
        let _ = site.client.fire_now(&key).await;
        let view = site.view(&key).await;
        (view.state() == JobState::Dead).then_some(view)
    })
    .await;
    assert_eq!(view.attempts(), 1, "{view:?}");
    worker.stop().await;
    for number in 0..3 {
        site.client.cancel(site.key(number)).await.unwrap();
    }
    site.assert_balanced().await;
}

/// A target with an open breaker, whose host did not answer this call.
async fn gone_down(url: &str, timeout: Duration) -> target::Http {
    let target = target::http(url)
        .breaker_failures(1)
        .resolve_with(|_| std::future::pending());
    let told = failure(outcome(&target, job().timeout(timeout).build()).await);
    assert!(told.contains("did not answer within"), "{told}");
    target
}

/// The outcome of the job that makes the trial call.
async fn tried(target: &target::Http, timeout: Duration) -> Outcome {
    eventually("it is tried", async || {
        let outcome = outcome(target, job().timeout(timeout).build()).await;
        match &outcome {
            Outcome::SnoozeBecause { reason, .. }
                if !reason.to_string().contains("; the host is down") =>
            {
                None
            }
            _ => Some(outcome),
        }
    })
    .await
}

#[tokio::test]
async fn a_trial_that_cannot_connect_in_its_timeout_costs_no_attempt() {
    const TIME: Duration = Duration::from_millis(400);
    // The server accepts connections, and does not speak TLS.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = format!("https://{}/", silent.local_addr().unwrap());
    let calls = [silent.as_str(), "http://hangs.example/"].map(async |url| {
        let target = gone_down(url, TIME).await;
        tried(&target, TIME).await
    });
    for outcome in futures_util::future::join_all(calls).await {
        let Outcome::SnoozeBecause { reason, .. } = outcome else {
            panic!("{outcome:?}");
        };
        let told = reason.to_string();
        assert!(
            told.contains("did not accept a connection in time; the host is down"),
            "{told}"
        );
    }
}

#[tokio::test]
async fn a_trial_that_connects_and_gets_no_answer_costs_an_attempt() {
    const TIME: Duration = Duration::from_secs(2);
    let receiver = Receiver::start(|_| Reply::Hangs).await;
    let target = gone_down(&receiver.url("/"), TIME).await;
    eventually("a connection is made in time", async || {
        let outcome = tried(&target, TIME).await;
        matches!(outcome, Outcome::Retry { .. }).then_some(())
    })
    .await;
}

/// The receiver may have handled the request, so the job must not be tried forever.
#[tokio::test]
async fn a_request_that_was_sent_is_an_attempt_though_the_host_is_down() {
    let nobody = format!("location: http://{}/\r\n", nobody());
    let cuts = Receiver::start(|_| Reply::Cuts("")).await;
    let leads_nowhere = Receiver::start(move |_| says("307 Temporary Redirect", &nobody, "")).await;
    for (app, host) in [("cb-sent", cuts), ("cb-sent-on", leads_nowhere)] {
        let site = Site::new(app).await;
        let target = target::http(host.url("/"))
            .networks(["127.0.0.1"])
            .redirects(1)
            .breaker_failures(1)
            .breaker_pause(Duration::from_secs(1));
        let twice = RetryPolicy::fixed(Duration::from_millis(100)).unwrap();
        let route = target.retry(twice.attempts(2));
        let worker = site.serve(Router::new().route(&site.pattern(), route));
        let key = site.key(1);
        site.client.schedule(&key, "").await.unwrap();
        let letter = site.reaches(&key, JobState::Dead).await;
        assert_eq!(letter.attempts(), 2);
        worker.stop().await;
        site.assert_balanced().await;
    }
}

/// Other jobs call the host too, and have more time.
#[tokio::test]
async fn a_job_with_a_short_timeout_of_its_own_opens_no_breaker() {
    let site = Site::new("cb-breaker-short").await;
    let (short, other) = (site.key("short"), site.key("other"));
    let host = Receiver::start(|received| match received.path.as_str() {
        "/short" => Reply::Hangs,
        _ => says("500 Oh", "", ""),
    })
    .await;
    let target = target::http(host.url("/other"))
        .job_urls([host.url("")])
        .networks(["127.0.0.0/8"])
        .breaker_failures(1);
    let route = target.retry(RetryPolicy::none());
    let worker = site.serve(Router::new().route(&site.pattern(), route));
    let call = site.client.schedule(&short, "");
    let call = call.header("url", host.url("/short"));
    call.timeout(Duration::from_millis(300)).await.unwrap();
    let letter = site.reaches(&short, JobState::Dead).await;
    let told = letter.last_error().unwrap();
    assert!(told.contains("did not answer within"), "{told}");
    site.client.schedule(&other, "").await.unwrap();
    let letter = site.reaches(&other, JobState::Dead).await;
    assert!(!steps(&letter).contains(&"snoozed"), "{letter:?}");
    worker.stop().await;
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_malformed_host_is_refused_and_a_closed_breaker_is_reported() {
    let site = Site::new("cb-breaker-none").await;
    let error = site.client.close_breaker("a b").await.unwrap_err();
    assert!(
        error.to_string().contains("hooks.example.org:8443"),
        "{error}"
    );
    assert_eq!(
        site.client
            .close_breaker("nowhere.example.org")
            .await
            .unwrap(),
        0
    );
    let ran = site.run("breakers close nowhere.example.org").await;
    assert!(ran.out.contains("no worker said"), "{ran:?}");
}

#[tokio::test]
async fn breakers_can_be_closed_over_http_and_metrics_count_open_ones() {
    let mut site = Site::new("cb-breaker-http").await;
    let folder = Folder::new("breakers");
    let host = nobody();
    // Only this job calls the host, so no call tries the host until the job is fired.
    let route = format!(
        "[[route]]\npattern = \"{}\"\nretry = \"1h\"\ntarget = {{ http = {{ url = \
         \"http://{host}/\", breaker_failures = 1, breaker_pause = \"1h\" }} }}\n",
        site.pattern()
    );
    folder.write("k.toml", &route);
    let daemon = site.daemon(&["--config", &folder.path("k.toml")]);
    // `keyfall` does the same. It fails if another test was first.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let http = reqwest::Client::builder()
        .timeout(PATIENCE)
        .build()
        .unwrap();
    let close = async |host: &str| {
        let call = http.post(format!("{}/v1/breakers/close", daemon.url));
        let answer = call.json(&json!({"host": host})).send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.json::<Value>().await.unwrap())
    };
    let are_open = async |number: f64| {
        eventually("as many are open", async || {
            let call = http.get(format!("{}/metrics", daemon.url));
            let text = call.send().await.unwrap().text().await.unwrap();
            let mut lines = text.lines();
            let open = lines.find_map(|it| it.strip_prefix("keyfall_breakers_open "))?;
            let open: f64 = open.trim().parse().unwrap();
            (open == number).then_some(())
        })
        .await;
    };
    are_open(0.0).await;
    let key = site.key(1);
    site.client.schedule(&key, "").await.unwrap();
    assert_eq!(site.reaches(&key, JobState::Retrying).await.attempts(), 1);
    are_open(1.0).await;
    eventually("the instance says so", async || {
        let live = site.client.instances().await.unwrap();
        live.iter()
            .any(|one| one.open_breakers == [host.as_str()] && one.hears_events)
            .then_some(())
    })
    .await;

    let unknown = close("nowhere.example.org").await;
    let expected = json!({"host": "nowhere.example.org", "instances": 0});
    assert_eq!(unknown, (200, expected));
    let (status, problem) = close("a b").await;
    assert_eq!(
        (status, &problem["code"], &problem["field"]),
        (400, &json!("invalid_request"), &json!("host"))
    );
    let closed = close(host.as_str()).await;
    assert_eq!(closed, (200, json!({"host": host, "instances": 1})));
    are_open(0.0).await;
    // If the breaker were open, the job would try the host, and no attempt would count.
    site.client.fire_now(&key).await.unwrap();
    let letter = site.reaches(&key, JobState::Dead).await;
    assert_eq!(letter.attempts(), 2, "{letter:?}");

    // That opened the breaker again, and the command line can close it through the daemon, too.
    are_open(1.0).await;
    site.daemon = Some(daemon);
    eventually("it is listed", async || {
        let listed = site.run("breakers").await;
        listed.out.contains(&host).then_some(())
    })
    .await;
    let ran = site.run(&format!("breakers close {host}")).await;
    let told = format!("called again: {host}; workers: 1");
    assert!(ran.out.contains(&told), "{ran:?}");
    site.assert_balanced().await;
}
