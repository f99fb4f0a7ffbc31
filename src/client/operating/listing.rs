//! Listing many jobs page by page, in a stable order, over all shards of each kind.

use std::future::IntoFuture;
use std::time::{Duration, Instant};

use futures_util::future::join_all;

use super::cursor::{Cursor, begin};
use super::filter::Filter;
use super::partial::PartialView;
use crate::client::{Client, JobState, JobView, KindShards, Pending, Selection, Unseen};
use crate::error::{Error, ErrorKind, Result};
use crate::key::Kind;
use crate::settings::BATCH;
use crate::store::{Found, Ledger, Position, Seen, Slice, Sought};
use crate::time::UnixUs;

/// The default number of jobs in a page, and the largest.
const PAGE: usize = 100;
const LARGEST_PAGE: usize = 1000;

/// About how many bytes of records a page holds, and so its memory.
const PAGE_BYTES: usize = 4 * 1024 * 1024;

/// How many bytes of records one call of a search reads, if jobs are as large as those before. This
/// bounds the time that Redis spends on the call.
const SEARCH_BYTES: usize = 256 * 1024;

/// The number of jobs that a search reads first, and at the least.
const FIRST: usize = 64;
const FEWEST: usize = 4;

/// The most calls for one page: if few of many ids match the prefix, the page is short rather than
/// late.
const CALLS: usize = 16;

/// The most entries that are looked at for a page that searches by records, and the time after
/// which it asks for no more.
const SCANNED: u64 = 10_000;
const SEARCH: Duration = Duration::from_millis(50);

/// A call to [`Selection::list`]; sent when it is awaited. Answers one [`Page`].
#[must_use = "nothing is listed until it is awaited"]
pub struct ListJobs<'a> {
    selection: Selection<'a>,
    state: JobState,
    pub(super) limit: usize,
    after: Option<Cursor>,
    pub(super) filter: Filter,
}

/// A page of jobs; from [`Client::list`] and [`Selection::list`].
#[derive(Debug)]
#[non_exhaustive]
pub struct Page {
    /// The jobs, in order.
    pub jobs: Vec<JobView>,
    /// Jobs of this page that cannot be read.
    pub damaged: Vec<DamagedJob>,
    /// The shards that were not read, because one of several servers was away. Their jobs are on no
    /// page.
    pub unseen: Vec<Unseen>,
    /// The number of jobs that were looked at. A list that [searches](ListJobs::error) looks at
    /// many for a few.
    pub scanned: u64,
    /// The beginning of the next page; `None` if this is the last. A page can be short, or even
    /// empty, and still have a next one.
    pub next: Option<Cursor>,
}

/// A job whose record or name was not written by Keyfall, or is of a newer version.
#[derive(Debug)]
#[non_exhaustive]
pub struct DamagedJob {
    /// The kind and the id, `app:module:biz:id`.
    pub name: String,
    /// The damage.
    pub error: Error,
}

impl Client {
    /// Lists the jobs in this state whose keys begin with this text: short for
    /// [`prefix(text)`](Client::prefix)`.`[`list(state)`](Selection::list).
    ///
    /// # Errors
    /// As [`Selection::list`].
    pub fn list(&self, prefix: &str, state: JobState) -> ListJobs<'_> {
        self.prefix(prefix).list(state)
    }
}

impl<'a> Selection<'a> {
    /// Lists the jobs in this state, page by page. [`Pending`](JobState::Pending) includes jobs
    /// that wait for a retry; [`Retrying`](JobState::Retrying) lists these alone.
    ///
    /// The order is kind by kind, and within a kind by due time; running jobs go by the end of
    /// their lease, dead letters by the time of death. A job that comes or goes between pages
    /// neither hides nor repeats another job; a job that moves may appear twice, or not at all.
    ///
    /// Conditions on the due time of pending jobs cost nothing. Conditions on
    /// [attempts](ListJobs::attempts_over) and [errors](ListJobs::error) read the record of each
    /// job: a page looks at some 10,000 jobs, or searches for 50 milliseconds, and returns the jobs
    /// that it has found by then, with a [next](Page::next) page. Such a list leaves out jobs that
    /// cannot be read.
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
    ///
    /// # Errors
    /// When it is awaited: if the prefix, the [limit](ListJobs::limit) or the
    /// [cursor](ListJobs::after) is not valid, Redis does not answer in time, or the due times of a
    /// shard are lost. A job that cannot be read is no error: it is in [`Page::damaged`].
    pub fn list(self, state: JobState) -> ListJobs<'a> {
        ListJobs {
            selection: self,
            state,
            limit: PAGE,
            after: None,
            filter: Filter::default(),
        }
    }
}

