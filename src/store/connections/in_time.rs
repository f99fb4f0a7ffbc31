//! Waiting for an answer no longer than it may take.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::{timeout, timeout_at};

/// How long an answer may take to be noticed that is there. A process that was stopped, or got no
/// CPU, finds its timers run out at the same time as it finds what has come meanwhile; then it is
/// not the other side that was slow.
const NOTICED: Duration = Duration::from_millis(100);

/// The answer, if it has come by then. Pinned where it is asked for, since to move it here would
/// take its size once more.
pub(crate) async fn in_time<T>(
    until: Instant,
    mut answer: Pin<&mut impl Future<Output = T>>,
) -> Option<T> {
    match timeout_at(until.into(), &mut answer).await {
        Ok(answer) => Some(answer),
        Err(_) => timeout(NOTICED, answer).await.ok(),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::oneshot;

    use super::*;

    /// As a connection does that several share: one task reads for all of them.
    async fn answer() -> impl Future<Output = Result<u8, oneshot::error::RecvError>> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap())
            .await
            .unwrap();
        let (mut far, _) = listener.accept().await.unwrap();
        far.write_u8(7).await.unwrap();
        let (tell, told) = oneshot::channel();
        tokio::spawn(async move {
            let _ = tell.send(near.read_u8().await.unwrap());
            drop(far);
        });
        told
    }

    #[tokio::test]
    async fn what_came_while_the_process_stood_still_came_in_time() {
        let answer = answer().await;
        let until = Instant::now() + Duration::from_millis(10);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(in_time(until, pin!(answer)).await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn what_does_not_come_is_not_waited_for() {
        let until = Instant::now() + Duration::from_millis(10);
        let never = std::future::pending::<()>();
        assert_eq!(in_time(until, pin!(never)).await, None);
    }
}
