//! Short forms of the calls. Each uses a new lane, as if each came from another client.

use std::time::Duration;

use bytes::Bytes;

use super::{Bench, soon};
use crate::error::Result;
use crate::flaw::Flaw;
use crate::store::ledger::work::DeadLimits;
use crate::store::{
    Alive, Amendment, Answered, BackupItem, Beat, Change, ClaimOrder, ClaimReply, ClaimRequest,
    Claimed, Discard, Extent, Found, JobVersion, Judged, KeptAs, Lane, Mode, Next, Placement,
    Revival, SeriesCall, SeriesJob, SeriesPut, Settlement, Suspect, Update, Verb, When, Word,
};
use crate::time::UnixMs;

/// The header of a job without settings, as clients write it.
pub(in crate::store::tests) const HEADER: &str = r#"{"v":1}"#;

/// Longer than a test runs.
pub(in crate::store::tests) const HOUR: Duration = Duration::from_secs(3600);
pub(in crate::store::tests) const LATER: Duration = Duration::from_secs(7200);
/// The length of a lease that lapses at once.
pub(in crate::store::tests) const MOMENT: Duration = Duration::from_millis(1);

/// Limits that keep all dead letters of a test.
pub(in crate::store::tests) const KEPT: DeadLimits = DeadLimits {
    count: 1000,
    age: HOUR,
};

/// A pending job in a backup; it replaces no job that exists.
pub(in crate::store::tests) const PENDING: KeptAs = KeptAs::Pending { replace: false };

/// A token that no claim has given out.
pub(in crate::store::tests) const NEVER: &str = "ffffffffffffffffffffffff-1";

/// Tokens that do not hold this lease: one that nobody has, and the beginning and a continuation of
/// its own.
pub(in crate::store::tests) fn foreign_tokens(token: &str) -> [String; 3] {
    let beginning = &token[..token.len() - 1];
    [NEVER, beginning, &format!("{token}0")].map(str::to_owned)
}

pub(in crate::store::tests) fn after(delay: Duration) -> When {
    When::After(delay)
}

pub(in crate::store::tests) fn at(ms: u64) -> When {
    When::At(UnixMs(ms))
}

pub(in crate::store::tests) fn later(when: When, step: &'static str) -> Verb {
    let header = String::new();
    Verb::Later { when, header, step }
}

pub(in crate::store::tests) fn bury() -> Verb {
    Verb::Bury {
        header: r#"{"v":1,"error":"no"}"#.into(),
    }
}

/// The word that scripts write for this answer.
pub(in crate::store::tests) fn word(answer: Word) -> &'static str {
    match answer {
        Word::Created(_) => "created",
        Word::Replaced(_) | Word::Superseded => "replaced",
        Word::Succeeds(_) => "succeeds",
        Word::Exists => "exists",
        Word::Overtaken(_) => "overtaken",
        Word::Absent => "absent",
        Word::Moved(_) => "moved",
        Word::Updated(_) => "updated",
        Word::Changed => "changed",
        Word::Planned => "planned",
        Word::SuccessorMoved(_) => "successor",
        Word::Running => "running",
        Word::Cancelled => "cancelled",
        Word::Done => "done",
        Word::Skipped => "skipped",
        Word::Recurs => "recurs",
        Word::Later(_) => "later",
        Word::Buried(_) => "buried",
        Word::Requeued(_) => "requeued",
        Word::Present => "present",
        Word::Deleted => "deleted",
        Word::Gone => "gone",
        Word::Foreign => "foreign",
        Word::Renewed => "renewed",
        Word::Claimed => "claimed",
        Word::Early(_) => "early",
        Word::Leased => "leased",
        Word::Paused => "paused",
        Word::Resumed => "resumed",
        Word::Held => "held",
        Word::Limited => "limited",
        Word::Kept => "kept",
        Word::Shared => "shared",
        Word::Newer(_) => "newer",
        Word::Same => "same",
        Word::Unread => "unread",
        Word::Elsewhere => "elsewhere",
        Word::Stale => "stale",
        Word::Taken => "taken",
        Word::NotYet => "waits",
        Word::Missing => "missing",
        Word::Armed => "armed",
        Word::Disarmed => "disarmed",
        Word::Sound => "sound",
        Word::Flawed(flaw) => flaw_word(flaw),
    }
}

/// A suspect whose name and record the caller has not judged.
pub(in crate::store::tests) fn suspect(name: &str) -> Suspect {
    Suspect {
        name: name.into(),
        judged: Judged::Nothing,
    }
}

