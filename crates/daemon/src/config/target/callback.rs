//! `target = { http = { … } }`: the callbacks of a route.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use keyfall::target::{self, Http};

use super::super::fault::{Faults, Wrong};
use super::super::file::Entry;
use super::super::redis_url::{alone, secret};
use super::super::rules::{longer_than_zero, size, up_to_a_day};
use super::super::value::Bytes;

/// The fields of a callback.
pub(in super::super) const FIELDS: [&str; 17] = [
    "url",
    "job_url",
    "hosts",
    "networks",
    "secret_file",
    "secret_env",
    "headers_file",
    "ca_file",
    "cert_file",
    "key_file",
    "connect_timeout",
    "response_limit",
    "redirects",
    "host_concurrency",
    "breaker_failures",
    "breaker_pause",
    "hold_kind",
];

/// The callbacks of a route, checked.
#[derive(Clone)]
pub struct Callback {
    pub(super) target: Http,
    /// All given fields, and the contents of their files: two callbacks are equal if these are.
    said: Vec<(&'static str, Vec<u8>)>,
}

/// One given field, and its effect on a target.
struct GivenField {
    field: &'static str,
    /// Its contents, to notice a change.
    text: Vec<u8>,
    set: Box<dyn Fn(Http) -> Http>,
}

/// Collects the given fields.
struct Reading<'a, 'f> {
    entry: &'a Entry<'a>,
    env: &'a dyn Fn(&str) -> Option<String>,
    faults: &'f mut Faults,
    said: Vec<GivenField>,
}

/// `env` is the environment.
pub(super) fn read(
    entry: &Entry<'_>,
    env: &dyn Fn(&str) -> Option<String>,
    faults: &mut Faults,
) -> Option<Callback> {
    entry.find_strangers(&FIELDS, faults);
    let before = faults.count();
    let mut reading = Reading {
        entry,
        env,
        faults,
        said: Vec::new(),
    };
    let url = reading.url();
    reading.hosts(url.is_some());
    reading.secrets();
    reading.headers();
    reading.certificates();
    reading.limits();
    let said = reading.said;
    let start = || match &url {
        Some(url) => target::http(url),
        None => target::http_of_jobs(["localhost"]),
    };
    let target = said.iter().fold(start(), |target, said| (said.set)(target));
    if let Err(error) = target.check() {
        blame(entry, &url, &said, &error.to_string(), faults);
    }
    if faults.count() > before {
        return None;
    }
    let mut texts: Vec<_> = said.into_iter().map(|it| (it.field, it.text)).collect();
    texts.push(("url", url.unwrap_or_default().into()));
    Some(Callback {
        target,
        said: texts,
    })
}

/// Finds the faulty fields, by checking each alone.
fn blame(
    entry: &Entry<'_>,
    url: &Option<String>,
    said: &[GivenField],
    fault: &str,
    faults: &mut Faults,
) {
    let alone = |target: Http| target.check().err().map(|error| error.to_string());
    let of_url = url.iter().map(|url| ("url", target::http(url)));
    let bare = || target::http("http://localhost/");
    let of_others = said.iter().map(|said| (said.field, (said.set)(bare())));
    let culprits: Vec<(&str, String)> = of_url
        .chain(of_others)
        .filter_map(|(field, target)| Some((field, alone(target)?)))
        .collect();
    if culprits.is_empty() {
        entry.fault("url", Wrong(fault.to_owned()), faults);
    }
    for (field, fault) in culprits {
        entry.fault(field, Wrong(fault), faults);
    }
}

impl Reading<'_, '_> {
    fn say(
        &mut self,
        field: &'static str,
        text: impl Into<Vec<u8>>,
        set: impl Fn(Http) -> Http + 'static,
    ) {
        self.said.push(GivenField {
            field,
            text: text.into(),
            set: Box::new(set),
        });
    }

    fn fault(&mut self, field: &str, wrong: Wrong) {
        self.entry.fault(field, wrong, self.faults);
    }

    fn url(&mut self) -> Option<String> {
        self.entry.value("url", &[], self.faults)
    }

    /// Reads whether jobs name their URLs, and on which hosts.
    fn hosts(&mut self, has_url: bool) {
        let by_job = self.entry.value("job_url", &[], self.faults);
        let by_job = by_job.unwrap_or(false);
        match (self.entry.texts("hosts", self.faults), by_job) {
            (Some(hosts), true) => {
                let set = hosts.clone();
                self.say("hosts", hosts.join("\n"), move |http| {
                    http.job_urls(set.clone())
                });
            }
            (Some(_), false) => self.fault(
                "hosts",
                Wrong::new(
                    "hosts are for jobs that name their URLs",
                    "write `job_url = true`, or leave this out",
                ),
            ),
            (None, true) => self.fault(
                "job_url",
                Wrong::new(
                    "jobs may name any host",
                    "list the hosts that they may name: hosts = [\"*.hooks.example.org\"]",
                ),
            ),
            (None, false) if !has_url && self.entry.raw("url").is_none() => self.fault(
                "url",
                Wrong::new(
                    "it has no URL",
                    "write `url = \"https://…\"`, or `job_url = true` and `hosts`",
                ),
            ),
            (None, false) => {}
        }
        if let Some(networks) = self.entry.texts("networks", self.faults) {
            let set = networks.clone();
            self.say("networks", networks.join("\n"), move |http| {
                http.networks(set.clone())
            });
        }
    }

