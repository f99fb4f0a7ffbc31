//! Parses the URL of a server into a client, and names the part of a URL that is wrong.
//!
//! Accepts `redis://`, `rediss://` and `redis+unix://` (and `valkey` in place of `redis`). The URLs
//! of [sentinels](super::sentinel) and [clusters](super::cluster) are taken apart by their modules,
//! which build one URL for each node.

use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{ConnectionAddr, IntoConnectionInfo};

use crate::error::{Error, ErrorKind, Result};
use crate::settings::LinkSettings;
use crate::shards::MAX_SHARDS;
use crate::store::connections::fault::TLS;
use crate::store::connections::origin::Origin;

/// Most servers that can share the jobs: as many as a kind can have shards.
const MOST_SERVERS: usize = MAX_SHARDS as usize;

/// A client for `url`. Its sockets send at once (no Nagle delay), and send keep-alives after 10 s
/// and then each 5 s, to notice a dead network. Opens no connection.
///
/// # Errors
/// [`ErrorKind::InvalidSetting`] if the URL or a certificate is not valid. The message does not
/// repeat the URL, which may hold a password.
#[cfg_attr(not(feature = "tls"), expect(unused_variables))]
pub(in crate::store) fn client(url: &str, settings: &LinkSettings) -> Result<redis::Client> {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5));
    let tcp = TcpSettings::default()
        .set_nodelay(true)
        .set_keepalive(keepalive);
    let info = url.into_connection_info().map_err(|error| {
        let fault = fault(url).unwrap_or_else(|| error.category().to_owned());
        Error::new(
            ErrorKind::InvalidSetting,
            format!(
                "the Redis URL is not valid: {fault}; write redis://[user:password@]host:port/database \
                 or redis+unix:///path?db=0, rediss:// for TLS, \
                 redis+sentinel://host:port,host:port/master for a primary that sentinels watch, or \
                 redis+cluster://host:port,host:port"
            ),
        )
    })?;
    let info = info.set_tcp_settings(tcp);
    #[cfg(feature = "tls")]
    let opened = crate::store::connections::tls::client(info, &settings.certificates)?;
    #[cfg(not(feature = "tls"))]
    let opened = redis::Client::open(info)
        .map_err(|error| Error::new(ErrorKind::InvalidSetting, error.category()))?;
    Ok(opened)
}

/// Refuses a URL or settings that no connection can be opened with. Opens no connection.
pub(crate) fn check_url(url: &str, settings: &LinkSettings) -> Result<()> {
    match all(url)?[..] {
        [url] => Origin::parse(url, settings).map(drop),
        ref urls => urls
            .iter()
            .try_for_each(|url| Origin::parse_member(url, settings).map(drop)),
    }
}

/// The URLs of several servers, which have white space between them. Usually there is one.
pub(in crate::store) fn all(url: &str) -> Result<Vec<&str>> {
    let urls: Vec<&str> = url.split_ascii_whitespace().collect();
    Ok(match urls.len() {
        // An empty URL is refused where it is parsed.
        0 => vec![url],
        1..=MOST_SERVERS => urls,
        many => {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!("there are {many} Redis URLs, and at most {MOST_SERVERS} are allowed"),
            ));
        }
    })
}

/// The address of a server, with `rediss://` before it if it uses TLS; without credentials.
pub(in crate::store) fn address(address: &ConnectionAddr) -> String {
    match address {
        ConnectionAddr::TcpTls { .. } => format!("{TLS}{address}"),
        _ => address.to_string(),
    }
}

/// Names the wrong part of a URL. The message does not repeat the part, except a scheme: any other
/// part may be a password, or a piece of a password in the wrong place.
fn fault(url: &str) -> Option<String> {
    let fault = match url.split_once("://") {
        None => "it has no scheme",
        Some((scheme @ ("rediss" | "valkeys"), _)) if cfg!(not(feature = "tls")) => {
            return Some(format!(
                "{scheme}:// needs TLS, which this build does not support: enable the cargo \
                 feature `tls` of keyfall"
            ));
        }
        Some(("redis" | "valkey" | "rediss" | "valkeys", rest)) => of_tcp(rest)?,
        Some(("redis+unix" | "valkey+unix" | "unix", _)) => {
            "the database, `db` behind the `?`, is not a number"
        }
        Some((scheme, _)) if scheme.bytes().all(is_of_scheme) => {
            let meant =
                meant(scheme).map_or(String::new(), |meant| format!(", did you mean {meant}://?"));
            return Some(format!("the scheme {scheme}:// is not known{meant}"));
        }
        Some(_) => "the scheme is not known",
    };
    Some(fault.to_owned())
}

/// True if an error may show this byte as part of a scheme: passwords with only such bytes are
/// improbable.
fn is_of_scheme(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte == b'+'
}

