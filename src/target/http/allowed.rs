//! Hosts that the URLs of jobs may name: the entries of `job_urls`.

use std::str::FromStr;

use reqwest::Url;

/// A host, or all hosts below one: `hooks.example.org`, `*.example.org`, `hooks.example.org:8443`;
/// or, without TLS, `http://hooks.example.org`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct AllowedHost {
    /// `https` or `http`.
    scheme: &'static str,
    /// The host in the form of URLs: lower case, ASCII. It begins with a dot if all hosts below it
    /// are allowed.
    host: String,
    /// `None` for the default port of the scheme.
    port: Option<u16>,
}

impl AllowedHost {
    /// Whether a job may name this URL by this entry: scheme, host and port must match.
    pub(super) fn allows(&self, url: &Url) -> bool {
        let Some(host) = url.host_str() else {
            return false;
        };
        let is_host = if self.host.starts_with('.') {
            host.len() > self.host.len() && host.ends_with(&self.host)
        } else {
            host == self.host
        };
        let is_port = match self.port {
            Some(port) => url.port_or_known_default() == Some(port),
            // A URL leaves out the default port of its scheme.
            None => url.port().is_none(),
        };
        url.scheme() == self.scheme && is_host && is_port
    }
}

impl FromStr for AllowedHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        parse(text).ok_or_else(|| {
            format!(
                "{text:?} is not a host: write a host such as hooks.example.org, or *.example.org \
                 for all hosts below example.org; add a port other than the default of the scheme \
                 after a colon, and http:// before a host that is called without TLS"
            )
        })
    }
}

/// Parses an entry; `None` if it is no host. It may begin with `http://`, then with `*.`, and may
/// end with a port; a path, a query, a user or another `*` makes it invalid.
fn parse(text: &str) -> Option<AllowedHost> {
    let (scheme, rest) = match text.strip_prefix("http://") {
        Some(rest) => ("http", rest),
        None => ("https", text),
    };
    let (below, rest) = match rest.strip_prefix("*.") {
        Some(rest) => (".", rest),
        None => ("", rest),
    };
    let (host, port) = match rest.rsplit_once(':') {
        // A colon within brackets is part of an IPv6 address.
        Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().ok()?)),
        _ => (rest, None),
    };
    if host.is_empty() || host.contains(['/', '?', '#', '@', '*', '\\']) {
        return None;
    }
    // The form of URLs: lower case, and international names in ASCII.
    let url = Url::parse(&format!("http://{host}/")).ok()?;
    Some(AllowedHost {
        scheme,
        host: format!("{below}{}", url.host_str()?),
        port,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_allowed_by_name_and_port() {
        let allows = |rule: &str, url: &str| {
            let rule: AllowedHost = rule.parse().unwrap();
            rule.allows(&Url::parse(url).unwrap())
        };
        assert!(allows("hooks.example.org", "https://hooks.example.org/a"));
        assert!(allows(
            "Hooks.Example.org",
            "https://HOOKS.example.ORG:443/a?b"
        ));
        assert!(allows("[::1]:81", "https://[::1]:81/"));
        assert!(allows("10.0.0.1", "https://0xa000001/"));
        assert!(allows("http://a.org", "http://a.org/"));
        assert!(allows("http://*.a.org:81", "http://b.a.org:81/"));
        assert!(allows("http://[::1]:81", "http://[::1]:81/"));
        assert!(allows("bücher.example", "https://xn--bcher-kva.example/"));
        assert!(allows("*.example.org", "https://a.b.example.org/"));
        assert!(allows("a.org:8443", "https://a.org:8443/"));
        assert!(allows("a.org:443", "https://a.org/"));
        for (rule, url) in [
            ("example.org", "https://a.example.org/"),
            ("*.example.org", "https://example.org/"),
            ("*.example.org", "https://badexample.org/"),
            ("*.example.org", "https://a.example.org.evil.net/"),
            ("example.org", "https://example.org@evil.net/"),
            ("example.org", "https://example.org:22/"),
            ("example.org:8443", "https://example.org/"),
            // Without TLS only where that is written.
            ("example.org", "http://example.org/"),
            ("*.example.org", "http://a.example.org/"),
            ("example.org:8080", "http://example.org:8080/"),
            ("example.org", "http://example.org:443/"),
            ("http://example.org", "https://example.org/"),
            ("http://example.org", "http://example.org:443/"),
        ] {
            assert!(!allows(rule, url), "{rule} allows {url}");
        }
    }

    #[test]
    fn a_text_that_is_no_host_is_refused() {
        for text in [
            "",
            "*",
            "*.",
            "https://a.org",
            "http://",
            "http://https://a.org",
            "ftp://a.org",
            "http://a.org/",
            "a.org/b",
            "a@b.org",
            "a.org:x",
            "a.*.org",
            "a b",
        ] {
            assert!(text.parse::<AllowedHost>().is_err(), "{text}");
        }
    }
}
