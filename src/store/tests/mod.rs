//! The answers and the writes of each script, in every state of a job, against a real server.

mod support;

// One file for each script.
mod activity;
mod adopt;
mod amend;
mod archive;
mod audit;
mod beat;
mod cancel;
mod changes;
mod claim;
mod discard;
mod letters;
mod limit;
mod list;
mod mend;
mod pause;
mod plan;
mod raze;
mod reads;
mod reclaim;
mod renew;
mod requeue;
mod reschedule;
mod restore;
mod schedule;
mod settle;
mod shares;
mod streams;
mod update;

// Behaviour that several scripts share.
mod clock;
mod damaged;
mod dead;
mod groups;
mod headers;
mod history;
mod lanes;
mod layouts;
mod moving;
mod order;
mod refused;
mod torn;
mod touch;
mod triggers;
mod wake;

// All of them, in random sequences.
mod model;
