//! The behaviour of servers that Keyfall relies on, and the differences between servers, shown
//! without Keyfall.
//!
//! `docs/servers.md` says the same in prose, and how Keyfall handles each difference. A version that
//! behaves differently fails here, and has to be recorded in both.

use keyfall::embedded::Embedded;
use keyfall_testing::proxies::FreezingProxy;

use crate::bare_server::{BareServer, DIE, cmd, pipeline, script};
use crate::runs::eventually;
use crate::version::ServerVersion::{Redis, Valkey};

#[tokio::test]
async fn a_key_with_a_past_expiry_is_gone_at_once() {
    let mut stage = BareServer::new().await;
    for change in [
        "EXPIRE k 0",
        "EXPIRE k -1",
        "PEXPIREAT k 1000",
        "GETEX k PXAT 1000",
    ] {
        let () = stage.ask("SET k v").await;
        stage.heard().await;
        let _: redis::Value = stage.ask(change).await;
        let left: u64 = stage.ask("EXISTS k").await;
        assert_eq!(left, 0, "{change}");
        stage.version.holds(
            change,
            &stage.heard().await,
            &[
                (Redis(6, 2), vec!["del k".into()]),
                (Valkey(8, 1), vec!["expired k".into()]),
            ],
        );
    }
}

#[tokio::test]
async fn a_set_with_a_past_expiry_stores_a_dead_key_or_none() {
    let mut stage = BareServer::new().await;
    let set = "redis.call('SET', 'k', 'v', 'PXAT', 1000)
        redis.call('PUBLISH', 'said', 'look')
        return redis.call('EXISTS', 'k')";
    let left: u64 = stage.eval(set).await.unwrap();
    assert_eq!(left, 0);
    let stored = ["set k", "expire k", "look", "expired k"];
    stage.version.holds(
        "SET with a past PXAT",
        &stage.heard().await,
        &[
            (Redis(6, 2), strings(&stored)),
            (Valkey(8, 1), strings(&["look"])),
        ],
    );
    let () = stage.ask("SET k v").await;
    stage.heard().await;
    let left: u64 = stage.eval(set).await.unwrap();
    assert_eq!(left, 0);
    stage.version.holds(
        "SET with a past PXAT over a key that is there",
        &stage.heard().await,
        &[
            (Redis(6, 2), strings(&stored)),
            (Valkey(8, 1), strings(&["expired k", "look"])),
        ],
    );
}

#[tokio::test]
async fn an_expiry_of_now_counts_as_past_or_as_future() {
    let mut stage = BareServer::new().await;
    let set = "local now = redis.call('TIME')
        now = string.format('%.0f', now[1] * 1000 + math.floor(now[2] / 1000))
        redis.call('SET', 'k', 'v', 'PXAT', now)
        return redis.call('EXISTS', 'k')";
    let left: u64 = stage.eval(set).await.unwrap();
    let said = [(Redis(6, 2), 1), (Valkey(8, 1), 0)];
    stage.version.holds("SET with PXAT = TIME", &left, &said);
}

#[tokio::test]
async fn a_script_judges_expiry_by_the_time_of_its_start() {
    let mut stage = BareServer::new().await;
    let (passed, alive): (u64, u64) = stage
        .eval(
            "local function ms()
                local now = redis.call('TIME')
                return now[1] * 1000 + math.floor(now[2] / 1000)
            end
            local began, looks = ms(), 0
            redis.call('SET', 'k', 'v', 'PX', 1)
            while ms() < began + 10 and looks < 50000 do
                looks = looks + 1
            end
            return {ms() - began, redis.call('EXISTS', 'k')}",
        )
        .await
        .unwrap();
    let heard = stage.heard().await;
    assert_eq!(heard[..2], ["set k", "expire k"]);
    stage
        .version
        .always("a key that died within a script", &alive, 1);
    stage.version.holds(
        "TIME stands still within a script",
        &(passed == 0),
        &[(Redis(6, 2), false), (Redis(7, 2), true)],
    );
    let alive: u64 = stage.ask("EXISTS k").await;
    assert_eq!(alive, 0);
    let heard = [heard, stage.heard().await].concat();
    assert_eq!(heard, ["set k", "expire k", "expired k"]);
}

#[tokio::test]
async fn a_script_that_meets_a_dead_key_announces_the_expiry_at_once() {
    let mut stage = BareServer::new().await;
    let seen: (u64, Vec<String>) = stage
        .with_dead(&script(
            "redis.call('PUBLISH', 'said', 'before')
            local alive = redis.call('EXISTS', 'k')
            redis.call('PUBLISH', 'said', 'after')
            return alive",
        ))
        .await;
    let told = (0, strings(&["before", "expired k", "after"]));
    stage.version.always("EXISTS in a script", &seen, told);
}

