//! Looking at many jobs, page by page.

use std::fmt;
use std::future::IntoFuture;
use std::str::FromStr;
use std::time::Instant;

use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::partial::PartialView;
use crate::client::{Client, JobState, JobView, KindShards, Pending, Selection, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::prefix::Prefix;
use crate::settings::BATCH;
use crate::store::{Found, Ledger, Position, Seen, Slice, Sought};
use crate::time::UnixUs;

/// How many jobs a page has unless it is told otherwise, and at the most.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// About how many bytes of records a page carries, and so how much memory it takes.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// How many calls a page takes at the most: where few of many ids begin as they should, it
/// comes short rather than late.
const CALLS: usize = 16;

/// A call to [`Selection::list`]; sent when it is awaited.
#[must_use = "nothing is listed until it is awaited"]
pub struct ListJobs<'a> {
    selection: Selection<'a>,
    state: JobState,
    limit: usize,
    after: Option<Cursor>,
}

/// A page of jobs; from [`Client::list`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// The jobs, in order.
    pub jobs: Vec<JobView>,
    /// Those of the page that cannot be shown.
    pub damaged: Vec<DamagedJob>,
    /// What was not looked at, because one of several servers was away; its jobs are on no page.
    pub unseen: Vec<Unseen>,
    /// Where the next page begins; `None` if this is the last. A page can be short, and even
    /// empty, and have a next one.
    pub next: Option<Cursor>,
}

/// A job whose record or name is not what Keyfall wrote, or is of a newer version.
#[derive(Debug)]
#[non_exhaustive]
pub struct DamagedJob {
    /// Its kind and its id.
    pub name: String,
    /// What is wrong with it.
    pub error: Error,
}

/// Where a page of jobs begins. As text it can be sent somewhere and come back; what the text
/// says is nobody's business.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Cursor {
    state: JobState,
    kind: Kind,
    /// `None` at the beginning of the kind.
    position: Option<Position>,
}

impl Client {
    /// The jobs in this state whose keys begin so: short for
    /// [`prefix(text)`](Client::prefix)`.`[`list(state)`](Selection::list).
    pub fn list(&self, prefix: &str, state: JobState) -> ListJobs<'_> {
        self.prefix(prefix).list(state)
    }
}

impl<'a> Selection<'a> {
    /// The jobs in this state, page by page. [`Pending`](JobState::Pending) covers those that
    /// wait to be retried, [`Retrying`](JobState::Retrying) lists these alone.
    ///
    /// Kind by kind, and in each by due time; those that run by the end of their lease, dead
    /// letters by the time of death. What comes or goes while pages are read neither hides nor
    /// repeats another job; one that is moved may be met twice, or not at all.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// use keyfall::JobState;
    ///
    /// let mut page = client.list("app1:trans:notice:", JobState::Dead).await?;
    /// while let Some(next) = page.next {
    ///     page = client.list("app1:trans:notice:", JobState::Dead).after(next).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn list(self, state: JobState) -> ListJobs<'a> {
        ListJobs {
            selection: self,
            state,
            limit: PAGE,
            after: None,
        }
    }
}

impl ListJobs<'_> {
    /// How many jobs a page has at the most, from 1 to 1000. Defaults to 100. Beyond some 4 MiB
    /// of payloads a page has fewer.
    pub fn limit(mut self, jobs: usize) -> Self {
        self.limit = jobs;
        self
    }

    /// The page that begins there.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }

    async fn page(self) -> Result<Page> {
        let Selection { client, prefix } = self.selection;
        let prefix = prefix?;
        if !(1..=LARGEST_PAGE).contains(&self.limit) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "a page has from 1 to {LARGEST_PAGE} jobs, not {}",
                    self.limit
                ),
            ));
        }
        let (first, mut position) = begin(self.after, self.state, &prefix)?;
        let until = client.deadline();
        let (mut kinds, mut view) = client.kinds_in_view(&prefix, until).await?;
        if let Some(first) = first {
            kinds.retain(|kind| *kind >= first);
            position = position.filter(|_| kinds.first() == Some(&first));
        }
        let mut page = Page::default();
        let (mut bytes, mut calls) = (0, 0);
        for kind in kinds {
            let kind_shards = client.kind_shards_to_look(kind.as_str())?;
            loop {
                let room = self.limit - page.len();
                if room == 0 || bytes >= PAGE_BYTES || calls == CALLS {
                    page.next = Some(Cursor {
                        state: self.state,
                        kind,
                        position,
                    });
                    page.unseen = view.unseen();
                    return Ok(page);
                }
                let sought = Sought {
                    limit: room.min(BATCH),
                    records: true,
                    after: position.take(),
                    ..Sought::all_of(word(self.state), prefix.of_id())
                };
                let seen = list_all(&kind_shards, sought, &mut view, until).await?;
                calls += 1;
                position = seen.next;
                bytes += seen
                    .items
                    .iter()
                    .map(|(_, seen)| seen.record.len())
                    .sum::<usize>();
                page.take_in(&kind, self.state, seen.items);
                if position.is_none() {
                    break;
                }
            }
        }
        page.unseen = view.unseen();
        Ok(page)
    }
}

