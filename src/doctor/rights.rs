//! Checks of the rights of this user. Commands are tried one by one, in forms that change nothing:
//! `ACL DRYRUN` came with Redis 7, and needs rights that such a user lacks.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::checks::{Check, RIGHTS_ADOPT, RIGHTS_LOOK, RIGHTS_RUN, RIGHTS_SCHEDULE};
use super::finding::{Finding, Severity};
use crate::client::Client;
use crate::error::Result;
use crate::key::Kind;
use crate::phrase::Phrase;
use crate::store::{Refused, Server, Store, Whom, is_of_absence};

/// The most kinds whose key names are tried.
const KINDS: usize = 16;

/// Commands on the keys of a kind that only workers send.
const OF_WORKERS: [&str; 2] = ["EXISTS", "ZREMRANGEBYRANK"];

/// The most refusals that a finding names.
const NAMED: usize = 8;

/// The commands that some server refused, by the role that needs them.
#[derive(Default)]
struct MissingRights {
    producers: Vec<Refused>,
    workers: Vec<Refused>,
    operators: Vec<Refused>,
    adopters: Vec<Refused>,
}

impl MissingRights {
    /// Adds the refusals of another server; equal refusals are kept once.
    fn add(&mut self, more: MissingRights) {
        for (all, more) in [
            (&mut self.producers, more.producers),
            (&mut self.workers, more.workers),
            (&mut self.operators, more.operators),
            (&mut self.adopters, more.adopters),
        ] {
            let new = more.into_iter().filter(|it| !all.contains(it));
            let new: Vec<Refused> = new.collect();
            all.extend(new);
        }
    }
}

/// Tries all commands on one server.
async fn tried(
    server: &Server,
    kinds: &[Kind],
    adopted: &[String],
    until: Instant,
) -> Result<MissingRights> {
    let known = kinds.first();
    let mut producers = server.refused_to(Whom::Producers, known, until).await?;
    let mut workers = server.refused_to(Whom::Workers, known, until).await?;
    let operators = server.refused_to(Whom::Operators, known, until).await?;
    for kind in kinds.iter().take(KINDS) {
        let refused = server.refused_of_kind(kind, until).await?;
        let (theirs, all): (Vec<_>, Vec<_>) = refused
            .into_iter()
            .partition(|it| OF_WORKERS.contains(&it.command));
        workers.extend(theirs);
        producers.extend(all);
    }
    Ok(MissingRights {
        producers,
        workers,
        operators,
        adopters: server.refused_to_adopt(adopted, until).await?,
    })
}