fn flaw_word(flaw: Flaw) -> &'static str {
    match flaw {
        Flaw::DueWithoutRecord => "bare",
        Flaw::RecordAlone => "stray",
        Flaw::DueAndLeased => "twice",
        Flaw::LeaseWithoutHolder => "tokenless",
        Flaw::LeaseWithoutDeadline => "timeless",
        Flaw::LapsedWithoutRecord => "blank",
        Flaw::RunningWithoutRecord => "blind",
        Flaw::SuccessorAlone => "headless",
        Flaw::LetterWithoutRecord => "wordless",
        Flaw::LetterRecordAlone => "undead",
        Flaw::LetterMisfiled => "misfiled",
        Flaw::LetterUnfiled => "unfiled",
        Flaw::LetterUnreadable => "illegible",
        Flaw::DueAtNoTime => "untimely",
        Flaw::RecordUnreadable => "garbled",
        Flaw::NameOfNoJob => "alien",
        Flaw::NameAlone => "void",
    }
}

pub(in crate::store::tests) fn words(answers: &[Answered]) -> Vec<&'static str> {
    answers
        .iter()
        .map(|answered| word(answered.answer))
        .collect()
}

/// The due time in an answer.
pub(in crate::store::tests) fn due_of(answer: Word) -> u64 {
    match answer {
        Word::Created(due)
        | Word::Replaced(due)
        | Word::Succeeds(due)
        | Word::Moved(due)
        | Word::Updated(due)
        | Word::SuccessorMoved(due)
        | Word::Requeued(due)
        | Word::Later(due) => due.0,
        other => panic!("{other:?} names no due time"),
    }
}

/// The ids of the jobs in the reply of a claim.
pub(in crate::store::tests) fn ids(reply: &ClaimReply) -> Vec<&str> {
    reply.jobs.iter().map(|job| job.id.as_str()).collect()
}

impl Bench {
    /// Sends a heartbeat of an instance. Returns the other live instances.
    pub(in crate::store::tests) async fn beat(&self, id: &str, room: &str) -> Vec<Alive> {
        let beat = Beat {
            id,
            room,
            description: "{}",
            silence: HOUR,
        };
        self.ledger.server.beat(&beat, soon()).await.unwrap()
    }

    pub(in crate::store::tests) fn placement(&self, id: &str, when: When) -> Placement {
        self.carrying(id, when, id.as_bytes())
    }

    pub(in crate::store::tests) fn carrying(
        &self,
        id: &str,
        when: When,
        payload: &[u8],
    ) -> Placement {
        Placement {
            key: self.key(id),
            mode: Mode::Set,
            when,
            header: HEADER.into(),
            payload: Bytes::copy_from_slice(payload),
        }
    }

    pub(in crate::store::tests) fn change(
        &self,
        id: &str,
        when: When,
        step: &'static str,
    ) -> Change {
        let key = self.key(id);
        Change { key, when, step }
    }

    pub(in crate::store::tests) fn settlement(
        &self,
        id: &str,
        token: &str,
        verb: Verb,
    ) -> Settlement {
        Settlement {
            key: self.key(id),
            token: token.into(),
            verb,
            next: Next::Unknown,
            payload_bytes: 0,
        }
    }

    pub(in crate::store::tests) fn update(&self, id: &str, payload: &[u8]) -> Update {
        let (key, payload) = (self.key(id), Bytes::copy_from_slice(payload));
        Update { key, payload }
    }

    /// A job as it is now.
    pub(in crate::store::tests) async fn seen(&self, id: &str) -> JobVersion {
        let found = self.ledger.get(id, soon()).await.unwrap();
        JobVersion::of(&found).expect("it is pending or running")
    }

    /// An amendment of a job as it is now; it keeps the payload.
    pub(in crate::store::tests) async fn amendment(&self, id: &str, when: When) -> Amendment {
        Amendment {
            key: self.key(id),
            seen: self.seen(id).await,
            when,
            header: HEADER.into(),
            payload: None,
        }
    }

    /// A job of a series, seen as it is now.
    pub(in crate::store::tests) async fn of_series(
        &self,
        id: &str,
        when: Option<When>,
    ) -> SeriesJob {
        let found = self.ledger.get(id, soon()).await.unwrap();
        let is_pending = matches!(found, Found::Pending { .. });
        let put = when.map(|when| SeriesPut {
            when,
            header: HEADER.into(),
            payload: Some(Bytes::from_static(b"member")),
        });
        SeriesJob {
            key: self.key(id),
            seen: JobVersion::of(&found).filter(|_| is_pending),
            put,
        }
    }

    /// Sends one call with a series of these jobs.
    pub(in crate::store::tests) async fn plan(&self, jobs: Vec<SeriesJob>) -> Answered {
        let key = jobs[0].key.clone();
        let items = [SeriesCall { key, jobs }];
        let mut lane = Lane::new();
        self.ledger.plan(&mut lane, &items, soon()).await.unwrap()[0]
    }

    pub(in crate::store::tests) fn revival(&self, id: &str, letter: u64, when: When) -> Revival {
        Revival {
            key: self.key(id),
            letter,
            when,
            header: HEADER.into(),
            record_bytes: 0,
        }
    }

