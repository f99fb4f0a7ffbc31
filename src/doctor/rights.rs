//! What this user may do, tried command by command.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::checks::{Check, RIGHTS_ADOPT, RIGHTS_LOOK, RIGHTS_RUN, RIGHTS_SCHEDULE};
use super::finding::{Finding, Severity};
use crate::client::Client;
use crate::error::Result;
use crate::key::Kind;
use crate::store::{Refused, Store, Whom, is_of_absence};

/// Of how many kinds the names are tried.
const KINDS: usize = 16;

/// What only workers do with the jobs of a kind.
const OF_WORKERS: [&str; 2] = ["EXISTS", "ZREMRANGEBYRANK"];

/// How many refusals a finding names.
const NAMED: usize = 8;

/// What a user may not do, on any of the servers.
#[derive(Default)]
struct MissingRights {
    producers: Vec<Refused>,
    workers: Vec<Refused>,
    operators: Vec<Refused>,
    adopters: Vec<Refused>,
}

impl MissingRights {
    /// What is refused by another server, too, is told once.
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

async fn tried(
    store: &Store,
    kinds: &[Kind],
    adopted: &[String],
    until: Instant,
) -> Result<MissingRights> {
    let known = kinds.first();
    let mut producers = store.refused_to(Whom::Producers, known, until).await?;
    let mut workers = store.refused_to(Whom::Workers, known, until).await?;
    let operators = store.refused_to(Whom::Operators, known, until).await?;
    for kind in kinds.iter().take(KINDS) {
        let refused = store.refused_of_kind(kind, until).await?;
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
        adopters: store.refused_to_adopt(adopted, until).await?,
    })
}

pub(super) async fn look(
    store: &Arc<Store>,
    kinds: &[Kind],
    adopted: &[String],
    client: &Client,
    found: &mut Vec<Finding>,
) -> Result<()> {
    let mut all = MissingRights::default();
    for member in store.members() {
        match tried(&member, kinds, adopted, client.deadline()).await {
            Ok(more) => all.add(more),
            // That is told by another check.
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
        0 => "everything but the names of jobs, since there is no kind yet".to_owned(),
        all => format!("everything, on {} of {all} kinds", all.min(KINDS)),
    };
    found.push(of(&RIGHTS_SCHEDULE, Severity::Error, &producers, &tried));
    // One that may not even subscribe is not meant to run jobs.
    let heard = workers
        .iter()
        .filter(|it| it.command == "SUBSCRIBE")
        .count();
    let counts: BTreeSet<&str> = workers.iter().map(|it| it.command).collect();
    let is_producer = heard == Whom::CHANNELS && counts.len() > 2;
    found.push(if is_producer {
        Finding::info(
            &RIGHTS_RUN,
            "none of them: a user who schedules, and runs nothing",
        )
    } else {
        of(&RIGHTS_RUN, Severity::Error, &workers, &tried)
    });
    found.push(match adopted.len() {
        // Whoever adopts nothing needs none of them.
        0 if !refused.is_empty() => of(&RIGHTS_ADOPT, Severity::Info, &refused, &tried),
        0 => Finding::fine(
            &RIGHTS_ADOPT,
            "tried: everything but names; no live worker adopts keys",
        ),
        _ if is_producer || adopts_nothing(adopted, &refused) => Finding::info(
            &RIGHTS_ADOPT,
            "none of them, or few: a user who adopts nothing",
        ),
        all => {
            let tried = format!("everything, on the keys of {all} routes");
            of(&RIGHTS_ADOPT, Severity::Error, &refused, &tried)
        }
    });
    found.push(of(&RIGHTS_LOOK, Severity::Info, &operators, &tried));
    Ok(())
}

/// A user who may hear of no key, and read none or look for none.
fn adopts_nothing(adopted: &[String], refused: &[Refused]) -> bool {
    let lacks = |command: &str| refused.iter().filter(|it| it.command == command).count();
    lacks("PSUBSCRIBE") >= adopted.len() && lacks("GET") >= adopted.len() && lacks("SCAN") > 0
}

fn of(check: &'static Check, severity: Severity, refused: &[Refused], tried: &str) -> Finding {
    if refused.is_empty() {
        return Finding::fine(check, format!("tried: {tried}"));
    }
    let mut names: Vec<String> = refused.iter().map(shown).collect();
    names.dedup();
    let more = names.len().saturating_sub(NAMED);
    names.truncate(NAMED);
    let mut found = format!("refused: {}", names.join(", "));
    if more > 0 {
        found += &format!(", and {more} more");
    }
    let rules: BTreeSet<String> = refused.iter().flat_map(rules).collect();
    let rules: Vec<String> = rules.into_iter().collect();
    let remedy = format!("ACL SETUSER … {}", rules.join(" "));
    Finding::new(check, severity, found, Some(remedy))
}

fn shown(refused: &Refused) -> String {
    let Refused { command, name } = refused;
    match name.as_str() {
        "" => (*command).to_owned(),
        name => format!("{command} {name}"),
    }
}

/// What allows it: an ACL does not say whether the command, the key or the channel is what it
/// lacks.
fn rules(refused: &Refused) -> Vec<String> {
    let command = format!("+{}", refused.command.to_lowercase());
    match (refused.command, refused.name.as_str()) {
        (_, "") => vec![command],
        ("SUBSCRIBE" | "PSUBSCRIBE" | "PUBLISH", channel) => vec![command, format!("&{channel}")],
        (_, key) => vec![command, format!("~{key}")],
    }
}
