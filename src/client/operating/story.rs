//! [`Story`]: the history of one job, and the reasons why it waits.

use std::time::{Duration, Instant, SystemTime};

use super::history::{Happening, HistoryEntry, What, span};
use crate::client::{Client, JobState, JobView};
use crate::error::Result;
use crate::instance::Description;
use crate::key::{IntoJobKey, JobKey};
use crate::limit::{Limit, LimitScope};
use crate::phrase::Phrase;
use crate::recurrence::{Occurrence, QuietHours};
use crate::settings::SILENCE;
use crate::store::{Admission, Alive, PlainKey};
use crate::time::UnixMs;

/// The largest difference between the times that the record and the history of a job give for the
/// same step: a script can take a while on a busy machine.
const SAME: Duration = Duration::from_millis(100);

/// The largest difference between the expiry of a key and the due time of its job that is not
/// reported: the two are read one after the other.
const OTHER_TIME: Duration = Duration::from_secs(2);

/// The most reads of a job and its history in search of a state in which they agree.
const READS: usize = 4;

/// The history and the state of a job; from [`Client::story`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Story {
    /// The key of the job.
    pub key: JobKey,
    /// The job, or its latest dead letter; `None` if there is neither.
    pub job: Option<JobView>,
    /// The changes to all jobs with this key, the oldest first: from the history, and from the
    /// record of the job if the history does not reach back.
    pub happenings: Vec<Happening>,
    /// The reasons why the job waits. Each of several reasons alone would keep it from starting.
    pub waits: Vec<Wait>,
    /// The number of entries that the history of its kind keeps; 0 if it is off.
    pub kept: u64,
    /// The time of the oldest entry of the history; `None` if it is empty.
    pub reaches: Option<SystemTime>,
    /// The difference between a waiting adopted job and its plain key, if this user may read the
    /// key.
    pub key_differs: Option<KeyDiffers>,
    /// Whether the history covers the job from its beginning. If not, the record adds only its last
    /// steps, and others may be missing.
    pub is_whole: bool,
}

/// A reason why a job waits.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Wait {
    /// The due time has not come.
    Due {
        /// The due time.
        at: SystemTime,
        /// The time until then, by Redis' clock.
        ahead: Duration,
        /// The last change that set this due time, if it is known.
        since: Option<What>,
        /// The occurrence, if the job recurs.
        occurrence: Option<Box<Occurrence>>,
        /// The time that was asked for, and the reason for this one, such as quiet hours.
        shift: Option<(SystemTime, String)>,
    },
    /// The rule of the job is [paused](Client::pause_rule).
    RulePaused {
        /// The time of the pause.
        since: SystemTime,
    },
    /// The last run snoozed the job, without counting an attempt.
    PutOff {
        /// The reason, such as a callback host that is down.
        why: String,
    },
    /// The kind is paused.
    Paused {
        /// The time of the pause.
        since: SystemTime,
        /// The paused prefixes that cover the job.
        prefixes: Vec<String>,
    },
    /// The [limit](Client::limit) of the kind lets no job start now, or no job of its group.
    Limited {
        /// The kind or the prefix of kinds that is limited.
        scope: LimitScope,
        /// The limit.
        limit: Limit,
        /// The group of the job, if it waits for the turn of that; empty for the jobs without one.
        group: Option<String>,
        /// The time at which it was set.
        since: SystemTime,
        /// The operator or process that set it.
        by: String,
        /// When its rate allows the next start; `None` if it waits for the end of a run.
        next: Option<SystemTime>,
        /// The number of due jobs that wait for it, this one included.
        waiting: u64,
    },
    /// No live instance has a route for the job.
    Unrouted,
    /// No instance with a route for the job has room for another one.
    Saturated {
        /// The number of these instances.
        instances: usize,
    },
    /// The job is due and an instance has room: it is about to be claimed.
    Claim,
    /// The job runs.
    Run {
        /// The process that runs it, as `host:process`, if the history tells.
        by: Option<String>,
        /// The end of its lease, unless that is renewed.
        until: Option<SystemTime>,
        /// Whether the run was told to stop.
        stopping: bool,
        /// The due time of its successor.
        then: Option<SystemTime>,
    },
    /// The lease has lapsed. After a renewal period, another instance takes the job over.
    Takeover {
        /// The process that ran it, as `host:process`, if the history tells.
        from: Option<String>,
        /// The end of the lease.
        lapsed: Option<SystemTime>,
    },
    /// The job is a dead letter: an operator has to requeue or delete it.
    Requeue {
        /// The number of the dead letter.
        letter: Option<u64>,
        /// The reason of the death.
        reason: Option<String>,
    },
}

