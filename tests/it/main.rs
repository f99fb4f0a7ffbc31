//! Keyfall against a real Redis, through its public API.
//!
//! | module | content |
//! |---|---|
//! | [`firing`] | a job runs when it is due: once, never early, on each path by which it can be found |
//! | [`outcomes`] | the fate of a job after each outcome of its handler |
//! | [`scheduling`] | schedule with its conditions, and the view of get |
//! | [`bulk`] | many jobs in one call |
//! | [`numbered`] | batches that are sent again after a crash do nothing twice |
//! | [`terms`] | policy, attempts, timeout and headers of one job |
//! | [`changing`] | reschedule, fire_now and update_payload in each state of a job |
//! | [`cancelling`] | cancel, before, at and after the start of a run |
//! | [`successors`] | jobs scheduled while a job of the same name runs |
//! | [`series`] | jobs relative to a date: made, moved and cancelled as a whole; quiet hours |
//! | [`letters`] | dead letters: viewed, requeued, deleted |
//! | [`limits`] | refused values, with the rule and the remedy |
//! | [`workers`] | several workers, graceful and hard stops, leases and their take-over |
//! | [`alerts`] | jobs by which a daemon reports dead letters and late starts |
//! | [`late`] | limits of lateness: what is skipped, buried or spread, and times that a rule missed |
//! | [`archiving`] | kinds leave records of their ended jobs for an archive |
//! | [`database`] | `keyfall serve` and `keyfall database` beside a PostgreSQL |
//! | [`hooks`] | hooks before a job becomes a dead letter, and at late starts |
//! | [`handing_over`] | jobs that a handler hands over to another program |
//! | [`lists`] | jobs that go into a Redis list, and come again until they are acknowledged |
//! | [`streams`] | jobs that go into a Redis stream, and the receipts of its group |
//! | [`forgotten`] | streams whose Redis forgets entries or trims unread ones |
//! | [`instances`] | many workers: shared claims and pacing, unrouted jobs |
//! | [`founding`] | kinds that start with several shards: all clients agree on the number |
//! | [`race`] | everything at once, at random, and the invariants afterwards |
//! | [`killed`] | worker processes that are killed |
//! | [`asleep`] | a machine that sleeps, while leases go on |
//! | [`steps`] | daemons that are killed at each step of handing over to lists and streams |
//! | [`outages`] | a Redis that is killed, hangs or cuts connections |
//! | [`deadlines`] | a call of several requests ends within its timeout |
//! | [`logging`] | the log of a worker: its start, failed attempts, lapsed leases |
//! | [`lapsed`] | leases that lapse in great number: their log, and how often workers look for them |
//! | [`weather`] | every sort of outage: logged once, without a loss |
//! | [`servers`] | the behaviour of the bare server, and differences of versions |
//! | [`keyspace`] | the announcements for each command that changes a key |
//! | [`adopting`] | plain Redis commands schedule, postpone and cancel |
//! | [`functions`] | Redis functions: any client schedules, cancels and looks up |
//! | [`announced`] | notification flags: merged, read again, missing |
//! | [`doctor`] | it finds exactly the problems; each remedy works as it is printed |
//! | [`refused`] | refused calls and connections, and their errors |
//! | [`encrypted`] | TLS: settings to connect, and errors if it fails |
//! | [`rights`] | the ACL users of `acl.conf`: exactly the necessary rules |
//! | [`strangers`] | servers that are not Redis, the wrong Redis, or the wrong user; no password is
//! printed |
//! | [`backlog`] | a hundred thousand overdue jobs: their cost and their effect on others |
//! | [`crowding`] | possible hindrances: a backlog, large payloads, a broken ledger |
//! | [`auditing`] | audits find flaws, and repair them without a loss |
//! | [`stored`] | each key and value in Redis is as `docs/stored.md` says |
//! | [`upgrades`] | data of a newer version are refused, and left as they are |
//! | [`sabotage`] | damage to each key, and its audit and repair |
//! | [`damage`] | stored data is damaged or deleted by hand while a worker runs |
//! | [`extremes`] | the largest, the oddest and the most: payloads, keys, errors, dead letters |
//! | [`operating`] | kinds, counts, lists, and calls on many jobs at once |
//! | [`telling`] | the history: tails that follow it, and stories of single jobs |
//! | [`dropping`] | calls on unknown kinds leave no key; empty kinds are dropped beside producers |
//! | [`pausing`] | paused kinds start nothing until they are resumed |
//! | [`pulling`] | consumers that pull: jobs wait until a consumer pulls them |
//! | [`callbacks`] | jobs that go to HTTP servers, which misbehave |
//! | [`conformance`] | one suite over all targets: crashes, retries, limits |
//! | [`clients`] | the scenarios that the clients in Python and TypeScript play, played by the library |
//! | [`rerouting`] | routes that are replaced while a worker runs |
//! | [`http`] | the HTTP API of `keyfall serve`, from the view of its clients |
//! | [`web`] | the web page, from the view of a browser without scripts |
//! | [`classic`] | the classic interface, from the view of its clients |
//! | [`layers`] | layers of tower around the handlers of a worker |
//! | [`mistakes`] | the errors of the compiler for functions that are not handlers |
//! | [`examples`] | each example prints its expected lines, and ends with success |
//! | [`bench`] | `keyfall bench` measures all its figures, and leaves nothing behind |
//! | [`config`] | `keyfall config` and `keyfall token`: output, refusals and files |
//! | [`commands`] | each command of the operator: its effect, its JSON, its exit codes |
//! | [`topology`] | more than one server: replicas, sentinels, clusters |
//! | [`moving`] | what BullMQ, Celery, rq and Sidekiq have scheduled is imported |
//! | [`transfer`] | export and import |
//! | [`terminal`] | commands at a terminal: prompts, tables, colours, bars |
//! | [`top`] | `keyfall top`, in a terminal multiplexer |
//! | [`dev`] | `keyfall dev` runs a Redis whose data survive its end |
//! | [`demo`] | `keyfall demo` plays to its end and leaves nothing behind |
//!
//! Only tests that damage Redis start their own server; all others share one private server, and
//! run in parallel on it: each owns an app segment, and no test flushes the server. Tests wait for
//! conditions, never for a time to pass, and no test measures speed: on a busy machine everything
//! is late, and has to be right all the same.
#![cfg(unix)]

mod adopting;
mod alerts;
mod announced;
mod archiving;
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
mod clients;
mod commands;
mod config;
mod conformance;
mod crowding;
mod damage;
mod database;
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
mod late;
mod layers;
mod letters;
mod limiting;
mod limiting_tenants;
mod limiting_together;
mod limits;
mod lists;
mod log;
mod logging;
mod mistakes;
mod monitor;
mod moving;
mod numbered;
mod operating;
mod outages;
mod outcomes;
mod pausing;
mod pulling;
mod race;
mod recurring;
mod refused;
mod rehearsing;
mod rerouting;
mod resharding;
mod rights;
mod runs;
mod sabotage;
mod scheduling;
mod series;
mod servers;
mod shell;
mod site;
mod steps;
mod stored;
mod strangers;
mod streams;
mod successors;
mod telling;
mod terminal;
mod terms;
mod top;
mod topology;
mod transfer;
mod upgrades;
mod version;
mod weather;
mod web;
mod workers;
