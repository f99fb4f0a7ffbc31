//! The Redis that a list or a stream is on.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::PathBuf;

use keyfall::{Client, ClientBuilder};

use super::super::fault::{Faults, Wrong};
use super::super::file::Entry;
use super::super::redis_url::{RedisUrl, alone, secret};
use super::super::settings::Redis;

/// The fields of a list or a stream that describe its Redis.
pub(super) const FIELDS: [&str; 5] = ["url", "url_file", "ca_file", "cert_file", "key_file"];

/// The Redis of a list or a stream; without a URL, the Redis of the jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Server {
    url: Option<RedisUrl>,
    ca_file: Option<PathBuf>,
    /// A certificate and its key.
    shown: Option<(PathBuf, PathBuf)>,
    /// A hash of the contents of these files, to notice a change.
    print: u64,
}

impl Server {
    pub(super) fn client(&self, redis: &Redis) -> ClientBuilder {
        let Some(url) = &self.url else {
            return redis.client();
        };
        let mut builder = Client::builder(url.reveal()).call_timeout(redis.call_timeout);
        if let Some(ca) = &self.ca_file {
            builder = builder.ca_certificate_file(ca);
        }
        if let Some((chain, key)) = &self.shown {
            builder = builder.client_certificate_files(chain, key);
        }
        builder
    }

    /// Reads and checks the Redis of an entry.
    pub(super) fn read(entry: &Entry<'_>, redis: &Redis, faults: &mut Faults) -> Self {
        let url: Option<RedisUrl> = entry.value("url", &[], faults);
        let file: Option<PathBuf> = entry.value("url_file", &[], faults);
        let ca_file = entry.value("ca_file", &[], faults);
        let chain: Option<PathBuf> = entry.value("cert_file", &[], faults);
        let key: Option<PathBuf> = entry.value("key_file", &[], faults);
        let mut fault = |field, wrong| entry.fault(field, wrong, faults);
        let mut from = "url";
        let url = match (url, file) {
            (Some(_), Some(_)) => {
                let wrong = Wrong::new("the URL is given twice", "leave this or `url` out");
                fault("url_file", wrong);
                None
            }
            (None, Some(path)) => {
                from = "url_file";
                let url = secret(&path).map(RedisUrl::new);
                url.map_err(|wrong| fault("url_file", wrong)).ok()
            }
            (url, None) => url,
        };
        let shown = match (chain, key) {
            (Some(chain), Some(key)) => Some((chain, key)),
            (Some(_), None) => {
                fault("cert_file", alone("key_file"));
                None
            }
            (None, Some(_)) => {
                fault("key_file", alone("cert_file"));
                None
            }
            (None, None) => None,
        };
        let mut server = Server {
            url,
            ca_file: None,
            shown: None,
            print: 0,
        };
        // One after the other, so that a fault is reported for its own field.
        for (field, ca_file, shown) in [
            (from, None, None),
            ("ca_file", ca_file, None),
            ("cert_file", None, shown),
        ] {
            if server.url.is_none() && (ca_file.is_some() || shown.is_some()) {
                let wrong = Wrong::new(
                    "it has no effect without a URL",
                    "name a URL by `url`, or leave this out: the Redis of the jobs has its own \
                     settings",
                );
                fault(field, wrong);
                continue;
            }
            server.ca_file = ca_file.or(server.ca_file);
            server.shown = shown.or(server.shown);
            if server.url.is_some()
                && let Err(error) = server.client(redis).check()
            {
                fault(field, Wrong(error.to_string()));
                break;
            }
        }
        let is_several = server.url.as_ref().map(RedisUrl::is_several);
        if is_several.unwrap_or(redis.url.is_several()) {
            let wrong = Wrong::new(
                "there are several servers, and a list or a stream is on one",
                "name its Redis by `url` or `url_file`",
            );
            fault(from, wrong);
        }
        server.print = server.print();
        server
    }

    fn print(&self) -> u64 {
        let shown = self.shown.iter().flat_map(|(chain, key)| [chain, key]);
        let mut print = DefaultHasher::new();
        for path in self.ca_file.iter().chain(shown) {
            // A file that cannot be read has been reported.
            fs::read(path).ok().hash(&mut print);
        }
        print.finish()
    }
}
