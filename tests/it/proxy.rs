//! A network between Keyfall and Redis that can fail without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use keyfall::embedded::Embedded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};

/// Forwards connections to a server, until it stops without closing them.
pub(crate) struct Proxy {
    pub(crate) url: String,
    /// Connections with a number below this one are dead, and do not know it.
    dead: Arc<AtomicUsize>,
    opened: Arc<AtomicUsize>,
    babbling: Arc<AtomicBool>,
}

impl Proxy {
    pub(crate) async fn to(server: &Embedded) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let socket = server.url().replace("redis+unix://", "");
        let (dead, opened) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let babbling = Arc::new(AtomicBool::new(false));
        tokio::spawn({
            let (dead, opened, babbling) = (dead.clone(), opened.clone(), babbling.clone());
            async move {
                loop {
                    let (mut near, _) = listener.accept().await.unwrap();
                    if babbling.load(Ordering::SeqCst) {
                        // Whoever asks may be gone again.
                        let _ = near.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
                        continue;
                    }
                    let number = opened.fetch_add(1, Ordering::SeqCst);
                    tokio::spawn(forward(near, socket.clone(), number, dead.clone()));
                }
            }
        });
        Proxy {
            url,
            dead,
            opened,
            babbling,
        }
    }

    /// New connections are answered as by a load balancer that has nobody behind it.
    pub(crate) fn babble(&self, babbling: bool) {
        self.babbling.store(babbling, Ordering::SeqCst);
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
