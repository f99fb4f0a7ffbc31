//! The target of the jobs of a route.

pub(super) mod callback;
mod server;

use keyfall::target::{List, Pull, Stream};
use keyfall::{Handler, Route};
use toml::de::DeValue;

use self::callback::Callback;
use self::server::Server;
use super::fault::{Faults, Wrong, meant};
use super::file::Entry;
use super::routes::Context;
use super::rules::{at_least_one, not_empty};
use super::settings::Redis;

/// The targets that are tables, and the required fields of each.
const TABLES: [(&str, &str); 3] = [
    ("http", "{ url = \"https://…\" }"),
    ("list", "{ key = \"…\" }"),
    ("stream", "{ key = \"…\" }"),
];

/// The target of the jobs of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Consumers pull the jobs.
    Pull,
    /// To an HTTP server.
    Http(Box<Callback>),
    /// Into a Redis list.
    List {
        server: Server,
        key: String,
        acknowledged: bool,
    },
    /// Into a Redis stream.
    Stream {
        server: Server,
        key: String,
        /// The consumer group in which entries are acknowledged.
        group: Option<String>,
        keep: Option<u64>,
    },
}

impl Target {
    /// The target in the form of the library; pulled jobs come from `pull`.
    pub(super) fn route(&self, pull: &Pull, redis: &Redis) -> Route {
        match self {
            Target::Pull => pull.clone().into_route(),
            Target::Http(callback) => callback.target.clone().into_route(),
            Target::List {
                server,
                key,
                acknowledged,
            } => match List::on(&server.client(redis), key) {
                list if *acknowledged => list.acknowledged().into_route(),
                list => list.into_route(),
            },
            Target::Stream {
                server,
                key,
                group,
                keep,
            } => {
                let mut stream = Stream::on(&server.client(redis), key);
                if let Some(group) = group {
                    stream = stream.acknowledged(group);
                }
                if let Some(keep) = keep {
                    stream = stream.keep(*keep);
                }
                stream.into_route()
            }
        }
    }
}

/// Reads the target of a route, if it has a known one.
pub(super) fn read(
    route: &Entry<'_>,
    context: &Context<'_>,
    faults: &mut Faults,
) -> Option<Target> {
    let wrong = match route.raw("target")?.get_ref() {
        DeValue::String(text) if text == "pull" => return Some(Target::Pull),
        DeValue::String(text) => match TABLES.iter().find(|(name, _)| text == name) {
            Some((name, least)) => Wrong::new(
                "it names no destination",
                format_args!("write {{ {name} = {least} }}"),
            ),
            None => {
                let known = ["pull"].into_iter().chain(names());
                Wrong::new("there is no such target", meant(text, known))
            }
        },
        DeValue::Table(_) => return of_table(&route.table("target")?, context, faults),
        _ => Wrong::new(
            "a target is a text or a table",
            "write \"pull\", or { http = { url = \"https://…\" } }",
        ),
    };
    route.fault("target", wrong, faults);
    None
}

fn names() -> impl Iterator<Item = &'static str> {
    TABLES.iter().map(|(name, _)| *name)
}

fn of_table(target: &Entry<'_>, context: &Context<'_>, faults: &mut Faults) -> Option<Target> {
    let before = faults.count();
    target.find_strangers(&names().collect::<Vec<_>>(), faults);
    let mut named = TABLES.iter().filter(|(name, _)| target.raw(name).is_some());
    let Some((name, least)) = named.next() else {
        if faults.count() == before {
            let wrong = Wrong::new("it names no target", "write \"pull\", or { http = { … } }");
            faults.add(target.origin.clone(), "route.target", wrong);
        }
        return None;
    };
    if let Some((other, _)) = named.next() {
        let remedy = format_args!("leave this or `{name}` out");
        target.fault(other, Wrong::new("a route has one target", remedy), faults);
    }
    let Some(table) = target.table(name) else {
        let wrong = Wrong::new(
            "it has to be a table",
            format_args!("write {name} = {least}"),
        );
        target.fault(name, wrong, faults);
        return None;
    };
    match *name {
        "http" => callback::read(&table, context.env, faults).map(|it| Target::Http(it.into())),
        "list" => list(&table, context, faults),
        _ => stream(&table, context, faults),
    }
}

fn list(table: &Entry<'_>, context: &Context<'_>, faults: &mut Faults) -> Option<Target> {
    let (server, key) = outlet(table, &["key", "acknowledged"], context, faults);
    let acknowledged = table.value("acknowledged", &[], faults).unwrap_or(false);
    Some(Target::List {
        server,
        key: key?,
        acknowledged,
    })
}

fn stream(table: &Entry<'_>, context: &Context<'_>, faults: &mut Faults) -> Option<Target> {
    let (server, key) = outlet(table, &["key", "group", "keep"], context, faults);
    let group = table.value("group", &[not_empty], faults);
    let keep = table.value("keep", &[at_least_one], faults);
    Some(Target::Stream {
        server,
        key: key?,
        group,
        keep,
    })
}

/// Reads a key in a Redis; no other fields than these are allowed.
fn outlet(
    table: &Entry<'_>,
    own: &[&str],
    context: &Context<'_>,
    faults: &mut Faults,
) -> (Server, Option<String>) {
    table.find_strangers(&[own, &server::FIELDS].concat(), faults);
    if table.raw("key").is_none() {
        let wrong = Wrong::new("it is missing", "name the list or stream: key = \"…\"");
        table.fault("key", wrong, faults);
    }
    let server = Server::read(table, context.redis, faults);
    (server, table.value("key", &[not_empty], faults))
}
