//! The classic interface of the daemons, as its clients call it.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::common::COMMON;
use crate::daemons::{Daemons, Lost};
use crate::journal::Answer;
use crate::load::KINDS;
use crate::order::Order;
use crate::target::{PREFIX, Ways};
use crate::worker::LEASE;

pub(crate) struct ClassicClient(Daemons);

impl ClassicClient {
    pub(crate) fn new(ways: &Ways) -> Self {
        ClassicClient(Daemons::new(&ways.classic))
    }

    /// The key of the job with this id. Ids are unique over topics here: each begins with its
    /// topic, or with the word for [common](crate::common) ids.
    pub(crate) fn key(id: &str) -> String {
        let (topic, _) = id.split_once('-').expect("as the producers name them");
        format!("{PREFIX}:{topic}:{id}")
    }

    pub(crate) async fn push(
        &self,
        key: &str,
        order: &Order,
        delay: Duration,
    ) -> Result<Answer, Answer> {
        let (topic, id) = names(key);
        let body = serde_json::to_string(order).expect("an order is plain data");
        let job = json!({"topic": topic, "id": id, "delay": delay.as_secs(),
                         "ttr": LEASE.as_secs(), "body": body});
        self.call("push", &job).await?;
        Ok(Answer::Placed)
    }

    pub(crate) async fn delete(&self, key: &str) -> Result<Answer, Answer> {
        let answer = self.call("delete", &json!({"id": names(key).1})).await?;
        Ok(match answer["message"].as_str() {
            // The answer does not say whether a consumer has the job.
            Some("deleted") => Answer::Running,
            _ => Answer::Absent,
        })
    }

    /// The present job of this id.
    pub(crate) async fn get(&self, id: &str) -> Result<Option<Order>, Answer> {
        let answer = self.call("get", &json!({"id": id})).await?;
        let body = answer["data"]["body"].as_str();
        Ok(body.map(|body| serde_json::from_str(body).expect("as it was pushed")))
    }

    /// Waits for a job of any topic: its id and its body.
    pub(crate) async fn pop(&self) -> Option<(String, Order)> {
        let topics: Vec<&str> = KINDS
            .iter()
            .chain(&COMMON)
            .map(|kind| topic(kind))
            .collect();
        let topics = topics.join(",");
        let answer = self.call("pop", &json!({"topic": topics})).await.ok()?;
        let (id, body) = (answer["data"]["id"].as_str()?, &answer["data"]["body"]);
        let body = body.as_str().expect("a text comes back as a text");
        let order = serde_json::from_str(body).expect("as it was pushed");
        Some((id.to_owned(), order))
    }

    pub(crate) async fn finish(&self, id: &str) {
        // A lost call does no harm: only "at least once" is promised.
        let _ = self.call("finish", &json!({"id": id})).await;
    }

    /// Makes a call. The error is the answer of the producer.
    async fn call(&self, name: &str, body: &Value) -> Result<Value, Answer> {
        let path = format!("/{name}");
        let called = self.0.call(Method::POST, &path, body).await;
        let (_, answer) = called.map_err(|lost: Lost| Answer::from(lost))?;
        match answer["code"].as_u64() {
            Some(0) => Ok(answer),
            // Redis did not answer; or the daemon was killed in the middle of its answer.
            Some(6) | None => Err(Answer::Unknown(answer.to_string())),
            Some(_) => Err(Answer::Failed(answer.to_string())),
        }
    }
}

/// The topic and the id in a key.
fn names(key: &str) -> (&str, &str) {
    let (kind, id) = key.rsplit_once(':').expect("it is a key");
    (topic(kind), id)
}

/// The topic of a kind.
pub(crate) fn topic(kind: &str) -> &str {
    kind.rsplit(':').next().expect("there is one part at least")
}
