//! Migration of a queue of another system: its unchanged clients, and its stored jobs.

use std::collections::HashSet;
use std::process::{Command, Stdio};

use keyfall::embedded::Embedded;
use keyfall_testing::files::repository;
use keyfall_testing::process::TalkingProcess;
use serde_json::json;

use super::{Queue, kind};
use crate::site::{Site, command, connect, redis_time};

/// A bucket of ids by due time, and a hash of bodies.
#[tokio::test]
async fn jobs_in_sorted_sets_are_imported() {
    let site = Site::new("classic-import").await;
    let now = (redis_time(&mut site.redis()).await / 1_000_000) as u64;
    for number in 0..30_u64 {
        let (id, due) = (format!("o-{number}"), now + number % 2 * 3600);
        let _: u64 = site
            .command(&["ZADD", "classic_import_bucket", &due.to_string(), &id])
            .await;
        let _: u64 = site
            .command(&["HSET", "classic_import_jobs", &id, &format!("b{number}")])
            .await;
    }
    let import = format!(
        "import --from redis-zset --due-key classic_import_bucket --due-unit s --payload-key \
         classic_import_jobs --key {}:queue:order:{{member}} --json",
        site.app
    );
    assert_eq!(site.run(&import).await.value()["scheduled"], 30);
    let queue = Queue::start(&site);
    let mut popped = HashSet::new();
    for _ in 0..15 {
        let job = queue.does("pop", json!({"topic": "order"})).await;
        let id = job["id"].as_str().unwrap();
        assert_eq!(job["body"], id.replace("o-", "b"));
        queue.finish(id).await;
        popped.insert(id.to_owned());
    }
    assert_eq!(popped.len(), 15);
    assert_eq!(queue.get("o-1").await["ttr"], 60);
    let _: u64 = site
        .command(&["DEL", "classic_import_bucket", "classic_import_jobs"])
        .await;
    site.assert_balanced().await;
}

/// A job as the original system keeps it: a map in MessagePack, with numbers of eight bytes.
fn kept(topic: &str, id: &str, delay: u64, body: &str) -> Vec<u8> {
    let text = |text: &str| [&[0xd9, text.len() as u8], text.as_bytes()].concat();
    let number = |number: u64| [&[0xd3][..], &number.to_be_bytes()].concat();
    let fields = [
        ("Topic", text(topic)),
        ("Id", text(id)),
        ("Delay", number(delay)),
        ("TTR", number(7)),
        ("Body", text(body)),
    ];
    let fields = fields.map(|(name, value)| [text(name), value].concat());
    [&[0x85][..], &fields.concat()].concat()
}

#[tokio::test]
async fn jobs_of_the_original_are_imported() {
    let site = Site::new("classic-original").await;
    let old = Embedded::start().await.unwrap();
    let mut redis = connect(&old.url()).await;
    let now = (redis_time(&mut site.redis()).await / 1_000_000) as u64;
    for (topic, id, score, delay) in [
        ("order:close", "a b", now, now),
        // A consumer has the job, or it was pushed again for later.
        ("t", "later", now + 3600, now - 60),
        ("t", "again", now - 60, now + 3600),
    ] {
        let _: u64 = command(&mut redis, &["ZADD", "dq_bucket_1", &score.to_string(), id]).await;
        let mut set = redis::cmd("SET");
        set.arg(id).arg(kept(topic, id, delay, &format!("<{id}>")));
        let () = set.query_async(&mut redis).await.unwrap();
    }
    // The job was deleted before it was due.
    let _: u64 = command(&mut redis, &["ZADD", "dq_bucket_1", "9", "gone"]).await;
    let import = format!(
        "import --from classic-queue --due-key dq_bucket_1 --prefix {}:queue --source-url {} --json",
        site.app,
        old.url()
    );
    let report = site.run(&import).await.value();
    assert_eq!(
        (&report["scheduled"], &report["invalid"]),
        (&json!(3), &json!(0))
    );
    assert_eq!(site.run(&import).await.value()["present"], 3);

    let queue = Queue::start(&site);
    let popped = queue.does("pop", json!({"topic": "order:close"})).await;
    assert_eq!(popped, json!({"id": "a b", "body": "<a b>"}));
    queue.finish("a b").await;
    for id in ["later", "again"] {
        let seen = queue.get(id).await;
        let expected = json!({"topic": "t", "id": id, "delay": now + 3600, "ttr": 7, "body": format!("<{id}>")});
        assert_eq!(seen, expected);
    }
    let () = command(&mut redis, &["SET", "later", "no job"]).await;
    site.run(&import)
        .await
        .fails(1, "is not a job in MessagePack");
    site.run(&import.replace(":queue", ""))
        .await
        .fails(2, "write two segments, such as app1:queue");
    site.assert_balanced().await;
}

/// An example of `examples/classic`, with its standard input.
fn example(interpreter: &str, name: &str, url: &str) -> Command {
    let dir = repository().join("examples/classic");
    let mut command = Command::new(interpreter);
    command.arg(dir.join(name)).env("KEYFALL_CLASSIC", url);
    command
}

#[tokio::test]
async fn the_examples_push_pop_and_finish() {
    let site = Site::new("classic-examples").await;
    let queue = Queue::start(&site);
    let lines = TalkingProcess::spawn(example("python3", "push_and_pop.py", &queue.url)).ends();
    assert_eq!(lines[lines.len() - 1], "order 42: closed", "{lines:?}");
    assert!(
        lines
            .iter()
            .any(|line| line == "order 42: not finished, so it comes again")
    );
    assert!(
        lines.iter().any(|line| line == "order 41: closed") && lines.len() == 3,
        "{lines:?}"
    );
    let lines = TalkingProcess::spawn(example("sh", "push_and_pop.sh", &queue.url)).ends();
    assert_eq!(lines.iter().collect::<HashSet<_>>().len(), 2, "{lines:?}");
    let stats = site
        .client
        .stats(&kind(&site, "order.close"))
        .await
        .unwrap();
    assert_eq!(
        (stats.done, stats.cancelled, stats.pending + stats.leased),
        (4, 1, 0)
    );
    site.assert_balanced().await;
}

#[tokio::test]
async fn a_queue_can_be_moved_through_the_interface() {
    let site = Site::new("classic-move").await;
    let (old, new) = (
        Queue::start(&site),
        Queue::spawned(Queue::command(&site, "new", &[])),
    );
    let mut ids = String::from("gone\n");
    for (id, delay) in [("a:1", 0), ("b 2", 3600)] {
        let job = json!({"topic": "t", "id": id, "delay": delay, "ttr": 7, "body": id});
        old.does("push", job).await;
        ids += &format!("{id}\n");
    }
    let mut command = example("python3", "move.py", &new.url);
    command.args([&old.url, &new.url]).stdin(Stdio::piped());
    let mut process = TalkingProcess::spawn(command);
    std::io::Write::write_all(&mut process.child.stdin.take().unwrap(), ids.as_bytes()).unwrap();
    assert_eq!(process.ends(), ["2 moved"]);
    let due = async |queue: &Queue| queue.get("b 2").await["delay"].as_u64().unwrap();
    let late = due(&new).await - due(&old).await;
    assert!(late <= 60, "{late} s late");
    assert_eq!(new.pop("t").await, "a:1");
    assert_eq!(new.get("a:1").await["ttr"], 7);
    new.finish("a:1").await;
    site.assert_balanced().await;
}
