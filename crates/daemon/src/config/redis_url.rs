//! The URL of Redis: its sources, and its form without the password.

use std::fmt;
use std::fs;
use std::path::Path;

use keyfall::Client;

use super::fault::{Origin, Wrong};
use super::settings::Redis;
use super::sources::Sources;
use super::value::{Form, Value};
use super::{hosts, sentinels, servers};

/// Shown in place of a password.
const HIDDEN: &str = "***";

/// A URL that may hold a password, which is never shown; or the URLs of several servers, with white
/// space between them.
#[derive(Clone, PartialEq, Eq)]
pub struct RedisUrl(String);

/// The parts of a URL, as far as they are clear.
enum Parts<'a> {
    Tcp {
        scheme: &'a str,
        /// Before the `@`, if there is one.
        user: Option<&'a str>,
        rest: &'a str,
    },
    Unix {
        scheme: &'a str,
        path: &'a str,
        query: Option<&'a str>,
    },
}

impl RedisUrl {
    pub(super) fn new(text: String) -> Self {
        RedisUrl(text)
    }

    /// The URL, with its password.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether there are several servers.
    pub(super) fn is_several(&self) -> bool {
        self.0.split_ascii_whitespace().nth(1).is_some()
    }

    /// The URLs, one by one.
    fn each(&self) -> impl Iterator<Item = RedisUrl> {
        let urls = self.0.split_ascii_whitespace();
        urls.map(|url| RedisUrl(url.to_owned()))
    }

    fn parts(&self) -> Option<Parts<'_>> {
        let (scheme, rest) = self.0.split_once("://")?;
        match scheme {
            "redis" | "rediss" | "valkey" | "valkeys" | "redis+sentinel" | "rediss+sentinel"
            | "valkey+sentinel" | "valkeys+sentinel" | "redis+cluster" | "rediss+cluster"
            | "valkey+cluster" | "valkeys+cluster" => {
                // The last `@`: a password may contain one by mistake, and must not be shown.
                let (user, rest) = match rest.rsplit_once('@') {
                    Some((user, rest)) => (Some(user), rest),
                    None => (None, rest),
                };
                Some(Parts::Tcp { scheme, user, rest })
            }
            "redis+unix" | "valkey+unix" | "unix" => {
                let (path, query) = match rest.split_once('?') {
                    Some((path, query)) => (path, Some(query)),
                    None => (rest, None),
                };
                Some(Parts::Unix {
                    scheme,
                    path,
                    query,
                })
            }
            _ => None,
        }
    }

    /// Whether sentinels name the primary.
    pub(super) fn is_found_by_sentinels(&self) -> bool {
        let scheme = self.0.split_once("://").map(|(scheme, _)| scheme);
        scheme.is_some_and(|scheme| scheme.ends_with("+sentinel"))
    }

    /// The same URL with the hosts of these sentinels, if it names no host itself.
    pub(super) fn found_by(&self, hosts: &str, master: &str) -> Option<RedisUrl> {
        let Some(Parts::Tcp { scheme, user, rest }) = self.parts() else {
            return None;
        };
        if !rest.is_empty() && !rest.starts_with('/') || self.is_found_by_sentinels() {
            return None;
        }
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        let master = escaped(master);
        let database = if rest == "/" { "" } else { rest };
        Some(RedisUrl(format!(
            "{scheme}+sentinel://{user}{hosts}/{master}{database}"
        )))
    }

    /// The same URL with these nodes of a cluster, if it names no host itself.
    pub(super) fn of_cluster(&self, hosts: &str) -> Option<RedisUrl> {
        let Some(Parts::Tcp { scheme, user, rest }) = self.parts() else {
            return None;
        };
        if !matches!(rest, "" | "/") || scheme.contains('+') {
            return None;
        }
        let user = user.map(|user| format!("{user}@")).unwrap_or_default();
        Some(RedisUrl(format!("{scheme}+cluster://{user}{hosts}")))
    }

    /// The same URL with this option behind the `?`, unless it has the option already.
    pub(super) fn with_option(&self, name: &str, text: &str) -> Option<RedisUrl> {
        let (before, query) = match self.0.split_once('?') {
            Some((before, query)) => (before, format!("{query}&")),
            None => (&*self.0, String::new()),
        };
        let is_said = query
            .split('&')
            .any(|pair| pair.split('=').next() == Some(name));
        (!is_said).then(|| RedisUrl(format!("{before}?{query}{name}={text}")))
    }

    /// Whether it holds a password.
    fn has_secret(&self) -> bool {
        let is_secret = |url: RedisUrl| url.has_password() || url.0.contains("sentinel_password=");
        self.each().any(is_secret)
    }

    fn has_password(&self) -> bool {
        match self.parts() {
            Some(Parts::Tcp { user, .. }) => user
                .and_then(|user| user.split_once(':'))
                .is_some_and(|(_, password)| !password.is_empty()),
            Some(Parts::Unix { query, .. }) => query
                .into_iter()
                .flat_map(|query| query.split('&'))
                .any(|pair| pair.starts_with("pass=")),
            None => false,
        }
    }

    /// The same URL, with this password.
    pub(super) fn with_password(&self, password: &str) -> Result<Self, Wrong> {
        if self.is_several() {
            return Err(Wrong::new(
                "there are several servers",
                "write their URLs with their passwords into a file, one a line, and name it by \
                 `redis.url_file`",
            ));
        }
        if self.has_password() {
            return Err(Wrong::new(
                "the URL has a password already",
                "take it out there, or leave this out",
            ));
        }
        let password = escaped(password);
        Ok(RedisUrl(match self.parts() {
            Some(Parts::Tcp { scheme, user, rest }) => {
                let user = user.unwrap_or_default().trim_end_matches(':');
                format!("{scheme}://{user}:{password}@{rest}")
            }
            Some(Parts::Unix {
                scheme,
                path,
                query: None,
            }) => format!("{scheme}://{path}?pass={password}"),
            Some(Parts::Unix {
                scheme,
                path,
                query: Some(query),
            }) => format!("{scheme}://{path}?{query}&pass={password}"),
            // Another check reports the fault of such a URL.
            None => self.0.clone(),
        }))
    }
}