#[tokio::test]
async fn every_command_that_meets_a_dead_key_announces_the_expiry() {
    let mut stage = BareServer::new().await;
    for (command, also) in [
        ("EXISTS k", &[][..]),
        ("GETRANGE k 0 7", &[]),
        ("DEL k", &[]),
        ("UNLINK k", &[]),
        ("GETDEL k", &[]),
        ("PEXPIRE k 100000", &[]),
        ("SET k w", &["set k"]),
        ("SET k w NX PXAT 99999999999999", &["set k", "expire k"]),
    ] {
        let (_, heard): (redis::Value, _) = stage.with_dead(&cmd(command)).await;
        let told = [&["expired k"], also].concat();
        stage.version.always(command, &heard, strings(&told));
    }
}

#[tokio::test]
async fn nothing_expires_while_writes_are_paused() {
    let mut stage = BareServer::new().await;
    let () = pipeline(&DIE).query_async(&mut stage.redis).await.unwrap();
    eventually("a dead key is found dead", async || {
        let alive: u64 = stage.ask("EXISTS k").await;
        (alive == 0).then_some(())
    })
    .await;
    let stored: u64 = stage.ask("DBSIZE").await;
    let look = ["CLIENT UNPAUSE", "PUBLISH said unpaused", "EXISTS k"];
    let () = pipeline(&look).query_async(&mut stage.redis).await.unwrap();
    let seen = (stored, stage.heard().await);
    let told = strings(&["set k", "expire k", "unpaused", "expired k"]);
    stage.version.always("CLIENT PAUSE WRITE", &seen, (1, told));
}

#[tokio::test]
async fn a_replica_announces_del_until_it_is_promoted() {
    let primary = Embedded::options().args(["--repl-diskless-sync-delay", "0"]);
    let mut primary = BareServer::with(primary).await;
    let proxy = FreezingProxy::to(&primary.server).await;
    let (host, port) = proxy.url["redis://".len()..].split_once(':').unwrap();
    let mut replica = BareServer::with(Embedded::options().args(["--replicaof", host, port])).await;
    eventually("it follows", async || {
        let info: String = replica.ask("INFO replication").await;
        info.contains("master_link_status:up").then_some(())
    })
    .await;

    let () = primary.ask("SET k v PX 20").await;
    // The replica treats a dead key as absent, and leaves the deletion to the primary.
    let mut heard = Vec::new();
    eventually("it is deleted on the replica", async || {
        let _: u64 = primary.ask("EXISTS k").await;
        let _: u64 = replica.ask("EXISTS k").await;
        heard.extend(replica.heard().await);
        let stored: u64 = replica.ask("DBSIZE").await;
        (stored == 0 && heard.len() > 2).then_some(())
    })
    .await;
    let told = strings(&["set k", "expire k", "del k"]);
    replica.version.always("expiry on a replica", &heard, told);
    assert!(primary.heard().await.contains(&"expired k".to_owned()));

    let () = replica.ask("REPLICAOF NO ONE").await;
    let (_, heard): (u64, _) = replica.with_dead(&cmd("EXISTS k")).await;
    let told = strings(&["expired k"]);
    replica
        .version
        .always("expiry after a promotion", &heard, told);
}

#[tokio::test]
async fn a_full_server_runs_a_script_whose_first_write_is_always_allowed() {
    let mut stage = BareServer::new().await;
    let () = stage
        .eval(
            "redis.call('ZADD', 'zset', 1, 'a')
            redis.call('HSET', 'hash', 'f', 1)
            redis.call('SET', 'string', 1)",
        )
        .await
        .unwrap();
    let () = stage.ask("CONFIG SET maxmemory 1").await;
    for (first, passes) in [
        // First writes of Keyfall's scripts, chosen because a full Redis allows them.
        ("'ZREM', 'zset', ''", true),
        ("'ZREM', 'none', ''", true),
        ("'HDEL', 'hash', ''", true),
        ("'DEL', 'none'", true),
        ("'PEXPIREAT', 'none', 1", true),
        // First writes that a full Redis refuses.
        ("'HINCRBY', 'hash', 'f', 1", false),
        ("'HSET', 'hash', 'f', 1", false),
        ("'ZADD', 'zset', 1, 'a'", false),
        ("'SET', 'string', 1", false),
        // Neither reading nor publishing is a write.
        ("'PUBLISH', 'said', 'something'", false),
        ("'ZCARD', 'zset'", false),
    ] {
        let went_on = stage
            .eval::<()>(&format!(
                "redis.call({first}) redis.call('ZADD', 'new', 1, 'a')"
            ))
            .await
            .is_ok();
        stage.version.always(first, &went_on, passes);
    }
    // Outside of a script a full Redis allows publishing.
    let _: u64 = stage.ask("PUBLISH said something").await;
}

