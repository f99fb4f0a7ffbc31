//! Sentinels as settings, which become part of the URL.

use super::fault::{Origin, Wrong};
use super::hosts::without_host;
use super::redis_url::{escaped, secret};
use super::settings::Redis;
use super::sources::Sources;

/// Settings that need sentinels.
const THEIRS: [&str; 3] = ["master", "sentinel_user", "sentinel_password_file"];

/// Writes the sentinels into the URL. Returns the setting that names the place of Redis.
pub(super) fn put_into_url(
    redis: &mut Redis,
    name: &'static str,
    sources: &mut Sources<'_>,
) -> &'static str {
    if redis.url.is_several() {
        let tls = redis.sentinel_tls.then_some("sentinel_tls");
        for name in ["sentinels"].into_iter().chain(THEIRS).chain(tls) {
            if sources.origin("redis", name) != Origin::Default {
                let wrong = Wrong::new(
                    "there are several servers, each of which may have sentinels of its own",
                    "write redis+sentinel://… among the URLs, and leave this out",
                );
                sources.fault("redis", name, wrong);
            }
        }
        return name;
    }
    let name = match redis.sentinels.clone() {
        None => name,
        Some(hosts) => {
            let Some(master) = &redis.master else {
                let wrong = Wrong::new(
                    "the name of their primary is missing",
                    "name it by `redis.master`, as `sentinel monitor` does in their configuration",
                );
                sources.fault("redis", "sentinels", wrong);
                return name;
            };
            match without_host(redis).found_by(hosts.as_str(), master) {
                Some(url) => redis.url = url,
                None => {
                    let wrong = Wrong::new(
                        "it says where Redis is, and so do `redis.sentinels`",
                        "leave its host out, redis://user@/0 or rediss:///, or the sentinels",
                    );
                    sources.fault("redis", name, wrong);
                    return name;
                }
            }
            "sentinels"
        }
    };
    if !redis.url.is_found_by_sentinels() {
        let tls = redis.sentinel_tls.then_some("sentinel_tls");
        for name in THEIRS.into_iter().chain(tls) {
            if sources.origin("redis", name) != Origin::Default {
                let wrong = Wrong::new(
                    "there are no sentinels",
                    "name them by `redis.sentinels`, or leave this out",
                );
                sources.fault("redis", name, wrong);
            }
        }
        return name;
    }
    let password = redis.sentinel_password_file.as_deref().map(secret);
    let password = match password.transpose() {
        Ok(password) => password,
        Err(wrong) => {
            sources.fault("redis", "sentinel_password_file", wrong);
            return name;
        }
    };
    let user = redis.sentinel_user.clone();
    for (option, field, text) in [
        ("sentinel_user", "sentinel_user", user),
        ("sentinel_password", "sentinel_password_file", password),
        (
            "sentinel_tls",
            "sentinel_tls",
            redis.sentinel_tls.then(|| "true".to_owned()),
        ),
    ] {
        let Some(text) = text else { continue };
        match redis.url.with_option(option, &escaped(&text)) {
            Some(url) => redis.url = url,
            None => {
                let wrong = Wrong::new(
                    format_args!("the URL says `{option}` already"),
                    "take it out there, or leave this out",
                );
                sources.fault("redis", field, wrong);
            }
        }
    }
    name
}
