//! Answers of servers: reading one within limits, and the outcome that it means for the job.

use std::time::{Duration, SystemTime};

use reqwest::header::{HeaderMap, LOCATION, RETRY_AFTER};
use reqwest::{Response, StatusCode};

use crate::handler::Job;
use crate::outcome::{Failure, Outcome};

/// How many bytes of a body an error quotes, and the job keeps.
const SHOWN: usize = 1024;

/// An answer that was read up to its end, or up to the limit.
#[derive(Debug)]
pub(super) struct HttpAnswer {
    /// The status of this answer; a redirect that is not followed is an answer like any other.
    pub(super) status: StatusCode,
    headers: HeaderMap,
    /// The first bytes of the body, [`SHOWN`] at most.
    beginning: Vec<u8>,
}

impl HttpAnswer {
    /// Reads the body up to `limit` bytes, although fewer are kept: a connection can be used again
    /// only if the answer was read completely.
    pub(super) async fn read(mut response: Response, limit: usize) -> reqwest::Result<Self> {
        let (mut beginning, mut length) = (Vec::new(), 0);
        while length <= limit
            && let Some(part) = response.chunk().await?
        {
            let room = SHOWN - beginning.len();
            beginning.extend_from_slice(&part[..part.len().min(room)]);
            length += part.len();
        }
        Ok(HttpAnswer {
            status: response.status(),
            headers: response.headers().clone(),
            beginning,
        })
    }

    /// The URL of a redirect with 307 or 308, as the server wrote it; `None` for other answers.
    pub(super) fn elsewhere(&self) -> Option<&str> {
        match self.status {
            StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => {
                self.headers.get(LOCATION)?.to_str().ok()
            }
            _ => None,
        }
    }

    /// Whether the status says that the host does not work at all: 502, 503 or 504.
    pub(super) fn host_is_down(&self) -> bool {
        matches!(self.status.as_u16(), 502..=504)
    }

    /// The outcome of the job: done for 2xx, buried for 410, and otherwise a retry, with the delay
    /// that the server asks for within the bounds of the policy. `place` is the name of the host,
    /// for the error text.
    pub(super) fn outcome(&self, place: &str, job: &Job) -> Outcome {
        if self.status.is_success() {
            return Outcome::Done;
        }
        let error = Failure::written(format_args!("{place} answered {}", self.told()));
        if self.status == StatusCode::GONE {
            return Outcome::Bury { reason: error };
        }
        Outcome::Retry {
            after: self.asked().and_then(|asked| within(asked, job)),
            error,
        }
    }

    /// Status and beginning of the body, in one line: control characters become spaces, and bytes
    /// that are no UTF-8 become replacement characters.
    fn told(&self) -> String {
        let mut told = self.status.to_string();
        if self.status.is_redirection() {
            told.push_str(", a redirect that the route does not follow");
        }
        let text = String::from_utf8_lossy(&self.beginning);
        let printable = |c: char| if c.is_control() { ' ' } else { c };
        let text: String = text.trim().chars().map(printable).collect();
        if !text.is_empty() {
            told.push_str(": ");
            told.push_str(&text);
        }
        told
    }

    /// How long nobody is to call, if the answer asks for that: 429 or 503, with `Retry-After`.
    pub(super) fn asks_all_to_wait(&self) -> Option<Duration> {
        let is_busy = matches!(
            self.status,
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE
        );
        self.asked().filter(|_| is_busy)
    }

