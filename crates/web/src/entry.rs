//! Who may enter: the token of the API, or the secret of `keyfall ui`, in a cookie.

use axum::http::{HeaderMap, HeaderValue, header};
use subtle::ConstantTimeEq;

use crate::Web;

/// The longest token that is put into a cookie.
const LONGEST: usize = 512;

/// What a person shows to enter.
#[derive(Debug)]
pub(crate) enum Entry {
    /// Nothing: the daemon has no tokens, and only this machine reaches it.
    Open,
    /// A token of the API, which checks it with each call.
    Token,
    /// The secret of `keyfall ui`.
    Secret(String),
}

/// The result of a look at the cookie.
pub(crate) enum Shown {
    /// The API gets this token, if any.
    Enters(Option<String>),
    /// The person has to log in first.
    Stranger,
}

impl Entry {
    pub(crate) fn look(&self, headers: &HeaderMap) -> Shown {
        let kept = kept(headers);
        match (self, kept) {
            (Entry::Open, _) => Shown::Enters(None),
            (Entry::Token, Some(token)) => Shown::Enters(Some(token)),
            (Entry::Secret(secret), Some(shown)) if is_same(secret, &shown) => Shown::Enters(None),
            _ => Shown::Stranger,
        }
    }

    /// Whether this is the secret of `keyfall ui`.
    pub(crate) fn is_secret(&self, shown: &str) -> bool {
        matches!(self, Entry::Secret(secret) if is_same(secret, shown))
    }
}

fn is_same(secret: &str, shown: &str) -> bool {
    secret.as_bytes().ct_eq(shown.as_bytes()).into()
}

/// The name of the cookie. Browsers share the cookies of all ports of a host, and a machine can run
/// several daemons.
fn name(headers: &HeaderMap) -> String {
    let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
    let port = host.and_then(|host| host.rsplit_once(':'));
    let port = port.filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    format!("keyfall{}", port.map_or("", |(_, port)| port))
}

/// The value of a cookie.
pub(crate) fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    let all = headers.get_all(header::COOKIE).iter();
    let pairs = all.flat_map(|line| line.to_str().unwrap_or("").split(';'));
    let mut pairs = pairs.filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(its, _)| *its == name).map(|(_, value)| value)
}

/// The token or secret that the browser keeps.
fn kept(headers: &HeaderMap) -> Option<String> {
    cookie(headers, &name(headers)).map(ToOwned::to_owned)
}

/// The cookie that keeps this token, until the browser is closed. Its path is the folder of the page
/// that sets it, as the browser sees it: the prefix of a proxy is in it without being known here.
///
/// `None` if the text cannot be a token.
pub(crate) fn keep(web: &Web, headers: &HeaderMap, token: &str) -> Option<HeaderValue> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if token.is_empty() || token.len() > LONGEST || !token.bytes().all(fits) {
        return None;
    }
    let name = name(headers);
    let secure = secure(web, headers);
    let line = format!("{name}={token}; HttpOnly; SameSite=Strict{secure}");
    HeaderValue::try_from(line).ok()
}

/// The cookie that takes it away.
pub(crate) fn forget(web: &Web, headers: &HeaderMap) -> HeaderValue {
    let name = name(headers);
    let secure = secure(web, headers);
    let line = format!("{name}=; HttpOnly; SameSite=Strict; Max-Age=0{secure}");
    HeaderValue::try_from(line).expect("a port is digits")
}

/// A proxy that speaks HTTPS says so. A client that claims it only loses its own cookie.
fn secure(web: &Web, headers: &HeaderMap) -> &'static str {
    let proxy = headers.get("x-forwarded-proto");
    if web.is_tls || proxy.is_some_and(|it| it == "https") {
        "; Secure"
    } else {
        ""
    }
}
