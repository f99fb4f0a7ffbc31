//! A receiver of callbacks. All receivers listen at one port, as behind a load balancer. Of some
//! calls a receiver cuts the connection, before the run or in the middle of the answer; others it
//! never answers, or it answers 500 although it did the work.

use std::collections::HashMap;
use std::io::{Error, Result};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{Mutex, mpsc, oneshot};

use super::{RunEnd, Source, Taken, Terms};
use crate::journal::{Journal, What};
use crate::target::CALL;

/// The part of the time of a call that must be left for the answer to be heard with certainty.
const LATE: SignedDuration = SignedDuration::from_millis(CALL * 500);

/// The way to the caller that waits for the answer.
type AnswerTo = oneshot::Sender<RunEnd>;
type Calls = mpsc::UnboundedSender<Taken<AnswerTo>>;

pub(super) struct CallbackSource(Mutex<mpsc::UnboundedReceiver<Taken<AnswerTo>>>);

/// A call as it came.
struct Call {
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

impl CallbackSource {
    pub(super) fn start(terms: &Terms) -> Self {
        let listener = listen(terms.ways.receivers).expect("the port is only for receivers");
        let journal = Arc::new(Journal::open(&terms.journals, &terms.name));
        let (calls, called) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (calls, journal) = (calls.clone(), journal.clone());
                // The caller may be killed at any time.
                tokio::spawn(async move { serve(stream, &calls, &journal).await });
            }
        });
        CallbackSource(Mutex::new(called))
    }
}

fn listen(port: u16) -> Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.set_reuseport(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    socket.listen(1024)
}

impl Source for CallbackSource {
    type Ticket = AnswerTo;

    async fn take(&self) -> Vec<Taken<AnswerTo>> {
        let called = self.0.lock().await.recv().await;
        vec![called.expect("it listens for ever")]
    }

    async fn end(&self, callers: Vec<AnswerTo>, end: RunEnd) -> Vec<Option<bool>> {
        for caller in callers {
            // The caller may have gone away.
            let _ = caller.send(end);
        }
        Vec::new()
    }
}

async fn serve(stream: TcpStream, calls: &Calls, journal: &Journal) -> Result<()> {
    let mut stream = BufStream::new(stream);
    loop {
        let call = Call::read(&mut stream).await?;
        let lot = rand::random_range(0..100);
        // Nobody waits for the answer any more: another receiver has the job by now.
        if lot == 0 || call.is_over_in(SignedDuration::ZERO) {
            return Ok(());
        }
        let (caller, ended) = oneshot::channel();
        let delivery = call.delivery(caller);
        calls.send(delivery).map_err(Error::other)?;
        let end = ended.await.map_err(Error::other)?;
        let unheard = || {
            let (key, fence) = (call.key(), call.number("keyfall-fence"));
            journal.note(What::Unheard { key, fence });
        };
        // The caller may not wait for so late an answer.
        if (1..=3).contains(&lot) || call.is_over_in(LATE) {
            unheard();
        }
        let answer: &[u8] = match (lot, end) {
            (1, _) => std::future::pending().await,
            (2, _) | (_, RunEnd::Failed) => {
                b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 13\r\n\r\nnot this time"
            }
            (3, _) => b"HTTP/1.1 200 OK\r\ncontent-length: 13\r\n\r\nnot",
            (_, RunEnd::Done) => b"HTTP/1.1 204 No Content\r\n\r\n",
            (_, RunEnd::Later) => {
                b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
            }
            (_, RunEnd::Bury) => b"HTTP/1.1 410 Gone\r\ncontent-length: 7\r\n\r\nno more",
        };
        let written = async {
            stream.write_all(answer).await?;
            stream.flush().await
        };
        written.await.inspect_err(|_| unheard())?;
        if lot == 3 {
            return Ok(());
        }
    }
}

impl Call {
    async fn read(stream: &mut BufStream<TcpStream>) -> Result<Self> {
        let mut headers = HashMap::new();
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await? == 0 {
                return Err(Error::other("it is closed"));
            }
            if line == "\r\n" {
                break;
            }
            // The first line is no header.
            if let Some((name, value)) = line.split_once(": ") {
                headers.insert(name.to_lowercase(), value.trim_end().to_owned());
            }
        }
        let length = headers["content-length"].parse().map_err(Error::other)?;
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        Ok(Call { headers, body })
    }

    fn number(&self, name: &str) -> u64 {
        self.headers[name].parse().expect("it is a number")
    }

    fn due(&self) -> Timestamp {
        let due = self.headers["keyfall-due"].parse();
        due.expect("it is a time")
    }

    fn key(&self) -> String {
        // Nothing in it needs to be escaped.
        self.headers["keyfall-key"].clone()
    }

    /// Whether, in so much time, the caller has given up, by the time at which it sent the call.
    fn is_over_in(&self, time: SignedDuration) -> bool {
        let lag = i64::try_from(self.number("keyfall-lag-ms")).expect("it is short");
        let began = self.due() + SignedDuration::from_millis(lag);
        Timestamp::now() + time > began + SignedDuration::from_secs(CALL)
    }

    fn delivery(&self, caller: AnswerTo) -> Taken<AnswerTo> {
        Taken {
            key: self.key(),
            order: serde_json::from_slice(&self.body).expect("as it was scheduled"),
            attempt: u32::try_from(self.number("keyfall-attempt")).expect("attempts are few"),
            fence: self.number("keyfall-fence"),
            due: Some(self.due()),
            ticket: caller,
        }
    }
}
