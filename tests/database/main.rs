//! Keyfall beside a real PostgreSQL.
//!
//! | module | content |
//! |---|---|
//! | [`outbox`] | rows of the outbox become jobs: once, in order, after the commit, or are refused |
//! | [`archive`] | jobs that have ended: stored once, dropped by months, found again |
//! | [`archiver`] | the records of ended jobs are stored once, whatever is killed meanwhile |
//! | [`copier`] | the copy follows Redis, and brings back what Redis has lost |
//! | [`copy`] | pending jobs are mirrored: the newest version wins, whatever is killed meanwhile |
//! | [`crashes`] | relays, PostgreSQL and Redis are killed at each step |
//! | [`trouble`] | silent networks, locks, a full disk, a Redis that refuses |
//! | [`place`] | TLS, passwords, encodings, and clocks that are wrong |
//! | [`examples`] | the examples of the package |
//! | [`rates`] | how fast rows are passed on |
//! | [`schema`] | the tables: made twice, changed by somebody, used with few rights |
//! | [`site`] | the databases and the Redis that the tests share |
#![cfg(unix)]

mod archive;
mod archiver;
mod copier;
mod copy;
mod crashes;
mod examples;
mod outbox;
mod place;
mod rates;
mod schema;
mod site;
mod trouble;