#[tokio::test]
async fn an_error_in_a_script_has_its_code_in_front_or_in_its_text() {
    const PLACE: &str = "@user_script:";
    let mut stage = BareServer::new().await;
    let () = stage.ask("HSET hash f 1").await;
    let () = stage.ask("ACL SETUSER default -hincrby").await;
    let mut forbidden = String::new();
    // The codes of an error that stops the script, and of an error that the script catches and
    // passes on.
    for (command, maxmemory, at_first, since_7) in [
        (
            "'ZREM', 'hash', 'a'",
            0,
            ["ERR", "WRONGTYPE"],
            ["WRONGTYPE", "WRONGTYPE"],
        ),
        ("'ZADD', 'zset', 1, 'a'", 1, ["ERR", PLACE], ["OOM", "OOM"]),
        (
            "'HINCRBY', 'hash', 'f', 1",
            0,
            ["ERR", PLACE],
            ["ERR", "ERR"],
        ),
    ] {
        let limit = format!("CONFIG SET maxmemory {maxmemory}");
        let () = stage.ask(&limit).await;
        let mut codes = Vec::new();
        for call in ["redis.call", "return redis.pcall"] {
            let error = stage.eval::<()>(&format!("{call}({command})")).await;
            let error = error.unwrap_err();
            codes.extend(error.code().map(str::to_owned));
            forbidden = error.to_string();
        }
        let told = [
            (Redis(6, 2), strings(&at_first)),
            (Redis(7, 0), strings(&since_7)),
        ];
        stage.version.holds(command, &codes, &told);
    }
    stage.version.holds(
        "the text of what an ACL forbids",
        &forbidden.contains("ACL failure in script"),
        &[(Redis(6, 2), false), (Redis(7, 2), true)],
    );
}

#[tokio::test]
async fn flags_are_returned_in_another_order_and_some_are_hidden() {
    let mut stage = BareServer::new().await;
    for (set, got) in [
        ("Ex", "xE"),
        ("gK", "gK"),
        ("KEA", "AKE"),
        ("g$lshzxetdKE", "AKE"),
    ] {
        let () = stage
            .ask(&format!("CONFIG SET notify-keyspace-events {set}"))
            .await;
        stage.version.always(set, &stage.flags().await, got.into());
    }
    // Known letters besides the letters of `A`.
    let mut known = String::new();
    let mut hidden = String::new();
    for letter in "abcdefghijklmnopqrstuvwxyzBCDFGHIJLMNOPQRSTUVWXYZ0123456789".chars() {
        if "g$lshzxetd".contains(letter) {
            continue;
        }
        let () = stage.ask("CONFIG SET notify-keyspace-events E").await;
        let set = cmd(&format!("CONFIG SET notify-keyspace-events E{letter}"));
        if set.exec_async(&mut stage.redis).await.is_err() {
            assert_eq!(stage.flags().await, "E", "a refusal changes nothing");
            continue;
        }
        if stage.flags().await.contains(letter) {
            known.push(letter);
        }
        let () = stage
            .ask(&format!("CONFIG SET notify-keyspace-events AE{letter}"))
            .await;
        if !stage.flags().await.contains(letter) {
            hidden.push(letter);
        }
    }
    let told = |known: &str, hidden: &str| (known.to_owned(), hidden.to_owned());
    stage.version.holds(
        "letters beside A, and those that A hides",
        &(known, hidden),
        &[
            (Redis(6, 2), told("m", "")),
            (Redis(7, 0), told("mn", "n")),
            (Redis(8, 2), told("cmno", "cno")),
            (Valkey(8, 1), told("mn", "n")),
        ],
    );
}

/// Flags that `A` hides are set nevertheless, and lost when the flags that were read are written
/// back.
#[tokio::test]
async fn a_hidden_flag_is_lost_when_the_shown_flags_are_written_back() {
    let mut stage = BareServer::new().await;
    if stage.version < Redis(7, 0) {
        return;
    }
    let () = stage.ask("CONFIG SET notify-keyspace-events AEn").await;
    let () = stage.ask("SET one v").await;
    let shown = stage.flags().await;
    let () = stage
        .ask(&format!("CONFIG SET notify-keyspace-events {shown}"))
        .await;
    let () = stage.ask("SET two v").await;
    let told = strings(&["new one", "set one", "set two"]);
    stage
        .version
        .always("a hidden flag", &stage.heard().await, told);
}

fn strings(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}
