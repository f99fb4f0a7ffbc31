//! The announcements of each command that changes a key, and the key after it: adoption relies on
//! these facts.
//!
//! `docs/adoption.md` has the same facts as a table.

use crate::bare_server::BareServer;
use crate::version::ServerVersion::{Redis, Valkey};

/// The key `k` before a command: absent, or the result of these commands.
type Before = &'static [&'static str];

/// A string that expires.
const TIMED: Before = &["SET k 1 PX 50000"];

/// The key after a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    /// A string without an expiry, with its old expiry, or with another one.
    Lasting,
    SameTime,
    OtherTime,
    /// Another type, with an expiry.
    Another,
}
use Left::{Another, Lasting, Nothing, OtherTime, SameTime};

/// Command, state of `k` before it, announcements for `k`, and state of `k` after it.
const SAID: [(&str, Before, &[&str], Left); 42] = [
    ("SET k v EX 100", &[], &["set", "expire"], OtherTime),
    ("SETEX k 100 v", &[], &["set", "expire"], OtherTime),
    ("PSETEX k 100000 v", &[], &["set", "expire"], OtherTime),
    (
        "SET k v PXAT 99999999999999",
        &[],
        &["set", "expire"],
        OtherTime,
    ),
    ("SET k v NX EX 100", &[], &["set", "expire"], OtherTime),
    ("SET k v NX EX 100", TIMED, &[], SameTime),
    ("SET k v XX EX 100", TIMED, &["set", "expire"], OtherTime),
    ("SET k v EX 0", TIMED, &[], SameTime),
    ("SET k v", TIMED, &["set"], Lasting),
    ("SET k v KEEPTTL", TIMED, &["set"], SameTime),
    ("GETSET k v", TIMED, &["set"], Lasting),
    ("MSET k v j v", TIMED, &["set"], Lasting),
    ("EXPIRE k 100", TIMED, &["expire"], OtherTime),
    ("PEXPIRE k 100000", TIMED, &["expire"], OtherTime),
    ("EXPIREAT k 9999999999", TIMED, &["expire"], OtherTime),
    ("PEXPIREAT k 9999999999000", TIMED, &["expire"], OtherTime),
    ("EXPIRE k 100", &[], &[], Nothing),
    ("PERSIST k", TIMED, &["persist"], Lasting),
    ("GETEX k EX 100", TIMED, &["expire"], OtherTime),
    ("GETEX k PERSIST", TIMED, &["persist"], Lasting),
    ("GETEX k", TIMED, &[], SameTime),
    ("DEL k", TIMED, &["del"], Nothing),
    ("UNLINK k", TIMED, &["del"], Nothing),
    ("GETDEL k", TIMED, &["del"], Nothing),
    ("RENAME k j", TIMED, &["rename_from"], Nothing),
    ("RENAME j k", &["SET j v EX 100"], &["rename_to"], OtherTime),
    (
        "RENAME j k",
        &["SET j v EX 100", TIMED[0]],
        &["rename_to"],
        OtherTime,
    ),
    (
        "RENAME j k",
        &["SET j v", TIMED[0]],
        &["rename_to"],
        Lasting,
    ),
    ("COPY j k", &["SET j v EX 100"], &["copy_to"], OtherTime),
    (
        "COPY j k REPLACE",
        &["SET j v EX 100", TIMED[0]],
        &["copy_to"],
        OtherTime,
    ),
    ("MOVE k 1", TIMED, &["move_from"], Nothing),
    ("APPEND k w", TIMED, &["append"], SameTime),
    ("SETRANGE k 0 w", TIMED, &["setrange"], SameTime),
    ("INCR k", TIMED, &["incrby"], SameTime),
    ("SETBIT k 1 1", TIMED, &["setbit"], SameTime),
    ("BITOP NOT k j", &["SET j v", TIMED[0]], &["set"], Lasting),
    ("EXPIRE k 100", &["RPUSH k v"], &["expire"], Another),
    (
        "RPUSH k v",
        &["RPUSH k v", "EXPIRE k 100"],
        &["rpush"],
        Another,
    ),
    (
        "SET k v EX 100",
        &["RPUSH k v", "EXPIRE k 100"],
        &["set", "expire"],
        OtherTime,
    ),
    (
        "SORT j STORE k",
        &["RPUSH j 1", TIMED[0]],
        &["sortstore"],
        Another,
    ),
    ("FLUSHDB", TIMED, &[], Nothing),
    ("SWAPDB 0 1", TIMED, &[], Nothing),
];

#[tokio::test]
async fn each_command_announces_the_events_that_adoption_expects() {
    let mut stage = BareServer::new().await;
    for (command, before, said, left) in SAID {
        let heard = changed(&mut stage, before, command).await;
        let what = format!("{command} after {before:?}");
        stage.version.always(
            &what,
            &heard,
            said.iter().map(|event| (*event).to_owned()).collect(),
        );
        let found = found(&mut stage).await;
        stage.version.always(&what, &found, left);
    }
}

#[tokio::test]
async fn a_restored_value_is_announced() {
    let mut stage = BareServer::new().await;
    for before in [&[][..], TIMED] {
        let () = prepare(&mut stage, before).await;
        let () = stage.ask("SET j v").await;
        let dump: Vec<u8> = stage.ask("DUMP j").await;
        let mut restore = redis::cmd("RESTORE");
        restore.arg("k").arg(100_000).arg(dump).arg("REPLACE");
        let heard = announced(&mut stage, &restore).await;
        stage
            .version
            .always("RESTORE", &heard, vec!["restore".to_owned()]);
        assert_eq!(found(&mut stage).await, OtherTime);
    }
}

#[tokio::test]
async fn a_past_expiry_is_announced_as_a_deletion_or_an_expiry() {
    let mut stage = BareServer::new().await;
    for command in ["EXPIRE k 0", "PEXPIREAT k 1000", "GETEX k PXAT 1000"] {
        let heard = changed(&mut stage, TIMED, command).await;
        let said = |event: &str| vec![event.to_owned()];
        let told = [(Redis(6, 2), said("del")), (Valkey(8, 1), said("expired"))];
        stage.version.holds(command, &heard, &told);
        assert_eq!(found(&mut stage).await, Nothing);
    }
}

/// The announcements for `k` during this command.
async fn changed(stage: &mut BareServer, before: Before, command: &str) -> Vec<String> {
    prepare(stage, before).await;
    announced(stage, &crate::bare_server::cmd(command)).await
}

async fn prepare(stage: &mut BareServer, before: Before) {
    let () = stage.ask("FLUSHALL").await;
    for command in before {
        let _: redis::Value = stage.ask(command).await;
    }
}

async fn announced(stage: &mut BareServer, command: &redis::Cmd) -> Vec<String> {
    stage.heard().await;
    // Some commands are refused, such as an expiry of zero.
    let _: redis::RedisResult<redis::Value> = command.query_async(&mut stage.redis).await;
    let heard = stage.heard().await;
    let of_k = heard.iter().filter_map(|heard| heard.strip_suffix(" k"));
    of_k.map(str::to_owned).collect()
}

async fn found(stage: &mut BareServer) -> Left {
    let kind: String = stage.ask("TYPE k").await;
    let left: i64 = stage.ask("PTTL k").await;
    match (kind.as_str(), left) {
        ("none", _) => Nothing,
        ("string", -1) => Lasting,
        ("string", ..=50_000) => SameTime,
        ("string", _) => OtherTime,
        _ => Another,
    }
}
