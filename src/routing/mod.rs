//! Patterns of routes, and the rule that decides which route owns a job key.
//!
//! A [`Pattern`] has four segments, like a key. Each of them has one of three ranks:
//!
//! | segment | rank | takes |
//! |---|---|---|
//! | `notice` | literal | that text |
//! | `{order:[0-9]+}` | regex | a text that the regex matches from its first to its last character |
//! | `{order}`, `*` | any | any text, with or without a name |
//!
//! Of the routes that match a key, the one with the highest priority owns it; among equals the
//! ranks decide, from left to right: a literal before a regex before any text. Two routes that this
//! leaves tied for some key [`clash`], and are refused when they are registered, so that ownership
//! never depends on the order of registration.
//!
//! The modules build on one another in this order: `overlap` decides whether regexes have a text in
//! common, `segment` and `pattern` parse, `table` finds the owner.

mod overlap;
mod pattern;
#[cfg(test)]
mod properties;
mod segment;
mod table;
#[cfg(test)]
mod tests;

pub(crate) use pattern::Pattern;
pub(crate) use table::{Coverage, RouteTable, clash, clash_error};
