//! Reads a series, decides what becomes of it, and sends the decision as one call. If a job has
//! changed meanwhile, it begins anew.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::try_join_all;

use super::{MemberChange, Series, SeriesChange};
use crate::client::producing::new_job::check_payload;
use crate::client::{Client, out_of_place};
use crate::error::{Error, ErrorKind, Result};
use crate::key::{JobKey, Kind};
use crate::record::{Header, Record, Terms};
use crate::recurrence::{Deed, MemberFate, Plan, Planned, Stand, Wish, decide};
use crate::store::{Found, JobVersion, SeriesCall, SeriesJob, SeriesPut, When, Word};
use crate::time::UnixMs;

/// The wait for a worker that is ending the plan.
const ENDING: Duration = Duration::from_millis(20);

/// A series as it was read.
pub(super) struct Read {
    /// The pending job with the plan; `None` if there is no series.
    pub(super) plan: Option<PlanJob>,
    /// Each member that the series has or is to have, by the end of its id.
    pub(super) members: BTreeMap<String, Found>,
}

/// The job with the plan.
pub(super) struct PlanJob {
    pub(super) seen: JobVersion,
    pub(super) due: UnixMs,
    pub(super) header: Header,
    pub(super) payload: Bytes,
}

impl PlanJob {
    pub(super) fn plan(&self) -> &Plan {
        self.header.plan().expect("it was read as a plan")
    }
}

/// What a job of a member says.
struct Present {
    seen: JobVersion,
    header: Header,
}

impl Read {
    pub(super) fn plan(&self) -> Option<&Plan> {
        self.plan.as_ref().map(PlanJob::plan)
    }

    /// Where each member stands, with the job if it is pending.
    fn stands(&self, key: &JobKey) -> Result<BTreeMap<&str, (Stand, Option<Present>)>> {
        let stand = |found: &Found| -> Result<(Stand, Option<Present>)> {
            let record = match found {
                Found::Pending { record, .. } => record,
                Found::Leased { .. } => return Ok((Stand::Running, None)),
                _ => return Ok((Stand::Absent, None)),
            };
            let record = Record::parse(record.clone()).map_err(|fault| fault.of(key))?;
            let stand = match record.header.attempts {
                0 => Stand::Fresh,
                _ => Stand::Retrying,
            };
            let header = record.header;
            let present = JobVersion::of(found).map(|seen| Present { seen, header });
            Ok((stand, present))
        };
        let members = self.members.iter();
        members
            .map(|(name, found)| Ok((&**name, stand(found)?)))
            .collect()
    }
}

/// The key of a member.
///
/// # Errors
/// [`ErrorKind::InvalidKey`] if it is too long.
pub(super) fn member_key(key: &JobKey, name: &str) -> Result<JobKey> {
    let kind = Kind::parse(key.kind()).expect("the kind of a job key");
    kind.key(&format!("{}~{name}", key.id()))
}

impl Client {
    /// Reads the plan, and the members that it names or that are wanted.
    pub(super) async fn read_series(
        &self,
        key: &JobKey,
        wish: &Wish,
        until: Instant,
    ) -> Result<Read> {
        let plan = loop {
            let found = self.find(key, until).await?;
            let seen = JobVersion::of(&found);
            let (record, due) = match found {
                Found::Pending { record, due } => (record, Some(due)),
                Found::Leased { record, .. } => (record, None),
                _ => break None,
            };
            let record = Record::parse(record).map_err(|fault| fault.of(key))?;
            if record.header.plan().is_none() {
                return Err(Error::new(
                    ErrorKind::InvalidRule,
                    format!(
                        "{key} is the key of a job that is no series: cancel that job, or choose \
                         another key for the series"
                    ),
                ));
            }
            match (due, seen) {
                (Some(due), Some(seen)) => {
                    break Some(PlanJob {
                        seen,
                        due,
                        header: record.header,
                        payload: record.payload,
                    });
                }
                _ if Instant::now() + ENDING < until => tokio::time::sleep(ENDING).await,
                _ => return Err(too_busy(key)),
            }
        };
        let planned = plan.iter().flat_map(|it| &it.plan().members);
        let wanted = wish.members.iter().flatten();
        let names = planned
            .map(Planned::own_name)
            .chain(wanted.map(|it| it.own_name()));
        let names: std::collections::BTreeSet<String> = names.collect();
        let reads = names.into_iter().map(|name| async move {
            let found = self.find(&member_key(key, &name)?, until).await?;
            Ok::<_, Error>((name, found))
        });
        let members = try_join_all(reads).await?.into_iter().collect();
        Ok(Read { plan, members })
    }