impl fmt::Display for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_several() {
            let shown: Vec<String> = self.each().map(|url| url.to_string()).collect();
            return f.write_str(&shown.join(" "));
        }
        match self.parts() {
            Some(Parts::Tcp { scheme, user, rest }) => {
                write!(f, "{scheme}://")?;
                let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
                let (place, path) = rest.split_at(end);
                // Without the `@`, user and password look like host and port.
                let is_place = |host: &str| {
                    let port = host.rsplit_once(':').map_or("", |(_, port)| port);
                    port.bytes().all(|byte| byte.is_ascii_digit()) || host.ends_with(']')
                };
                if !place.split(',').all(is_place) {
                    return f.write_str(HIDDEN);
                }
                if let Some(user) = user {
                    let name = user.split_once(':').map_or("", |(name, _)| name);
                    let colon = if name.is_empty() { "" } else { ":" };
                    write!(f, "{name}{colon}{HIDDEN}@")?;
                }
                let path = path.split(['?', '#']).next().unwrap_or_default();
                write!(f, "{place}{path}")
            }
            Some(Parts::Unix {
                scheme,
                path,
                query,
            }) => {
                write!(f, "{scheme}://{path}")?;
                for (number, pair) in query.iter().flat_map(|q| q.split('&')).enumerate() {
                    let before = if number == 0 { '?' } else { '&' };
                    let shown = match pair.split_once('=') {
                        Some(("db" | "user", _)) => pair.to_owned(),
                        Some(("pass", _)) => format!("pass={HIDDEN}"),
                        _ => HIDDEN.to_owned(),
                    };
                    write!(f, "{before}{shown}")?;
                }
                Ok(())
            }
            None => f.write_str(HIDDEN),
        }
    }
}

impl fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisUrl({self})")
    }
}

impl Value for RedisUrl {
    const FORM: Form = Form::Text;
    const WHAT: &'static str = "URL";

    /// Accepts any text: its faults are reported once all related settings are known.
    fn parse(text: &str) -> Result<Self, Wrong> {
        Ok(RedisUrl(text.to_owned()))
    }

    fn shown(text: &str) -> String {
        RedisUrl(text.to_owned()).to_string()
    }
}

/// Builds the URL from its settings, checks it and the certificates, and stores it in `redis.url`.
pub(super) fn resolve(redis: &mut Redis, sources: &mut Sources<'_>) {
    if let Some(are_sound) = servers::put_into_url(redis, sources) {
        if are_sound {
            check(redis, "url", sources);
        }
        return;
    }
    let url_from = sources.origin("redis", "url");
    let file_from = sources.origin("redis", "url_file");
    let mut name = "url";
    if let Some(path) = &redis.url_file {
        if file_from.is_beside(&url_from) {
            let wrong = Wrong::new("the URL is given twice", "leave this or `redis.url` out");
            sources.fault("redis", "url_file", wrong);
        } else if file_from > url_from {
            name = "url_file";
            match secret(path) {
                Ok(text) => redis.url = RedisUrl(text),
                Err(wrong) => return sources.fault("redis", "url_file", wrong),
            }
        }
    }
    if matches!(sources.origin("redis", name), Origin::Flag(_))
        && name == "url"
        && redis.url.has_secret()
    {
        let wrong = Wrong::new(
            "it holds a password, and all users of a machine can list its command lines",
            "set KEYFALL_REDIS_URL, or name a file by `redis.url_file`, `redis.password_file` or \
             `redis.sentinel_password_file`",
        );
        sources.fault("redis", "url", wrong);
    }
    let name = hosts::put_nodes_into_url(redis, name, sources);
    let name = sentinels::put_into_url(redis, name, sources);
    if let Some(path) = &redis.password_file {
        match secret(path).and_then(|password| redis.url.with_password(&password)) {
            Ok(url) => redis.url = url,
            Err(wrong) => sources.fault("redis", "password_file", wrong),
        }
    }
    check(redis, name, sources);
}

