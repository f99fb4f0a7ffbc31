//! The table of all checks: the expectation of each, and its reason.
//!
//! `docs/doctor.md` has a row for each of them; a test compares the two.

/// One check of the doctor.
///
/// ```
/// use keyfall::doctor::CHECKS;
///
/// for check in CHECKS {
///     println!("{}: {}. {}", check.id, check.expected, check.why);
/// }
/// ```
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Check {
    /// The name of the check, such as `notify-flags`. It never changes.
    pub id: &'static str,
    /// The expected state, as a short phrase.
    pub expected: &'static str,
    /// Why the expected state matters, in one sentence.
    pub why: &'static str,
    /// The lines of `redis.conf` that bring about the expected state; empty if no setting does.
    pub settings: &'static [&'static str],
    /// Whether [`fix`](super::Diagnose::fix) can repair it.
    pub is_mended: bool,
}

/// Defines one static for each check, and the list of all of them. A row is: name, id, lines of
/// `redis.conf`, `mended "yes"` if it can be repaired, expected state, reason.
macro_rules! checks {
    ($($name:ident = $id:literal [$($setting:literal),*] $(mended $mended:literal)?
        $expected:literal, $why:literal;)*) => {
        $(
            pub(crate) static $name: Check = Check {
                id: $id,
                expected: $expected,
                why: $why,
                settings: &[$($setting),*],
                is_mended: !concat!("" $(, $mended)?).is_empty(),
            };
        )*

        /// All checks, in the order in which findings are reported.
        pub static CHECKS: &[&Check] = &[$(&$name),*];
    };
}

