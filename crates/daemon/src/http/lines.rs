//! Reads a body line by line, as it arrives.

use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use bytes::BytesMut;
use futures_util::{FutureExt, StreamExt};
use tokio::time::timeout;

use super::body::broken;
use super::problem::Problem;

/// The most lines that are handed on together, and about the most bytes.
const TOGETHER: usize = 1000;
const BYTES_TOGETHER: usize = 1024 * 1024;

/// The lines of a body. Memory holds one incomplete line, and the complete lines that are handed on
/// together.
pub(super) struct Lines {
    body: BodyDataStream,
    /// The longest line, in bytes.
    limit: usize,
    /// The longest time without data.
    patience: Duration,
    got: BytesMut,
    /// The length of the beginning that contains no line end.
    searched: usize,
    /// How many lines have ended.
    number: u64,
    /// The line was too long, and its rest is not read.
    is_skipping: bool,
    is_over: bool,
}

/// A line that is not empty.
pub(super) struct Line {
    /// Its number, from 1.
    pub(super) number: u64,
    /// Its text, or why it cannot be read. No line follows a line that did not arrive.
    pub(super) text: Result<Bytes, Problem>,
}

impl Lines {
    pub(super) fn new(body: Body, limit: usize, patience: Duration) -> Self {
        Lines {
            body: body.into_data_stream(),
            limit,
            patience,
            got: BytesMut::new(),
            searched: 0,
            number: 0,
            is_skipping: false,
            is_over: false,
        }
    }

    /// The lines that have arrived by now, at least one. `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Vec<Line>> {
        loop {
            let lines = self.cut();
            if !lines.is_empty() {
                return Some(lines);
            }
            if self.is_over {
                return None;
            }
            let mut part = timeout(self.patience, self.body.next()).await;
            // Further data that has arrived goes with it.
            loop {
                match part {
                    Ok(Some(Ok(bytes))) => self.got.extend_from_slice(&bytes),
                    Ok(Some(Err(error))) => return Some(self.end(broken(error))),
                    Err(_) => return Some(self.end(Problem::too_slow(self.patience))),
                    Ok(None) => {
                        self.is_over = true;
                        // The last line needs no end of its own.
                        self.got.extend_from_slice(b"\n");
                        break;
                    }
                }
                if self.got.len() >= BYTES_TOGETHER {
                    break;
                }
                match self.body.next().now_or_never() {
                    Some(further) => part = Ok(further),
                    None => break,
                }
            }
        }
    }

    /// Takes off lines that are complete.
    fn cut(&mut self) -> Vec<Line> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while lines.len() < TOGETHER && bytes < BYTES_TOGETHER {
            let Some(end) = self.find_end() else {
                if self.got.len() > self.limit {
                    self.got.clear();
                    self.searched = 0;
                    if !self.is_skipping {
                        self.is_skipping = true;
                        lines.push(self.too_long(self.number + 1));
                    }
                }
                break;
            };
            let text = self.got.split_to(end + 1).freeze();
            self.searched = 0;
            self.number += 1;
            if std::mem::take(&mut self.is_skipping) || text.trim_ascii().is_empty() {
                continue;
            }
            bytes += text.len();
            lines.push(if text.len() - 1 > self.limit {
                self.too_long(self.number)
            } else {
                Line {
                    number: self.number,
                    text: Ok(text),
                }
            });
        }
        lines
    }

    fn find_end(&mut self) -> Option<usize> {
        let unseen = &self.got[self.searched..];
        match unseen.iter().position(|byte| *byte == b'\n') {
            Some(at) => Some(self.searched + at),
            None => {
                self.searched = self.got.len();
                None
            }
        }
    }

    fn too_long(&self, number: u64) -> Line {
        Line {
            number,
            text: Err(Problem::too_large("the line", self.limit)),
        }
    }

    /// Stops reading. Earlier lines have been handed on.
    fn end(&mut self, problem: Problem) -> Vec<Line> {
        self.is_over = true;
        let mut lines = self.cut();
        self.got.clear();
        self.searched = 0;
        lines.push(Line {
            number: self.number + 1,
            text: Err(problem),
        });
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::stream;

    /// Reads a body whose parts come one by one: returns the numbers of the lines and, if it can be
    /// read, the text of each.
    async fn lines(parts: &[&'static str], limit: usize) -> Vec<(u64, Option<String>)> {
        let parts: Vec<_> = parts
            .iter()
            .map(|part| Ok::<_, std::io::Error>(*part))
            .collect();
        let parts = stream::iter(parts).then(async |part| {
            tokio::task::yield_now().await;
            part
        });
        let mut lines = Lines::new(Body::from_stream(parts), limit, Duration::from_secs(1));
        let mut all = Vec::new();
        while let Some(some) = lines.next().await {
            assert!(!some.is_empty());
            all.extend(some);
        }
        let read = |line: Line| {
            let text = line.text.ok();
            let text = text.map(|text| String::from_utf8(text.trim_ascii().to_vec()).unwrap());
            (line.number, text)
        };
        all.into_iter().map(read).collect()
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[tokio::test]
    async fn lines_are_put_together_wherever_they_were_cut() {
        let whole = [(1, text("one")), (3, text("two")), (4, text("three"))];
        assert_eq!(lines(&["one\r\n\ntwo\nthree"], 9).await, whole);
        assert_eq!(
            lines(&["o", "ne\n", "\ntw", "o\n", "three\n"], 9).await,
            whole
        );
        assert_eq!(lines(&[], 9).await, []);
        assert_eq!(lines(&["\n \n"], 9).await, []);
    }

    #[tokio::test]
    async fn a_too_long_line_does_not_affect_the_others() {
        let whole = [(1, text("one")), (2, None), (3, text("two"))];
        assert_eq!(lines(&["one\n0123456789\ntwo"], 9).await, whole);
        let parts = ["one\n01234", "56789", "0123456789", "01\ntw", "o\n"];
        assert_eq!(lines(&parts, 9).await, whole);
        assert_eq!(lines(&["01234567890"], 9).await, [(1, None)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_arrive_times_out() {
        let never = stream::iter([Ok::<_, std::io::Error>("one\ntw")]).chain(stream::pending());
        let mut lines = Lines::new(Body::from_stream(never), 9, Duration::from_secs(1));
        let first = lines.next().await.unwrap();
        assert!(first[0].text.is_ok());
        let second = lines.next().await.unwrap();
        assert_eq!(second[0].number, 2);
        assert_eq!(second[0].text.as_ref().unwrap_err().status(), 408);
        assert!(lines.next().await.is_none());
    }
}