/// `name` is the setting that the URL came from.
fn check(redis: &Redis, name: &str, sources: &mut Sources<'_>) {
    let mut builder = Client::builder(redis.url.reveal());
    // Neither message repeats text that could be a password.
    if let Err(error) = builder.check() {
        return sources.fault("redis", name, Wrong(error.to_string()));
    }
    if let Some(ca) = &redis.ca_file {
        builder = builder.ca_certificate_file(ca);
        if let Err(error) = builder.check() {
            return sources.fault("redis", "ca_file", Wrong(error.to_string()));
        }
    }
    match (&redis.cert_file, &redis.key_file) {
        (Some(chain), Some(key)) => {
            builder = builder.client_certificate_files(chain, key);
            if let Err(error) = builder.check() {
                sources.fault("redis", "cert_file", Wrong(error.to_string()));
            }
        }
        (Some(_), None) => sources.fault("redis", "cert_file", alone("redis.key_file")),
        (None, Some(_)) => sources.fault("redis", "key_file", alone("redis.cert_file")),
        (None, None) => {}
    }
}

/// The fault of a certificate without a key, and of a key without a certificate.
pub(super) fn alone(other: &str) -> Wrong {
    Wrong::new(
        "a certificate and its key go together",
        format_args!("name the other by `{other}`, or leave this out"),
    )
}

/// The contents of a file, without the final line end.
pub(super) fn secret(path: &Path) -> Result<String, Wrong> {
    let text = fs::read_to_string(path)
        .map_err(|error| Wrong(format!("{} cannot be read: {error}", path.display())))?;
    let text = text.strip_suffix('\n').unwrap_or(&text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    if text.is_empty() {
        return Err(Wrong::new(
            format_args!("{} is empty", path.display()),
            "write the secret into it, on one line",
        ));
    }
    Ok(text.to_owned())
}

/// The text, escaped for any part of a URL.
pub(super) fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> RedisUrl {
        RedisUrl(text.to_owned())
    }

    #[test]
    fn a_url_is_shown_without_its_password() {
        for (text, shown) in [
            ("redis://localhost:6379/3", "redis://localhost:6379/3"),
            ("redis://[::1]:6379", "redis://[::1]:6379"),
            ("redis://[::1]", "redis://[::1]"),
            ("redis://:geheim@localhost", "redis://***@localhost"),
            ("redis://geheim@localhost", "redis://***@localhost"),
            ("rediss://app1:geheim@h:1/0", "rediss://app1:***@h:1/0"),
            ("redis://app1:ge@heim@h", "redis://app1:***@h"),
            ("redis://app1:ge/heim@h", "redis://app1:***@h"),
            ("redis://app1:geheim", "redis://***"),
            ("redis://h/0?geheim", "redis://h/0"),
            ("redis://h#geheim", "redis://h"),
            (
                "redis+sentinel://app1:geheim@h,[::1]:1/main/0?sentinel_password=geheim",
                "redis+sentinel://app1:***@h,[::1]:1/main/0",
            ),
            (
                "redis+cluster://app1:geheim@h:1,[::1]:2",
                "redis+cluster://app1:***@h:1,[::1]:2",
            ),
            (
                "redis+sentinel://app1:geheim,h/main",
                "redis+sentinel://***",
            ),
            ("geheim", "***"),
            ("geheim://h", "***"),
            (
                "redis://:geheim@a  redis+sentinel://u:geheim@b/main\nredis://c",
                "redis://***@a redis+sentinel://u:***@b/main redis://c",
            ),
            (
                "redis+unix:///tmp/r.sock?db=3&pass=geheim&user=app1&geheim",
                "redis+unix:///tmp/r.sock?db=3&pass=***&user=app1&***",
            ),
        ] {
            assert_eq!(url(text).to_string(), shown, "{text}");
            assert_eq!(format!("{:?}", url(text)), format!("RedisUrl({shown})"));
        }
    }

    #[test]
    fn a_password_comes_into_a_url_that_has_none() {
        for (text, full) in [
            ("redis://h:1/0", "redis://:p%40%2F1@h:1/0"),
            ("redis://app1@h", "redis://app1:p%40%2F1@h"),
            ("redis://app1:@h", "redis://app1:p%40%2F1@h"),
            (
                "redis+sentinel://h,i:1/main",
                "redis+sentinel://:p%40%2F1@h,i:1/main",
            ),
            ("redis+cluster://h,i:1", "redis+cluster://:p%40%2F1@h,i:1"),
            ("unix:///r.sock", "unix:///r.sock?pass=p%40%2F1"),
            ("unix:///r.sock?db=1", "unix:///r.sock?db=1&pass=p%40%2F1"),
        ] {
            let with = url(text).with_password("p@/1").unwrap();
            assert_eq!(with.reveal(), full);
            Client::builder(full).check().expect(full);
        }
        for text in ["redis://:x@h", "redis://a:x@h", "unix:///r.sock?pass=x"] {
            let wrong = url(text).with_password("p").unwrap_err();
            assert!(wrong.0.contains("a password already"), "{text}: {wrong:?}");
        }
        let wrong = url("redis://a redis://b").with_password("p").unwrap_err();
        assert!(wrong.0.contains("`redis.url_file`"), "{wrong:?}");
    }
}