checks! {
    SERVER_VERSION = "server-version" []
        "Redis 6.2 or later, or Valkey",
        "Commands that the scripts use are missing before, and no client connects.";
    SERVER_LOADING = "server-loading" []
        "its data are loaded",
        "Until then it answers nothing, and no job starts.";
    SERVER_ROLE = "server-role" []
        "a primary",
        "A replica takes no writes, and no client connects to one.";
    SCHEMA_KNOWN = "schema" []
        "the schema that this version writes, or none",
        "What another version has written is not understood, and no client connects.";
    SERVER_HZ = "server-hz" ["hz 10"]
        "hz 10",
        "Keyfall touches each key when it is due, so a higher rate makes nothing more punctual and costs CPU, and a lower one lets idle clients and dead foreign keys stay.";
    CLIENT_TIMEOUT = "client-timeout" ["timeout 0"]
        "timeout 0",
        "A client that has nothing to say until its next job is cut off, and has to connect anew in the middle of a call.";
    TCP_KEEPALIVE = "tcp-keepalive" ["tcp-keepalive 60"]
        "tcp-keepalive 60; up to 300 will do",
        "Without probes, firewalls and load balancers forget the connections of those that wait, and peers that are gone are not noticed.";

    NOTIFY_FLAGS = "notify-flags" ["notify-keyspace-events Ex"] mended "yes"
        "notify-keyspace-events has E, and x or A; where a live worker adopts keys K as well, and g and $ or A",
        "Without them no event announces that a job is due, and each starts some 20 ms late, when the pacer asks for it; nor is it heard what is done to keys that are adopted.";
    PUBSUB_BUFFER = "pubsub-buffer" ["client-output-buffer-limit pubsub 256mb 128mb 60"] mended "yes"
        "client-output-buffer-limit pubsub 256mb 128mb 60, or more",
        "A worker is cut off, and hears nothing until it is back, when more keys expire at one instant than this limit holds.";

    EVICTION_POLICY = "eviction-policy" ["maxmemory-policy noeviction"]
        "maxmemory-policy noeviction",
        "When memory is full, allkeys-* drops ledgers, and with them jobs, and volatile-* drops triggers, and with them punctuality.";
    MEMORY_LIMIT = "memory-limit" []
        "a maxmemory below what the machine has",
        "Without it the system ends the process when memory is full, instead of Redis refusing new jobs with a clear error.";
    MEMORY_HEADROOM = "memory-headroom" []
        "less than 80 % of maxmemory in use",
        "At the limit new jobs are refused; what is pending still runs.";

    PERSISTENCE = "persistence" ["appendonly yes"]
        "appendonly yes",
        "A restart loses every job without it, or, with snapshots alone, all that happened since the last one.";
    AOF_FSYNC = "aof-fsync" ["appendfsync everysec"]
        "appendfsync everysec, or always",
        "With `no` the system decides when the log is on disk, and a power failure takes back some 30 seconds instead of one.";
    AOF_TRUNCATED = "aof-load-truncated" ["aof-load-truncated yes"]
        "aof-load-truncated yes",
        "After a power failure the log may end in half a record, and Redis then refuses to start.";
    SNAPSHOTS = "snapshots" ["save \"\""]
        "save \"\" beside a log",
        "Each snapshot forks the process, and jobs that are due wait for the fork.";
    DISK_WRITES = "disk-writes" []
        "the last writes of log and snapshot went well",
        "Redis refuses all writes, or soon will, when it cannot save what it has.";

    MIN_REPLICAS = "min-replicas" []
        "min-replicas-to-write 1 where replicas are attached or sentinels watch, and as many of them near",
        "A primary that is cut off from its replicas goes on acknowledging what the fail-over then takes back.";
    REPLICA_LAG = "replica-lag" []
        "min-replicas-max-lag from 1 to 10",
        "It is the number of seconds for which a primary that was cut off goes on acknowledging writes; 0 switches the guard off.";

    CLOCK_OFFSET = "clock-offset" []
        "less than half a second between the clock of Redis, of each primary of a cluster, and that of this process; an error from a minute on",
        "A job that is scheduled for a time of the day runs by the clock of Redis.";
    ROUND_TRIP = "round-trip" []
        "an answer within 20 ms; an error from 200 ms on",
        "Each job takes two round trips or three from its due time to its handler.";
    SERVERS_THERE = "servers-there" []
        "an answer of each server, where several have the jobs, and of each primary of a cluster",
        "The jobs of one that is away wait until it is back, and calls on them fail.";
    EXPIRY_CROWD = "expiry-crowd" []
        "any number: Keyfall touches its keys when they are due",
        "Redis alone would find a dead key only when its search comes by, which takes the longer the more keys have a TTL.";

    RIGHTS_SCHEDULE = "rights-schedule" []
        "the rules of keyfall-producer in acl.conf",
        "Without them jobs are refused, or stored without a trigger and late.";
    RIGHTS_RUN = "rights-run" []
        "the rules of keyfall-worker in acl.conf, or none of them",
        "With some of them jobs may be claimed and never settled.";
    RIGHTS_ADOPT = "rights-adopt" []
        "the rules of keyfall-adopter in acl.conf, where a live worker adopts keys",
        "Without them a worker that adopts does not start, or plain keys do not become jobs.";
    RIGHTS_LOOK = "rights-look" []
        "the rules more of those who look after jobs, in acl.conf",
        "Without them jobs and dead letters cannot be listed or audited, nor what became of them be told.";

    FUNCTIONS_FIT = "functions" []
        "the Redis functions that this version makes, where any are used",
        "Those of another version may refuse to work, and where they are gone nobody can call them.";

    KIND_SHARDS = "kind-shards" []
        "each kind has a number of shards that this version knows",
        "Whoever looks into another number of ledgers than others write to does not find their jobs.";
    SHARD_SIZE = "shard-size" []
        "no shard with more than 250,000 jobs, on a cluster",
        "A slot that moves to another node takes each key as a whole, and both nodes answer nobody until the largest has arrived.";
    SLOTS_WHOLE = "slots-whole" []
        "every key on the node that serves its slot, and every part of each ledger, on a cluster",
        "Where a node dies from which a slot was moving, ledgers are left in two parts: calls on them and their jobs wait.";
    BOOKS = "books" []
        "each job that ever came is present or accounted for",
        "A difference means that somebody has changed a ledger who does not keep its books, and that jobs may be missing.";
    OVERDUE_JOBS = "overdue-jobs" []
        "no job that has a route is overdue by more than a minute, but for paused kinds",
        "The workers are too slow, too few or saturated, and what falls due waits behind what has.";
    UNROUTED_JOBS = "unrouted-jobs" []
        "every job has a route in a worker that lives",
        "Jobs without a route wait for ever.";
    DEAD_LETTERS_NEW = "dead-letters-new" []
        "no job was given up within the last hour; a warning from ten on",
        "What ended without success waits for somebody to look at it.";
    DEAD_LETTERS_FULL = "dead-letters-full" []
        "less than 90 % of the dead letters that a worker keeps: 10,000 for 90 days, unless it was told otherwise",
        "Beyond its limits the oldest letters fall, and with them what could still be requeued.";
    EMPTY_KINDS = "empty-kinds" []
        "no kind that has been empty and unused for 30 days",
        "Its keys stay and its ledger is looked at for ever; most such names were misspelt, or are of jobs that nobody schedules any more.";
    FOREIGN_VALUES = "foreign-values" []
        "nobody else keeps a value under the name of a job",
        "It is left alone, and so the job has no trigger, and is found late.";

    WORKERS_ALIVE = "workers-alive" []
        "a worker lives where jobs wait",
        "Without one nothing starts.";
    WORKERS_HEAR = "workers-hear" []
        "every worker hears events",
        "One that does not finds its jobs by sweeping twice a second.";
    WORKERS_ALIKE = "workers-alike" []
        "all workers run one version",
        "Two versions side by side are a deployment under way, or one that was forgotten.";
    BREAKERS_CLOSED = "breakers-closed" []
        "no worker leaves a host of callbacks alone because it is down",
        "The jobs of such a host wait until it is up again; no attempt is counted meanwhile.";
    ADOPTED_KEYS = "adopted-keys" []
        "no eviction of keys with a TTL where a live worker adopts them",
        "An evicted key is a missing one: its job is lost if nobody had looked at the key, and cancelled where a missing key means that.";
    ADOPTERS_ALIKE = "adopters-alike" []
        "all workers that adopt the same keys agree what a missing key means",
        "Otherwise it depends on who comes first whether a job runs or is cancelled.";
}

/// The settings that the doctor reads with `CONFIG GET`.
pub(crate) const SETTINGS: [&str; 9] = [
    "notify-keyspace-events",
    "client-output-buffer-limit",
    "appendfsync",
    "aof-load-truncated",
    "save",
    "timeout",
    "tcp-keepalive",
    "min-replicas-to-write",
    "min-replicas-max-lag",
];
