//! Where a job can go that is not a function: to an HTTP server, to whoever pulls it, or into a list
//! or a stream of Redis.
//!
//! A target is the handler of a route, like any other.
//!
//! | target | its jobs |
//! |---|---|
//! | `http`, with the feature `callbacks` | are posted to an HTTP server |
//! | [`Pull`] | go to whoever asks for them |
//! | [`List`] | are appended to a Redis list, as JSON |
//! | [`Stream`] | are entries of a Redis stream |

mod document;
#[cfg(feature = "callbacks")]
mod http;
mod list;
mod pace;
mod receipts;
mod stream;
mod target_key;
mod watch;

pub use crate::handler::{Pull, Pulled};
#[cfg(feature = "callbacks")]
pub use http::{Calls, Http, http, http_of_jobs};
pub use list::{List, Lists, list};
pub use stream::{Stream, Streams, stream};
