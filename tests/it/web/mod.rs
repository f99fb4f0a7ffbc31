//! The web page, as a browser without scripts sees it: `keyfall serve` and `keyfall ui` in a
//! separate process.
//!
//! | module | content |
//! |---|---|
//! | [`pages`] | each page shows what is there, and each form changes it |
//! | [`entering`] | tokens, their scopes and prefixes, and their end; `keyfall ui`; the page turned off |
//! | [`outages`] | Redis is away, and comes back |

mod entering;
mod outages;
mod pages;

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder};

use crate::runs::{PATIENCE, eventually};

/// A person before a page.
pub(crate) struct Person {
    http: Client,
    /// The address of the page, with a slash at its end.
    base: String,
    /// The cookie of the login.
    cookie: Option<String>,
}

/// A page that was shown.
pub(crate) struct Shown {
    status: u16,
    body: String,
    location: String,
    cookie: String,
}

impl Person {
    pub(crate) fn at(base: impl Into<String>) -> Self {
        // `keyfall` does the same. It fails if another test was first.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let http = Client::builder().timeout(PATIENCE).redirect(Policy::none());
        Person {
            http: http.build().unwrap(),
            base: base.into(),
            cookie: None,
        }
    }

    /// Logs in with this token.
    async fn with_token(mut self, token: &str) -> Self {
        let entered = self.post("login", &[("token", token), ("next", "")]).await;
        assert_eq!((entered.status, &*entered.location), (303, "./"));
        self.cookie = Some(entered.cookie);
        self
    }

    /// A page that has to be there, as soon as nothing of it is being gathered for the first time.
    async fn look(&self, page: &str) -> String {
        eventually("the page is whole", async || {
            let shown = self.get(page).await;
            assert_eq!(shown.status, 200, "{page}: {}", shown.body);
            let signs = ["are being gathered", "is being found out"];
            let is_whole = !signs.iter().any(|sign| shown.body.contains(sign));
            is_whole.then_some(shown.body)
        })
        .await
    }

    async fn get(&self, page: &str) -> Shown {
        self.send(self.http.get(format!("{}{page}", self.base)))
            .await
    }

    async fn post(&self, page: &str, form: &[(&str, &str)]) -> Shown {
        let body: Vec<String> = form
            .iter()
            .map(|(name, value)| format!("{name}={}", encoded(value)))
            .collect();
        let request = self.http.post(format!("{}{page}", self.base));
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        // As browsers do.
        let request = request.header("sec-fetch-site", "same-origin");
        self.send(request.body(body.join("&"))).await
    }

    /// Sends a form, and looks at the page that it leads to.
    async fn act(&self, page: &str, form: &[(&str, &str)]) -> String {
        let done = self.post(page, form).await;
        assert_eq!(done.status, 303, "{form:?}: {}", done.body);
        self.look(&done.location).await
    }

    fn with_cookie(&self, request: RequestBuilder) -> RequestBuilder {
        match &self.cookie {
            Some(cookie) => request.header("cookie", cookie),
            None => request,
        }
    }

    async fn send(&self, request: RequestBuilder) -> Shown {
        let answer = self.with_cookie(request).send().await.unwrap();
        let header = |name: &str| {
            let value = answer.headers().get(name);
            value.map_or("", |value| value.to_str().unwrap()).to_owned()
        };
        let (location, cookie) = (header("location"), header("set-cookie"));
        Shown {
            status: answer.status().as_u16(),
            location,
            cookie: cookie.split(';').next().unwrap_or("").to_owned(),
            body: answer.text().await.unwrap(),
        }
    }
}

/// A text as a part of an address or of a form.
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
