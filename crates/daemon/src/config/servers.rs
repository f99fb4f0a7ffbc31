//! Several servers that share the jobs, as tables, which become a list of URLs.

use std::path::PathBuf;

use keyfall::Client;

use super::fault::{Faults, Origin, Wrong};
use super::file::Entry;
use super::hosts::Hosts;
use super::redis_url::{RedisUrl, escaped, secret};
use super::settings::{Redis, setting};
use super::sources::{Given, Sources};

/// The fields of each server.
pub(super) const FIELDS: [&str; 8] = [
    "url",
    "url_file",
    "password_file",
    "sentinels",
    "master",
    "sentinel_user",
    "sentinel_password_file",
    "sentinel_tls",
];

/// The settings of the place of a single Redis, and of access to it.
const INSTEAD: [&str; 9] = [
    "url",
    "url_file",
    "password_file",
    "sentinels",
    "master",
    "sentinel_user",
    "sentinel_password_file",
    "sentinel_tls",
    "nodes",
];

/// Writes the tables `[[redis.servers]]` into the URL, unless a stronger source than the file names
/// the place of Redis. Returns whether the tables are sound; `None` if they do not count.
pub(super) fn put_into_url(redis: &mut Redis, sources: &mut Sources<'_>) -> Option<bool> {
    let first = sources.file.servers().next();
    let at = first.map(|entry| entry.origin.clone())?;
    let is_stronger = |name| sources.origin("redis", name) > at && !is_of_file(sources, name);
    let mut places = ["url", "url_file", "sentinels", "nodes"].into_iter();
    if places.any(is_stronger) {
        // Misspelt fields are reported even if the tables do not count.
        let Sources { file, faults, .. } = sources;
        for entry in file.servers() {
            entry.find_strangers(&FIELDS, faults);
        }
        return None;
    }
    let is_said = |name: &&str| match *name {
        // The default URL may stand in the file, and then counts as absent.
        "url" => Some(redis.url.reveal()) != setting("redis", "url").default,
        "sentinel_tls" => redis.sentinel_tls,
        name => sources.origin("redis", name) != Origin::Default,
    };
    let said: Vec<&str> = INSTEAD.into_iter().filter(is_said).collect();
    for name in said {
        let wrong = Wrong::new(
            "each table of [[redis.servers]] says where its server is",
            "write it in the table of its server, or leave out the setting or the tables",
        );
        sources.fault("redis", name, wrong);
    }
    let Sources {
        file,
        faults,
        given,
        ..
    } = sources;
    let urls: Vec<Option<RedisUrl>> = file.servers().map(|entry| url_of(&entry, faults)).collect();
    let Some(urls) = urls.into_iter().collect::<Option<Vec<_>>>() else {
        return Some(false);
    };
    let all: Vec<&str> = urls.iter().map(RedisUrl::reveal).collect();
    redis.url = RedisUrl::new(all.join(" "));
    // The setting has a place now, for messages about it.
    let url = setting("redis", "url");
    given.retain(|given| !std::ptr::eq(given.setting, url));
    given.push(Given {
        setting: url,
        origin: at.clone(),
        shown: redis.url.to_string(),
    });
    let checked = Client::builder(redis.url.reveal()).check();
    if let Err(error) = &checked {
        faults.add(at, "redis.servers", Wrong(error.to_string()));
    }
    Some(checked.is_ok())
}

fn is_of_file(sources: &Sources<'_>, name: &str) -> bool {
    matches!(sources.origin("redis", name), Origin::File { .. })
}