/// The difference between an adopted job and its plain key: the key was changed a moment ago or
/// unheard, or the job was changed by other means. The key is read once more before the job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeyDiffers {
    /// The key is missing: its deletion, eviction or early expiry was not heard.
    Missing,
    /// The key has no time to live.
    Lasting,
    /// The key expires at this time, and the job is due at another.
    OtherTime(SystemTime),
    /// The value of the key is not the payload.
    OtherValue,
}

impl Client {
    /// Collects the history of a job and the reasons why it waits.
    ///
    /// # Errors
    /// If the key is not valid, Redis does not answer in time, or the record is damaged.
    pub async fn story(&self, key: impl IntoJobKey) -> Result<Story> {
        let key = key.into_job_key()?;
        let until = self.deadline();
        let (job, told) = self.at_one_time(&key, until).await?;
        let HistoryEntry {
            kept,
            reaches,
            mut happenings,
        } = told;
        let is_whole = job.as_ref().is_none_or(|job| {
            let told = add_record(&key, job, &mut happenings);
            kept > 0 && told
        });
        // Pauses that ended before the job began do not concern it.
        let begin = happenings.iter().position(|it| it.id.is_some());
        happenings.drain(..begin.unwrap_or(happenings.len()));
        let waits = self.waits(&key, job.as_ref(), &happenings, until).await?;
        let key_differs = match &job {
            Some(job) => self.key_differs(job, until).await?,
            None => None,
        };
        Ok(Story {
            key_differs,
            key,
            job,
            happenings,
            waits,
            kept,
            reaches,
            is_whole,
        })
    }

    /// The job and its history, read again if the job changed in between. If it changes all the
    /// time, the history may be newer than the job.
    async fn at_one_time(
        &self,
        key: &JobKey,
        until: Instant,
    ) -> Result<(Option<JobView>, HistoryEntry)> {
        let look = |job: &Option<JobView>| job.as_ref().map(|job| (job.state(), job.due()));
        let mut job = self.view(key.clone(), until).await?;
        for _ in 1..READS {
            let told = self.told_of(key, until).await?;
            let now = self.view(key.clone(), until).await?;
            if look(&now) == look(&job) {
                return Ok((now, told));
            }
            job = now;
        }
        Ok((job, self.told_of(key, until).await?))
    }

    /// Compares an adopted job with its plain key, before the first attempt only: after that, the
    /// key has expired.
    async fn key_differs(&self, job: &JobView, until: Instant) -> Result<Option<KeyDiffers>> {
        let waits_for_due = job.state() == JobState::Pending && job.is_adopted();
        if !waits_for_due {
            return Ok(None);
        }
        let kind_shards = self.kind_shards_to_look(job.key().kind())?;
        let ledger = &kind_shards.shard_client(job.key().id()).ledger;
        let looks = ledger.plain_key(job.key(), job.payload(), until);
        let Some(looks) = looks.await? else {
            return Ok(None);
        };
        let now = ledger.time(until).await?;
        let due = UnixMs::from_system(job.due()).unwrap_or(now);
        let is_due = due <= now.plus(SAME);
        Ok(match looks {
            PlainKey::Missing if is_due => None,
            PlainKey::Missing => Some(KeyDiffers::Missing),
            PlainKey::Lasting => Some(KeyDiffers::Lasting),
            PlainKey::Timed { left, is_same } => {
                let expires = now.plus(left);
                if expires.0.abs_diff(due.0) > OTHER_TIME.as_millis() as u64 {
                    Some(KeyDiffers::OtherTime(expires.to_system()))
                } else {
                    (!is_same).then_some(KeyDiffers::OtherValue)
                }
            }
        })
    }

