//! Tests of the sentinels: their URL, and whom a client believes.

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn parse(url: &str) -> Result<Option<Sentinels>> {
    Sentinels::parse(url, &LinkSettings::default())
}

#[test]
fn a_url_names_sentinels_and_primary() {
    let url = "redis+sentinel://u:p%2F@a,b:1,[::1]:2,[::2]/main/3?sentinel_password=s";
    let sentinels = parse(url).unwrap().unwrap();
    assert_eq!((&*sentinels.master, sentinels.database), ("main", 3));
    let places: Vec<String> = sentinels.connection_slots.iter().map(place_of).collect();
    assert_eq!(places, ["a:26379", "b:1", "::1:2", "::2:26379"]);
    let connection_slot = sentinels.connection_slots[0]
        .get_connection_info()
        .redis_settings();
    assert_eq!(
        (connection_slot.username(), connection_slot.password()),
        (None, Some("s"))
    );
    let shown = sentinels.address();
    assert_eq!(
        shown,
        "the primary main of sentinels a:26379, b:1, ::1:2, ::2:26379"
    );
    assert!(parse("redis://localhost").unwrap().is_none());
}

#[test]
fn the_wrong_part_is_named_and_no_password_is_repeated() {
    for (url, part) in [
        ("redis+sentinel://a,b", "the name of the primary"),
        ("redis+sentinel://:geheim@a/", "the name of the primary"),
        ("redis+sentinel://a,,b/main", "a host is missing"),
        ("redis+sentinel://a:port/main", "the port is not a number"),
        ("redis+sentinel://u:geheim@a/main/x", "the database"),
        (
            "redis+sentinel://a/main?password=geheim",
            "sentinel_password",
        ),
        ("http+sentinel://a/main", "the scheme http:// is not known"),
    ] {
        let Err(error) = parse(url) else {
            panic!("{url}")
        };
        let text = error.to_string();
        assert!(text.contains(part), "{url}: {text}");
        assert!(!text.contains("heim"), "{url}: {text}");
    }
}

#[test]
fn the_newest_primary_counts_and_other_connections_move() {
    let sentinels = parse("redis+sentinel://a/main").unwrap().unwrap();
    let told = |epoch, host: &str| PrimaryReport {
        epoch,
        place: (host.to_owned(), 1),
    };
    let learn = |epoch, host| {
        let (host, _) = sentinels.learn(told(epoch, host));
        (host, sentinels.moves())
    };
    assert_eq!(learn(1, "old"), ("old".to_owned(), 0));
    assert_eq!(learn(2, "new"), ("new".to_owned(), 1));
    assert_eq!(learn(1, "old"), ("new".to_owned(), 1));
    assert_eq!(learn(2, "new"), ("new".to_owned(), 1));
    assert_eq!(learn(3, "old"), ("old".to_owned(), 2));
}

#[test]
fn a_majority_of_sentinels_that_have_forgotten_their_epoch_is_believed_after_a_while() {
    let sentinels = parse("redis+sentinel://a,b,c/main").unwrap().unwrap();
    let told = |epoch, host: &str| PrimaryReport {
        epoch,
        place: (host.to_owned(), 1),
    };
    let start = Instant::now();
    let finds = |epoch, host, reports, seconds| {
        let now = start + Duration::from_secs(seconds);
        sentinels.compare(epoch, reports, now);
        sentinels.learn(told(epoch, host)).0
    };
    assert_eq!(finds(3, "old", 3, 0), "old");
    assert_eq!(
        finds(0, "new", 2, 1),
        "old",
        "a fail-over may just have ended"
    );
    assert_eq!(finds(3, "old", 1, 9), "old", "one knows of it");
    assert_eq!(finds(0, "new", 2, 10), "old");
    assert_eq!(finds(0, "new", 1, 20), "old", "no majority");
    assert_eq!(finds(0, "new", 2, 20), "new");
    assert_eq!(sentinels.moves(), 1, "other connections move");
    assert_eq!(finds(1, "newer", 1, 21), "newer");
}

/// Answers to commands by a word in them; all others get `OK`.
type Answers = Vec<(&'static str, String)>;

/// Serves one connection.
async fn serve(stream: TcpStream, answers: Answers, asked: watch::Sender<u64>) {
    let (reader, mut writer) = stream.into_split();
    let mut lines = BufReader::new(reader).lines();
    while let Ok(Some(head)) = lines.next_line().await {
        let mut words = Vec::new();
        for _ in 0..head[1..].parse().unwrap() {
            let _length = lines.next_line().await.unwrap();
            words.push(lines.next_line().await.unwrap().unwrap());
        }
        let command = words.join(" ");
        let answer = answers.iter().find(|(word, _)| command.contains(word));
        let text = answer.map_or("+OK\r\n", |(_, text)| text);
        if writer.write_all(text.as_bytes()).await.is_err() {
            return;
        }
        asked.send_modify(|times| *times += u64::from(answer.is_some()));
    }
}

/// A server on a free port, which counts the known questions. Returns its port.
async fn listening(answers: Answers, asked: watch::Sender<u64>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(stream, answers.clone(), asked.clone()));
        }
    });
    port
}

/// The answers of a sentinel that reports a primary on this port.
fn reports(epoch: u64, port: u16) -> Answers {
    let bulk = |text: &str| format!("${}\r\n{text}\r\n", text.len());
    let array = |words: [&str; 2]| words.map(bulk).concat();
    let told = array(["config-epoch", &epoch.to_string()]);
    let place = array(["127.0.0.1", &port.to_string()]);
    vec![
        ("SENTINEL MASTER", format!("*2\r\n{told}")),
        ("GET-MASTER-ADDR", format!("*2\r\n{place}")),
    ]
}

#[tokio::test]
async fn the_newest_of_all_reports_counts_in_any_order() {
    let (first, second) = (watch::Sender::new(0), watch::Sender::new(0));
    let old = listening(reports(1, 1), first.clone()).await;
    // The newer report comes only after the older one.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let new = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut answered = first.subscribe();
        while let Ok((stream, _)) = listener.accept().await {
            answered.wait_for(|times| *times >= 2).await.unwrap();
            answered.borrow_and_update();
            tokio::spawn(serve(stream, reports(2, 2), second.clone()));
        }
    });
    for order in [[old, new], [new, old]] {
        let [one, other] = order;
        let url = format!("redis+sentinel://127.0.0.1:{one},127.0.0.1:{other}/main");
        let sentinels = parse(&url).unwrap().unwrap();
        // On a busy machine the second report may come too late.
        let mut newest = 0;
        for _ in 0..20 {
            newest = newest.max(sentinels.ask().await.ok().unwrap().0.epoch);
        }
        assert_eq!(newest, 2);
    }
}

#[tokio::test]
async fn a_server_that_is_still_a_replica_is_not_called() {
    for (role, is_primary) in [("slave", false), ("master", true)] {
        let asked = watch::Sender::new(0);
        let info = format!("# Replication\r\nrole:{role}\r\nconnected_slaves:0\r\n");
        let info = format!("${}\r\n{info}\r\n", info.len());
        let server = listening(vec![("INFO", info)], asked.clone()).await;
        let sentinel = listening(reports(1, server), asked.clone()).await;
        let url = format!("redis+sentinel://127.0.0.1:{sentinel}/main");
        let found = Arc::new(parse(&url).unwrap().unwrap()).find().await;
        match found {
            Ok(_) => assert!(is_primary, "{role}"),
            Err(fault) => {
                assert!(!is_primary, "{role}: {}", fault.error());
                assert!(fault.is_passing(), "{}", fault.error());
            }
        }
    }
}
