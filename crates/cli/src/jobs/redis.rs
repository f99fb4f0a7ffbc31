//! Carries calls out in this process, with a client of Redis, by the routes of the daemon.

use anyhow::Context;
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use futures_util::{StreamExt, TryStreamExt};
use keyfall::Client;
use reqwest::Url;
use tower_service::Service;

use super::{Answer, Call, Parts, refused, wait_of};
use keyfall_daemon::in_process;

#[derive(Clone)]
pub(crate) struct Redis {
    pub(super) routes: Router,
}

impl Redis {
    pub(super) fn new(client: Client) -> Self {
        Redis {
            routes: in_process(client),
        }
    }

    pub(super) async fn send(&self, call: Call) -> anyhow::Result<Answer> {
        read(self.answer(call).await?).await
    }

    pub(super) async fn open(&self, call: Call) -> anyhow::Result<Parts> {
        let answer = self.answer(call).await?;
        if answer.status().as_u16() < 400 {
            let parts = answer.into_body().into_data_stream();
            return Ok(parts.map_err(anyhow::Error::from).boxed());
        }
        let answer = read(answer).await?;
        refused(&answer)?;
        anyhow::bail!("the call was refused, with status {}", answer.status)
    }

    async fn answer(&self, call: Call) -> anyhow::Result<Response<Body>> {
        let base = Url::parse("http://here").expect("a URL");
        let request = Request::builder()
            .method(call.method)
            .uri(call.url(&base).as_str())
            .body(Body::from(call.body))
            .context("a request cannot be made of it")?;
        let Ok(answer) = self.routes.clone().call(request).await;
        Ok(answer)
    }
}

async fn read(answer: Response<Body>) -> anyhow::Result<Answer> {
    let wait = wait_of(answer.status(), answer.headers());
    let status = answer.status().as_u16();
    let body = to_bytes(answer.into_body(), usize::MAX).await?.into();
    Ok(Answer { status, wait, body })
}

impl Call {
    /// The URL of the call, below this base.
    pub(super) fn url(&self, base: &Url) -> Url {
        let mut url = base.clone();
        if let Ok(mut path) = url.path_segments_mut() {
            path.pop_if_empty().extend(&self.path);
        }
        if !self.query.is_empty() {
            url.query_pairs_mut().extend_pairs(&self.query);
        }
        url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_prefixes_are_encoded() {
        let base = Url::parse("https://host/keyfall/").unwrap();
        let call = Call::new("GET", &["jobs", "a:b:c:x/y?z%#.."]).asking(&["p"].len());
        assert_eq!(
            call.url(&base).as_str(),
            "https://host/keyfall/v1/jobs/a:b:c:x%2Fy%3Fz%25%23.."
        );
        let call =
            Call::new("GET", &["jobs"]).asking(&serde_json::json!({"prefix": "a&b", "n": 1}));
        assert_eq!(
            call.url(&Url::parse("http://h").unwrap()).as_str(),
            "http://h/v1/jobs?n=1&prefix=a%26b"
        );
    }
}
