//! Servers that are not Redis, or the wrong Redis, or refuse our user: each error names the fault
//! and the remedy, and no error contains a password.

use keyfall::embedded::Embedded;
use keyfall::{Client, ErrorKind, Handler, Outcome, RetryPolicy, Router, Worker};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

use crate::limits::assert_refused;
use crate::log::Log;
use crate::outages::durable_redis;
use crate::runs::{eventually, recorder};
use crate::site::{Running, Site, connect, ms};

/// A server that sends this answer to each request; `None` sends nothing. Returns the URL.
async fn stranger(answer: Option<&'static [u8]>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut silent: Vec<TcpStream> = Vec::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            if let Some(answer) = answer {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(answer).await;
            }
            silent.push(stream);
        }
    });
    format!("redis://:geheim@{address}")
}

#[tokio::test]
async fn a_server_that_is_no_redis_differs_from_an_unreachable_one() {
    for (answer, kind, remedy) in [
        (
            Some(&b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"[..]),
            ErrorKind::Incompatible,
            "check host and port",
        ),
        (
            Some(b"\x00\xff\x17\x03\x80 garbage\r\n\x01"),
            ErrorKind::Incompatible,
            "check host and port",
        ),
        // The answer of a TLS port to a client without TLS.
        (
            Some(b"\x15\x03\x03\x00\x02\x02\x46"),
            ErrorKind::Incompatible,
            "rediss://",
        ),
        (
            Some(b"SSH-2.0-OpenSSH_9.2p1\r\n"),
            ErrorKind::Incompatible,
            "check host and port",
        ),
        (None, ErrorKind::Unavailable, "is it running and reachable"),
    ] {
        let url = stranger(answer).await;
        let error = Client::connect(&url).await.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        let text = format!("{error} {error:?}");
        assert!(text.contains(remedy), "{text}");
        assert!(text.contains("127.0.0.1:"), "{text}");
        assert!(!text.contains("geheim"), "{text}");
    }
}

#[tokio::test]
async fn a_missing_database_and_an_unknown_user_are_reported() {
    let server = Embedded::options().args(["--databases", "2"]);
    let server = server.start().await.unwrap();
    let url = |query: &str| format!("{}?{query}", server.url());
    Client::connect(&url("db=1")).await.unwrap();
    assert_refused(
        Client::connect(&url("db=2")).await,
        ErrorKind::InvalidSetting,
        &["no database of the number in the URL", "`databases`"],
    );
    for query in ["user=nobody&pass=geheim", "user=default&pass=geheim"] {
        match Client::connect(&url(query)).await {
            // The default user has no password, and so accepts any.
            Ok(_) => assert!(query.contains("default")),
            other => {
                let text = format!("{:?}", other.as_ref().unwrap_err());
                assert!(!text.contains("geheim"), "{text}");
                assert_refused(other, ErrorKind::Denied, &["check user and password"]);
            }
        }
    }
}

#[tokio::test]
async fn the_error_for_an_old_redis_names_the_supported_versions() {
    let server = Embedded::start().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let socket = server.url().replace("redis+unix://", "");
    // A proxy that turns every version into version 5.
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = UnixStream::connect(&socket).await.unwrap();
            let (mut from_near, mut to_near) = near.into_split();
            let (mut from_far, mut to_far) = far.into_split();
            tokio::spawn(async move { tokio::io::copy(&mut from_near, &mut to_far).await });
            tokio::spawn(async move {
                let mut bytes = vec![0; 1 << 16];
                while let Ok(read @ 1..) = from_far.read(&mut bytes).await {
                    const NAME: &[u8] = b"redis_version:";
                    let found = bytes[..read].windows(NAME.len()).position(|it| it == NAME);
                    if let Some(at) = found {
                        bytes[at + NAME.len()] = b'5';
                    }
                    let _ = to_near.write_all(&bytes[..read]).await;
                }
            });
        }
    });
    assert_refused(
        Client::connect(&url).await,
        ErrorKind::Incompatible,
        &["is Redis \"5.", "Keyfall needs Redis 6.2 or newer"],
    );
}

#[tokio::test]
async fn no_password_is_logged_at_any_level() {
    let log = Log::everything();
    let mut server = durable_redis().await;
    let mut admin = connect(&server.url()).await;
    let acl = async |redis: &mut _| {
        let args = [
            "ACL", "SETUSER", "worker", "on", ">geheim", "~*", "&*", "+@all",
        ];
        let () = crate::site::command(redis, &args).await;
    };
    acl(&mut admin).await;
    let url = format!("{}?user=worker&pass=geheim", server.url());
    let site = Site::at(&url, "strangers-log").await;
    let (note, mut runs) = recorder();
    let handler = note.then(|job| match job.attempt() {
        1 => Outcome::retry("not yet"),
        _ => Outcome::Done,
    });
    let route = handler.retry(RetryPolicy::fixed(ms(20)).unwrap());
    let router = Router::new().route(&site.pattern(), route);
    let worker = Running::start(Worker::new(site.client.clone(), router));
    site.client.schedule(site.key(1), "").await.unwrap();
    runs.take(2).await;
    // Redis comes back without the user, and then with it.
    server.kill_server().await.unwrap();
    server.restart().await.unwrap();
    eventually("it is told", async || {
        (!log.with("Denied").is_empty() || !log.with("check user").is_empty()).then_some(())
    })
    .await;
    acl(&mut connect(&server.url()).await).await;
    site.client.schedule(site.key(2), "").await.unwrap();
    runs.take(2).await;
    site.all_ended().await;
    worker.stop().await;
    assert!(!format!("{:?} {:?}", site.client, site.client.instances().await).contains("geheim"));
    site.client.stats(&site.kind()).await.unwrap();
    assert!(!log.with("Redis").is_empty(), "it was logged");
    assert_eq!(log.with("geheim"), [""; 0]);
    let dump = server.log();
    assert!(!dump.contains("geheim"), "{dump}");
}