    /// The reasons why the job waits, in the order in which they are checked.
    async fn waits(
        &self,
        key: &JobKey,
        job: Option<&JobView>,
        happenings: &[Happening],
        until: Instant,
    ) -> Result<Vec<Wait>> {
        let Some(job) = job else {
            return Ok(Vec::new());
        };
        let claims = |it: &&Happening| matches!(it.what, What::Claimed | What::Lapsed);
        let holder = happenings.iter().rev().find(claims);
        let holder = holder.map(|it| it.by.clone());
        let mut waits = Vec::new();
        match job.state() {
            JobState::Dead => {
                return Ok(vec![Wait::Requeue {
                    letter: job.letter(),
                    reason: job.last_error().map(Into::into),
                }]);
            }
            JobState::Running => {
                return Ok(vec![Wait::Run {
                    by: holder,
                    until: job.lease_ends(),
                    stopping: job.is_cancelled(),
                    then: job.successor_due(),
                }]);
            }
            JobState::Lapsed => waits.push(Wait::Takeover {
                from: holder,
                lapsed: job.lease_ends(),
            }),
            JobState::Pending | JobState::Retrying => {
                let now = self.0.store.time(until).await?;
                let now = now.floor_ms().to_system();
                if let Ok(ahead) = job.due().duration_since(now)
                    && !ahead.is_zero()
                {
                    let same = |it: &&Happening| it.due == Some(job.due());
                    let since = happenings.iter().rev().find(same).map(|it| it.what);
                    let occurrence = job.occurrence();
                    let paused = occurrence.as_ref().and_then(|it| it.paused_since);
                    waits.push(match paused {
                        Some(since) => Wait::RulePaused { since },
                        None => Wait::Due {
                            at: job.due(),
                            ahead,
                            since,
                            occurrence: occurrence.map(Box::new),
                            shift: job.shift().map(|(from, why)| (from, why.to_owned())),
                        },
                    });
                    waits.extend(job.put_off().map(|why| Wait::PutOff { why: why.into() }));
                }
            }
        }
        let is_due = waits.is_empty() || job.state() == JobState::Lapsed;
        let kind_shards = self.kind_shards_to_look(key.kind())?;
        let since = kind_shards
            .shard_client(key.id())
            .ledger
            .paused_since(until)
            .await?;
        if let Some(since) = since {
            let rules = self.0.store.pause_rules(until).await?.into_iter();
            let covers = |(rule, _): &(String, _)| key.as_str().starts_with(rule.as_str());
            waits.push(Wait::Paused {
                since: since.to_system(),
                prefixes: rules.filter(covers).map(|(rule, _)| rule).collect(),
            });
        }
        if is_due {
            let ledger = &kind_shards.shard_client(key.id()).ledger;
            if let Some(admission) = ledger.admit(false, until).await? {
                let group = match admission.group_by() {
                    Some(by) if ledger.is_aside(key.id(), until).await? => {
                        Some(by.of_job(key.id(), job.headers()).to_owned())
                    }
                    _ => None,
                };
                if let Some((scope, _)) = self.store().limit_of(&kind_shards.kind, until).await? {
                    waits.extend(Wait::for_limit(scope, admission, group));
                }
            }
        }
        let live = self.0.store.instances(SILENCE, until).await?;
        let room: Vec<bool> = live.iter().filter_map(|one| room_for(key, one)).collect();
        if room.is_empty() {
            waits.push(Wait::Unrouted);
        } else if is_due && !room.contains(&true) {
            let instances = room.len();
            waits.push(Wait::Saturated { instances });
        }
        if waits.is_empty() {
            waits.push(Wait::Claim);
        }
        Ok(waits)
    }
}