impl ListJobs<'_> {
    /// The most jobs in a page, from 1 to 1000. Defaults to 100. A page with more than about 4 MiB
    /// of records ends early.
    pub fn limit(mut self, jobs: usize) -> Self {
        self.limit = jobs;
        self
    }

    /// Starts the page at this cursor. It must come from a list of the same prefix and state.
    pub fn after(mut self, cursor: Cursor) -> Self {
        self.after = Some(cursor);
        self
    }

    /// Reads one page.
    ///
    /// # Errors
    /// If the prefix, the limit or the cursor is not valid, or Redis does not answer in time.
    async fn page(self) -> Result<Page> {
        if !(1..=LARGEST_PAGE).contains(&self.limit) {
            return Err(Error::new(
                ErrorKind::InvalidSetting,
                format!(
                    "a page has from 1 to {LARGEST_PAGE} jobs, not {}",
                    self.limit
                ),
            ));
        }
        let mut page = Page::default();
        let walked = self.walk(&mut page).await?;
        page.scanned = walked.scanned;
        page.unseen = walked.unseen;
        page.next = walked.next;
        Ok(page)
    }

    /// Reads jobs until `taker` has as many as the limit, or the bounds of one page are reached.
    pub(super) async fn walk(self, taker: &mut impl JobTaker) -> Result<Walked> {
        let Selection { client, prefix } = self.selection;
        let prefix = prefix?;
        let (first, mut position) = begin(self.after, self.state, &prefix)?;
        let until = client.deadline();
        let conditions = self.filter.conditions(self.state, client, until).await?;
        let is_search = conditions.is_search();
        let began = Instant::now();
        let (mut kinds, mut view) = client.kinds_in_view(&prefix, until).await?;
        if let Some(first) = first {
            kinds.retain(|kind| *kind >= first);
            position = position.filter(|_| kinds.first() == Some(&first));
        }
        if conditions.is_empty() {
            kinds.clear();
        }
        kinds.retain(|kind| conditions.fits_kind(kind));
        let (mut bytes, mut calls, mut scanned) = (0, 0, 0);
        let mut batch = FIRST;
        for kind in kinds {
            let kind_shards = client.kind_shards_to_look(kind.as_str())?;
            loop {
                let room = self.limit - taker.taken();
                let is_late = match is_search {
                    true => calls > 0 && (scanned >= SCANNED || began.elapsed() > SEARCH),
                    false => calls == CALLS,
                };
                if room == 0 || bytes >= PAGE_BYTES || is_late {
                    let next = Cursor {
                        state: self.state,
                        kind,
                        position,
                    };
                    return Ok(Walked {
                        scanned,
                        unseen: view.unseen(),
                        next: Some(next),
                    });
                }
                let sought = Sought {
                    limit: if is_search { batch } else { room.min(BATCH) },
                    records: true,
                    after: position.take(),
                    ..Sought::all_of(word(self.state), prefix.of_id())
                };
                let sought = conditions.narrow(sought);
                let seen = list_all(&kind_shards, sought, &mut view, until).await?;
                calls += 1;
                scanned += seen.looked;
                position = seen.next;
                let read: usize = seen.items.iter().map(|(_, seen)| seen.record.len()).sum();
                let fitting = (SEARCH_BYTES * seen.items.len()).checked_div(read);
                batch = fitting.map_or(batch, |jobs| jobs.clamp(FEWEST, BATCH));
                let mut items = seen.items.into_iter();
                while let Some((now, seen)) = items.next() {
                    let (here, size) = (seen.position(), seen.record.len());
                    let name = format!("{kind}:{}", seen.member);
                    let before = taker.taken();
                    match view_of(&kind, self.state, now, seen) {
                        Ok(Some(job)) if conditions.fit(&job) => taker.take(&kind, Ok(job)),
                        // It cannot be told whether a damaged job fits.
                        Err(error) if conditions.fit_all() => {
                            taker.take(&kind, Err(DamagedJob { name, error }));
                        }
                        _ => {}
                    }
                    if taker.taken() > before {
                        bytes += size;
                    }
                    if taker.taken() == self.limit && items.len() > 0 {
                        position = Some(here);
                        break;
                    }
                }
                if position.is_none() {
                    break;
                }
            }
        }
        Ok(Walked {
            scanned,
            unseen: view.unseen(),
            next: None,
        })
    }
}

/// Takes in the jobs of a list, one by one.
pub(super) trait JobTaker: Send {
    /// The number of jobs that count for the limit of the list.
    fn taken(&self) -> usize;

    /// Takes in a job, or the error of one that cannot be read. Returns whether it is kept.
    fn take(&mut self, kind: &Kind, job: std::result::Result<JobView, DamagedJob>);
}

/// The end of a walk through a list.
pub(super) struct Walked {
    /// The number of jobs that were looked at.
    pub(super) scanned: u64,
    pub(super) unseen: Vec<Unseen>,
    /// The place where it goes on; `None` at the end.
    pub(super) next: Option<Cursor>,
}

/// A part of the jobs in one state, merged from all shards of a kind.
struct Merged {
    /// The number of jobs that were looked at.
    looked: u64,
    /// The jobs in order, each with the time at which it was read.
    items: Vec<(UnixUs, Seen)>,
    /// The beginning of the next part.
    next: Option<Position>,
}

/// Reads the shards of a kind as if they were one. A position is a score and a name, so one
/// position holds for each shard.
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
        // With several shards, each is asked for twice its share of the page: the next page reads
        // the rest of its answer again.
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
    let looked = slices.iter().map(|slice| slice.looked).sum();
    if let [_] = &slices[..] {
        let slice = slices.into_iter().next().expect("it is one");
        let items = slice.items.into_iter().map(|seen| (slice.now, seen));
        return Ok(Merged {
            looked,
            items: items.collect(),
            next: slice.next,
        });
    }
    // Beyond the point where one shard stopped, that shard may have more jobs.
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
        next = items.last().map(|(_, seen)| seen.position());
    }
    Ok(Merged {
        looked,
        items,
        next,
    })
}

/// The sort key of a position.
fn order((score, member): &Position) -> (f64, &str) {
    (score.parse().unwrap_or(f64::INFINITY), member)
}

/// The word of the ledger for this state.
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
            scanned: 0,
            next: None,
        }
    }
}

impl JobTaker for Page {
    fn taken(&self) -> usize {
        self.jobs.len() + self.damaged.len()
    }

    fn take(&mut self, _: &Kind, job: std::result::Result<JobView, DamagedJob>) {
        match job {
            Ok(job) => self.jobs.push(job),
            Err(damaged) => self.damaged.push(damaged),
        }
    }
}

/// The view of a listed job.
fn view_of(kind: &Kind, state: JobState, now: UnixUs, seen: Seen) -> Result<Option<JobView>> {
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