    /// Sends a change. Returns `false` if a job has changed since it was read.
    async fn send_series(&self, call: SeriesCall, until: Instant) -> Result<bool> {
        let key = call.key.clone();
        let answered = self.ask(call, until).await?;
        if answered.unarmed {
            tracing::warn!(
                %key,
                "jobs of the series run without triggers: their names hold foreign values, which \
                 are left alone, or this user may not write them"
            );
        }
        match answered.answer {
            Word::Planned => Ok(true),
            Word::Changed if Instant::now() < until => Ok(false),
            Word::Changed => Err(too_busy(&key)),
            other => Err(out_of_place(other)),
        }
    }
}

impl Series<'_> {
    pub(super) async fn change(self, is_preview: bool) -> Result<SeriesChange> {
        let Series {
            client,
            key,
            wish,
            payload,
            terms,
        } = self;
        let (key, wish) = (key?, wish?);
        let limit = client.settings().payload_limit;
        let payload = payload.transpose()?;
        if let Some(payload) = &payload {
            check_payload(&key, payload, limit)?;
        }
        let own = wish.members.iter().flatten();
        let own: usize = own
            .filter_map(|it| it.payload.as_ref())
            .map(String::len)
            .sum();
        if own > limit {
            return Err(Error::new(
                ErrorKind::InvalidPayload,
                format!(
                    "the payloads of the members of {key} have {own} bytes together, and the limit \
                     is {limit}: store them elsewhere, or raise `payload_limit`"
                ),
            ));
        }
        let given = match terms {
            None => None,
            Some(it) => {
                it.headers.check(&key)?;
                let terms = Terms::new(&key, it.retry, it.timeout, it.attempts)?;
                Some((it.headers, terms))
            }
        };
        let until = client.deadline();
        loop {
            let read = client.read_series(&key, &wish, until).await?;
            let now = client.now();
            let mut wish = wish.clone();
            wish.is_rewritten = payload.is_some() || given.is_some() || differs(&wish, read.plan());
            let mut stands = read.stands(&key)?;
            let stand = |name: &str| stands.get(name).map_or(Stand::Absent, |it| it.0);
            let decision = decide(read.plan(), &wish, now, stand)?;
            let mut changed = Vec::new();
            for verdict in &decision.verdicts {
                changed.push(MemberChange {
                    key: member_key(&key, &verdict.name)?,
                    offset: verdict.offset.clone(),
                    fate: verdict.fate.clone(),
                });
            }
            let ends = decision.plan.ends(now);
            let is_idle = decision.verdicts.iter().all(|it| it.deed == Deed::Leave);
            let is_same = is_idle && read.plan() == Some(&decision.plan) && !wish.is_rewritten;
            let kept_until = match &read.plan {
                Some(plan) if is_same => plan.due,
                _ => ends,
            };
            let answer = SeriesChange {
                members: changed,
                kept_until: Some(kept_until.to_system()),
            };
            if is_preview || is_same {
                return Ok(answer);
            }

            let before = read.plan.as_ref();
            let mut header = match (before, &given) {
                (Some(job), None) => job.header.clone(),
                (Some(job), Some((headers, terms))) => dressed(job.header.clone(), headers, terms),
                (None, Some((headers, terms))) => Header::new(headers.clone(), terms.clone()),
                (None, None) => Header::default(),
            };
            header = header.with_plan(Some(decision.plan.clone()));
            let fallback = payload.clone().or(before.map(|job| job.payload.clone()));
            let fallback = fallback.unwrap_or_default();
            let mut jobs = vec![SeriesJob {
                key: key.clone(),
                seen: before.map(|job| job.seen.clone()),
                put: Some(SeriesPut {
                    when: When::At(ends),
                    header: header.to_line(),
                    payload: match before {
                        Some(_) => payload.clone(),
                        None => Some(fallback.clone()),
                    },
                }),
            }];
            for verdict in &decision.verdicts {
                let present = stands.remove(&*verdict.name).and_then(|it| it.1);
                let due = match verdict.deed {
                    Deed::Leave => continue,
                    Deed::Remove => None,
                    Deed::Put(due) => Some(due),
                };
                let planned = decision.plan.member(&verdict.name);
                let put = due.zip(planned).map(|(due, planned)| {
                    let own = planned
                        .payload
                        .as_ref()
                        .map(|text| Bytes::from(text.clone()));
                    let payload = own.unwrap_or_else(|| fallback.clone());
                    let mut member = match (&present, &given) {
                        (Some(present), None) => present.header.clone(),
                        (Some(present), Some((headers, terms))) => {
                            dressed(present.header.clone(), headers, terms)
                        }
                        (None, _) => Header::new(header.headers.clone(), header.terms.clone()),
                    };
                    member.shift = planned.shift.clone().map(Box::new);
                    let is_kept = present.is_some() && !wish.is_rewritten;
                    SeriesPut {
                        when: When::At(due),
                        header: member.to_line(),
                        payload: (!is_kept).then_some(payload),
                    }
                });
                jobs.push(SeriesJob {
                    key: member_key(&key, &verdict.name)?,
                    seen: present.map(|present| present.seen),
                    put,
                });
            }
            let key = key.clone();
            if client.send_series(SeriesCall { key, jobs }, until).await? {
                return Ok(answer);
            }
        }
    }

    pub(super) async fn cancel_all(self) -> Result<Option<SeriesChange>> {
        let (client, key) = (self.client, self.key?);
        let until = client.deadline();
        loop {
            let read = client.read_series(&key, &Wish::default(), until).await?;
            let Some(plan) = &read.plan else {
                return Ok(None);
            };
            let mut stands = read.stands(&key)?;
            let mut jobs = vec![SeriesJob {
                key: key.clone(),
                seen: Some(plan.seen.clone()),
                put: None,
            }];
            let mut members = Vec::new();
            for planned in &plan.plan().members {
                let name = planned.own_name();
                let member = member_key(&key, &name)?;
                let (stand, present) = stands.remove(&*name).unwrap_or((Stand::Absent, None));
                let fate = match (stand, &planned.out) {
                    (Stand::Fresh | Stand::Retrying, _) => MemberFate::Cancelled,
                    (Stand::Running, _) => MemberFate::Running,
                    (Stand::Absent, Some(why)) => MemberFate::LeftOut(why.clone()),
                    (Stand::Absent, None) => MemberFate::Ended,
                };
                if let Some(Present { seen, .. }) = present {
                    jobs.push(SeriesJob {
                        key: member.clone(),
                        seen: Some(seen),
                        put: None,
                    });
                }
                members.push(MemberChange {
                    key: member,
                    offset: planned.at.clone(),
                    fate,
                });
            }
            let key = key.clone();
            if client.send_series(SeriesCall { key, jobs }, until).await? {
                return Ok(Some(SeriesChange {
                    members,
                    kept_until: None,
                }));
            }
        }
    }
}

/// Whether a wanted member has another payload than in the plan.
fn differs(wish: &Wish, plan: Option<&Plan>) -> bool {
    let wanted = wish.members.iter().flatten();
    let mut with_old = wanted.filter_map(|it| Some((it, plan?.member(&it.own_name())?)));
    with_old.any(|(it, old)| it.payload != old.payload)
}

/// The same header with other headers and terms.
fn dressed(mut header: Header, headers: &crate::headers::Headers, terms: &Terms) -> Header {
    header.headers.clone_from(headers);
    header.terms.clone_from(terms);
    header
}

fn too_busy(key: &JobKey) -> Error {
    Error::new(
        ErrorKind::Unavailable,
        format!("the series {key} changed for as long as the call may take: try again"),
    )
}