/// A part of what is in one state, from all ledgers of a kind.
struct Merged {
    /// In order, each with the time at which it was read.
    items: Vec<(UnixUs, Seen)>,
    /// Where the next part begins.
    next: Option<Position>,
}

/// Reads the ledgers of a kind as if they were one. Positions are by score and name, so that one
/// holds for each of them.
async fn list_all(
    kind_shards: &KindShards,
    sought: Sought,
    view: &mut PartialView,
    until: Instant,
) -> Result<Merged> {
    let limit = sought.limit;
    let ledgers = kind_shards.all().map(|shard_client| &*shard_client.ledger);
    let ledgers: Vec<&Ledger> = ledgers.filter(|ledger| !view.misses(ledger)).collect();
    let one = Sought {
        // What comes last of it is read again, unless it is the share of this ledger.
        limit: match ledgers.len() {
            1 => sought.limit,
            many => (2 * sought.limit / many.max(1)).clamp(8.min(sought.limit), sought.limit),
        },
        ..sought
    };
    let answers = join_all(ledgers.iter().map(|ledger| ledger.list(&one, until))).await;
    let mut slices: Vec<Slice> = Vec::new();
    for (ledger, answer) in ledgers.into_iter().zip(answers) {
        slices.extend(view.take(ledger, answer)?);
    }
    if let [_] = &slices[..] {
        let slice = slices.into_iter().next().expect("it is one");
        let items = slice.items.into_iter().map(|seen| (slice.now, seen));
        return Ok(Merged {
            items: items.collect(),
            next: slice.next,
        });
    }
    // Beyond where one of them was left there may be more of it.
    let end = slices
        .iter()
        .filter_map(|slice| slice.next.clone())
        .min_by(|one, other| {
            order(one)
                .partial_cmp(&order(other))
                .expect("no score is NaN")
        });
    let with_time = |slice: Slice| slice.items.into_iter().map(move |seen| (slice.now, seen));
    let mut items: Vec<_> = slices.into_iter().flat_map(with_time).collect();
    items.sort_by(|(_, one), (_, other)| {
        (one.score, &one.member).cmp(&(other.score, &other.member))
    });
    if let Some(end) = &end {
        let (score, member) = order(end);
        items.retain(|(_, seen)| (seen.score.0 as f64, seen.member.as_str()) <= (score, member));
    }
    let mut next = end;
    if items.len() > limit {
        items.truncate(limit);
        next = items
            .last()
            .map(|(_, seen)| (seen.score.to_string(), seen.member.clone()));
    }
    Ok(Merged { items, next })
}

/// By which positions are in order.
fn order((score, member): &Position) -> (f64, &str) {
    (score.parse().unwrap_or(f64::INFINITY), member)
}

/// Which kind comes first, and where it begins.
fn begin(
    after: Option<Cursor>,
    state: JobState,
    prefix: &Prefix,
) -> Result<(Option<Kind>, Option<Position>)> {
    let Some(cursor) = after else {
        return Ok((None, None));
    };
    if cursor.state != state || !prefix.covers(&cursor.kind) {
        return Err(Error::new(
            ErrorKind::InvalidSetting,
            "the cursor comes from a list of another prefix or state: use it with the one that \
             it came from",
        ));
    }
    Ok((Some(cursor.kind), cursor.position))
}

/// What the ledger calls this state.
fn word(state: JobState) -> &'static str {
    match state {
        JobState::Pending | JobState::Retrying => "pending",
        JobState::Running => "running",
        JobState::Lapsed => "lapsed",
        JobState::Dead => "dead",
    }
}

impl Page {
    fn default() -> Self {
        Page {
            jobs: Vec::new(),
            damaged: Vec::new(),
            unseen: Vec::new(),
            next: None,
        }
    }

    fn len(&self) -> usize {
        self.jobs.len() + self.damaged.len()
    }

