//! The log of actions: who did what to which jobs, and when. Programs through which people operate
//! write it; the daemon does so for its HTTP API.

use std::future::IntoFuture;
use std::time::SystemTime;

use crate::client::{Client, Pending};
use crate::error::Result;
use crate::store::{ActionEntry, this_process};
use crate::time::UnixMs;

/// The longest text of a field, in characters.
const LONGEST: usize = 1000;

/// An action of an operator; from [`Client::actions`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Action {
    /// The time, by Redis' clock.
    pub at: SystemTime,
    /// The action, such as `pause`.
    pub what: String,
    /// The key, kind or prefix of the jobs; empty for all jobs.
    pub on: String,
    /// The operator.
    pub who: String,
    /// The process that carried it out, as `host:process`.
    pub by: String,
    /// The number of jobs, dead letters or kinds that were changed.
    pub count: Option<u64>,
    /// Details, such as the new due time.
    pub note: Option<String>,
}

/// A call to [`Client::log_action`]; sent when it is awaited.
#[must_use = "nothing is logged until it is awaited"]
pub struct LogAction<'a> {
    client: &'a Client,
    what: String,
    on: String,
    who: Option<String>,
    count: Option<u64>,
    note: Option<String>,
}

impl Client {
    /// Adds an action to the log of actions, a stream of some 10,000 entries. `what` is a word for
    /// the action, and `on` the key, kind or prefix of the jobs, empty for all jobs.
    ///
    /// # Errors
    /// When it is awaited: if Redis does not answer in time, is full, or denies the right.
    pub fn log_action(&self, what: &str, on: &str) -> LogAction<'_> {
        LogAction {
            client: self,
            what: what.to_owned(),
            on: on.to_owned(),
            who: None,
            count: None,
            note: None,
        }
    }

    /// The last actions that `is_wanted` accepts, `last` at the most, the newest first. Of several
    /// servers, those that are away are left out.
    ///
    /// # Errors
    /// If Redis does not answer in time, or denies the right.
    pub async fn actions(
        &self,
        last: usize,
        is_wanted: impl Fn(&Action) -> bool + Send + Sync,
    ) -> Result<Vec<Action>> {
        let read = |entry| Some(Action::of(entry)).filter(|action| is_wanted(action));
        let found = self.store().actions(last, &read, self.deadline());
        let mut actions = found.await?;
        actions.sort_by_key(|action| std::cmp::Reverse(action.at));
        actions.truncate(last);
        Ok(actions)
    }
}

impl LogAction<'_> {
    /// The operator. Defaults to this process, as `host:process`.
    pub fn who(mut self, who: impl Into<String>) -> Self {
        self.who = Some(who.into());
        self
    }

    /// The number of jobs, dead letters or kinds that were changed.
    pub fn count(mut self, changed: u64) -> Self {
        self.count = Some(changed);
        self
    }

    /// Details, such as the new due time.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    async fn send(self) -> Result<()> {
        let by = this_process();
        let who = self.who.as_deref().unwrap_or(by);
        let count = self.count.map(|count| count.to_string());
        let mut fields = vec![
            ("what", &*self.what),
            ("on", &*self.on),
            ("who", who),
            ("by", by),
        ];
        fields.extend(count.as_ref().map(|count| ("count", &**count)));
        fields.extend(self.note.as_ref().map(|note| ("note", &**note)));
        for (_, text) in &mut fields {
            if let Some((end, _)) = text.char_indices().nth(LONGEST) {
                *text = &text[..end];
            }
        }
        let until = self.client.deadline();
        self.client.store().log_action(&fields, until).await
    }
}

impl Action {
    /// Reads an entry. Fields that another program has left out are empty.
    fn of((id, fields): ActionEntry) -> Self {
        let find = |name: &str| {
            let field = fields.iter().find(|(field, _)| field == name);
            field.map(|(_, value)| value.clone())
        };
        let field = |name| find(name).unwrap_or_default();
        let ms = id.split('-').next().and_then(|ms| ms.parse().ok());
        Action {
            at: UnixMs(ms.unwrap_or_default()).to_system(),
            what: field("what"),
            on: field("on"),
            who: field("who"),
            by: field("by"),
            count: find("count").and_then(|count| count.parse().ok()),
            note: find("note"),
        }
    }
}

impl<'a> IntoFuture for LogAction<'a> {
    type Output = Result<()>;
    type IntoFuture = Pending<'a, ()>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.send())
    }
}
