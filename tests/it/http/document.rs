//! The OpenAPI document, the router and the manual agree.

use std::collections::BTreeSet;

use serde_json::Value;

use super::Daemon;
use crate::site::Site;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

/// A path as a request has it.
fn filled(path: &str) -> String {
    path.replace("{key}", "a:b:c:1").replace("{kind}", "a:b:c")
}

/// The calls that the document lists, as `GET /path`.
fn calls(document: &Value) -> BTreeSet<String> {
    let paths = document["paths"].as_object().unwrap().iter();
    let calls = paths.flat_map(|(path, calls)| {
        let methods = calls.as_object().unwrap().keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    calls.collect()
}

#[tokio::test]
async fn the_router_has_exactly_the_calls_of_the_document() {
    let site = Site::new("http-document").await;
    let daemon = Daemon::start(&site);
    let document = daemon.get("/v1/openapi.json").await;
    assert_eq!(document["openapi"], "3.1.0");
    for (path, calls) in document["paths"].as_object().unwrap() {
        let calls = calls.as_object().unwrap();
        // A method that a path does not take is answered with the methods that it takes.
        let other = METHODS
            .iter()
            .find(|method| !calls.contains_key(**method))
            .unwrap();
        let answer = daemon
            .request(&other.to_uppercase(), &filled(path))
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 405, "{other} {path}");
        let allowed = answer.headers()["allow"].to_str().unwrap();
        let allowed: BTreeSet<String> = allowed
            .split(',')
            .map(|method| method.trim().to_lowercase())
            .filter(|method| method != "head")
            .collect();
        let listed: BTreeSet<String> = calls.keys().cloned().collect();
        assert_eq!(allowed, listed, "{path}");
    }
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_manual_lists_every_call_and_every_code() {
    let site = Site::new("http-manual").await;
    let daemon = Daemon::start(&site);
    let document = daemon.get("/v1/openapi.json").await;
    let manual = include_str!("../../../docs/daemon.md");
    // `GET /path?query`, `/other`: a method stands for the following paths without one.
    let mut listed = BTreeSet::new();
    for line in manual
        .lines()
        .filter(|line| line.starts_with("| `") || line.starts_with("POST /v1/"))
    {
        let first = line.trim_start_matches("| ").split(" | ").next().unwrap();
        let mut method = "";
        for word in first.split([' ', '`', ',']).filter(|word| !word.is_empty()) {
            if METHODS.contains(&word.to_lowercase().as_str()) {
                method = word;
            } else if word.starts_with('/') && !method.is_empty() {
                let path = word.split('?').next().unwrap();
                listed.insert(format!("{method} {path}"));
            }
        }
    }
    assert_eq!(listed, calls(&document));
    site.assert_balanced().await;
}

#[tokio::test]
async fn the_document_is_consistent() {
    let site = Site::new("http-whole").await;
    let daemon = Daemon::start(&site);
    let document = daemon.get("/v1/openapi.json").await;
    let (mut ids, mut open) = (BTreeSet::new(), vec![&document]);
    while let Some(value) = open.pop() {
        if let Some(name) = value["$ref"].as_str() {
            let target = document.pointer(name.strip_prefix('#').unwrap());
            assert!(target.is_some(), "{name} is not there");
        }
        for part in value["allOf"].as_array().into_iter().flatten() {
            let name = part["$ref"]
                .as_str()
                .map(|it| it.strip_prefix('#').unwrap());
            let part = name.map_or(Some(part), |name| document.pointer(name));
            let is_closed = part.unwrap()["additionalProperties"] == false;
            assert!(!is_closed, "a part refuses the others: {value}");
        }
        if let Some(id) = value["operationId"].as_str() {
            assert!(ids.insert(id), "{id} stands for two calls");
        }
        match value {
            Value::Array(all) => open.extend(all),
            Value::Object(all) => open.extend(all.values()),
            _ => {}
        }
    }
    assert_eq!(ids.len(), calls(&document).len());
    for path in document["paths"].as_object().unwrap().values() {
        for (status, answer) in path
            .as_object()
            .unwrap()
            .values()
            .flat_map(|call| call["responses"].as_object().unwrap())
        {
            let is_problem = answer["content"].get("application/problem+json").is_some();
            assert_eq!(is_problem, status.as_str() >= "400", "{answer}");
        }
    }
    site.assert_balanced().await;
}
