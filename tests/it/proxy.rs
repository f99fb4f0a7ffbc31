//! A network between a worker and its Redis that can be made to fail.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// Passes on what goes between its own socket and that of a server, until it is told not to.
pub(crate) struct Proxy {
    path: PathBuf,
    /// Connections with a lower number pass on nothing, and are not closed.
    frozen: Arc<AtomicU64>,
    opened: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Proxy {
    /// In front of the server at `url`, `redis+unix:///path…`.
    pub(crate) fn before(url: &str) -> Self {
        let (_, server) = url.split_once("://").unwrap();
        let server = PathBuf::from(server.split('?').next().unwrap());
        let path = server.with_extension(format!("proxy{:08x}", rand::random::<u32>()));
        let listener = UnixListener::bind(&path).unwrap();
        let (frozen, opened): (Arc<AtomicU64>, Arc<AtomicU64>) = Default::default();
        let (thaw, count) = (frozen.clone(), opened.clone());
        let task = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = UnixStream::connect(&server).await else {
                    continue;
                };
                let number = count.fetch_add(1, Ordering::SeqCst);
                let (from_client, to_client) = client.into_split();
                let (from_server, to_server) = server.into_split();
                tokio::spawn(pass(from_client, to_server, number, thaw.clone()));
                tokio::spawn(pass(from_server, to_client, number, thaw.clone()));
            }
        });
        Proxy {
            path,
            frozen,
            opened,
            task,
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis+unix://{}", self.path.display())
    }

    /// All connections that are open go silent, and stay open. New ones work.
    pub(crate) fn freeze(&self) {
        let opened = self.opened.load(Ordering::SeqCst);
        self.frozen.store(opened, Ordering::SeqCst);
    }

    /// How many connections were opened so far.
    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
        // It may never have been there.
        let _ = std::fs::remove_file(&self.path);
    }
}

async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    number: u64,
    frozen: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if number < frozen.load(Ordering::SeqCst) {
            // What came is swallowed, and nothing is closed.
            std::future::pending::<()>().await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
