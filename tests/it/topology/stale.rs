//! A sentinel that is cut off from the others, and keeps naming the old primary.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Starts a sentinel that answers clients and learns nothing. Returns its host and port.
pub(super) async fn stale_sentinel(primary: u16) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(answer(client, primary));
        }
    });
    place
}

async fn answer(mut client: TcpStream, primary: u16) {
    let mut asked = String::new();
    let mut buffer = vec![0; 4096];
    while let Ok(count @ 1..) = client.read(&mut buffer).await {
        asked += std::str::from_utf8(&buffer[..count]).unwrap();
        while let Some((words, length)) = command(&asked) {
            let reply = reply(&words, primary);
            asked.drain(..length);
            if client.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
    }
}

/// The first complete command, and its length in bytes.
fn command(text: &str) -> Option<(Vec<&str>, usize)> {
    let mut lines = text.split_inclusive("\r\n");
    let head = lines.next()?;
    let count: usize = head.trim_end().strip_prefix('*')?.parse().ok()?;
    let mut length = head.len();
    let mut words = Vec::with_capacity(count);
    for _ in 0..count {
        let (size, word) = (lines.next()?, lines.next()?);
        length += size.len() + word.len();
        words.push(word.strip_suffix("\r\n")?);
    }
    Some((words, length))
}

fn reply(words: &[&str], primary: u16) -> String {
    let texts = |texts: &[&str]| {
        let texts: String = texts
            .iter()
            .map(|text| format!("${}\r\n{text}\r\n", text.len()))
            .collect();
        texts
    };
    let port = primary.to_string();
    match words
        .iter()
        .map(|word| word.to_uppercase())
        .collect::<Vec<_>>()[..]
    {
        [ref first, ref second, ..] if first == "SENTINEL" && second == "MASTER" => {
            let fields = ["ip", "127.0.0.1", "port", &port, "config-epoch", "0"];
            format!("*{}\r\n{}", fields.len(), texts(&fields))
        }
        [ref first, ..] if first == "SENTINEL" => format!("*2\r\n{}", texts(&["127.0.0.1", &port])),
        [ref first, ..] if first == "SUBSCRIBE" => {
            format!("*3\r\n{}:1\r\n", texts(&["subscribe", words[1]]))
        }
        [ref first, ..] if first == "PING" => format!("*2\r\n{}", texts(&["pong", ""])),
        _ => "+OK\r\n".to_owned(),
    }
}