    /// A job in a backup, accepted and failed in 1970.
    pub(in crate::store::tests) fn kept(&self, id: &str, what: KeptAs, at: u64) -> BackupItem {
        BackupItem {
            key: self.key(id),
            what,
            at: UnixMs(at),
            header: r#"{"v":1,"attempts":2,"error":"503"}"#.into(),
            story: "17 failed@18 failed@19".into(),
            payload: Bytes::copy_from_slice(id.as_bytes()),
        }
    }

    pub(in crate::store::tests) async fn restore(&self, items: &[BackupItem]) -> Vec<Answered> {
        self.ledger
            .restore(&mut Lane::new(), items, soon())
            .await
            .unwrap()
    }

    pub(in crate::store::tests) fn discard(&self, id: &str, letter: u64) -> Discard {
        let key = self.key(id);
        Discard { key, letter }
    }

    /// Schedules a job, runs it and buries it. Returns the number of its letter.
    pub(in crate::store::tests) async fn die(&self, id: &str) -> u64 {
        let job = self.run(id, HOUR).await;
        match self.settle(id, &job.token, bury()).await {
            Word::Buried(number) => number,
            other => panic!("{other:?}"),
        }
    }

    pub(in crate::store::tests) async fn place(&self, items: &[Placement]) -> Vec<Answered> {
        self.ledger
            .schedule(&mut Lane::new(), items, soon())
            .await
            .unwrap()
    }

    pub(in crate::store::tests) async fn schedule(&self, id: &str, when: When) -> Word {
        self.place(&[self.placement(id, when)]).await[0].answer
    }

    pub(in crate::store::tests) async fn reschedule(&self, id: &str, when: When) -> Word {
        let items = [self.change(id, when, "postponed")];
        self.ledger
            .reschedule(&mut Lane::new(), &items, soon())
            .await
            .unwrap()[0]
            .answer
    }

    pub(in crate::store::tests) async fn cancel(&self, id: &str) -> Word {
        let items = [self.key(id)];
        self.ledger
            .cancel(&mut Lane::new(), &items, soon())
            .await
            .unwrap()[0]
            .answer
    }

    pub(in crate::store::tests) async fn try_claim(
        &self,
        lane: &mut Lane,
        ids: &[&str],
        fill: usize,
        lease: Duration,
    ) -> Result<ClaimReply> {
        let found = "e".repeat(ids.len());
        self.ledger
            .claim(
                lane,
                ClaimRequest {
                    ids,
                    found: &found,
                    fill,
                    order: ClaimOrder::Oldest,
                },
                lease,
                soon(),
            )
            .await
    }

    pub(in crate::store::tests) async fn claim(&self, ids: &[&str], fill: usize) -> ClaimReply {
        self.try_claim(&mut Lane::new(), ids, fill, HOUR)
            .await
            .unwrap()
    }

    /// Schedules a job for now, and claims it.
    pub(in crate::store::tests) async fn run(&self, id: &str, lease: Duration) -> Claimed {
        self.schedule(id, after(Duration::ZERO)).await;
        self.try_claim(&mut Lane::new(), &[id], 0, lease)
            .await
            .unwrap()
            .jobs
            .remove(0)
    }

    /// As [`run`](Self::run), and waits until the lease has lapsed.
    pub(in crate::store::tests) async fn lapse(&self, id: &str) -> Claimed {
        let job = self.run(id, MOMENT).await;
        self.past(self.deadline(id).await).await;
        job
    }

    pub(in crate::store::tests) async fn try_reclaim(
        &self,
        lane: &mut Lane,
        ids: &[&str],
    ) -> Result<ClaimReply> {
        let keys: Vec<_> = ids.iter().map(|id| self.key(id)).collect();
        self.ledger.reclaim(lane, &keys, HOUR, soon()).await
    }

    pub(in crate::store::tests) async fn reclaim(&self, ids: &[&str]) -> ClaimReply {
        self.try_reclaim(&mut Lane::new(), ids).await.unwrap()
    }

    pub(in crate::store::tests) async fn renew(&self, leases: &[(&str, &str)]) -> Vec<Answered> {
        let own = |(id, token): &(&str, &str)| ((*id).into(), (*token).into());
        let leases: Vec<_> = leases.iter().map(own).collect();
        self.ledger
            .renew(&leases, Extent::Exactly(HOUR), soon())
            .await
            .unwrap()
            .0
    }

    pub(in crate::store::tests) async fn settle_all(&self, items: &[Settlement]) -> Vec<Answered> {
        self.ledger
            .settle(&mut Lane::new(), items, KEPT, soon())
            .await
            .unwrap()
            .0
    }

    pub(in crate::store::tests) async fn settle(&self, id: &str, token: &str, verb: Verb) -> Word {
        self.settle_all(&[self.settlement(id, token, verb)]).await[0].answer
    }
}
