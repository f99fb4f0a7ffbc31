//! Topics are kinds: the limit of new kinds applies to them.

use serde_json::{Value, json};

use super::{Queue, kind};
use crate::site::Site;

#[tokio::test]
async fn a_refused_new_topic_gets_an_error_and_leaves_no_key() {
    let site = Site::new("classic-limited").await;
    let queue = Queue::with(&site, &["--http-new-kinds", "1"]);
    let job = |topic: &str, id| json!({"topic": topic, "id": id, "delay": 3600, "body": "x"});
    assert_eq!(queue.does("push", job("first", "1")).await, Value::Null);
    for _ in 0..2 {
        let refused = queue.call("push", job("second", "2")).await;
        assert_eq!(refused["code"], 6, "{refused}");
        let message = refused["message"].as_str().unwrap();
        for part in ["topic: ", &kind(&site, "second"), "`http.new_kinds`"] {
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(refused["data"], Value::Null);
    }
    let second = format!("*{}*", kind(&site, "second"));
    let left: Vec<String> = site.command(&["KEYS", &second]).await;
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(queue.get("2").await, Value::Null);
    // An existing topic goes on, and so does a topic that another client has begun.
    assert_eq!(queue.does("push", job("first", "2")).await, Value::Null);
    let begun = format!("{}:3", kind(&site, "third"));
    site.client.schedule(&begun, "").await.unwrap();
    assert_eq!(queue.does("push", job("third", "4")).await, Value::Null);
}
