//! Targets: destinations of jobs that no function of this process handles.
//!
//! A target is the handler of a route, like a function: limits, retry policy and timeouts are set
//! in the same way.
//!
//! ```no_run
//! use keyfall::{Client, Router, Worker, target};
//!
//! # async fn example() -> keyfall::Result<()> {
//! let client = Client::connect("redis://127.0.0.1:6379").await?;
//! let app = Router::new()
//!     .route("app1:mail:remind:*", target::list("redis://127.0.0.1:6379", "mails"))
//!     .route("app1:order:close:*", target::stream("redis://127.0.0.1:6379", "orders"));
//! Worker::new(client, app).run().await
//! # }
//! ```
//!
//! | target | treatment of its jobs |
//! |---|---|
//! | `http`, with the feature `callbacks` | posts each to an HTTP server |
//! | [`Pull`] | hands each to a consumer that asks for jobs |
//! | [`List`] | appends each to a Redis list, as JSON |
//! | [`Stream`] | appends each to a Redis stream, as an entry |

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
