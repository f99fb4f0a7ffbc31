//! A network between Keyfall and Redis that can fail without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use keyfall::embedded::Embedded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Forwards connections to a server, until it stops without closing them.
pub(crate) struct Proxy {
    pub(crate) url: String,
    /// Connections with a number below this one are dead, and do not know it.
    dead: Arc<AtomicUsize>,
    opened: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) async fn to(server: &Embedded) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let socket = server.url().replace("redis+unix://", "");
        let (dead, opened) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        tokio::spawn({
            let (dead, opened) = (dead.clone(), opened.clone());
            async move {
                loop {
                    let (near, _) = listener.accept().await.unwrap();
                    let number = opened.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(forward(near, socket.clone(), number, dead.clone()));
                }
            }
        });
        Proxy { url, dead, opened }
    }

    /// Nothing passes any more on the connections that there are. New ones work.
    pub(crate) fn forget_connections(&self) {
        let opened = self.opened.load(Ordering::SeqCst);
        self.dead.store(opened, Ordering::SeqCst);
    }

    /// Nothing passes on any connection, whether it is there or still to come.
    pub(crate) fn swallow_everything(&self) {
        self.dead.store(usize::MAX, Ordering::SeqCst);
    }

    pub(crate) fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

async fn forward(near: TcpStream, socket: String, number: usize, dead: Arc<AtomicUsize>) {
    let (from_near, to_near) = near.into_split();
    let far = UnixStream::connect(socket).await.unwrap();
    let (from_far, to_far) = far.into_split();
    let lives = move || number >= dead.load(Ordering::SeqCst);
    tokio::join!(
        pump(from_near, to_far, &lives),
        pump(from_far, to_near, &lives)
    );
}

/// Copies what comes, and swallows it once the connection is dead.
async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    lives: &impl Fn() -> bool,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) if lives() => break,
            // It must not be closed, even if the far end does.
            Ok(0) | Err(_) => std::future::pending().await,
            Ok(count) if lives() => {
                if to.write_all(&buffer[..count]).await.is_err() {
                    break;
                }
            }
            Ok(_) => {}
        }
    }
    // The other side learns of the end.
    let _ = to.shutdown().await;
}
