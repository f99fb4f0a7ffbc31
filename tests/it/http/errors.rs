//! Each error code has a page, and the example on it is a real answer.

use reqwest::StatusCode;
use serde_json::{Value, json};

use super::{Daemon, HttpAnswer, own_redis, read};

const JOB: &str = "/v1/jobs/app1:trans:notice:42";
/// A due time on the pages.
const DUE: &str = "2026-12-24T18:00:00.000Z";
const KIND: &str = "/v1/kinds/app1:trans:notice";

/// The answer on the page of a code.
fn example(code: &str) -> Value {
    let page = format!("crates/daemon/errors/{code}.md");
    let page = keyfall_testing::files::repository().join(page);
    let page = std::fs::read_to_string(&page).unwrap_or_else(|why| panic!("{page:?}: {why}"));
    let example = page.split("```json\n").nth(1).unwrap();
    serde_json::from_str(example.split("```").next().unwrap()).unwrap()
}

/// Asserts that an answer is of the sort that the page of its code shows. Every refused call of this
/// module comes here.
#[track_caller]
pub(super) fn assert_has_page(problem: &Value) {
    let code = problem["code"].as_str().unwrap();
    let example = example(code);
    for part in ["type", "status", "retryable"] {
        assert_eq!(problem[part], example[part], "{part} of {code}: {problem}");
    }
}

/// Asserts that an answer is the example.
#[track_caller]
fn assert_is_example((_, answer): &HttpAnswer) {
    let code = answer["code"]
        .as_str()
        .unwrap_or_else(|| panic!("{answer}"));
    assert_eq!(*answer, example(code), "{answer:#}");
}

#[tokio::test]
async fn the_examples_on_the_pages_are_real_answers() {
    let (_redis, site) = own_redis("app1").await;
    let daemon = Daemon::start(&site);
    let refused = async |method, path: &str, body: Value| {
        assert_is_example(&daemon.send(method, path, body).await);
    };
    let many: Value = (0..200).map(|n| (n.to_string(), json!(""))).collect();
    refused("GET", JOB, json!(null)).await;
    refused("PUT", "/v1/jobs/app1:notice", json!({})).await;
    refused("PUT", JOB, json!({"after": "soon"})).await;
    refused("PUT", JOB, json!({"after": "100000h"})).await;
    refused("PUT", JOB, json!({"headers": many})).await;
    refused("GET", KIND, json!(null)).await;
    refused("GET", "/v1/job", json!(null)).await;
    refused("PATCH", JOB, json!(null)).await;
    let letter = "/v1/dead/app1:trans:notice:42?letter=7";
    refused("DELETE", letter, json!(null)).await;
    refused("GET", "/v1/archive", json!(null)).await;

    let (status, placed) = daemon.send("PUT", JOB, json!({})).await;
    assert_eq!(status, 201);
    let (_, present) = daemon.send("PUT", JOB, json!({"if": "absent"})).await;
    let due = placed["due"].as_str().unwrap();
    let on_page = example("job_present").to_string();
    assert_eq!(present.to_string().replace(due, DUE), on_page);
    let rule = format!("{JOB}/rule");
    refused("PUT", &rule, json!({"rule": "0 9 * * *"})).await;
    refused("DELETE", KIND, json!(null)).await;
    assert_eq!(daemon.pull(1, "40s").await.len(), 1);
    refused("POST", &format!("{JOB}/fire"), json!({})).await;

    let page = daemon
        .request("GET", JOB)
        .header("origin", "https://example.org");
    assert_is_example(&read(page.send().await.unwrap()).await);
    let told = daemon.request("GET", "/v1/errors/job_absent").send().await;
    let told = told.unwrap();
    assert_eq!(told.status(), StatusCode::OK);
    assert!(told.text().await.unwrap().starts_with("# job_absent\n"));
    let none = daemon.call("GET", "/v1/errors/no_such_code").await;
    super::assert_problem(&none, 404, "unknown_route", Value::Null);
}

#[tokio::test]
async fn the_examples_of_limits_are_real_answers() {
    let (_redis, site) = own_redis("app1").await;
    let daemon = Daemon::with(
        &site,
        &["--http-new-kinds", "1", "--http-body-limit", "1KiB"],
    );
    assert_eq!(daemon.send("PUT", JOB, json!({})).await.0, 201);
    let typo = "/v1/jobs/app1:trans:notcie:42";
    assert_is_example(&daemon.send("PUT", typo, json!({})).await);
    let large = json!({"payload": "x".repeat(2000)});
    assert_is_example(&daemon.send("PUT", JOB, large).await);

    let slow = Daemon::with(&site, &["--http-requests-per-second", "1"]);
    let refused = crate::runs::eventually("a call is refused", async || {
        let answer = slow.call("GET", "/v1/kinds").await;
        (answer.0 == 429).then_some(answer)
    });
    assert_is_example(&refused.await);
}
