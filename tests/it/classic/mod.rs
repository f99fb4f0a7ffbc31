//! The classic interface from the view of its clients: `keyfall serve` in a process of its own.

mod calls;
mod ids;
mod limited;
mod moving;
mod order;
mod popping;
mod reaching;

use std::process::Command;

use keyfall::JobState;
use keyfall_testing::process::TalkingProcess;
use reqwest::Client;
use serde_json::{Value, json};

use crate::runs::PATIENCE;
use crate::site::Site;

/// A daemon that speaks the classic protocol, with its topics below `app:queue` of a site.
struct Queue {
    process: TalkingProcess,
    /// The addresses of the HTTP API and of the classic interface.
    api: String,
    url: String,
    http: Client,
}

impl Queue {
    fn start(site: &Site) -> Self {
        Queue::with(site, &[])
    }

    fn with(site: &Site, flags: &[&str]) -> Self {
        Queue::spawned(Queue::command(site, "queue", flags))
    }

    fn command(site: &Site, module: &str, flags: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyfall"));
        command
            .args(["serve", "--http-listen", "127.0.0.1:0"])
            .args(["--redis-url", &site.url])
            .args(["--pull", &format!("{}:*:*:*", site.app)])
            .args(["--classic-prefix", &format!("{}:{module}", site.app)]);
        if !flags.contains(&"--classic-listen") {
            command.args(["--classic-listen", "127.0.0.1:0"]);
        }
        command.args(flags);
        command
    }

    fn spawned(command: Command) -> Self {
        let process = TalkingProcess::spawn(command);
        let (api, url) = (process.line(), process.line());
        // Fails if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Queue {
            api: api.strip_prefix("listening on ").unwrap().to_owned(),
            url: url
                .strip_prefix("classic interface on ")
                .unwrap()
                .to_owned(),
            http: Client::builder().timeout(PATIENCE).build().unwrap(),
            process,
        }
    }

    async fn call(&self, name: &str, body: Value) -> Value {
        answered(&self.http, &self.url, name, body.to_string()).await
    }

    /// The data that a successful call returns.
    async fn does(&self, name: &str, body: Value) -> Value {
        let mut answer = self.call(name, body).await;
        assert_eq!(answer["code"], 0, "{name}: {answer}");
        answer["data"].take()
    }

    async fn push(&self, topic: &str, id: &str) {
        let job = json!({"topic": topic, "id": id, "delay": 0, "ttr": 60, "body": id});
        self.does("push", job).await;
    }

    /// The id of the next job of these topics.
    async fn pop(&self, topics: &str) -> String {
        let job = self.does("pop", json!({"topic": topics})).await;
        let id = job["id"].as_str();
        id.unwrap_or_else(|| panic!("nothing came")).to_owned()
    }

    async fn finish(&self, id: &str) {
        self.does("finish", json!({"id": id})).await;
    }

    async fn get(&self, id: &str) -> Value {
        self.does("get", json!({"id": id})).await
    }

    fn address(&self) -> &str {
        self.url.strip_prefix("http://").unwrap()
    }
}

/// Every answer has the same shape, and status 200.
async fn answered(http: &Client, url: &str, name: &str, body: String) -> Value {
    let sent = http.post(format!("{url}/{name}")).body(body).send().await;
    let response = sent.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["content-type"], "application/json");
    let answer: Value = serde_json::from_str(&response.text().await.unwrap()).unwrap();
    let names: Vec<&String> = answer.as_object().unwrap().keys().collect();
    assert_eq!(names, ["code", "data", "message"], "{answer}");
    assert!(!answer["message"].as_str().unwrap().is_empty(), "{answer}");
    answer
}

fn kind(site: &Site, topic: &str) -> String {
    format!("{}:queue:{topic}", site.app)
}

async fn state(site: &Site, topic: &str, id: &str) -> Option<JobState> {
    let key = format!("{}:{id}", kind(site, topic));
    let view = site.client.get(key).await.unwrap();
    view.map(|view| view.state())
}