/// The scheme that was probably meant by one with a spelling mistake, from the first letter behind
/// the `+`.
fn meant(scheme: &str) -> Option<&'static str> {
    let (base, by) = scheme.split_once('+')?;
    Some(match (base, by.as_bytes().first()?) {
        ("rediss" | "valkeys", b's') => "rediss+sentinel",
        (_, b's') => "redis+sentinel",
        (_, b'u') => "redis+unix",
        _ => return None,
    })
}

/// The wrong part behind `redis://`; nothing if all parts are right.
fn of_tcp(rest: &str) -> Option<&'static str> {
    let end = |text: &str| text.find(['/', '?', '#']).unwrap_or(text.len());
    let place = match rest.rsplit_once('@') {
        Some((user, _)) if end(user) < user.len() => {
            return Some(
                "user or password holds a character that must be written as %2F for `/`, %3F for \
                 `?`, %23 for `#`",
            );
        }
        Some((_, place)) => place,
        None => rest,
    };
    let (authority, path) = place.split_at(end(place));
    let port_at = authority
        .rfind(':')
        .filter(|at| !authority[*at..].contains(']'));
    let (host, port) = authority.split_at(port_at.unwrap_or(authority.len()));
    if host.is_empty() {
        return Some("the host is missing");
    }
    let port = port.strip_prefix(':').unwrap_or_default();
    if !port.is_empty() && port.parse::<u16>().is_err() {
        return Some(
            "the port is not a number from 1 to 65535; or is the `@` behind a password missing?",
        );
    }
    let path = path.strip_prefix('/').unwrap_or_default();
    let database = &path[..end(path)];
    if !database.is_empty() && database.parse::<u32>().is_err() {
        return Some("the database, behind the `/`, is not a number");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wrong_part_is_named_and_no_password_is_repeated() {
        for (url, part) in [
            ("localhost", "no scheme"),
            ("user:geheim@localhost:6379", "no scheme"),
            ("http://localhost", "the scheme http:// is not known"),
            ("geheim!://localhost", "the scheme is not known"),
            (
                "redis+sentinal://a,b/main",
                "redis+sentinal:// is not known, did you mean redis+sentinel://?",
            ),
            ("rediss+sentry://a", "did you mean rediss+sentinel://?"),
            ("redis+unx:///tmp/redis.sock", "did you mean redis+unix://?"),
            #[cfg(feature = "tls")]
            (
                "rediss://:geheim@localhost:port",
                "the port is not a number",
            ),
            #[cfg(feature = "tls")]
            (
                "rediss://:geheim@localhost/#insecure",
                "always checks certificates",
            ),
            ("redis://", "the host is missing"),
            ("redis://:6379", "the host is missing"),
            ("redis://:geheim@:6379", "the host is missing"),
            ("redis://localhost:port", "the port is not a number"),
            ("redis://localhost:65536/0", "the port is not a number"),
            ("redis://[::1]:x", "the port is not a number"),
            ("redis://localhost:geheim", "the port is not a number"),
            ("redis://user:geheim/x@localhost", "user or password"),
            ("redis://user:ge?heim@localhost", "user or password"),
            ("redis://u:geheim@localhost/zero", "the database"),
            ("redis+unix:///tmp/redis.sock?db=geheim", "the database"),
        ] {
            let error = client(url, &LinkSettings::default()).expect_err(url);
            assert_eq!(error.kind(), ErrorKind::InvalidSetting);
            let text = format!("{error} {error:?}");
            assert!(text.contains(part), "{url}: {text}");
            assert!(!text.contains("heim"), "{url}: {text}");
        }
        for url in [
            "redis://localhost",
            "redis://user:p%2Fss@[::1]:6379/3",
            "valkey://localhost:1/",
            "redis+unix:///tmp/redis.sock?db=3&pass=x",
            #[cfg(feature = "tls")]
            "rediss://user:pass@localhost:6380/1",
        ] {
            client(url, &LinkSettings::default()).expect(url);
        }
    }

    #[cfg(not(feature = "tls"))]
    #[test]
    fn a_build_without_tls_names_the_missing_feature() {
        for scheme in ["rediss", "valkeys"] {
            for rest in ["localhost", "user:geheim@localhost:6380/1", ":geheim@"] {
                let url = format!("{scheme}://{rest}");
                let error = client(&url, &LinkSettings::default()).expect_err(&url);
                assert_eq!(error.kind(), ErrorKind::InvalidSetting);
                let text = format!("{error} {error:?}");
                let fault = format!("{scheme}:// needs TLS, which this build does not support");
                assert!(text.contains(&fault), "{url}: {text}");
                assert!(text.contains("enable the cargo feature `tls`"), "{text}");
                assert!(!text.contains("heim"), "{url}: {text}");
            }
        }
    }
}
