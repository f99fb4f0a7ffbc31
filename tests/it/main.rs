//! Keyfall against a real Redis, through its public face.
//!
//! | module | what it proves |
//! |---|---|
//! | [`firing`] | a job runs when it is due: once, never early, on whatever path it was found |
//! | [`outcomes`] | what becomes of a job after its handler has said how the run ended |
//! | [`scheduling`] | what schedule does, with its conditions, and what get shows |
//! | [`bulk`] | many jobs in one call |
//! | [`terms`] | policy, attempts, timeout and headers of one job |
//! | [`changing`] | reschedule, fire_now and update_payload in each state of a job |
//! | [`cancelling`] | cancel, before, at and after the start of a run |
//! | [`successors`] | what is scheduled while a job of the same name runs |
//! | [`letters`] | dead letters: looked at, requeued, deleted |
//! | [`limits`] | what is refused, with the rule and the remedy |
//! | [`workers`] | several workers, graceful and hard stops, leases and their take-over |
//! | [`alerts`] | what a daemon tells of dead letters and late starts, by jobs |
//! | [`hooks`] | who is told of dead letters before they are, and of late starts |
//! | [`handing_over`] | jobs that a handler hands to somebody else |
//! | [`lists`] | jobs that go into a Redis list, and come again until they are acknowledged |
//! | [`streams`] | jobs that go into a Redis stream, and what its group says of them |
//! | [`forgotten`] | streams whose Redis forgets or trims what nobody has read |
//! | [`instances`] | many workers: who claims, who paces, what nobody has a route for |
//! | [`founding`] | kinds that start with several shards: all agree on the number |
//! | [`race`] | everything at once, at random, and what must have come of it |
//! | [`killed`] | worker processes that are killed |
//! | [`asleep`] | a machine that sleeps: leases go on meanwhile |
//! | [`steps`] | daemons that are killed at each step of handing over to lists and streams |
//! | [`outages`] | a Redis that is killed, hangs or cuts connections |
//! | [`deadlines`] | a call ends within its time, whatever it consists of |
//! | [`logging`] | what an operator reads of a worker: its start, failed attempts, lapsed leases |
//! | [`lapsed`] | leases that lapse in great number: what is told, how often they are looked for |
//! | [`weather`] | every sort of outage: said once, survived, made good |
//! | [`servers`] | what the bare server does, and where versions differ |
//! | [`keyspace`] | what a server announces of each command that changes a key |
//! | [`adopting`] | plain Redis commands schedule, postpone and cancel |
//! | [`functions`] | Redis functions: any client schedules, cancels and looks up |
//! | [`announced`] | notification flags: merged, looked up again, done without |
//! | [`doctor`] | what is wrong is found, and nothing else; each remedy works as it is written |
//! | [`refused`] | what is refused, by whom, and what the error says |
//! | [`encrypted`] | TLS: what it takes to connect, and what is said if it fails |
//! | [`rights`] | the ACL users of `acl.conf`: exactly what is needed |
//! | [`strangers`] | no Redis, the wrong one, or the wrong user; and no password is printed |
//! | [`backlog`] | a hundred thousand overdue jobs: what they cost, what they delay |
//! | [`crowding`] | what is in the way of what: a backlog, large payloads, a broken ledger |
//! | [`auditing`] | audits find what is missing, and repair it without a loss |
//! | [`sabotage`] | what can be done to each key, and what an audit says of it and leaves |
//! | [`damage`] | what is stored is damaged or deleted by hand while a worker runs |
//! | [`extremes`] | the largest, the oddest and the most: payloads, keys, errors, dead letters |
//! | [`operating`] | kinds, counts, lists, and calls on many jobs at once |
//! | [`telling`] | what the history tells: followed as it happens, and of one job |
//! | [`dropping`] | calls on what never was leave nothing behind; empty kinds are dropped beside producers |
//! | [`pausing`] | paused kinds start nothing until they are resumed |
//! | [`pulling`] | consumers that pull: jobs wait until somebody asks, and are theirs then |
//! | [`callbacks`] | jobs that go to HTTP servers, which misbehave |
//! | [`conformance`] | one suite over all targets: crashes, retries, limits |
//! | [`rerouting`] | routes that are replaced while a worker runs |
//! | [`http`] | the HTTP API of `keyfall serve`, as its clients see it |
//! | [`classic`] | the classic interface, as clients of such queues see it |
//! | [`layers`] | layers of tower around the handlers of a worker |
//! | [`mistakes`] | what the compiler says to those who write a handler that is none |
//! | [`examples`] | each example does what it says, and ends well |
//! | [`bench`] | `keyfall bench` measures what it says, and leaves nothing behind |
//! | [`config`] | `keyfall config` and `keyfall token`: what they print, refuse and leave |
//! | [`commands`] | each command of the operator: what it does, its JSON, its exit codes |
//! | [`topology`] | more than one server: replicas, sentinels, clusters |
//! | [`transfer`] | export and import |
//! | [`terminal`] | what they ask and show at a terminal: prompts, tables, colours, bars |
//! | [`top`] | `keyfall top`, in a terminal multiplexer |
//! | [`dev`] | `keyfall dev` keeps a Redis whose data outlive it |
//! | [`demo`] | the `keyfall` binary keeps its word and leaves nothing behind |
//!
//! All tests but those that ill-treat Redis share one private server, and run in parallel
//! on it: each owns an app segment, and nothing is ever flushed. They wait for what
//! happens, never for a time to pass, and none of them measures how fast it was: on a busy
//! machine everything is late, and has to be right all the same.
#![cfg(unix)]

mod adopting;
mod alerts;
mod announced;
#[cfg(target_os = "linux")]
mod asleep;
mod auditing;
mod backlog;
mod bare_server;
mod bench;
mod bulk;
mod callbacks;
mod cancelling;
mod changing;
mod classic;
mod commands;
mod config;
mod conformance;
mod crowding;
mod damage;
mod deadlines;
mod demo;
mod dev;
mod doctor;
mod dropping;
mod encrypted;
mod examples;
mod extremes;
mod firing;
mod forgotten;
mod founding;
mod functions;
mod handing_over;
mod hooks;
mod http;
mod idempotency;
mod instances;
mod keyspace;
mod killed;
mod lapsed;
mod layers;
mod letters;
mod limits;
mod lists;
mod log;
mod logging;
mod mistakes;
mod monitor;
mod operating;
mod outages;
mod outcomes;
mod pausing;
mod pulling;
mod race;
mod refused;
mod rerouting;
mod resharding;
mod rights;
mod runs;
mod sabotage;
mod scheduling;
mod servers;
mod shell;
mod site;
mod steps;
mod strangers;
mod streams;
mod successors;
mod telling;
mod terminal;
mod terms;
mod top;
mod topology;
mod transfer;
mod version;
mod weather;
mod workers;