/// The URL of one server, unless it has a fault.
fn url_of(entry: &Entry<'_>, faults: &mut Faults) -> Option<RedisUrl> {
    entry.find_strangers(&FIELDS, faults);
    let url: Option<RedisUrl> = entry.value("url", &[], faults);
    let file: Option<PathBuf> = entry.value("url_file", &[], faults);
    let sentinels: Option<Hosts> = entry.value("sentinels", &[], faults);
    let mut from = "url";
    let url = match (url, file) {
        (Some(_), Some(_)) => {
            let wrong = Wrong::new("the URL is given twice", "leave this or `url` out");
            return none(entry, "url_file", wrong, faults);
        }
        (None, Some(path)) => {
            from = "url_file";
            match secret(&path) {
                Ok(text) => RedisUrl::new(text),
                Err(wrong) => return none(entry, from, wrong, faults),
            }
        }
        (Some(url), None) => url,
        (None, None) if sentinels.is_some() => RedisUrl::new("redis://".to_owned()),
        (None, None) if entry.raw(from).is_none() && entry.raw("sentinels").is_none() => {
            let wrong = Wrong::new(
                "the address of this server is missing",
                "write `url`, `url_file`, or `sentinels` and `master`",
            );
            return none(entry, from, wrong, faults);
        }
        // The fault is reported already.
        (None, None) => return None,
    };
    if url.is_several() {
        let wrong = Wrong::new(
            "this table is for one server",
            "write [[redis.servers]] for each",
        );
        return none(entry, from, wrong, faults);
    }
    let url = with_sentinels(url, sentinels, from, entry, faults)?;
    let password: Option<PathBuf> = entry.value("password_file", &[], faults);
    let url = match password {
        None => url,
        Some(path) => match secret(&path).and_then(|password| url.with_password(&password)) {
            Ok(url) => url,
            Err(wrong) => return none(entry, "password_file", wrong, faults),
        },
    };
    match Client::builder(url.reveal()).check() {
        Ok(()) => Some(url),
        // The message repeats no text that could be a password.
        Err(error) => none(entry, from, Wrong(error.to_string()), faults),
    }
}

/// The URL with the sentinels of the server.
fn with_sentinels(
    url: RedisUrl,
    sentinels: Option<Hosts>,
    from: &str,
    entry: &Entry<'_>,
    faults: &mut Faults,
) -> Option<RedisUrl> {
    let master: Option<String> = entry.value("master", &[], faults);
    let mut url = match (sentinels, master) {
        (None, None) => url,
        (None, Some(_)) => {
            let wrong = Wrong::new(
                "there are no sentinels",
                "name them by `sentinels`, or leave this out",
            );
            return none(entry, "master", wrong, faults);
        }
        (Some(_), None) => {
            let wrong = Wrong::new(
                "the name of their primary is missing",
                "name it by `master`, as `sentinel monitor` does in their configuration",
            );
            return none(entry, "sentinels", wrong, faults);
        }
        (Some(hosts), Some(master)) => match url.found_by(hosts.as_str(), &master) {
            Some(url) => url,
            None => {
                let wrong = Wrong::new(
                    "it says where Redis is, and so do the `sentinels`",
                    "leave its host out, redis://user@/0 or rediss:///, or the sentinels",
                );
                return none(entry, from, wrong, faults);
            }
        },
    };
    let user: Option<String> = entry.value("sentinel_user", &[], faults);
    let password: Option<PathBuf> = entry.value("sentinel_password_file", &[], faults);
    let password = match password.as_deref().map(secret).transpose() {
        Ok(password) => password,
        Err(wrong) => return none(entry, "sentinel_password_file", wrong, faults),
    };
    let tls: Option<bool> = entry.value("sentinel_tls", &[], faults);
    let tls = tls.filter(|tls| *tls).map(|_| "true".to_owned());
    for (option, field, text) in [
        ("sentinel_user", "sentinel_user", user),
        ("sentinel_password", "sentinel_password_file", password),
        ("sentinel_tls", "sentinel_tls", tls),
    ] {
        let Some(text) = text else { continue };
        if !url.is_found_by_sentinels() {
            let wrong = Wrong::new(
                "there are no sentinels",
                "name them by `sentinels`, or leave this out",
            );
            return none(entry, field, wrong, faults);
        }
        url = match url.with_option(option, &escaped(&text)) {
            Some(url) => url,
            None => {
                let wrong = Wrong::new(
                    format_args!("the URL says `{option}` already"),
                    "take it out there, or leave this out",
                );
                return none(entry, field, wrong, faults);
            }
        };
    }
    Some(url)
}

fn none(entry: &Entry<'_>, field: &str, wrong: Wrong, faults: &mut Faults) -> Option<RedisUrl> {
    entry.fault(field, wrong, faults);
    None
}
