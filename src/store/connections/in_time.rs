//! Waits for an answer until a deadline, and takes an answer that came in time although this
//! process was late to notice it.

use std::pin::Pin;
use std::time::{Duration, Instant};

use tokio::time::{timeout, timeout_at};

/// Grace for an answer that has arrived but was not noticed. A process that was stopped, or got no
/// CPU, finds its timers run out at the same moment as the data that came meanwhile; then the other
/// side was not slow.
const NOTICED: Duration = Duration::from_millis(100);

/// The answer, if it has come by `until`. The caller pins the future: moving it here would take
/// its size once more.
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

    /// Like a shared connection: one task reads the answers of all callers.
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
    async fn a_reply_that_arrives_during_a_halt_of_the_process_is_in_time() {
        let answer = answer().await;
        let until = Instant::now() + Duration::from_millis(10);
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(in_time(until, pin!(answer)).await, Some(Ok(7)));
    }

    #[tokio::test]
    async fn a_reply_that_does_not_arrive_times_out() {
        let until = Instant::now() + Duration::from_millis(10);
        let never = std::future::pending::<()>();
        assert_eq!(in_time(until, pin!(never)).await, None);
    }
}
