/* How far a check goes, and which faults it allows. Each can be set with -D.
 *
 *   OPERATIONS      what producers may call: a sum of the numbers below
 *   REPEATS         a producer may repeat a call, and give one up
 *   WORKER_REPEATS  a worker may repeat a call
 *   CRASH           a worker may die; the other one lives
 *   RENEW           so many renewals a worker may make
 *   BLOCKED         a run may outlive its lease: a blocked thread, a stopped process
 *   FAILURES        a run may fail: it is retried, and at last buried; or be given back
 *   HINTS           triggers, events, wake-ups and pacers
 *   SAMPLING        Redis expires triggers by itself, too
 *   LOSSY           events and wake-ups may be lost, triggers evicted
 *   DEAF            no sweep finds what is due: only events and pacers do
 *   NO_PACER        nobody paces
 *   FIRST_IS_DOWN   the worker that is first in rank is down from the beginning
 *   ROLLBACK        Redis may fall back to an earlier data set, once
 *   CLOCK_BEHIND    and its clock is then behind
 *   ADMITTED        what the documentation says of it is written off
 *   LATE_AFTER_ROLLBACK  a late original may come after it
 *   SHOW            a situation that promises.pml names: reaching it is reported as an error
 *
 * Names that begin with BROKEN_ break one step on purpose, where it stands. */

#ifndef CALLS
#define CALLS 2           /* calls that all producers make together */
#endif
#ifndef PRODUCERS
#define PRODUCERS 1       /* producers, each with a lane of its own */
#endif
#ifndef WORKERS
#define WORKERS 1         /* workers, each with one slot */
#endif
#ifndef DELAY
#define DELAY 1           /* ticks from now: every schedule, postponement and retry */
#endif
#ifndef FAULTS
#define FAULTS 2          /* calls that are repeated or given up, of all together */
#endif
#ifndef PACERS
#define PACERS 2          /* pacers; one is meant to be, two can be for a moment */
#endif
#ifndef RENEW
#define RENEW 0
#endif
#ifndef SHOW
#define SHOW nothing
#endif

#ifndef CLAIMS
#define CLAIMS 2          /* claims that a worker makes, with a rollback */
#endif
#define OVERTAKERS 2      /* calls of a worker that can overtake one that is still under way */
#define LEASE 2           /* ticks */
#define ATTEMPTS 2        /* of the retry policy */

/* Attempts beyond those are too many, however many they are. */
#define enough(attempts_) ((attempts_) > ATTEMPTS -> ATTEMPTS + 1 : (attempts_))

/* Operations of producers, to be added up. */
#define DO_SCHEDULE 1
#define DO_IF_ABSENT 2
#define DO_IF_PRESENT 4
#define DO_POSTPONE 8
#define DO_FIRE 16
#define DO_CANCEL 32
#define DO_UPDATE 64
#define DO_REQUEUE 128
#define DO_DISCARD 256
#define DO_ALL 511
#ifndef OPERATIONS
#define OPERATIONS (DO_SCHEDULE + DO_CANCEL)
#endif
