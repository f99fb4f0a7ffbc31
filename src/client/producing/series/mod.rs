//! [`Client::series`]: jobs relative to a date, which are made, moved and cancelled as a whole.
//!
//! | part | task |
//! |---|---|
//! | `carrying_out` | reads plan and members, decides, and sends the decision as one call |
//! | `view` | a series as a whole |

mod carrying_out;
mod view;

use std::future::IntoFuture;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use serde::Serialize;

use super::new_job::to_json;
use crate::client::{Client, Pending};
use crate::error::{Error, ErrorKind, Result};
use crate::headers::Headers;
use crate::key::{IntoJobKey, JobKey};
use crate::recurrence::{Anchor, MemberFate, Offset, Past, QuietHours, WantedMember, Wish};
use crate::retry::RetryPolicy;
use crate::settings::MAX_DELAY;
pub use view::{MemberState, MemberView, SeriesView};

/// A call on a series of jobs; from [`Client::series`]. Awaited, it makes or changes the series, and
/// answers [`SeriesChange`]; or [`view`](Self::view), [`preview`](Self::preview) or
/// [`cancel`](Self::cancel) it.
#[must_use = "nothing is changed until it is awaited"]
pub struct Series<'a> {
    client: &'a Client,
    key: Result<JobKey>,
    wish: Result<Wish>,
    payload: Option<Result<Bytes>>,
    terms: Option<Terms>,
}

/// Headers and terms of all members.
#[derive(Default)]
struct Terms {
    headers: Headers,
    retry: Option<RetryPolicy>,
    timeout: Option<Duration>,
    attempts: Option<u32>,
}

/// One member of a series: its offset, and its name and payload if these are its own.
///
/// ```
/// use keyfall::Member;
///
/// let reminder = Member::new("-3d 18:00").named("evening").payload(&"tomorrow but one");
/// # drop(reminder);
/// ```
#[derive(Debug)]
#[must_use = "hand it to `Series::at`"]
pub struct Member {
    offset: Result<Offset>,
    name: Option<String>,
    payload: Option<Result<Bytes>>,
}

/// What a call did with each member of a series.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SeriesChange {
    /// The members of the series in their order, then those that it has no more.
    pub members: Vec<MemberChange>,
    /// The plan of the series is kept until then; `None` if the series is cancelled.
    pub kept_until: Option<SystemTime>,
}

/// What a call did with one member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberChange {
    /// The key of its job.
    pub key: JobKey,
    /// Its offset as text.
    pub offset: String,
    /// What became of it.
    pub fate: MemberFate,
}

impl Member {
    /// A member at this offset, such as `-3d 09:00`. A text that is no offset is reported when the
    /// series is awaited.
    pub fn new(offset: &str) -> Self {
        Member {
            offset: offset.parse(),
            name: None,
            payload: None,
        }
    }

    /// The end of the id of its job, behind the `~`. Defaults to the amount of the offset: `-3d`
    /// for `-3d 09:00`. Two members on one day need names.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// A payload of its own, stored as JSON. Defaults to the payload of the series.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        self.payload = Some(to_json(payload));
        self
    }

    fn wanted(self) -> Result<WantedMember> {
        let payload = self
            .payload
            .transpose()?
            .map(|bytes| String::from_utf8(bytes.into()).expect("JSON is text"));
        Ok(WantedMember {
            offset: self.offset?,
            name: self.name,
            payload,
        })
    }
}

impl From<&str> for Member {
    fn from(offset: &str) -> Self {
        Member::new(offset)
    }
}

impl From<String> for Member {
    fn from(offset: String) -> Self {
        Member::new(&offset)
    }
}

impl From<Offset> for Member {
    fn from(offset: Offset) -> Self {
        Member {
            offset: Ok(offset),
            name: None,
            payload: None,
        }
    }
}

impl Client {
    /// The series with this key: jobs relative to a date, such as the reminders of a booking. Its
    /// members are jobs of their own with the keys `key~-3d`, `key~-1h` and so on; the job with the
    /// key itself holds the plan, and no handler gets it.
    ///
    /// ```no_run
    /// # async fn example(client: keyfall::Client) -> keyfall::Result<()> {
    /// let booking = client.series("app1:booking:remind:42");
    /// booking
    ///     .anchor("2026-12-24 18:00", "Europe/Berlin")
    ///     .at(["-15d 09:00", "-3d 09:00", "-1h", "+1d 10:00"])
    ///     .payload(&"booking 42")
    ///     .await?;
    /// // The guest comes a day later: one call moves all reminders that have not begun.
    /// client
    ///     .series("app1:booking:remind:42")
    ///     .anchor("2026-12-25 18:00", "Europe/Berlin")
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A new series needs [`anchor`](Series::anchor) and [`at`](Series::at); of a series that
    /// exists, what is not named stays as it is. See `docs/series.md`.
    pub fn series(&self, key: impl IntoJobKey) -> Series<'_> {
        Series {
            client: self,
            key: key.into_job_key(),
            wish: Ok(Wish::default()),
            payload: None,
            terms: None,
        }
    }
}

impl<'a> Series<'a> {
    fn wishing(mut self, change: impl FnOnce(&mut Wish) -> Result<()>) -> Self {
        self.wish = self
            .wish
            .and_then(|mut wish| change(&mut wish).map(|()| wish));
        self
    }

