//! A network between Keyfall and a server, Redis or PostgreSQL, that can fail without a word.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use keyfall::embedded::Embedded;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::watch;

/// Forwards connections to a server, until it stops without closing them.
pub struct FreezingProxy {
    pub url: String,
    /// Connections with a number below this one are dead, and do not know it.
    dead: Arc<AtomicUsize>,
    opened: Arc<AtomicUsize>,
    babbling: Arc<AtomicBool>,
    frost: watch::Sender<Frost>,
    /// How long each reply takes on its way, in µs.
    delay: Arc<AtomicU64>,
    /// Each change ends the present connections.
    cuts: watch::Sender<()>,
}

/// Whether data has to wait now, or later.
#[derive(Clone, Copy, PartialEq)]
enum Frost {
    No,
    /// From the first reply on that has this in it.
    At(&'static str),
    /// Data passes; but the first reply that contains this text is the last that passes.
    Last(&'static str),
    /// From the first request on that has this in it.
    Before(&'static str),
    /// From the reply on to the first request that has this in it.
    After(&'static str),
    Now,
    /// Nothing has to; but the first reply with this in it is lost, and its connection ends.
    Losing(&'static str),
}

impl FreezingProxy {
    pub async fn to(server: &Embedded) -> Self {
        FreezingProxy::at(&server.url()).await
    }

    /// To a server at a socket.
    pub async fn at(server: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let socket = server.replace("redis+unix://", "");
        let (dead, opened) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let babbling = Arc::new(AtomicBool::new(false));
        let frost = watch::Sender::new(Frost::No);
        let (delay, cuts) = (Arc::new(AtomicU64::new(0)), watch::Sender::new(()));
        tokio::spawn({
            let (dead, opened, babbling) = (dead.clone(), opened.clone(), babbling.clone());
            let (frost, delay, cuts) = (frost.clone(), delay.clone(), cuts.clone());
            async move {
                loop {
                    let (mut near, _) = listener.accept().await.unwrap();
                    if babbling.load(Ordering::SeqCst) {
                        // The client may be gone again.
                        let _ = near.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").await;
                        continue;
                    }
                    let number = opened.fetch_add(1, Ordering::SeqCst);
                    let (socket, dead, frost) = (socket.clone(), dead.clone(), frost.clone());
                    let (delay, mut cut) = (delay.clone(), cuts.subscribe());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = forward(near, socket, number, dead, frost, delay) => {}
                            _ = cut.changed() => {}
                        }
                    });
                }
            }
        });
        FreezingProxy {
            url,
            dead,
            opened,
            babbling,
            frost,
            delay,
            cuts,
        }
    }

    /// The first reply with this in it has to wait, and from then on everything, in both
    /// directions and on all connections. It has to be short enough to come in one piece.
    pub fn freeze_at(&self, text: &'static str) {
        self.frost.send_replace(Frost::At(text));
    }

    /// The same, from the first request with this in it.
    pub fn freeze_before(&self, text: &'static str) {
        self.frost.send_replace(Frost::Before(text));
    }

    /// The same, once the first request with this in it has passed.
    pub fn freeze_after(&self, text: &'static str) {
        self.frost.send_replace(Frost::After(text));
    }

    /// Whether the proxy is frozen.
    pub fn is_frozen(&self) -> bool {
        *self.frost.borrow() == Frost::Now
    }

    /// Freezes after the first reply that contains this text: after it nothing passes, in both
    /// directions, on all present and future connections.
    pub fn end_with(&self, text: &'static str) {
        self.frost.send_replace(Frost::Last(text));
    }

    /// The first reply that contains this text does not arrive, and its connection ends. Everything else
    /// passes.
    pub fn lose(&self, text: &'static str) {
        self.frost.send_replace(Frost::Losing(text));
    }

    /// Whether everything passes: nothing has to wait, and nothing is still to be lost.
    pub fn is_clear(&self) -> bool {
        *self.frost.borrow() == Frost::No
    }

    /// Ends the freeze: data that waited goes on, in its order.
    pub fn thaw(&self) {
        self.frost.send_replace(Frost::No);
    }

    /// From now on each reply takes so long on its way.
    pub fn slow_down(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        self.delay.store(micros, Ordering::SeqCst);
    }

    /// Ends the present connections. New connections work.
    pub fn cut(&self) {
        self.cuts.send_replace(());
    }

    /// Answers new connections as a load balancer without a backend does.
    pub fn babble(&self, babbling: bool) {
        self.babbling.store(babbling, Ordering::SeqCst);
    }

    /// Nothing passes any more on the present connections. New connections work.
    pub fn forget_connections(&self) {
        let opened = self.opened.load(Ordering::SeqCst);
        self.dead.store(opened, Ordering::SeqCst);
    }

    /// Nothing passes on any present or future connection.
    pub fn swallow_everything(&self) {
        self.dead.store(usize::MAX, Ordering::SeqCst);
    }

    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

async fn forward(
    near: TcpStream,
    socket: String,
    number: usize,
    dead: Arc<AtomicUsize>,
    frost: watch::Sender<Frost>,
    delay: Arc<AtomicU64>,
) {
    let (from_near, to_near) = near.into_split();
    let Ok(far) = UnixStream::connect(socket).await else {
        // No server is behind the proxy.
        return;
    };
    let (from_far, to_far) = far.into_split();
    let lives = || number >= dead.load(Ordering::SeqCst);
    let asked = |frost: Frost, part: &[u8]| match frost {
        Frost::Before(text) if has(part, text) => Freezes::This,
        Frost::After(text) if has(part, text) => Freezes::WhatFollows,
        _ => Freezes::Nothing,
    };
    let answered = |frost: Frost, part: &[u8]| match frost {
        Frost::At(text) if has(part, text) => Freezes::This,
        Frost::Last(text) if has(part, text) => {
            dead.store(usize::MAX, Ordering::SeqCst);
            Freezes::Nothing
        }
        Frost::Losing(text) if has(part, text) => Freezes::Breaks,
        _ => Freezes::Nothing,
    };
    tokio::join!(
        pump(from_near, to_far, &lives, &frost, asked, || Duration::ZERO),
        pump(from_far, to_near, &lives, &frost, answered, || {
            Duration::from_micros(delay.load(Ordering::SeqCst))
        })
    );
}

/// The data that has to wait from now on, beside all later data.
#[derive(Clone, Copy, PartialEq)]
enum Freezes {
    Nothing,
    This,
    WhatFollows,
    /// Nothing, and the connection ends without this.
    Breaks,
}

fn has(part: &[u8], text: &str) -> bool {
    let mut windows = part.windows(text.len());
    windows.any(|part| part == text.as_bytes())
}

/// Copies data when it may pass, and swallows it once the connection is dead.
async fn pump(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    lives: &impl Fn() -> bool,
    frost: &watch::Sender<Frost>,
    freezes: impl Fn(Frost, &[u8]) -> Freezes,
    delay: impl Fn() -> Duration,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) if lives() => break,
            // It must not be closed, even if the far end does.
            Ok(0) | Err(_) => std::future::pending().await,
            Ok(count) if lives() => {
                let at = *frost.borrow();
                let freezes = freezes(at, &buffer[..count]);
                if freezes == Freezes::Breaks {
                    frost.send_replace(Frost::No);
                    break;
                }
                if freezes != Freezes::Nothing {
                    frost.send_replace(Frost::Now);
                }
                if freezes != Freezes::WhatFollows {
                    let mut frost = frost.subscribe();
                    let thawed = frost.wait_for(|frost| *frost != Frost::Now);
                    drop(thawed.await.expect("its sender is here"));
                }
                if !delay().is_zero() {
                    tokio::time::sleep(delay()).await;
                }
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
