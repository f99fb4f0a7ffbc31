//! `keyfall serve`: Keyfall for services in any language.
//!
//! | part | what it does |
//! |---|---|
//! | [`config`] | what it is told, by file, environment and flags |
//! | [`tokens`] | by which those are known who call it |
//! | [`access`] | ties them to the HTTP API |
//! | [`alerts`] | tells of dead letters and late starts, by jobs |
//! | [`http`] | the HTTP API |
//! | [`new_kinds`] | how many kinds may begin |
//! | [`traces`] | to which trace a request belongs, and where traces are sent |
//! | [`classic`] | the interface for clients of classic delay queues |

mod access;
mod alerts;
pub(crate) mod classic;
pub(crate) mod config;
mod http;
mod new_kinds;
pub(crate) mod tokens;
pub(crate) mod traces;

pub(crate) use alerts::Alerts;
pub(crate) use http::{
    Api, Recorder, RouteSet, RouteTerms, Routes, Settings, allow_connections, bind, in_process,
    serve, shapes,
};
pub(crate) use new_kinds::NewKinds;