    /// The date that the series is relative to, and the time zone of its times on the wall, by its
    /// name in the IANA database: a time, `"2026-12-24 18:00"`, which is on the wall of the zone, or
    /// `"2026-12-24"`, which is its midnight.
    ///
    /// Members that have not begun move with it, in one step. A member that has run for the date
    /// before does not run for the new one, unless [`again`](Self::again) asks for it.
    pub fn anchor(self, at: impl Into<Anchor>, zone: &str) -> Self {
        self.wishing(|wish| {
            wish.anchor = Some((at.into(), Some(zone.to_owned())));
            Ok(())
        })
    }

    /// As [`anchor`](Self::anchor), in the zone that the series has.
    pub fn move_to(self, at: impl Into<Anchor>) -> Self {
        self.wishing(|wish| {
            wish.anchor = Some((at.into(), None));
            Ok(())
        })
    }

    /// The members: offsets such as `-3d 09:00`, or [`Member`]s with names or payloads of their
    /// own; [`MAX_MEMBERS`](crate::MAX_MEMBERS) at the most. Of a series that exists, members that
    /// are not named any more are cancelled.
    pub fn at(self, members: impl IntoIterator<Item = impl Into<Member>>) -> Self {
        self.wishing(|wish| {
            let members = members.into_iter().map(|it| it.into().wanted());
            wish.members = Some(members.collect::<Result<_>>()?);
            Ok(())
        })
    }

    /// The payload of all members that have none of their own, stored as JSON. Defaults to no
    /// bytes.
    pub fn payload(mut self, payload: &(impl Serialize + ?Sized)) -> Self {
        self.payload = Some(to_json(payload));
        self
    }

    /// What becomes of members whose time has passed. Defaults to [`Past::Skip`]: they are left
    /// out.
    pub fn past(self, past: Past) -> Self {
        self.wishing(|wish| {
            wish.past = Some(past);
            Ok(())
        })
    }

    /// Hours and days on which no member is due; `None` ends them. In the zone of the series, unless
    /// they have a zone of their own. Defaults to none.
    pub fn quiet(self, quiet: impl Into<Option<QuietHours>>) -> Self {
        self.wishing(|wish| {
            wish.quiet = Some(quiet.into());
            Ok(())
        })
    }

    /// How long the plan is kept after the last member, for [`view`](Self::view): from an hour to a
    /// year. Defaults to 30 days.
    pub fn keep(self, after_last: Duration) -> Self {
        const HOUR: Duration = Duration::from_secs(3600);
        self.wishing(|wish| {
            if !(HOUR..=MAX_DELAY / 10).contains(&after_last) {
                return Err(Error::new(
                    ErrorKind::InvalidSetting,
                    format!("`keep` is {after_last:?}, and it is from an hour to a year: is the unit right?"),
                ));
            }
            wish.keep = u64::try_from(after_last.as_millis()).ok();
            Ok(())
        })
    }

    /// Makes members run again that have ended. Defaults to no.
    pub fn again(self) -> Self {
        self.wishing(|wish| {
            wish.is_again = true;
            Ok(())
        })
    }

    fn terms(mut self, change: impl FnOnce(&mut Terms)) -> Self {
        change(self.terms.get_or_insert_default());
        self
    }

    /// Adds a header to all members. Headers and terms of one call replace all that the series had.
    pub fn header(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.terms(|terms| drop(terms.headers.insert(name, value)))
    }

    /// The retry policy of all members. Defaults to the policy of their route.
    pub fn retry(self, policy: RetryPolicy) -> Self {
        self.terms(|terms| terms.retry = Some(policy))
    }

    /// The limit of attempts of each member, including the first run. Defaults to the limit of the
    /// policy.
    pub fn attempts(self, limit: u32) -> Self {
        self.terms(|terms| terms.attempts = Some(limit))
    }

    /// The longest that a run of a member may take. Defaults to the timeout of the route.
    pub fn timeout(self, limit: Duration) -> Self {
        self.terms(|terms| terms.timeout = Some(limit))
    }

    /// What the call would do, without doing it.
    ///
    /// # Errors
    /// As when it is awaited.
    pub async fn preview(self) -> Result<SeriesChange> {
        self.change(true).await
    }

    /// Cancels the series: its members that are pending, and its plan, in one step. A member that
    /// runs is told by its answer, and its run goes on. `None` if there is no such series.
    ///
    /// # Errors
    /// If the key is not valid, a record is damaged, or Redis does not answer in time.
    pub async fn cancel(self) -> Result<Option<SeriesChange>> {
        self.cancel_all().await
    }

    /// The series as a whole: what ran, what is to come, and what was left out and why. `None` if
    /// there is no such series.
    ///
    /// # Errors
    /// If the key is not valid, a record is damaged, or Redis does not answer in time.
    pub async fn view(self) -> Result<Option<SeriesView>> {
        self.look().await
    }
}

impl<'a> IntoFuture for Series<'a> {
    type Output = Result<SeriesChange>;
    type IntoFuture = Pending<'a, SeriesChange>;

    /// Makes or changes the series.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidRule`] if anchor, offsets or names are not valid, or a new series lacks
    /// one of them; [`ErrorKind::InvalidTime`] if a member would be due more than 10 years ahead;
    /// or if a payload or a term is not valid, Redis does not answer in time, or Redis is full.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.change(false))
    }
}
