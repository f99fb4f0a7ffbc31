//! The arguments of handlers: extractors, each made from the job and the router's state.

use std::error::Error as StdError;
use std::time::Duration;

use bytes::Bytes;
use serde::de::DeserializeOwned;

use super::segments::NamedSegments;
use super::{CancelSignal, Job};
use crate::headers::Headers;
use crate::outcome::{Failure, IntoOutcome, Outcome};

/// An argument of a handler: it is made from the job and the router's state.
///
/// | argument | value |
/// |---|---|
/// | [`Json<T>`](Json) | the payload, decoded |
/// | [`Payload`] | the payload, byte for byte |
/// | [`Segments<T>`](Segments) | the named segments of the route, typed |
/// | [`State<T>`](State) | the router's state, or a part of it |
/// | [`Headers`] | the headers |
/// | [`CancelSignal`] | the signal to stop |
/// | [`Job`] | the whole job |
///
/// Your own extractor may be asynchronous, and may fail with `?`, which retries the job:
///
/// ```
/// use keyfall::{FromJob, Job, Rejection};
/// # struct Db;
/// # impl Db {
/// #     async fn order(&self, _: &str) -> std::io::Result<Option<Order>> { Ok(None) }
/// # }
/// struct Order { total: u64 }
///
/// impl FromJob<Db> for Order {
///     async fn from_job(job: &Job, db: &Db) -> Result<Self, Rejection> {
///         let id = job.segment("order").unwrap_or_default();
///         db.order(id).await?.ok_or_else(|| Rejection::bury("there is no such order"))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be made from a job on a router whose state is `{S}`",
    label = "a handler cannot take this as an argument",
    note = "take `Json<T>` for the payload, `Segments<T>` for the named segments of the route, \
            `State<T>` for the state, or implement `FromJob` for it"
)]
pub trait FromJob<S>: Sized {
    /// Makes the argument.
    ///
    /// # Errors
    /// A [`Rejection`], which ends the run without the handler being called.
    fn from_job(job: &Job, state: &S) -> impl Future<Output = Result<Self, Rejection>> + Send;
}

/// The end of a run whose handler could not be called, because an argument could not be made.
///
/// Any `std::error::Error` becomes a rejection with `?`, and the job is retried as its policy says.
/// The attempt counts.
///
/// ```
/// use keyfall::{FromJob, Job, Rejection};
/// use std::time::Duration;
///
/// struct Tenant(String);
///
/// impl<S: Sync> FromJob<S> for Tenant {
///     async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
///         match job.headers().get("tenant") {
///             Some("") => Err(Rejection::retry_after(Duration::from_secs(60), "no tenant yet")),
///             Some(name) => Ok(Tenant(name.to_owned())),
///             None => Err(Rejection::bury("the job has no header `tenant`")),
///         }
///     }
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rejection(Outcome);

impl Rejection {
    /// Buries the job: another attempt cannot help.
    pub fn bury(reason: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Rejection(Outcome::bury(reason))
    }

    /// Retries the job as its policy says. The attempt counts.
    pub fn retry(error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Rejection(Outcome::retry(error))
    }

    /// Retries the job `after` the end of this run, if its policy has an attempt left. The attempt
    /// counts.
    pub fn retry_after(after: Duration, error: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Rejection(Outcome::retry_after(after, error))
    }
}

impl IntoOutcome for Rejection {
    fn into_outcome(self) -> Outcome {
        self.0
    }
}

impl<E: StdError + Send + Sync + 'static> From<E> for Rejection {
    fn from(error: E) -> Self {
        Rejection::retry(error)
    }
}