    /// One or more, separated by white space.
    fn secrets(&mut self) {
        let file = self.path("secret_file").map(|text| ("secret_file", text));
        let name: Option<String> = self.entry.value("secret_env", &[], self.faults);
        let variable = name.and_then(|name| {
            let text = (self.env)(&name).filter(|text| !text.trim().is_empty());
            if text.is_none() {
                let wrong = Wrong::new(
                    format_args!("the environment has no {name}"),
                    "set it to one or more secrets, with blanks between them",
                );
                self.fault("secret_env", wrong);
            }
            Some(("secret_env", text?))
        });
        for (field, text) in file.into_iter().chain(variable) {
            let secrets: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            self.say(field, text, move |http| {
                secrets
                    .iter()
                    .fold(http, |http, secret| http.secret(secret))
            });
        }
    }

    /// One on each line, as HTTP has them.
    fn headers(&mut self) {
        let Some(text) = self.path("headers_file") else {
            return;
        };
        let lines = text.lines().filter(|line| !line.trim().is_empty());
        let headers: Option<Vec<(String, String)>> = lines
            .map(|line| {
                let (name, value) = line.split_once(':')?;
                Some((name.trim().to_owned(), value.trim().to_owned()))
            })
            .collect();
        match headers {
            Some(headers) => self.say("headers_file", text, move |http| {
                let add = |http: Http, (name, value): &(String, String)| http.header(name, value);
                headers.iter().fold(http, add)
            }),
            None => self.fault(
                "headers_file",
                Wrong::new(
                    "one of its lines is not a header",
                    "write one on each line, `authorization: Bearer …`",
                ),
            ),
        }
    }

    fn certificates(&mut self) {
        if let Some(ca) = self.path("ca_file") {
            self.say("ca_file", ca.clone(), move |http| {
                http.ca_certificate(ca.clone())
            });
        }
        let has = |field| self.entry.raw(field).is_some();
        match (has("cert_file"), has("key_file")) {
            (true, false) => self.fault("cert_file", alone("key_file")),
            (false, true) => self.fault("key_file", alone("cert_file")),
            _ => {
                let (chain, key) = (self.path("cert_file"), self.path("key_file"));
                if let (Some(chain), Some(key)) = (chain, key) {
                    self.say("cert_file", format!("{chain}\n{key}"), move |http| {
                        http.client_certificate(chain.clone(), key.clone())
                    });
                }
            }
        }
    }

    fn limits(&mut self) {
        let (entry, faults) = (self.entry, &mut *self.faults);
        let connect: Option<Duration> =
            entry.value("connect_timeout", &[longer_than_zero, up_to_a_day], faults);
        let response: Option<Bytes> = entry.value("response_limit", &[size], faults);
        let redirects: Option<usize> = entry.value("redirects", &[], faults);
        let calls: Option<std::num::NonZeroU32> = entry.value("host_concurrency", &[], faults);
        let failures: Option<std::num::NonZeroU32> = entry.value("breaker_failures", &[], faults);
        let pause: Option<Duration> =
            entry.value("breaker_pause", &[longer_than_zero, up_to_a_day], faults);
        let hold: Option<Duration> = entry.value("hold_kind", &[longer_than_zero], faults);
        if let Some(timeout) = connect {
            self.say("connect_timeout", format!("{timeout:?}"), move |http| {
                http.connect_timeout(timeout)
            });
        }
        if let Some(Bytes(bytes)) = response {
            self.say("response_limit", bytes.to_string(), move |http| {
                http.response_limit(bytes)
            });
        }
        if let Some(most) = redirects {
            self.say("redirects", most.to_string(), move |http| {
                http.redirects(most)
            });
        }
        if let Some(calls) = calls {
            self.say("host_concurrency", calls.to_string(), move |http| {
                http.host_concurrency(calls.get() as usize)
            });
        }
        if let Some(failures) = failures {
            self.say("breaker_failures", failures.to_string(), move |http| {
                http.breaker_failures(failures.get())
            });
        }
        if let Some(pause) = pause {
            self.say("breaker_pause", format!("{pause:?}"), move |http| {
                http.breaker_pause(pause)
            });
        }
        if let Some(longest) = hold {
            self.say("hold_kind", format!("{longest:?}"), move |http| {
                http.hold_kind(longest)
            });
        }
    }

    /// The contents of the file that a field names.
    fn path(&mut self, field: &str) -> Option<String> {
        let path: std::path::PathBuf = self.entry.value(field, &[], self.faults)?;
        match secret(Path::new(&path)) {
            Ok(text) => Some(text),
            Err(wrong) => {
                self.fault(field, wrong);
                None
            }
        }
    }
}

impl PartialEq for Callback {
    fn eq(&self, other: &Self) -> bool {
        self.said == other.said
    }
}

impl Eq for Callback {}

/// Leaves out the contents of files.
impl fmt::Debug for Callback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.target.fmt(f)
    }
}