/// Adds four findings about rights:
///
/// - to schedule: an error if a command is refused;
/// - to run jobs: an error as well, except for a user that is clearly only a producer;
/// - to adopt keys: an error if live workers adopt keys and this user seems to be meant to do so,
///   and otherwise information;
/// - to look, for operators: information.
///
/// `adopted` has the glob patterns of the keys that live workers adopt.
pub(super) async fn look(
    store: &Arc<Store>,
    kinds: &[Kind],
    adopted: &[String],
    client: &Client,
    found: &mut Vec<Finding>,
) -> Result<()> {
    let mut all = MissingRights::default();
    for server in store.servers() {
        match tried(server, kinds, adopted, client.deadline()).await {
            Ok(more) => all.add(more),
            // Another check reports absent servers.
            Err(error) if store.is_several() && is_of_absence(&error) => {}
            Err(error) => return Err(error),
        }
    }
    let MissingRights {
        producers,
        workers,
        operators,
        adopters: refused,
    } = all;
    let tried = match kinds.len() {
        0 => Phrase::new(
            "found.tried-none",
            "all commands, but no names of jobs, since there is no kind yet",
            [],
        ),
        all => Phrase::new(
            "found.tried-kinds",
            "all commands, on {} of {} kinds",
            [all.min(KINDS).into(), all.into()],
        ),
    };
    found.push(of(&RIGHTS_SCHEDULE, Severity::Error, &producers, &tried));
    // A user that may not even subscribe is not meant to run jobs.
    let heard = workers
        .iter()
        .filter(|it| it.command == "SUBSCRIBE")
        .count();
    let counts: BTreeSet<&str> = workers.iter().map(|it| it.command).collect();
    let is_producer = heard == Whom::CHANNELS && counts.len() > 2;
    found.push(if is_producer {
        Finding::info(
            &RIGHTS_RUN,
            Phrase::new(
                "found.producer",
                "this user has none of these rights: it schedules jobs and runs none",
                [],
            ),
        )
    } else {
        of(&RIGHTS_RUN, Severity::Error, &workers, &tried)
    });
    found.push(match adopted.len() {
        // Without routes that adopt keys, no worker needs these rights.
        0 if !refused.is_empty() => of(&RIGHTS_ADOPT, Severity::Info, &refused, &tried),
        0 => Finding::fine(
            &RIGHTS_ADOPT,
            Phrase::new(
                "found.tried-unnamed",
                "tried: all commands, but no names; no live worker adopts keys",
                [],
            ),
        ),
        _ if is_producer || adopts_nothing(adopted, &refused) => Finding::info(
            &RIGHTS_ADOPT,
            Phrase::new(
                "found.adopts-none",
                "this user has few or none of these rights: it adopts no keys",
                [],
            ),
        ),
        all => {
            let tried = Phrase::new(
                "found.tried-routes",
                "all commands, on the keys of {} routes",
                [all.into()],
            );
            of(&RIGHTS_ADOPT, Severity::Error, &refused, &tried)
        }
    });
    found.push(of(&RIGHTS_LOOK, Severity::Info, &operators, &tried));
    Ok(())
}

/// Whether the refusals look like a user who is not meant to adopt keys: a user who may neither
/// subscribe to keys nor read nor search them.
fn adopts_nothing(adopted: &[String], refused: &[Refused]) -> bool {
    let lacks = |command: &str| refused.iter().filter(|it| it.command == command).count();
    lacks("PSUBSCRIBE") >= adopted.len() && lacks("GET") >= adopted.len() && lacks("SCAN") > 0
}

/// The finding about one role: `severity` if any command was refused, with the missing ACL rules as
/// the remedy.
fn of(check: &'static Check, severity: Severity, refused: &[Refused], tried: &Phrase) -> Finding {
    if refused.is_empty() {
        let tried = Phrase::new("found.tried", "tried: {}", [tried.clone()]);
        return Finding::fine(check, tried);
    }
    let mut names: Vec<String> = refused.iter().map(shown).collect();
    names.dedup();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let names = names.join(", ").into();
    let found = match more {
        0 => Phrase::new("found.refused", "refused: {}", [names]),
        more => Phrase::new(
            "found.refused-more",
            "refused: {}, and {} more",
            [names, more.into()],
        ),
    };
    let rules: BTreeSet<String> = refused.iter().flat_map(rules).collect();
    let rules: Vec<String> = rules.into_iter().collect();
    let remedy = format!("ACL SETUSER … {}", rules.join(" "));
    Finding::new(check, severity, found, Some(remedy.into()))
}

/// A refused command, with the key or the channel, if it has one.
fn shown(refused: &Refused) -> String {
    let Refused { command, name } = refused;
    match name.as_str() {
        "" => (*command).to_owned(),
        name => format!("{command} {name}"),
    }
}

/// The ACL rules that allow a command. Redis does not say whether it refuses the command, the key
/// or the channel, so all of them are named.
fn rules(refused: &Refused) -> Vec<String> {
    let command = format!("+{}", refused.command.to_lowercase());
    match (refused.command, refused.name.as_str()) {
        (_, "") => vec![command],
        ("SUBSCRIBE" | "PSUBSCRIBE" | "PUBLISH", channel) => vec![command, format!("&{channel}")],
        (_, key) => vec![command, format!("~{key}")],
    }
}
