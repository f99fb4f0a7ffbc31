//! The states of a job: the ways into each, and its stored form.

use std::time::Duration;

use super::Bench;
use super::calls::{HOUR, LATER, MOMENT, after, bury, later, word};
use crate::record::Record;
use crate::store::Answered;

/// The state of one job, or of several.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::store::tests) enum State {
    Absent,
    /// Due in an hour.
    Pending,
    Due,
    /// It failed, and waits for another attempt.
    Retrying,
    Leased,
    /// Leased, with a successor.
    LeasedNext,
    /// Cancelled while it was leased.
    CancelledRun,
    CancelledRunNext,
    Lapsed,
    LapsedNext,
    LapsedCancelled,
    LapsedCancelledNext,
    Dead,
}

use State::*;

impl State {
    pub(in crate::store::tests) const ALL: [State; 13] = [
        Absent,
        Pending,
        Due,
        Retrying,
        Leased,
        LeasedNext,
        CancelledRun,
        CancelledRunNext,
        Lapsed,
        LapsedNext,
        LapsedCancelled,
        LapsedCancelledNext,
        Dead,
    ];

    /// The id of the job that `every_state` brings into this state.
    pub(in crate::store::tests) fn id(self) -> String {
        format!("{self:?}")
    }

    fn lapses(self) -> bool {
        matches!(
            self,
            Lapsed | LapsedNext | LapsedCancelled | LapsedCancelledNext
        )
    }
}

impl Bench {
    /// Brings one job into each state. Returns their ids, and the tokens of the jobs that are or
    /// were leased; the others get `fallback`.
    pub(in crate::store::tests) async fn every_state(&self) -> Vec<(String, String)> {
        let mut jobs = Vec::new();
        for state in State::ALL {
            let token = self.bring(&state.id(), state).await;
            jobs.push((state.id(), token));
        }
        for (state, (id, _)) in State::ALL.iter().zip(&jobs) {
            assert_eq!(self.state(id).await, *state);
        }
        jobs
    }

    /// Brings a job into a state. Returns the token that it was claimed with, or `-`.
    pub(in crate::store::tests) async fn bring(&self, id: &str, state: State) -> String {
        match state {
            Absent => return "-".into(),
            Pending => {
                self.schedule(id, after(HOUR)).await;
                return "-".into();
            }
            Due => {
                self.schedule(id, after(Duration::ZERO)).await;
                return "-".into();
            }
            _ => {}
        }
        let lease = if state.lapses() { MOMENT } else { HOUR };
        let token = self.run(id, lease).await.token;
        match state {
            Retrying => {
                self.settle(id, &token, later(after(HOUR), "failed")).await;
            }
            Dead => {
                self.settle(id, &token, bury()).await;
            }
            _ => {}
        }
        if matches!(
            state,
            CancelledRun | CancelledRunNext | LapsedCancelled | LapsedCancelledNext
        ) {
            self.cancel(id).await;
        }
        if matches!(
            state,
            LeasedNext | CancelledRunNext | LapsedNext | LapsedCancelledNext
        ) {
            self.schedule(id, after(LATER)).await;
        }
        if state.lapses() {
            self.past(self.deadline(id).await).await;
        }
        token.to_string()
    }

    /// The state of a job according to its stored data; fails if they contradict each other.
    pub(in crate::store::tests) async fn state(&self, id: &str) -> State {
        let now = self.now().await;
        let lease = self.lease(id).await;
        let deadline = self.score(&self.names().leased, id).await;
        let next = self.field(&self.names().next, id).await;
        let record = self.field(&self.names().shadow, id).await;
        assert_eq!(lease.is_some(), deadline.is_some(), "{id}: half a lease");
        let Some(due) = self.due(id).await else {
            let Some(lease) = lease else {
                assert!(record.is_none(), "{id}: a record of nothing");
                assert!(next.is_none(), "{id}: a successor of nothing");
                let letters = self.field(&self.names().grave, id).await;
                return if letters.is_some() { Dead } else { Absent };
            };
            assert!(record.is_some(), "{id}: leased without a record");
            let lapsed = deadline.is_some_and(|deadline| deadline <= now);
            return match (lapsed, lease.ends_with(" cancelled"), next.is_some()) {
                (false, false, false) => Leased,
                (false, false, true) => LeasedNext,
                (false, true, false) => CancelledRun,
                (false, true, true) => CancelledRunNext,
                (true, false, false) => Lapsed,
                (true, false, true) => LapsedNext,
                (true, true, false) => LapsedCancelled,
                (true, true, true) => LapsedCancelledNext,
            };
        };
        assert!(lease.is_none(), "{id}: both due and leased");
        assert!(next.is_none(), "{id}: a successor of what does not run");
        let record = Record::parse(record.expect("a pending job has a record")).unwrap();
        if due <= now {
            Due
        } else if record.steps.iter().any(|step| step.what == "failed") {
            Retrying
        } else {
            Pending
        }
    }

    /// Checks the answers of a call, and the states of the jobs after it, against a table with a
    /// row for each state.
    pub(in crate::store::tests) async fn hold_against(
        &self,
        table: [(State, &str, State); State::ALL.len()],
        answers: &[Answered],
    ) {
        let mut found = Vec::new();
        for (state, answered) in State::ALL.into_iter().zip(answers) {
            let after = self.state(&state.id()).await;
            found.push((state, word(answered.answer), after));
        }
        assert_eq!(found, table);
    }

    pub(in crate::store::tests) async fn due(&self, id: &str) -> Option<u64> {
        self.score(&self.names().due, id).await
    }

    /// The end of the lease of a job, Unix ms.
    pub(in crate::store::tests) async fn deadline(&self, id: &str) -> u64 {
        let deadline = self.score(&self.names().leased, id).await;
        deadline.expect("a lease")
    }

    /// The lease of a job: `token claims fence due flag`.
    pub(in crate::store::tests) async fn lease(&self, id: &str) -> Option<String> {
        let lease = self.field(&self.names().lease, id).await?;
        Some(String::from_utf8(lease).unwrap())
    }

    pub(in crate::store::tests) async fn record(&self, id: &str) -> Record {
        let record = self.field(&self.names().shadow, id).await;
        Record::parse(record.expect("a record")).unwrap()
    }

    /// The due time and the record of the successor of a run.
    pub(in crate::store::tests) async fn successor(&self, id: &str) -> (u64, Record) {
        let next = self
            .field(&self.names().next, id)
            .await
            .expect("a successor");
        let blank = next.iter().position(|byte| *byte == b' ').unwrap();
        let due = std::str::from_utf8(&next[..blank])
            .unwrap()
            .parse()
            .unwrap();
        (due, Record::parse(next[blank + 1..].to_vec()).unwrap())
    }

    pub(in crate::store::tests) async fn field(&self, key: &str, field: &str) -> Option<Vec<u8>> {
        self.ask(&["HGET", key, field]).await
    }

    pub(in crate::store::tests) async fn score(&self, key: &str, member: &str) -> Option<u64> {
        let score: Option<f64> = self.ask(&["ZSCORE", key, member]).await;
        score.map(|score| score as u64)
    }
}
