//! Web pages: a browser on this machine sends any request that a page asks for, and would give the
//! author of the page control of a daemon without tokens.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};

use super::problem::Problem;

/// Whether a browser says that the request comes from a page. It does so with every `POST`, `PUT`
/// and `DELETE`, and with all requests of a page to another site
/// ([Fetch](https://fetch.spec.whatwg.org/#origin-header)).
pub(crate) fn asks(headers: &HeaderMap) -> bool {
    headers.contains_key(header::ORIGIN)
}

/// Refuses requests from pages, and requests that name another host. So it also refuses a name that
/// was pointed at this machine a moment ago, and that a page takes for its own site.
pub(super) fn refuse(headers: &HeaderMap) -> Result<(), Problem> {
    if asks(headers) {
        return Err(Problem::web_page("the request has an `origin`"));
    }
    let host = headers.get(header::HOST);
    if host.is_some_and(|host| !host.to_str().is_ok_and(is_local)) {
        let why = "the `host` of the request is neither an address nor localhost";
        return Err(Problem::web_page(why));
    }
    Ok(())
}

/// Whether no other party can point this name at this machine: an address, or `localhost`.
pub fn is_local(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    };
    let literal = name.trim_start_matches('[').trim_end_matches(']');
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    literal.parse::<IpAddr>().is_ok() || name == "localhost" || name.ends_with(".localhost")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_or_localhost_is_local() {
        for local in [
            "localhost",
            "LOCALHOST:9276",
            "app.localhost:9276",
            "127.0.0.1",
            "127.0.0.1:9276",
            "[::1]:9276",
            "[::1]",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "evil.example",
            "evil.example:9276",
            "localhost.evil.example",
            "x",
            "",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