    fn take_in(&mut self, kind: &Kind, state: JobState, items: Vec<(UnixUs, Seen)>) {
        for (now, seen) in items {
            let name = format!("{kind}:{}", seen.member);
            match view(kind, state, now, seen) {
                Ok(Some(view)) if state != JobState::Retrying || view.state() == state => {
                    self.jobs.push(view);
                }
                Ok(_) => {}
                Err(error) => self.damaged.push(DamagedJob { name, error }),
            }
        }
    }
}

fn view(kind: &Kind, state: JobState, now: UnixUs, seen: Seen) -> Result<Option<JobView>> {
    let (id, found) = match state {
        JobState::Pending | JobState::Retrying => {
            let due = seen.score;
            let record = seen.record;
            (seen.member, Found::Pending { due, record })
        }
        JobState::Running | JobState::Lapsed => (
            seen.member,
            Found::Leased {
                now,
                deadline: seen.score,
                lease: seen.lease,
                record: seen.record,
                successor: seen.successor,
            },
        ),
        JobState::Dead => {
            let (id, number) = letter_name(&seen.member)?;
            let found = Found::Dead {
                died: seen.score,
                number,
                record: seen.record,
            };
            (id.to_owned(), found)
        }
    };
    JobView::from_found(kind.key(&id)?, found)
}

/// The id and the number of a dead letter, `id:number`.
pub(crate) fn letter_name(member: &str) -> Result<(&str, u64)> {
    let parts = member.rsplit_once(':');
    parts
        .and_then(|(id, number)| Some((id, number.parse().ok()?)))
        .ok_or_else(|| {
            Error::new(
                ErrorKind::Damaged,
                format!("{member:?} is not the name of a dead letter"),
            )
        })
}

impl<'a> IntoFuture for ListJobs<'a> {
    type Output = Result<Page>;
    type IntoFuture = Pending<'a, Page>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.page())
    }
}

/// The states, by the words that cursors have for them.
const STATES: [(JobState, &str); 5] = [
    (JobState::Pending, "pending"),
    (JobState::Retrying, "retrying"),
    (JobState::Running, "running"),
    (JobState::Lapsed, "lapsed"),
    (JobState::Dead, "dead"),
];

/// `state:app:module:biz:score:member`, the last two empty at the beginning of a kind.
impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = STATES.iter().find(|(state, _)| *state == self.state);
        let (_, word) = state.expect("every state has a word");
        let (score, member) = match &self.position {
            Some((score, member)) => (score.as_str(), member.as_str()),
            None => ("", ""),
        };
        write!(f, "{word}:{}:{score}:{member}", self.kind)
    }
}

impl FromStr for Cursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let parse = || {
            let mut parts = text.splitn(6, ':');
            let mut part = || parts.next();
            let word = part()?;
            let (state, _) = STATES.iter().find(|(_, known)| *known == word)?;
            let kind = [part()?, part()?, part()?].join(":");
            let (score, member) = (part()?, part()?);
            let is_score = score.parse::<f64>().is_ok();
            let is_beginning = score.is_empty() && member.is_empty();
            if !is_score && !is_beginning {
                return None;
            }
            Some(Cursor {
                state: *state,
                kind: Kind::parse(&kind).ok()?,
                position: is_score.then(|| (score.to_owned(), member.to_owned())),
            })
        };
        parse().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidSetting,
                format!("{text:?} is no cursor: use one that a page of jobs came with"),
            )
        })
    }
}

impl From<Cursor> for String {
    fn from(cursor: Cursor) -> String {
        cursor.to_string()
    }
}

impl TryFrom<String> for Cursor {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text() {
        for (score, member) in [("1763712345678", "a@b/ü"), ("1.5e+300", "dead:17")] {
            let cursor = Cursor {
                state: JobState::Dead,
                kind: Kind::parse("a:b:c").unwrap(),
                position: Some((score.into(), member.into())),
            };
            assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
            let json = serde_json::to_string(&cursor).unwrap();
            assert_eq!(serde_json::from_str::<Cursor>(&json).unwrap(), cursor);
        }
        let begin = "retrying:a:b:c::";
        assert_eq!(begin.parse::<Cursor>().unwrap().to_string(), begin);
    }

    #[test]
    fn what_is_no_cursor_is_refused() {
        for text in [
            "",
            "dead",
            "dead:a:b:c",
            "dead:a:b:c::x",
            "no:a:b:c:1:x",
            "dead:a:b *:1:x",
        ] {
            let error = text.parse::<Cursor>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidSetting, "{text}");
        }
    }
}
