//! The scenarios of `clients/conformance`, which the clients in Python and TypeScript play over
//! HTTP, played by the library.
//!
//! | module | content |
//! |---|---|
//! | [`calls`] | each call of a scenario, as a call of the library |
//! | [`given`] | the arguments of a step |

mod calls;
mod given;

use std::collections::BTreeMap;
use std::time::Duration;

use keyfall::target::Pull;
use keyfall::{Client, Handler, Router};
use serde::Deserialize;
use serde_json::Value;

use self::given::Given;
use crate::site::Site;

const FILES: [(&str, &str); 4] = [
    (
        "jobs",
        include_str!("../../../clients/conformance/jobs.json"),
    ),
    (
        "leases",
        include_str!("../../../clients/conformance/leases.json"),
    ),
    (
        "plans",
        include_str!("../../../clients/conformance/plans.json"),
    ),
    (
        "many",
        include_str!("../../../clients/conformance/many.json"),
    ),
];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Scenario {
    scenario: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Step {
    call: String,
    with: Value,
    #[serde(default)]
    expect: Option<Value>,
    #[serde(default)]
    error: Option<Value>,
    /// Parts of the answer that later steps name.
    #[serde(default)]
    save: BTreeMap<String, String>,
    /// Why the library cannot play this step.
    #[serde(default)]
    http_only: Option<String>,
}

/// The parts of a program that uses the library.
struct Program {
    client: Client,
    pull: Pull,
}

/// An answer in the form of the HTTP API, or the code of its error.
type Answer = Result<Value, String>;

#[tokio::test]
async fn the_library_plays_the_scenarios_of_the_clients() {
    for (file, text) in FILES {
        let scenarios: Vec<Scenario> = serde_json::from_str(text).unwrap();
        for (number, scenario) in scenarios.iter().enumerate() {
            let site = Site::new(&format!("clients-{file}-{number}")).await;
            let pull = Pull::new();
            let route = format!("{}:*:*:*", site.app);
            let handler = pull.clone().lease(Duration::from_secs(60));
            let worker = site.serve(Router::new().route(&route, handler));
            let program = Program {
                client: site.client.clone(),
                pull,
            };
            play(&program, scenario, &site.app).await;
            worker.stop().await;
            site.assert_balanced().await;
        }
    }
}

async fn play(program: &Program, scenario: &Scenario, app: &str) {
    let year = jiff::Timestamp::now().strftime("%Y").to_string();
    let year = year.parse::<u16>().unwrap() + 2;
    let mut names = BTreeMap::from([
        ("app".to_owned(), app.to_owned()),
        ("year".to_owned(), year.to_string()),
    ]);
    for (number, step) in scenario.steps.iter().enumerate() {
        if step.http_only.is_some() {
            continue;
        }
        let place = format!("{}, step {number}, {}", scenario.scenario, step.call);
        let given = Given::new(filled(&step.with, &names));
        let got = program.make(&step.call, &given).await;
        match (got, &step.error) {
            (Err(code), Some(wanted)) => {
                if let Some(wanted) = wanted["code"].as_str() {
                    assert_eq!(code, wanted, "{place}");
                }
            }
            (Ok(got), None) => {
                let wanted = step.expect.as_ref().unwrap_or(&Value::Null);
                check(&got, &filled(wanted, &names), &place);
                for (name, path) in &step.save {
                    let (position, field) = path.split_once('.').unwrap();
                    let position: usize = position.parse().unwrap();
                    let saved = got[position][field].as_str().unwrap();
                    names.insert(name.clone(), saved.to_owned());
                }
            }
            (got, wanted) => panic!("{place}: {got:?} instead of {wanted:?}"),
        }
    }
}

/// A value of a step, with the names in braces replaced.
fn filled(value: &Value, names: &BTreeMap<String, String>) -> Value {
    match value {
        Value::String(text) => {
            let fill = |text: String, (name, value): (&String, &String)| {
                text.replace(&format!("{{{name}}}"), value)
            };
            names.iter().fold(text.clone(), fill).into()
        }
        Value::Array(all) => all.iter().map(|one| filled(one, names)).collect(),
        Value::Object(all) => {
            let all = all
                .iter()
                .map(|(name, one)| (name.clone(), filled(one, names)));
            Value::Object(all.collect())
        }
        other => other.clone(),
    }
}

/// Objects need the wanted fields, lists the wanted length.
fn check(got: &Value, wanted: &Value, place: &str) {
    match (got, wanted) {
        (got, Value::String(text)) if text == "$present" => assert!(!got.is_null(), "{place}"),
        (Value::Object(_), Value::Object(wanted)) => {
            for (name, value) in wanted {
                check(&got[name], value, &format!("{place}.{name}"));
            }
        }
        (Value::Array(got), Value::Array(wanted)) => {
            assert_eq!(got.len(), wanted.len(), "{place}: {got:?}");
            for (number, value) in wanted.iter().enumerate() {
                check(&got[number], value, &format!("{place}[{number}]"));
            }
        }
        (got, wanted) => assert_eq!(got, wanted, "{place}"),
    }
}
