//! `keyfall serve`: schedules and hands out jobs over HTTP.

mod http;

pub(crate) use http::{Api, Settings, serve};