/// Whether an instance has room for this job; `None` if it does not take the job. A fallback
/// counts, too: the question is about a single job, for which no other instance may have a route.
fn room_for(key: &JobKey, (seen, text): &(Alive, String)) -> Option<bool> {
    let description: Description = serde_json::from_str(text).ok()?;
    let takes = description.takes().ok()?;
    let route = takes.route_of(key).or(takes.fallback)?;
    Some(seen.room.as_bytes().get(route) == Some(&b'1'))
}

/// Adds the steps of the record that the history lacks. Returns whether the history covers the job
/// from its beginning.
fn add_record(key: &JobKey, job: &JobView, happenings: &mut Vec<Happening>) -> bool {
    let begins = [
        What::Scheduled,
        What::Replaced,
        What::Succeeds,
        What::Restored,
    ];
    let apart = |one: SystemTime, other: SystemTime| {
        let either = one.duration_since(other);
        either.unwrap_or_else(|earlier| earlier.duration())
    };
    let knows = |what: &[What], at| {
        let is_it = |it: &Happening| what.contains(&it.what) && apart(it.at, at) <= SAME;
        happenings.iter().any(is_it)
    };
    let accepted = job.first_scheduled_at();
    let is_whole = knows(&begins, accepted);
    let mut missing = Vec::new();
    if !is_whole {
        missing.push((What::Scheduled, accepted));
    }
    for step in job.steps() {
        let what = What::parse(&step.what).unwrap_or(What::Unknown);
        if !knows(&[what], step.at) {
            missing.push((what, step.at));
        }
    }
    for (what, at) in missing {
        let place = happenings.partition_point(|it| it.at <= at);
        happenings.insert(place, Happening::by_record(key, what, at));
    }
    is_whole
}

impl Wait {
    /// The wait for a limit, if it lets no job start now; or for the turn of this group.
    fn for_limit(scope: LimitScope, admission: Admission, group: Option<String>) -> Option<Self> {
        let waits = admission.room == 0 || group.is_some();
        Some(Wait::Limited {
            scope,
            limit: admission.rule.limit.filter(|_| waits)?,
            group,
            since: admission.rule.set.to_system(),
            by: admission.rule.by,
            next: admission.next.map(|next| next.floor_ms().to_system()),
            waiting: admission.due,
        })
    }

