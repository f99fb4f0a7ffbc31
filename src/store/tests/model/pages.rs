//! Operations that take several calls: a list, and an audit of the whole ledger.

use super::answer::Reply;
use super::call::Call;
use super::ledger::{Job, Ledger};
use super::operations::{Page, When};
use crate::error::Error;
use crate::store::PARTS;
use crate::store::ledger::script::LIST;
use crate::store::tests::support::{Bench, soon, suspect};

/// The position of a job in a list: score and member.
type ListPosition = (u64, String);

impl Ledger {
    /// The positions of a list, in order.
    fn order(&self, page: &Page) -> Vec<ListPosition> {
        let named = |(score, id): (u64, &str)| (score, id.to_owned());
        let mut all: Vec<ListPosition> = match page.state {
            "pending" => self.waiting().into_iter().map(named).collect(),
            "dead" => {
                let letters = self.by_death().into_iter();
                letters.map(|(died, name, _)| (died, name)).collect()
            }
            _ => self.running().into_iter().map(named).collect(),
        };
        if page.down {
            all.reverse();
        }
        all
    }

    /// Whether a list contains this position.
    fn lists(&self, (score, member): &ListPosition, page: &Page) -> bool {
        let of_state = match page.state {
            "running" => *score > self.ms(),
            "lapsed" => *score <= self.ms(),
            _ => true,
        };
        of_state && *score <= self.until(page) && member.starts_with(page.of_id)
    }

    fn until(&self, page: &Page) -> u64 {
        match page.until {
            When::Ahead(ms) => self.began + ms,
            other => unreachable!("{other:?} is no instant"),
        }
    }

    /// The values of a job on a page.
    fn shown(&self, place: &ListPosition, page: &Page) -> Vec<Vec<u8>> {
        let (score, member) = place;
        let mut shown = vec![member.clone().into(), score.to_string().into_bytes()];
        if !page.records {
            return shown;
        }
        let due = |due: u64| due.to_string().into_bytes();
        shown.extend(match self.jobs.get(member.as_str()) {
            Some(Job::Pending(job)) => [Vec::new(), job.record.bytes(), Vec::new()],
            Some(Job::Leased(run)) => {
                let successor = run.successor.as_ref().map(|next| due(next.due));
                [
                    run.lease().into(),
                    run.record.bytes(),
                    successor.unwrap_or_default(),
                ]
            }
            None => {
                let (_, number) = member.split_once(':').expect("the name of a letter");
                let letter = &self.letters[&number.parse().expect("a number")];
                [Vec::new(), letter.record.bytes(), Vec::new()]
            }
        });
        shown
    }
}

/// Reads all pages of a list. The error names a deviation.
pub(super) async fn list(bench: &Bench, model: &mut Ledger, page: &Page) -> Result<(), String> {
    let mut position = [Vec::new(), Vec::new()];
    let mut last: Option<ListPosition> = None;
    loop {
        let (now, reply) = call(bench, model, page, &position).send(bench).await?;
        model.now = now;
        let all = model.order(page);
        let begins = all.iter().position(|place| match (&last, page.down) {
            (None, _) => true,
            (Some(last), false) => place > last,
            (Some(last), true) => place < last,
        });
        let rest = &all[begins.unwrap_or(all.len())..];
        match next(model, page, rest, &reply) {
            Err(wrong) => return Err(format!("{wrong}: of {rest:?} it says {reply}")),
            Ok(None) => return Ok(()),
            Ok(Some(place)) => {
                position = [place.0.to_string().into_bytes(), place.1.clone().into()];
                last = Some(place);
            }
        }
    }
}

/// Checks a page, and returns the position at which the next one begins.
fn next(
    model: &Ledger,
    page: &Page,
    rest: &[ListPosition],
    reply: &Reply,
) -> Result<Option<ListPosition>, &'static str> {
    let [looked, score, member, items @ ..] = &reply.rest[..] else {
        return Err("too little");
    };
    let ends = score.is_empty() && member.is_empty();
    let at = rest.iter().position(|(at, name)| {
        (at.to_string().as_bytes(), name.as_bytes()) == (&score[..], &member[..])
    });
    let passed = match at {
        _ if ends => rest,
        Some(at) => &rest[..=at],
        None => return Err("the next page begins nowhere"),
    };
    let found = passed.iter().filter(|place| model.lists(place, page));
    let shown: Vec<_> = found
        .clone()
        .flat_map(|place| model.shown(place, page))
        .collect();
    if reply.status != "ok" || items != shown {
        return Err("the jobs are others");
    }
    let looked: usize = String::from_utf8_lossy(looked)
        .parse()
        .map_err(|_| "no number")?;
    if found.count() > page.limit || looked > page.looks {
        return Err("it is too long");
    }
    Ok(passed.last().filter(|_| !ends).cloned())
}

fn call(bench: &Bench, model: &Ledger, page: &Page, [score, member]: &[Vec<u8>; 2]) -> Call {
    let mut cmd = bench
        .ledger
        .call(&LIST, &bench.keys_of(&LIST), [].into_iter());
    cmd.arg(page.state)
        .arg(if page.down { "down" } else { "up" });
    cmd.arg(page.limit)
        .arg(page.looks)
        .arg(u8::from(page.records));
    cmd.arg(model.until(page))
        .arg(page.of_id)
        .arg(score)
        .arg(member);
    Call { script: &LIST, cmd }
}

/// Audits the whole ledger and each name, with or without repairs. Fails if it finds anything.
pub(super) async fn audit(bench: &Bench, model: &Ledger, repair: bool) -> Result<(), String> {
    let said = |error: Error| error.to_string();
    let parts = model.parts();
    for part in PARTS {
        let (mut cursor, mut looked) = ("0".to_owned(), 0);
        loop {
            let page = bench
                .ledger
                .scan(part, &cursor, soon())
                .await
                .map_err(said)?;
            if !page.suspects.is_empty() {
                return Err(format!("a scan suspects {:?}", page.suspects));
            }
            looked += page.looked;
            cursor = page.cursor;
            if cursor == "0" {
                break;
            }
        }
        let begins = |name: &&String| name.starts_with(&format!("{part} "));
        let there = parts.keys().filter(begins).count() as u64;
        if looked != there {
            return Err(format!("a scan of {part} looked at {looked} of {there}"));
        }
    }
    let names = model.names().into_iter();
    let items: Vec<_> = names.map(|name| (suspect(&name), String::new())).collect();
    let flaws = bench
        .ledger
        .audit(&items, repair, soon())
        .await
        .map_err(said)?;
    match items.iter().zip(flaws).find(|(_, flaw)| flaw.is_some()) {
        None => Ok(()),
        Some(((suspect, _), flaw)) => Err(format!("an audit says of {suspect:?}: {flaw:?}")),
    }
}
