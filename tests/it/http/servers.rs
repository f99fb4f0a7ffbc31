//! The servers, and the kinds with several shards.

use serde_json::{Value, json};

use super::revoking::Token;
use super::{assert_problem, own_redis, read};
use crate::runs::eventually;
use crate::site::HOUR;

#[tokio::test]
async fn servers_and_shards_are_listed_with_their_pacers() {
    let (_redis, site) = own_redis("http-servers").await;
    let token = Token::make("http-servers", "read", &["--prefix", "http-servers:"]);
    let all = token.another("read");
    let daemon = token.daemon_with(&site, &[]);
    let get = async |bearer: &str, path: &str| {
        let call = daemon.request("GET", path).bearer_auth(bearer);
        read(call.send().await.unwrap()).await
    };
    let kinds = ["one", "some", "two"].map(|name| format!("{}:it:{name}", site.app));
    for (kind, shards) in kinds.iter().zip([1, 4, 2]) {
        for id in 0..20 {
            let key = format!("{kind}:{id}");
            site.client.schedule(&key, "").after(HOUR).await.unwrap();
        }
        if shards > 1 {
            site.client.reshard(kind, shards).await.unwrap();
        }
    }

    let instance = eventually("the daemon paces all ledgers", async || {
        let (status, answer) = get(&all, "/v1/servers").await;
        assert_eq!(status, 200, "{answer}");
        let [server] = &answer["servers"].as_array().unwrap()[..] else {
            panic!("there is one server: {answer}");
        };
        assert_eq!(server["topology"], "single");
        assert_eq!(server["ledgers"], 7, "{answer}");
        let version = server["version"].as_str().unwrap();
        assert!(version.starts_with("Redis ") || version.starts_with("Valkey "));
        assert_eq!(
            (&server["number"], &server["away"]),
            (&Value::Null, &Value::Null)
        );
        assert!(server["round_trip_us"].as_u64().unwrap() > 0);
        let pacer = server["pacers"].get(0)?;
        assert_eq!(
            (&pacer["paces"], &pacer["stands_by"]),
            (&json!(7), &json!(0))
        );
        Some(pacer["instance"].clone())
    })
    .await;
    let (_, live) = get(&all, "/v1/instances").await;
    assert_eq!(live["instances"][0]["id"], instance);

    let (_, first) = get(&all, "/v1/shards?limit=1").await;
    assert_eq!(
        (&first["total"], &first["next"]),
        (&json!(2), &json!(kinds[1]))
    );
    let shards = first["kinds"][0]["shards"].as_array().unwrap();
    assert_eq!(
        (&first["kinds"][0]["kind"], shards.len()),
        (&json!(kinds[1]), 4)
    );
    let pending: u64 = shards
        .iter()
        .map(|it| it["jobs"]["pending"].as_u64().unwrap())
        .sum();
    assert_eq!(pending, 20, "{first}");
    for (number, shard) in shards.iter().enumerate() {
        assert_eq!(shard["shard"], number);
        assert_eq!(shard["pacer"], instance, "{shard}");
        let ledger = shard["ledger"].as_str().unwrap();
        assert!(
            ledger.starts_with(&format!("{}/{number}", kinds[1])),
            "{ledger}"
        );
    }
    let (_, next) = get(&all, &format!("/v1/shards?limit=1&cursor={}", kinds[1])).await;
    assert_eq!(
        (&next["kinds"][0]["kind"], &next["next"]),
        (&json!(kinds[2]), &Value::Null)
    );

    let key = format!("{}:late", kinds[0]);
    site.client.schedule(key, "").await.unwrap();
    let late = eventually("the server is late", async || {
        let (_, counts) = get(&all, "/v1/jobs/count").await;
        counts["late"].get(0).cloned()
    })
    .await;
    let (_, servers) = get(&all, "/v1/servers").await;
    assert_eq!(late["address"], servers["servers"][0]["address"], "{late}");
    assert_eq!(late["overdue"], 1, "{late}");
    assert!(late["overdue_for"].is_string(), "{late}");

    // A token for some jobs sees where they are, and no instance.
    let denied = get(&token.bearer, "/v1/servers").await;
    assert_problem(&denied, 403, "forbidden", Value::Null);
    assert_eq!(get(&token.bearer, "/v1/shards").await.0, 403);
    let own = get(&token.bearer, "/v1/shards?prefix=http-servers:").await;
    assert_eq!((own.0, &own.1["total"]), (200, &json!(2)));
    assert_eq!(
        own.1["kinds"][0]["shards"][0].get("pacer"),
        None,
        "{}",
        own.1
    );
    let wrong = get(&all, "/v1/shards?limit=0").await;
    assert_problem(&wrong, 400, "invalid_request", "limit");
}