    /// The reason in plain words. `show` writes times.
    pub fn sentence(&self, show: impl Fn(SystemTime) -> String) -> Phrase {
        match self {
            Wait::Due {
                at,
                ahead,
                since,
                occurrence,
                shift,
            } => {
                let when = [show(*at).into(), span(*ahead)];
                let mut said = match since {
                    Some(What::Failed) => {
                        Phrase::new("wait.retry", "its next attempt is due {}, in {}", when)
                    }
                    Some(What::Snoozed) => Phrase::new(
                        "wait.snoozed",
                        "its handler has put it off: it is due {}, in {}",
                        when,
                    ),
                    Some(What::Postponed) => Phrase::new(
                        "wait.postponed",
                        "it was postponed: it is due {}, in {}",
                        when,
                    ),
                    _ => Phrase::new("wait.due", "it is due {}, in {}", when),
                };
                if let Some(it) = occurrence {
                    let number = it.number.into();
                    said = Phrase::new(
                        "wait.occurrence",
                        "{}, as occurrence {} of its rule",
                        [said, number],
                    );
                    said = match it.skipped {
                        0 => said,
                        1 => Phrase::new(
                            "wait.skipped-one",
                            "{}; 1 time of the rule was left out so far",
                            [said],
                        ),
                        more => Phrase::new(
                            "wait.skipped",
                            "{}; {} times of the rule were left out so far",
                            [said, more.into()],
                        ),
                    };
                }
                match shift {
                    None => said,
                    Some((from, why)) => Phrase::new(
                        "wait.shifted",
                        "{}; moved from {}: {}",
                        [said, show(*from).into(), QuietHours::said(why)],
                    ),
                }
            }
            Wait::RulePaused { since } => Phrase::new(
                "wait.rule-paused",
                "its rule has been paused since {}: `keyfall recur resume` resumes it, and \
                 `keyfall fire` runs the job once",
                [show(*since).into()],
            ),
            Wait::PutOff { why } => Phrase::new(
                "wait.put-off",
                "it was put off, without an attempt: {}",
                [why.into()],
            ),
            Wait::Paused { since, prefixes } => {
                let since = show(*since).into();
                let of = prefixes.iter().map(|prefix| match prefix.as_str() {
                    "" => Phrase::new("wait.everything", "everything", []),
                    prefix => prefix.into(),
                });
                let both = |one, other| Phrase::new("wait.and-of", "{} and of {}", [one, other]);
                match of.reduce(both) {
                    None => Phrase::new(
                        "wait.paused",
                        "its kind has been paused since {}; `keyfall resume` ends the pause",
                        [since],
                    ),
                    Some(of) => Phrase::new(
                        "wait.paused-by",
                        "its kind has been paused since {}, by a pause of {}; `keyfall resume` \
                         ends the pause",
                        [since, of],
                    ),
                }
            }
            Wait::Limited {
                scope,
                limit,
                group,
                since,
                by,
                next,
                waiting,
            } => {
                let next = match (next, scope.is_prefix()) {
                    (Some(next), _) => Phrase::new(
                        "wait.next-start",
                        "the next one starts {}",
                        [show(*next).into()],
                    ),
                    (None, true) => Phrase::new(
                        "wait.next-run-of-kinds",
                        "the next one starts when a run of these kinds ends",
                        [],
                    ),
                    (None, false) => {
                        Phrase::new("wait.next-run", "the next one starts when a run ends", [])
                    }
                };
                let whose = match scope.is_prefix() {
                    true => Phrase::new(
                        "wait.all-below",
                        "all kinds below {}",
                        [scope.as_str().into()],
                    ),
                    false => Phrase::new("wait.its-kind", "its kind", []),
                };
                let limit = Phrase::new("wait.limit", "limit of {}, {}", [whose, limit.phrase()]);
                let limit = match group.as_deref() {
                    None => limit,
                    Some("") => Phrase::new(
                        "wait.turn-of-none",
                        "turn of the jobs without a group, by the {}",
                        [limit],
                    ),
                    Some(group) => Phrase::new(
                        "wait.turn",
                        "turn of its group, {}, by the {}",
                        [format!("{group:?}").into(), limit],
                    ),
                };
                Phrase::new(
                    "wait.limited",
                    "it waits for the {}, set {} by {}, as one of {} due jobs: {}",
                    [
                        limit,
                        show(*since).into(),
                        by.into(),
                        (*waiting).into(),
                        next,
                    ],
                )
            }
            Wait::Unrouted => Phrase::new(
                "wait.unrouted",
                "no live instance has a route for it: start a worker with such a route; `keyfall \
                 instances` lists the routes",
                [],
            ),
            Wait::Saturated { instances: 1 } => Phrase::new(
                "wait.saturated-one",
                "there is no free slot and no waiting consumer in the only instance with a route \
                 for it: it starts when there is room",
                [],
            ),
            Wait::Saturated { instances } => Phrase::new(
                "wait.saturated",
                "there is no free slot and no waiting consumer in the {} instances with a route \
                 for it: it starts when there is room",
                [(*instances).into()],
            ),
            Wait::Claim => Phrase::new(
                "wait.claim",
                "it is due, and an instance has room: it is about to be claimed",
                [],
            ),
            Wait::Run {
                by,
                until,
                stopping,
                then,
            } => {
                let mut said = Phrase::new("wait.run", "it runs", []);
                if let Some(by) = by {
                    said = Phrase::new("wait.run-by", "{}, lease held by {}", [said, by.into()]);
                }
                if let Some(until) = until {
                    let until = show(*until).into();
                    said = Phrase::new(
                        "wait.run-until",
                        "{} until {}, unless it is renewed",
                        [said, until],
                    );
                }
                if *stopping {
                    said = Phrase::new(
                        "wait.run-stopping",
                        "{}; it was cancelled and is told to stop",
                        [said],
                    );
                }
                match then {
                    None => said,
                    Some(then) => Phrase::new(
                        "wait.run-then",
                        "{}; its successor follows it, due {}",
                        [said, show(*then).into()],
                    ),
                }
            }
            Wait::Takeover { from, lapsed } => {
                let whose = match from {
                    Some(by) => Phrase::new("wait.lease-of", "the lease of {}", [by.into()]),
                    None => Phrase::new("wait.lease", "the lease", []),
                };
                let lapsed = match lapsed {
                    Some(at) => Phrase::new("wait.lapsed-at", "lapsed at {}", [show(*at).into()]),
                    None => Phrase::new("wait.lapsed", "lapsed", []),
                };
                Phrase::new(
                    "wait.takeover",
                    "{} {}: another instance takes it over, after the renewal period in which its \
                     holder may still come back",
                    [whose, lapsed],
                )
            }
            Wait::Requeue { letter, reason } => {
                let number = letter.map(|number| format!(" {number}"));
                let number = number.unwrap_or_default().into();
                match reason {
                    None => Phrase::new(
                        "wait.requeue",
                        "it is dead letter{}; `keyfall dead requeue` makes it pending again",
                        [number],
                    ),
                    Some(reason) => Phrase::new(
                        "wait.requeue-why",
                        "it is dead letter{}: {}; `keyfall dead requeue` makes it pending again",
                        [number, reason.into()],
                    ),
                }
            }
        }
    }
}

