//! Limits the number of connections, and closes connections that make no progress.

use std::future::{Ready, ready};
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tower_layer::Layer;

/// The longest time that the system may wait for a client to acknowledge data: it counts
/// milliseconds in 32 bits.
#[cfg(target_os = "linux")]
const LONGEST_PATIENCE: Duration = Duration::from_secs(24 * 3600);

/// Lets connections in, as long as there is room.
#[derive(Clone)]
pub(super) struct Door {
    room: Arc<Semaphore>,
    /// Whether the lack of room was logged.
    said: Arc<AtomicBool>,
    patience: Duration,
}

/// A connection that is cut off when the client does not read the data sent to it.
pub(super) struct Guest<I> {
    stream: I,
    patience: Duration,
    /// Runs while data waits to be sent.
    stalled: Option<Pin<Box<Sleep>>>,
    sent: Sent,
    _room: Option<OwnedSemaphorePermit>,
}

/// Calls that a connection makes once all its data has been passed to the system. If the connection
/// breaks before, they are dropped. Each request has it as an extension.
#[derive(Clone, Default)]
pub(crate) struct Sent(Arc<Mutex<Vec<Callback>>>);

type Callback = Box<dyn FnOnce() + Send>;

impl Door {
    /// Admits this number of connections at a time, each of which may stall for `patience`.
    pub(super) fn new(connections: usize, patience: Duration) -> Self {
        Door {
            room: Arc::new(Semaphore::new(connections.min(Semaphore::MAX_PERMITS))),
            said: Arc::default(),
            patience,
        }
    }
}

impl Sent {
    /// Runs `call` once the data that is written next has been passed to the system.
    pub(super) fn then(&self, call: impl FnOnce() + Send + 'static) {
        self.lock().push(Box::new(call));
    }

    fn all_has_gone(&self) {
        let calls = std::mem::take(&mut *self.lock());
        calls.into_iter().for_each(|call| call());
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Callback>> {
        self.0.lock().expect("no panic while held")
    }
}

impl<S> Accept<TcpStream, S> for Door {
    type Stream = Guest<TcpStream>;
    type Service = AddExtension<S, Sent>;
    type Future = Ready<io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            if !self.said.swap(true, Ordering::Relaxed) {
                tracing::warn!("`http.max_connections` is reached: further connections are closed");
            }
            return ready(Err(io::ErrorKind::ConnectionRefused.into()));
        };
        self.said.store(false, Ordering::Relaxed);
        let let_in = tune(&stream, self.patience).map(|()| {
            let sent = Sent::default();
            let service = Extension(sent.clone()).layer(service);
            let guest = Guest {
                stream,
                patience: self.patience,
                stalled: None,
                sent,
                _room: Some(room),
            };
            (guest, service)
        });
        ready(let_in)
    }
}

fn tune(stream: &TcpStream, patience: Duration) -> io::Result<()> {
    // An answer must not wait for the next one.
    stream.set_nodelay(true)?;
    // A client whose machine or network is gone says nothing more, and small writes go on into the
    // buffer of the system: a tail would keep its place until the system gives up, after a quarter
    // of an hour. Only Linux lets a process shorten that time, and a sandbox may refuse it.
    #[cfg(target_os = "linux")]
    if let Err(error) =
        socket2::SockRef::from(stream).set_tcp_user_timeout(Some(patience.min(LONGEST_PATIENCE)))
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            tracing::warn!(%error, "this system cannot limit how long unacknowledged data may wait: \
                a client that vanishes keeps its connection for a quarter of an hour");
        });
    }
    #[cfg(not(target_os = "linux"))]
    let _ = patience;
    Ok(())
}

impl<I> Guest<I> {
    /// Returns the result of a write, or an error if writes have waited for too long.
    fn in_time(
        &mut self,
        sent: Poll<io::Result<usize>>,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if sent.is_ready() {
            self.stalled = None;
            return sent;
        }
        let patience = self.patience;
        let stalled = self
            .stalled
            .get_or_insert_with(|| Box::pin(sleep(patience)));
        stalled
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Guest<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Guest<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(sent, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sent = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.in_time(sent, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    /// Called when no data is left to be written: neither of an answer, nor by TLS.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = std::task::ready!(Pin::new(&mut self.stream).poll_flush(context));
        if flushed.is_ok() {
            self.sent.all_has_gone();
        }
        Poll::Ready(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::oneshot::error::TryRecvError;

    fn guest(stream: DuplexStream) -> Guest<DuplexStream> {
        Guest {
            stream,
            patience: Duration::from_secs(5),
            stalled: None,
            sent: Sent::default(),
            _room: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_nothing_is_cut_off() {
        let (near, _far) = duplex(10);
        let error = guest(near).write_all(&[0; 11]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    /// To the system, a client that keeps its window shut looks like a client that is gone: no data
    /// arrives. All data fits into the buffer here, so no write ever waits.
    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn who_takes_nothing_is_cut_off_although_no_write_waits() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let far = tokio::net::TcpSocket::new_v4().unwrap();
        far.set_recv_buffer_size(1024).unwrap();
        let far = far.connect(listener.local_addr().unwrap()).await.unwrap();
        let (near, _) = listener.accept().await.unwrap();
        let socket = socket2::SockRef::from(&near);
        socket.set_send_buffer_size(1024 * 1024).unwrap();
        let door = Door::new(1, Duration::from_secs(1));
        let (mut near, _service) = door.accept(near, ()).await.unwrap();
        near.write_all(&[0; 128 * 1024]).await.unwrap();
        let mut nothing = [0];
        let gone = tokio::time::timeout(Duration::from_secs(60), near.read(&mut nothing));
        let error = gone.await.expect("the system gives up").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(far);
    }

    #[tokio::test(start_paused = true)]
    async fn what_waits_for_an_answer_to_go_is_done_when_it_has_gone() {
        let (near, mut far) = duplex(10);
        let mut near = guest(near);
        let (told, mut went) = tokio::sync::oneshot::channel();
        near.sent.then(move || told.send(()).unwrap());
        near.write_all(&[0; 10]).await.unwrap();
        assert!(went.try_recv().is_err());
        near.flush().await.unwrap();
        went.try_recv().unwrap();
        far.read_exact(&mut [0; 10]).await.unwrap();

        let (told, mut went) = tokio::sync::oneshot::channel();
        near.sent.then(move || told.send(()).unwrap());
        near.write_all(&[0; 11]).await.unwrap_err();
        drop(near);
        assert_eq!(went.try_recv(), Err(TryRecvError::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn who_reads_slowly_is_not() {
        let (near, mut far) = duplex(10);
        let reading = async {
            let mut some = [0; 10];
            for _ in 0..10 {
                sleep(Duration::from_secs(4)).await;
                far.read_exact(&mut some).await.unwrap();
            }
        };
        let mut near = guest(near);
        let (written, ()) = tokio::join!(near.write_all(&[0; 100]), reading);
        written.unwrap();
    }
}
