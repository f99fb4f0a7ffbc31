/* What Redis holds of the one job key, and what travels to it. */

mtype = {
	none,
	/* the scripts; schedule with its modes, reschedule with its two uses, settle with its verbs */
	schedule, if_absent, if_present, postpone, fire, cancel, update, requeue, discard,
	claim, reclaim, renew, settle_done, settle_failed, settle_returned, settle_bury,
	/* what they answer; `refused` to a number that is too low */
	created, replaced, succeeds, exists, absent, moved, running, moved_successor, cancelled,
	updated, updated_successor, requeued, present, deleted,
	claimed, early, leased, renewed, gone, foreign, done, later, buried, refused,
	/* where a call is */
	idle, travels, answered
};

/* Whoever calls has a lane: producers one each, workers one for claims and one for settling.
 * Renewals take no lane, but they travel like any other call. */
#define LANES (PRODUCERS + 3 * WORKERS)
#define CLAIM_LANE(worker) (PRODUCERS + 3 * (worker))
#define SETTLE_LANE(worker) (PRODUCERS + 3 * (worker) + 1)
#define RENEW_LANE(worker) (PRODUCERS + 3 * (worker) + 2)
#define WORKER_OF(lane) (((lane) - PRODUCERS) / 3)

/* A version is one job that was scheduled under the key, named by the number of the call that
 * brought it; so 0 is none. VERSIONS as an index holds them all. */
#define VERSIONS (CALLS + 1)
#define BIT(version) (1 << (version))

typedef Ledger {
	/* due, shadow */
	bit is_due;
	unsigned due_in : 2;        /* ticks; 0: due */
	unsigned shadow : 3;        /* the version; 0: no record */
	unsigned attempts : 3;      /* those in its header */
	bit is_updated;             /* its payload is another than it was scheduled with */
	/* leased, lease: the token is a worker and the number of its claim */
	bit is_leased;
	unsigned lease_left : 2;    /* ticks; 0: lapsed */
	unsigned holder : 2;
	unsigned claims : 3;
	bit is_cancelled;
	/* next */
	unsigned next : 3;          /* the version; 0: no successor */
	unsigned next_in : 2;
	bit next_is_updated;
	/* stats: how many jobs are present by the counters, and those that were buried */
	unsigned balance : 3;
	unsigned burials : 3;
	byte token;
	/* dead, grave: the letters by version, each with its number; 0: none */
	byte letter[VERSIONS];
	/* calls: the last number and reply of each lane, and the largest fencing value */
	byte known[LANES];
	mtype reply[LANES];
	byte fence;
	/* Not in Redis, but taken back with it: which versions this data set has accepted, which
	 * it has rightly ended, and how far the calls of each lane were carried out. */
	byte accepted;
	byte ended;
	byte carried_out[LANES]
};

Ledger redis;

typedef Call {
	unsigned version : 3;       /* schedule: that it brings; requeue, discard: of the letter;
	                             * settle: that was run, which only the promises look at */
	unsigned letter : 3;        /* requeue, discard: the number of the letter */
	unsigned attempts : 3;      /* settle: those of the new header */
	mtype script;               /* none: there is no call */
	byte number;                /* in its lane; that of a claim is its token, too */
	byte token                  /* settle, renew: of the lease */
};

/* The token of a claim is the call itself. */
#define call_token ((call.script == claim || call.script == reclaim) -> call.number : call.token)

/* One lane between client and server. A client has one call at a time in it; an earlier try,
 * of this call or of one before, may still be under way. */
typedef Lane {
	/* the reply of a claim */
	unsigned version : 3;
	unsigned attempt : 3;
	bit is_taken_over;
	bit is_cancelled;
	mtype reply;
	mtype phase;                /* idle, travels, answered: the reply is on its way back */
	Call current;
	Call straggler
};

Lane lane[LANES];

/* What a worker has in hand. */
typedef Work {
	byte token;                 /* of the claim that brought its job; 0: it has none */
	unsigned version : 3;
	unsigned attempt : 3;
	bit is_running;             /* the handler is */
	unsigned lease_left : 2;    /* ticks, of the lease or of the claim under way */
	unsigned renewal_left : 2;  /* the same of the renewal under way */
	byte claims;                /* the largest number of its claims; with a rollback only */
	byte renewals;              /* that it made so far */
	bit has_heard               /* that the job is due */
};

Work work[WORKERS];
bit is_alive[WORKERS];

inline copy_call(to, from_) {
	to.script = from_.script;
	to.number = from_.number;
	to.token = from_.token;
	to.version = from_.version;
	to.letter = from_.letter;
	to.attempts = from_.attempts
}

inline forget_call(it) {
	it.script = none;
	it.number = 0;
	it.token = 0;
	it.version = 0;
	it.letter = 0;
	it.attempts = 0
}

hidden byte n;                  /* counts within a step */

inline copy_ledger(to, from_) {
	to.is_due = from_.is_due;
	to.due_in = from_.due_in;
	to.shadow = from_.shadow;
	to.attempts = from_.attempts;
	to.is_updated = from_.is_updated;
	to.is_leased = from_.is_leased;
	to.lease_left = from_.lease_left;
	to.holder = from_.holder;
	to.token = from_.token;
	to.claims = from_.claims;
	to.is_cancelled = from_.is_cancelled;
	to.next = from_.next;
	to.next_in = from_.next_in;
	to.next_is_updated = from_.next_is_updated;
	for (n : 0 .. VERSIONS - 1) {
		to.letter[n] = from_.letter[n]
	}
	to.balance = from_.balance;
	to.burials = from_.burials;
	for (n : 0 .. LANES - 1) {
		to.known[n] = from_.known[n];
		to.reply[n] = from_.reply[n];
		to.carried_out[n] = from_.carried_out[n]
	}
	to.fence = from_.fence;
	to.accepted = from_.accepted;
	to.ended = from_.ended
}