impl KeyDiffers {
    /// The difference in plain words. `show` writes times.
    pub fn sentence(self, show: impl Fn(SystemTime) -> String) -> Phrase {
        let what = match self {
            KeyDiffers::Missing => Phrase::new(
                "differs.missing",
                "its key is missing: no worker heard that it was deleted, evicted or expired \
                 sooner",
                [],
            ),
            KeyDiffers::Lasting => {
                Phrase::new("differs.lasting", "its key has no time to live", [])
            }
            KeyDiffers::OtherTime(at) => {
                Phrase::new("differs.time", "its key expires {}", [show(at).into()])
            }
            KeyDiffers::OtherValue => {
                Phrase::new("differs.value", "its key holds another value", [])
            }
        };
        Phrase::new(
            "differs.so",
            "{}; the job follows an earlier state of the key, or a call has changed the job",
            [what],
        )
    }
}

impl Story {
    /// The gap in the story, in plain words; `None` if nothing is missing. `show` writes times.
    pub fn gap(&self, show: impl Fn(SystemTime) -> String) -> Option<Phrase> {
        let kind: Phrase = self.key.kind().into();
        if self.kept == 0 {
            let what = match self.job {
                Some(_) => Phrase::new(
                    "gap.record",
                    "the story comes from its record, at most the last eight steps",
                    [],
                ),
                None => Phrase::new("gap.ends", "the ends of earlier jobs are unknown", []),
            };
            return Some(Phrase::new(
                "gap.off",
                "the history of {} is off: {}; turn the history on with `keyfall history {}: \
                 --keep 5000`",
                [kind.clone(), what, kind],
            ));
        }
        if self.is_whole && (self.job.is_some() || !self.happenings.is_empty()) {
            return None;
        }
        let reaches = match self.reaches {
            Some(at) => Phrase::new("gap.reaches", "reaches back to {}", [show(at).into()]),
            None => Phrase::new("gap.empty", "is empty", []),
        };
        Some(match self.job {
            Some(_) => Phrase::new(
                "gap.earlier",
                "the history of {} {}: earlier steps come from the record of the job, at most the \
                 last eight",
                [kind, reaches],
            ),
            None => Phrase::new(
                "gap.none",
                "there is no such job, and the history of {}, which {}, knows of none",
                [kind, reaches],
            ),
        })
    }
}
