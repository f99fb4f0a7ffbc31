//! HTTP servers whose answers a test chooses, and that record their requests.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::runs::PATIENCE;

/// A request as it arrived.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    pub(crate) path: String,
    /// The headers, by their names in lower case.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// The reaction of a server to a request.
pub(crate) enum Reply {
    /// Answers, and keeps the connection.
    Says(String),
    /// Writes these bytes and closes the connection.
    Cuts(&'static str),
    /// Sends no answer, and keeps the connection.
    Hangs,
    /// Waits for a reply on this channel; cuts the connection if the sender is gone.
    Later(oneshot::Receiver<Reply>),
    /// Answers with a status line, and a body without an end.
    Floods(&'static str),
}

pub(crate) struct Receiver {
    pub(crate) address: SocketAddr,
    received: mpsc::UnboundedReceiver<Received>,
    connections: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

/// A status, such as `200 OK`, with these further lines of the head and this body.
pub(crate) fn says(status: &str, head: &str, body: &str) -> Reply {
    let length = body.len();
    Reply::Says(format!(
        "HTTP/1.1 {status}\r\n{head}content-length: {length}\r\n\r\n{body}"
    ))
}

impl Received {
    #[track_caller]
    pub(crate) fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.unwrap_or_else(|| panic!("no {name} in {self:?}"))
    }
}

impl Receiver {
    pub(crate) async fn start(
        reply: impl Fn(&Received) -> Reply + Clone + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (note, received) = mpsc::unbounded_channel();
        let connections: Arc<AtomicUsize> = Arc::default();
        let opened = connections.clone();
        let task = tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                opened.fetch_add(1, Ordering::Relaxed);
                let (reply, note) = (reply.clone(), note.clone());
                tokio::spawn(async move {
                    // The caller may close the connection at any time.
                    let _ = serve(stream, &reply, &note).await;
                });
            }
        });
        Receiver {
            address,
            received,
            connections,
            task,
        }
    }

    /// A server that gives the same answer to all requests.
    pub(crate) async fn always(status: &'static str, head: &'static str) -> Self {
        Receiver::start(move |_| says(status, head, "so it is")).await
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    #[track_caller]
    pub(crate) fn next(&mut self) -> impl Future<Output = Received> {
        let caller = std::panic::Location::caller();
        async move {
            match timeout(PATIENCE, self.received.recv()).await {
                Ok(Some(received)) => received,
                _ => panic!("{caller}: nothing is sent"),
            }
        }
    }

    /// The requests that were not taken yet.
    pub(crate) fn rest(&mut self) -> Vec<Received> {
        std::iter::from_fn(|| self.received.try_recv().ok()).collect()
    }

    /// The number of requests so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut stream: TcpStream,
    reply: &(impl Fn(&Received) -> Reply + Send + Sync),
    note: &mpsc::UnboundedSender<Received>,
) -> std::io::Result<()> {
    loop {
        let Some(received) = read(&mut stream).await? else {
            return Ok(());
        };
        let said = reply(&received);
        // The test may have ended.
        let _ = note.send(received);
        let said = match said {
            Reply::Later(said) => said.await.unwrap_or(Reply::Cuts("")),
            said => said,
        };
        match said {
            Reply::Later(_) => panic!("it is put off once"),
            Reply::Says(text) => stream.write_all(text.as_bytes()).await?,
            Reply::Cuts(text) => return stream.write_all(text.as_bytes()).await,
            Reply::Hangs => std::future::pending().await,
            Reply::Floods(status) => {
                let head = format!("HTTP/1.1 {status}\r\ntransfer-encoding: chunked\r\n\r\n");
                stream.write_all(head.as_bytes()).await?;
                let chunk = format!("1000\r\n{}\r\n", "x".repeat(0x1000));
                loop {
                    stream.write_all(chunk.as_bytes()).await?;
                }
            }
        }
    }
}

/// Reads one request; `None` if the connection is closed.
async fn read(stream: &mut TcpStream) -> std::io::Result<Option<Received>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read(&mut byte).await? == 0 {
            return Ok(None);
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut lines = head.lines();
    let line = lines.next().unwrap();
    let path = line.strip_prefix("POST ").expect("it is a POST");
    let path = path.split(' ').next().unwrap().to_owned();
    let header = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        Some((name.to_lowercase(), value.to_owned()))
    };
    let headers: BTreeMap<String, String> = lines.filter_map(header).collect();
    let length = headers.get("content-length");
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    stream.read_exact(&mut body).await?;
    Ok(Some(Received {
        path,
        headers,
        body,
    }))
}