/// The payload, decoded from JSON. A payload that does not decode, or has more text behind its
/// value, becomes a dead letter whose reason names the path of the fault.
///
/// ```
/// use keyfall::Json;
/// # use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct Notice { user: u64, text: String }
///
/// async fn notify(Json(notice): Json<Notice>) {
///     println!("to user {}: {}", notice.user, notice.text);
/// }
/// # let _app: keyfall::Router = keyfall::Router::new().route("a:b:c:*", notify);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Json<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromJob<S> for Json<T> {
    async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
        let mut json = serde_json::Deserializer::from_slice(job.payload());
        let fault = match serde_path_to_error::deserialize(&mut json) {
            Ok(value) => match json.end() {
                Ok(()) => return Ok(Json(value)),
                Err(fault) => undecodable("", &fault),
            },
            Err(fault) => match fault.path().to_string().as_str() {
                // The fault is in the payload as a whole.
                "." => undecodable("", fault.inner()),
                path => undecodable(&format!(", at `{path}`"), fault.inner()),
            },
        };
        Err(fault)
    }
}

/// Buries the job with the place and the text of the fault. `place` is empty, or `, at` and a path.
fn undecodable(place: &str, fault: &serde_json::Error) -> Rejection {
    Rejection(Outcome::Bury {
        reason: Failure::written(format_args!("the payload does not decode{place}: {fault}")),
    })
}

/// The payload, byte for byte. It shares the memory of the job, so it costs no copy.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Payload(pub Bytes);

impl<S: Sync> FromJob<S> for Payload {
    async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
        Ok(Payload(job.payload().clone()))
    }
}

/// The named segments of the route, typed.
///
/// | `T` | segments |
/// |---|---|
/// | one value: a number, `String`, `char`, an enum without data, a `Uuid` … | the only named segment |
/// | a tuple, or a `Vec` | all of them, in the order of the route |
/// | a struct | the segments with the names of its fields |
/// | a `HashMap` | all of them, by name |
///
/// A job with a segment that does not parse becomes a dead letter whose reason names the segment.
///
/// ```
/// use keyfall::{Outcome, Router, Segments};
///
/// async fn notify(Segments((app, order)): Segments<(String, u64)>) -> Outcome {
///     println!("order {order} of {app}");
///     Outcome::Done
/// }
///
/// let app: Router = Router::new().route("{app}:trans:notice:{order}", notify);
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Segments<T>(pub T);

impl<T: DeserializeOwned, S: Sync> FromJob<S> for Segments<T> {
    async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
        T::deserialize(NamedSegments::of(job))
            .map(Segments)
            .map_err(Rejection::bury)
    }
}

/// The router's state, or a part of it: see [`FromRef`]. It is cloned for each run, so a large
/// state belongs in an `Arc`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct State<T>(pub T);

impl<T: FromRef<S>, S: Sync> FromJob<S> for State<T> {
    async fn from_job(_: &Job, state: &S) -> Result<Self, Rejection> {
        Ok(State(T::from_ref(state)))
    }
}

/// A part of a router's state, which [`State`] can extract. Every `Clone` state is a part of
/// itself.
///
/// ```
/// use keyfall::{FromRef, State};
/// # #[derive(Clone)] struct Db;
/// # #[derive(Clone)] struct Mailer;
///
/// struct App { db: Db, mailer: Mailer }
///
/// impl FromRef<App> for Mailer {
///     fn from_ref(app: &App) -> Mailer {
///         app.mailer.clone()
///     }
/// }
///
/// async fn remind(State(mailer): State<Mailer>) { /* … */ }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not part of the router's state, `{S}`",
    note = "take `State<{S}>`, or implement `FromRef<{S}>` for `{Self}`; `State` also needs \
            the state to be `Clone`"
)]
pub trait FromRef<S> {
    /// Clones the part out of the whole state.
    fn from_ref(state: &S) -> Self;
}

impl<T: Clone> FromRef<T> for T {
    fn from_ref(state: &T) -> T {
        state.clone()
    }
}

impl<S: Sync> FromJob<S> for Job {
    async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
        Ok(job.clone())
    }
}

impl<S: Sync> FromJob<S> for Headers {
    async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
        Ok(job.headers().clone())
    }
}

impl<S: Sync> FromJob<S> for CancelSignal {
    async fn from_job(job: &Job, _: &S) -> Result<Self, Rejection> {
        Ok(job.cancellation().clone())
    }
}
