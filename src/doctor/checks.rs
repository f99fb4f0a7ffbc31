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
        "Older versions lack commands that the scripts use, and no client connects to them.";
    SERVER_LOADING = "server-loading" []
        "the server has loaded its data",
        "Until then the server answers no command, and no job starts.";
    SERVER_ROLE = "server-role" []
        "a primary",
        "A replica accepts no writes, and no client connects to one.";
    SCHEMA_KNOWN = "schema" []
        "the schema that this version writes, or no schema yet",
        "This version cannot read another schema, and no client connects.";
    SERVER_HZ = "server-hz" ["hz 10"]
        "hz 10",
        "Keyfall touches each key when it is due, so a higher rate costs CPU and makes no job more \
         punctual; a lower rate keeps idle clients and expired foreign keys for longer.";
    CLIENT_TIMEOUT = "client-timeout" ["timeout 0"]
        "timeout 0",
        "With a timeout Redis disconnects clients that wait for their next job, and they have to \
         reconnect in the middle of a call.";
    TCP_KEEPALIVE = "tcp-keepalive" ["tcp-keepalive 60"]
        "tcp-keepalive 60; up to 300 is accepted",
        "Without probes, firewalls and load balancers drop idle connections, and dead peers are \
         not noticed.";

    NOTIFY_FLAGS = "notify-flags" ["notify-keyspace-events Ex"] mended "yes"
        "notify-keyspace-events has E, and x or A; where a live worker adopts keys, also K, and g \
         and $ or A",
        "Without these flags no event announces due jobs, and each job starts some 20 ms late, \
         when the pacer asks for it; workers do not hear changes of adopted keys either.";
    PUBSUB_BUFFER = "pubsub-buffer" ["client-output-buffer-limit pubsub 256mb 128mb 60"] mended "yes"
        "client-output-buffer-limit pubsub 256mb 128mb 60, or more",
        "When more keys expire at one instant than this limit holds, Redis disconnects the worker, \
         and the worker hears no events until it has reconnected.";

    EVICTION_POLICY = "eviction-policy" ["maxmemory-policy noeviction"]
        "maxmemory-policy noeviction",
        "When memory is full, allkeys-* deletes ledgers, so jobs are lost, and volatile-* deletes \
         triggers, so jobs start late.";
    MEMORY_LIMIT = "memory-limit" []
        "a maxmemory below the memory of the machine",
        "Without this limit the operating system kills Redis when memory is full; with it Redis \
         refuses new jobs with a clear error.";
    MEMORY_HEADROOM = "memory-headroom" []
        "less than 80 % of maxmemory in use",
        "At the limit Redis refuses new jobs; pending jobs still run.";

    PERSISTENCE = "persistence" ["appendonly yes"]
        "appendonly yes",
        "Without a log a restart loses every job, or, with snapshots, all changes since the last \
         snapshot.";
    AOF_FSYNC = "aof-fsync" ["appendfsync everysec"]
        "appendfsync everysec, or always",
        "With `no` the operating system decides when the log reaches the disk, and a power failure \
         loses some 30 seconds of writes instead of one.";
    AOF_TRUNCATED = "aof-load-truncated" ["aof-load-truncated yes"]
        "aof-load-truncated yes",
        "After a power failure the log may end in half a record, and with `no` Redis then refuses \
         to start.";
    SNAPSHOTS = "snapshots" ["save \"\""]
        "save \"\" beside a log",
        "Each snapshot forks the process, and due jobs wait for the fork.";
    DISK_WRITES = "disk-writes" []
        "the last writes of the log and of a snapshot succeeded",
        "When Redis cannot save its data, it refuses all writes, now or soon.";

    MIN_REPLICAS = "min-replicas" []
        "min-replicas-to-write 1 where replicas are attached or sentinels watch, and at least \
         this many good replicas",
        "Otherwise a primary that is cut off from its replicas acknowledges writes that the \
         fail-over then discards.";
    REPLICA_LAG = "replica-lag" []
        "min-replicas-max-lag from 1 to 10",
        "For this many seconds a primary that was cut off still acknowledges writes; 0 disables \
         the guard.";

    CLOCK_OFFSET = "clock-offset" []
        "the clock of Redis, and of each primary of a cluster, differs from the clock of this \
         process by less than half a second; an error from a minute on",
        "A job that is scheduled for a time of day starts by the clock of Redis.";
    ROUND_TRIP = "round-trip" []
        "an answer within 20 ms; an error from 200 ms on",
        "From its due time to its handler, each job takes two or three round trips.";
    SERVERS_THERE = "servers-there" []
        "every server answers, where several servers have the jobs, and every primary of a cluster",
        "The jobs of an absent server wait until it is back, and calls on them fail.";
    EXPIRY_CROWD = "expiry-crowd" []
        "any number: Keyfall touches its keys when they are due",
        "Redis alone finds an expired key only when its search reaches the key, and the search \
         takes longer the more keys have a TTL.";

    RIGHTS_SCHEDULE = "rights-schedule" []
        "the rules of keyfall-producer in acl.conf",
        "Without these rights Redis refuses jobs, or jobs have no trigger and start late.";
    RIGHTS_RUN = "rights-run" []
        "the rules of keyfall-worker in acl.conf, or none of them",
        "A user with only some of these rights may claim jobs and never settle them.";
    RIGHTS_ADOPT = "rights-adopt" []
        "the rules of keyfall-adopter in acl.conf, where a live worker adopts keys",
        "Without these rights a worker that adopts keys does not start, or plain keys do not \
         become jobs.";
    RIGHTS_LOOK = "rights-look" []
        "the additional rules of operators in acl.conf",
        "Without these rights jobs and dead letters cannot be listed or audited, and their history \
         cannot be read.";

    FUNCTIONS_FIT = "functions" []
        "the Redis functions of this version, where functions are used",
        "Functions of another version may refuse to work, and missing functions cannot be called.";

    KIND_SHARDS = "kind-shards" []
        "each kind has a number of shards that this version knows",
        "A client that assumes too few shards does not find the jobs in the others.";
    SHARD_SIZE = "shard-size" []
        "no shard with more than 250,000 jobs, on a cluster",
        "When a slot moves to another node, Redis moves each key as a whole, and both nodes answer \
         no client while the largest key moves.";
    SLOTS_WHOLE = "slots-whole" []
        "every key on the node that serves its slot, and every part of each ledger, on a cluster",
        "If a node dies while a slot moves away from it, some ledgers are left in two parts: calls \
         on them and their jobs wait.";
    BOOKS = "books" []
        "every job that was ever scheduled is present or accounted for",
        "A difference means that another program has changed a ledger without updating its \
         counters, and that jobs may be missing.";
    OVERDUE_JOBS = "overdue-jobs" []
        "no job with a route is overdue by more than a minute, except for jobs of paused kinds, \
         and jobs that wait for a limit",
        "The workers are too slow, too few or saturated, and newly due jobs wait behind overdue \
         jobs.";
    UNROUTED_JOBS = "unrouted-jobs" []
        "every job has a route in a live worker",
        "Jobs without a route wait forever.";
    DEAD_LETTERS_NEW = "dead-letters-new" []
        "no job became a dead letter within the last hour; a warning from ten on",
        "Dead letters wait until an operator inspects them.";
    DEAD_LETTERS_FULL = "dead-letters-full" []
        "less than 90 % of the dead letters that a worker keeps, by default 10,000 for 90 days",
        "Beyond these limits workers delete the oldest dead letters, and they cannot be requeued.";
    ARCHIVE_READ = "archive-read" []
        "records of ended jobs wait for the archive for less than ten minutes, and take less than \
         90 % of what may wait",
        "Without a daemon that has the database they fill Redis up to the bound of their kind; \
         beyond it the oldest are dropped.";
    ARCHIVE_WHOLE = "archive-whole" []
        "no record of an ended job was dropped before it was in the archive",
        "More waited than the terms of the kind allow, and what was dropped is never in the archive.";
    COPIER_ALIVE = "copier-alive" []
        "a daemon copies the jobs of the kinds that ask for it",
        "What Redis loses meanwhile, no rebuild brings back.";
    COPY_LAG = "copy-lag" []
        "changes of jobs wait for the copy for less than a minute, and are less than 90 % of those \
         that may wait",
        "What Redis loses before it is copied, no rebuild brings back; beyond the bound no change is \
         noted, and all jobs of the ledger are copied again.";
    COPY_DATA_SET = "copy-data-set" []
        "Redis has the data set that was copied, and no older state of it",
        "Jobs are missing, and the copy is stopped until a rebuild has brought them back.";
    EMPTY_KINDS = "empty-kinds" []
        "no kind that has been empty and unused for 30 days",
        "Its keys stay, and workers search its ledger forever; most such kinds are misspelt, or \
         their jobs are no longer scheduled.";
    FOREIGN_VALUES = "foreign-values" []
        "no other program keeps a value under the name of a job",
        "Keyfall leaves such a value alone, so the job has no trigger and starts late.";
    LIMITS = "limits" []
        "no job has waited for more than an hour for the limit of its kind",
        "More jobs fall due than the limit lets start, so that they start later and later.";
    RULES_COMPUTED = "rules-computed" []
        "no recurring job whose next time no worker can compute",
        "Such a job does not run: no live worker knows its time zone, or a newer version wrote its \
         rule. Workers try it again every half a minute.";

    WORKERS_ALIVE = "workers-alive" []
        "a worker is alive where jobs wait",
        "Without a worker no job starts.";
    WORKERS_HEAR = "workers-hear" []
        "every worker hears events",
        "A worker that hears no events finds its jobs by sweeping twice a second.";
    WORKERS_ALIKE = "workers-alike" []
        "all workers run one version",
        "Two versions side by side mean that a deployment is under way, or was never finished.";
    ZONES_ALIKE = "zones-alike" []
        "all workers have one version of the time zone database",
        "The worker that ends a run computes the next time of a recurring job, so the time depends \
         on its database.";
    BREAKERS_CLOSED = "breakers-closed" []
        "no worker has stopped calling a host of callbacks because the host is down",
        "The jobs of such a host wait until the host is up again; meanwhile no attempt is counted.";
    ADOPTED_KEYS = "adopted-keys" []
        "no eviction of keys with a TTL where a live worker adopts them",
        "Workers take an evicted key for a missing one: its job is lost if no worker had read the \
         key, and cancelled on routes where a missing key means `cancel`.";
    ADOPTERS_ALIKE = "adopters-alike" []
        "all workers that adopt the same keys agree on the meaning of a missing key",
        "Otherwise the first worker decides whether a job runs or is cancelled.";
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