    /// The delay that `Retry-After` asks for, in seconds or as a date; `None` without a valid
    /// value. A date in the past means no delay.
    fn asked(&self) -> Option<Duration> {
        let text = self.headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
        }
        let at = httpdate::parse_http_date(text).ok()?;
        Some(at.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

/// The delay that was asked for, within the bounds of the job's policy: no shorter than the delay
/// of this attempt, and no longer than the longest delay. `None` if no attempt is left.
fn within(asked: Duration, job: &Job) -> Option<Duration> {
    let policy = job.retry_policy();
    let own = policy.next(job.attempt(), rand::random())?;
    Some(asked.min(policy.longest()).max(own))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::RetryPolicy;

    const SECOND: Duration = Duration::from_secs(1);

    fn answer(status: u16, headers: &[(&'static str, &str)], body: &str) -> HttpAnswer {
        let header = |(name, value): &(&'static str, &str)| {
            ((*name).parse().unwrap(), value.parse().unwrap())
        };
        HttpAnswer {
            status: status.try_into().unwrap(),
            headers: headers.iter().map(header).collect(),
            beginning: body.into(),
        }
    }

    fn job(attempt: u32) -> Job {
        let policy = RetryPolicy::ladder([10 * SECOND, 5 * SECOND, 60 * SECOND]).unwrap();
        let job = Job::sample("app1:trans:notice:1").retry(policy);
        job.attempt(attempt).build()
    }

    #[test]
    fn each_status_has_its_outcome() {
        let outcome = |status| answer(status, &[], "no\nroom").outcome("h", &job(1));
        for status in [200, 201, 204, 299] {
            assert_eq!(outcome(status), Outcome::Done);
        }
        assert_eq!(outcome(410), Outcome::bury("h answered 410 Gone: no room"));
        for status in [400, 404, 429, 500, 503] {
            let status: StatusCode = status.try_into().unwrap();
            let error = format!("h answered {status}: no room");
            assert_eq!(outcome(status.as_u16()), Outcome::retry(error));
        }
        let moved = "h answered 302 Found, a redirect that the route does not follow: no room";
        assert_eq!(outcome(302), Outcome::retry(moved));
    }

    #[tokio::test]
    async fn the_beginning_of_a_long_body_is_kept() {
        let body = [vec![b'a'; SHOWN], vec![b'b'; 100]].concat();
        let response = http_response(body.clone());
        let whole = HttpAnswer::read(response, body.len()).await.unwrap();
        assert_eq!(whole.beginning, body[..SHOWN]);
        assert!(whole.told().ends_with("aaa"), "{}", whole.told());
        let short = HttpAnswer::read(http_response(b"ab".to_vec()), 1)
            .await
            .unwrap();
        assert_eq!(short.beginning, b"ab");
    }

    fn http_response(body: Vec<u8>) -> Response {
        let response = axum::http::Response::builder().status(500).body(body);
        response.unwrap().into()
    }

    #[test]
    fn a_busy_receiver_asks_all_callers_to_wait() {
        let after = [("retry-after", "30")];
        for (status, is_asked) in [(429, true), (503, true), (500, false), (404, false)] {
            let asked = answer(status, &after, "").asks_all_to_wait();
            assert_eq!(asked.is_some(), is_asked, "{status}");
        }
        assert_eq!(answer(429, &[], "").asks_all_to_wait(), None);
    }

    #[test]
    fn retry_after_is_honoured_within_the_policy() {
        let after = |attempt, text: &str| {
            let answer = answer(429, &[("retry-after", text)], "");
            match answer.outcome("h", &job(attempt)) {
                Outcome::Retry { after, .. } => after,
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(after(1, "30"), Some(30 * SECOND));
        assert_eq!(after(1, "3"), Some(10 * SECOND));
        assert_eq!(after(2, "99999999999999999999999"), Some(60 * SECOND));
        assert_eq!(after(4, "30"), None);
        for none in ["", "soon", "-1", "1.5"] {
            assert_eq!(after(1, none), None, "{none}");
        }
        let date = httpdate::fmt_http_date(SystemTime::now() + 40 * SECOND);
        let asked = after(2, &date).unwrap();
        assert!(asked > 35 * SECOND && asked <= 40 * SECOND, "{asked:?}");
        let past = httpdate::fmt_http_date(SystemTime::now() - 40 * SECOND);
        assert_eq!(after(2, &past), Some(5 * SECOND));
    }
}
