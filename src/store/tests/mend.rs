//! `cluster/mend.lua`: the steps that join the parts of a torn ledger, on one server.

use super::support::Bench;
use crate::store::lua::lua;

/// A part of a ledger, and the part that another node had.
struct Torn {
    bench: Bench,
    lock: String,
    aside: String,
    key: String,
}

impl Torn {
    async fn new() -> Self {
        let bench = Bench::new().await;
        let name = |part: &str| bench.names().due.replace(":due", part);
        Torn {
            lock: name(":mending"),
            aside: name(":mending:moved"),
            key: name(":part"),
            bench,
        }
    }

    /// The answer to one step of the caller with this token.
    async fn step(&self, token: &str, step: &[&str]) -> String {
        let script = lua!("cluster/mend.lua");
        let call = [
            "EVAL",
            script,
            "3",
            &self.lock,
            &self.aside,
            &self.key,
            token,
        ];
        self.bench.ask(&[&call[..], step].concat()).await
    }

    /// Joins both keys, a few fields or members at a time, as this part of a ledger.
    async fn join(&self, part: &str) {
        assert_eq!(self.step("me", &["begin"]).await, "ok");
        while self.step("me", &["join", part, "2", ""]).await == "more" {}
        assert!(!self.there(&self.aside).await);
    }

    async fn there(&self, key: &str) -> bool {
        self.bench.ask(&["EXISTS", key]).await
    }

    /// The fields of the key, in order.
    async fn fields(&self) -> Vec<(String, String)> {
        let words = ["HGETALL", &self.key];
        let all: std::collections::BTreeMap<String, String> = self.bench.ask(&words).await;
        all.into_iter().collect()
    }
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    all.iter().map(owned).collect()
}

#[tokio::test]
async fn only_the_holder_of_the_lock_mends_a_ledger() {
    let torn = Torn::new().await;
    let steps: [&[&str]; 3] = [
        &["put", "HSET", "field", "value"],
        &["rename"],
        &["join", "shadow", "10", ""],
    ];
    for step in steps {
        assert_eq!(
            torn.step("me", step).await,
            "busy",
            "{step:?} without a lock"
        );
    }
    assert_eq!(torn.step("me", &["begin"]).await, "ok");
    for step in [&["begin"][..]].into_iter().chain(steps) {
        assert_eq!(torn.step("other", step).await, "busy", "{step:?}");
    }
    assert!(!torn.there(&torn.aside).await && !torn.there(&torn.key).await);
    assert_eq!(torn.step("me", &["begin"]).await, "ok");
    // The lock of a caller that was held up has run out, and another one goes on.
    let _: u64 = torn.bench.ask(&["DEL", &torn.lock]).await;
    assert_eq!(torn.step("other", &["begin"]).await, "ok");
    for step in steps {
        assert_eq!(torn.step("me", step).await, "busy", "{step:?} too late");
        assert_eq!(torn.step("other", step).await, "ok", "{step:?}");
    }
    torn.bench.balanced().await;
}

#[tokio::test]
async fn what_is_in_both_parts_keeps_the_newer_value() {
    let torn = Torn::new().await;
    let add = async |key: &str, members: &[&str]| {
        let _: u64 = torn.bench.ask(&[&["ZADD", key], members].concat()).await;
    };
    add(&torn.key, &["7", "both", "8", "new", "inf", ":"]).await;
    add(
        &torn.aside,
        &["1", "both", "2", "old", "3", "older", "inf", ":"],
    )
    .await;
    torn.join("due").await;
    let joined: Vec<(String, f64)> = torn
        .bench
        .ask(&["ZRANGE", &torn.key, "0", "-1", "WITHSCORES"])
        .await;
    let scores = [("old", 2.0), ("older", 3.0), ("both", 7.0), ("new", 8.0)];
    for (place, (id, score)) in scores.into_iter().enumerate() {
        assert_eq!(joined[place], (id.to_owned(), score));
    }
    assert_eq!((joined.len(), &*joined[4].0), (5, ":"));
    let _: u64 = torn.bench.ask(&["DEL", &torn.key]).await;

    for (part, here, aside, joined) in [
        (
            "shadow",
            pairs(&[(":", "0"), ("both", "new"), ("new", "1")]),
            pairs(&[(":", "0"), ("both", "old"), ("old", "1"), ("older", "1")]),
            pairs(&[
                (":", "0"),
                ("both", "new"),
                ("new", "1"),
                ("old", "1"),
                ("older", "1"),
            ]),
        ),
        (
            "stats",
            pairs(&[(":", "0"), ("accepted", "4"), ("done", "2")]),
            pairs(&[(":", "0"), ("accepted", "3"), ("buried", "1")]),
            pairs(&[
                (":", "0"),
                ("accepted", "7"),
                ("buried", "1"),
                ("done", "2"),
            ]),
        ),
        (
            "calls",
            pairs(&[(":", "0"), ("fence", "9"), ("lane", "new"), ("turn", "1")]),
            pairs(&[(":", "0"), ("fence", "10"), ("lane", "old"), ("turn", "1")]),
            pairs(&[(":", "0"), ("fence", "10"), ("lane", "new"), ("turn", "1")]),
        ),
        (
            "grave",
            pairs(&[(":", "0"), ("x", "2 10"), ("x:10", "b"), ("x:2", "a")]),
            pairs(&[(":", "0"), ("x", "1 2"), ("x:1", "c"), ("x:2", "a")]),
            pairs(&[
                (":", "0"),
                ("x", "1 2 10"),
                ("x:1", "c"),
                ("x:10", "b"),
                ("x:2", "a"),
            ]),
        ),
    ] {
        for (key, fields) in [(&*torn.key, here), (&*torn.aside, aside)] {
            let words = fields
                .iter()
                .flat_map(|(field, value)| [&**field, &**value]);
            let words: Vec<&str> = ["HSET", key].into_iter().chain(words).collect();
            let _: u64 = torn.bench.ask(&words).await;
        }
        torn.join(part).await;
        assert_eq!(torn.fields().await, joined, "{part}");
        let _: u64 = torn.bench.ask(&["DEL", &torn.key]).await;
    }
    torn.bench.balanced().await;
}

#[tokio::test]
async fn two_letters_of_one_name_are_both_kept() {
    let torn = Torn::new().await;
    for (key, letter) in [(&*torn.key, "one"), (&*torn.aside, "another")] {
        let _: u64 = torn
            .bench
            .ask(&["HSET", key, ":", "0", "x:1", letter])
            .await;
    }
    assert_eq!(torn.step("me", &["begin"]).await, "ok");
    let join = ["join", "grave", "10", ""];
    assert_eq!(torn.step("me", &join).await, "clash x:1");
    for (key, letter) in [(&*torn.key, "one"), (&*torn.aside, "another")] {
        let kept: String = torn.bench.ask(&["HGET", key, "x:1"]).await;
        assert_eq!(kept, letter);
    }
    torn.bench.balanced().await;
}
