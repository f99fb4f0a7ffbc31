//! One reader of all histories, for all shared tails of a daemon. It runs while somebody listens.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use axum::body::Bytes;
use jiff::tz::TimeZone;
use keyfall::{Client, Tidings};
use tokio::sync::{broadcast, watch};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use super::tail::{AGAIN, TOGETHER};

/// The most changes that wait for the slowest listener, about a kibibyte each. A listener that is
/// further behind skips changes.
const KEPT: usize = 4096;

/// The reader, while somebody listens.
#[derive(Default)]
pub(super) struct Feed(Mutex<Weak<Reader>>);

struct Reader {
    /// Only the task keeps the channel open, so listeners notice its end.
    news: broadcast::WeakSender<Arc<Heard>>,
    begun: watch::Receiver<bool>,
    _task: AbortOnDropHandle<()>,
}

/// An item of the feed.
pub(super) enum Heard {
    News(News),
    /// Redis does not answer, for this reason. It is repeated until Redis answers.
    Away(String),
}

/// A change, and its line for each time zone that somebody listens in: it is written once for all of
/// them.
pub(super) struct News {
    pub(super) tidings: Tidings,
    /// By the name of the zone.
    lines: Mutex<Vec<(String, Bytes)>>,
}

/// A listener to the feed. The reader ends with its last listener.
pub(super) struct Listener {
    pub(super) news: broadcast::Receiver<Arc<Heard>>,
    /// Whether the reader reports changes.
    pub(super) begun: watch::Receiver<bool>,
    _reader: Arc<Reader>,
}

impl Feed {
    /// Listens from now on; starts the reader if nobody listens yet.
    pub(super) fn listen(&self, client: &Client) -> Listener {
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let running = current.upgrade().and_then(Listener::of);
        running.unwrap_or_else(|| {
            let (sender, news) = broadcast::channel(KEPT);
            let (has_begun, begun) = watch::channel(false);
            let reader = Arc::new(Reader {
                news: sender.downgrade(),
                begun: begun.clone(),
                _task: AbortOnDropHandle::new(tokio::spawn(read(client.tail(), sender, has_begun))),
            });
            *current = Arc::downgrade(&reader);
            Listener {
                news,
                begun,
                _reader: reader,
            }
        })
    }
}

impl News {
    pub(super) fn new(tidings: Tidings) -> Self {
        News {
            tidings,
            lines: Mutex::default(),
        }
    }

    /// The line in this zone: the one that another listener got, or the one that `write` makes.
    pub(super) fn line(&self, zone: &TimeZone, write: impl FnOnce() -> Bytes) -> Bytes {
        let name = zone.iana_name().unwrap_or_default();
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, line)) = lines.iter().find(|(known, _)| known == name) {
            return line.clone();
        }
        let line = write();
        lines.push((name.to_owned(), line.clone()));
        line
    }
}

impl Listener {
    /// A further listener, unless the reader has ended.
    fn of(reader: Arc<Reader>) -> Option<Self> {
        let news = reader.news.upgrade()?.subscribe();
        let begun = reader.begun.clone();
        Some(Listener {
            news,
            begun,
            _reader: reader,
        })
    }
}

/// Reads until the last listener leaves, or trying again cannot help: each listener then gets the
/// error from a read of its own.
async fn read(
    mut tail: keyfall::Tail,
    news: broadcast::Sender<Arc<Heard>>,
    begun: watch::Sender<bool>,
) {
    // Without a listener for a moment, nothing is to be told.
    let tell = |heard| drop(news.send(Arc::new(heard)));
    loop {
        let has_begun = *begun.borrow();
        let first = match has_begun {
            true => tail.next().await.map(Some),
            false => tail.begin().await.map(|()| None),
        };
        match first {
            Ok(first) => {
                begun.send_if_modified(|has| !std::mem::replace(has, true));
                let told = |tidings| tell(Heard::News(News::new(tidings)));
                first.into_iter().for_each(told);
                let more = std::iter::from_fn(|| tail.ready()).take(TOGETHER - 1);
                more.for_each(told);
                // The listeners get a turn while many changes are read.
                tokio::task::yield_now().await;
            }
            Err(error) if error.is_retryable() => {
                tell(Heard::Away(error.to_string()));
                sleep(AGAIN).await;
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyfall::Kind;

    #[test]
    fn a_line_is_written_once_for_each_zone() {
        let news = News::new(Tidings::Missed(Kind::parse("a:b:c").unwrap()));
        let zone = |name: &str| TimeZone::get(name).unwrap();
        let line =
            |zone, text: &'static str| news.line(&zone, || Bytes::from_static(text.as_bytes()));
        assert_eq!(line(zone("Asia/Tokyo"), "one\n"), "one\n");
        assert_eq!(line(zone("Asia/Tokyo"), "again\n"), "one\n");
        assert_eq!(line(TimeZone::UTC, "other\n"), "other\n");
    }
}
