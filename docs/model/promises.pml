/* What must never happen. Each name stands in the assertion that would report it, and can be
 * waived with -D name=true, so that what it would lead to can be looked for. */

/* Those that only keep the books: they fail at the first wrong step, and hide what comes of it. */
#ifdef WITHOUT_BOOKS
#define call_is_carried_out_twice true
#define not_as_in_the_table true
#define ledger_contradicts_itself true
#define data_set_loses_a_job true
#define data_set_revives_a_job true
#endif

/* Promise 1 */
#ifndef acknowledged_job_is_lost
bit acknowledged_job_is_lost;   /* a schedule was acknowledged, and the job is neither present
                                 * nor a dead letter, and nothing has ended it */
#endif
#ifndef data_set_loses_a_job
bit data_set_loses_a_job;       /* the same by the data set: it has accepted a job, and not ended
                                 * it, and does not hold it any more */
#endif
#ifndef cancelled_job_starts
bit cancelled_job_starts;       /* a claim takes a job whose schedule was acknowledged before a
                                 * cancel was sent that has been acknowledged */
#endif
#ifndef ended_job_starts
bit ended_job_starts;           /* a claim takes a job that was done, replaced or deleted */
#endif
#ifndef data_set_revives_a_job
bit data_set_revives_a_job;     /* the same by the data set */
#endif
#ifndef job_starts_early
bit job_starts_early;           /* a claim takes a job that is not due */
#endif
#ifndef job_is_left_behind
bit job_is_left_behind;         /* nothing more can happen, and a job is present */
#endif
/* Promise 2 */
#ifndef two_leases_are_valid
bit two_leases_are_valid;       /* a claim takes a job of which a lease has not lapsed */
#endif
#ifndef two_handlers_run
bit two_handlers_run;           /* and two handlers run at the same time */
#endif
#ifndef lease_outlives_claim
bit lease_outlives_claim;       /* a settle or renewal counts after somebody else has claimed */
#endif
/* Promise 3 */
#ifndef fencing_value_does_not_grow
bit fencing_value_does_not_grow;
#endif
/* Promise 4 */
#ifndef call_is_carried_out_twice
bit call_is_carried_out_twice;
#endif
#ifndef call_in_hand_is_refused
bit call_in_hand_is_refused;    /* the client waits for the reply and gets `late` */
#endif
/* Promise 5 */
#ifndef not_as_in_the_table
bit not_as_in_the_table;
#endif
/* Promise 13, and what else states.md says of a ledger at every instant */
#ifndef ledger_contradicts_itself
bit ledger_contradicts_itself;
#endif

/* Situations that the checks must have met, or they would show nothing. */
mtype = {
	nothing, repeat_is_answered, late_original_is_refused, late_original_is_answered,
	claim_is_for_nobody, lapsed_lease_is_settled, lapsed_lease_is_renewed, settle_is_foreign,
	renewal_is_foreign, successor_takes_over, dead_worker_is_replaced, two_handlers_at_once,
	both_have_touched, claim_comes_too_early, stand_in_claims
};
#define shows(what) assert(SHOW != what)

/* What the promises are judged by, outside of the data set: nothing takes it back. */
byte acked;                     /* versions whose schedule was acknowledged */
byte ended;                     /* versions that a call has rightly ended */
byte unwanted;                  /* versions that must not start: their cancel was acknowledged */
byte acked_before[PRODUCERS];   /* versions acknowledged before the call in hand was sent */
byte largest_fence;
byte latest_holder;             /* whose claim was the last, and which it was */
byte latest_token;
unsigned valid_left : 2;        /* ticks that a lease given out is still valid */
byte clock;                     /* the least that TIME can be, as a fencing value */

#define present_versions ((redis.shadow != 0) * BIT(redis.shadow) \
	| (redis.next != 0) * BIT(redis.next) | letters)

inline check_nothing_lost() {
	letters = 0;
	for (n : 1 .. VERSIONS - 1) {
		letters = letters | (redis.letter[n] != 0) * BIT(n)
	}
	assert((redis.accepted & ~redis.ended & ~present_versions) == 0 || data_set_loses_a_job);
	assert((acked & ~ended & ~present_versions) == 0 || acknowledged_job_is_lost)
}
hidden byte letters;

inline check_ledger() {
	assert(!(redis.is_due && redis.is_leased) || ledger_contradicts_itself);
	assert((redis.shadow != 0) == (redis.is_due || redis.is_leased) || ledger_contradicts_itself);
	assert(redis.next == 0 || redis.is_leased || ledger_contradicts_itself);
	assert(redis.balance == redis.is_due + redis.is_leased + (redis.next != 0) ||
		ledger_contradicts_itself)
}

/* Only the order of fencing values counts, so where none is ever taken back, each is counted
 * from the last one. */
inline count_fences_anew() {
#ifdef ROLLBACK
	skip
#else
	largest_fence = 0;
	redis.fence = 0
#endif
}

inline check_new_claim() {
	assert((unwanted & BIT(redis.shadow)) == 0 || cancelled_job_starts);
	assert((redis.ended & BIT(redis.shadow)) == 0 || data_set_revives_a_job);
	assert((ended & BIT(redis.shadow)) == 0 || ended_job_starts);
	assert(!was.is_due || was.due_in == 0 || job_starts_early);
	assert(valid_left == 0 || two_leases_are_valid);
	assert(redis.fence > largest_fence || fencing_value_does_not_grow);
	largest_fence = redis.fence;
	count_fences_anew();
	latest_holder = WORKER_OF(from);
	latest_token = call.number;
	valid_left = LEASE
}

inline check_holder() {
	assert((latest_holder == WORKER_OF(from) && latest_token == call_token) ||
		lease_outlives_claim)
}

/* Asserts the promises for the call that has just been carried out. */
inline check_promises() {
	if
	:: seen == none && call.script != renew ->
		assert(call.number > redis.carried_out[from] || call_is_carried_out_twice);
		redis.carried_out[from] = call.number
	:: seen == refused ->
		assert(!is_current || call_in_hand_is_refused);
		shows(late_original_is_refused)
	:: seen == answered && is_current -> shows(repeat_is_answered)
	:: seen == answered && !is_current -> shows(late_original_is_answered)
	:: else
	fi;
	if
	:: call.script == claim || call.script == reclaim ->
		if
		:: seen == none && answer == claimed ->
			check_new_claim();
			if
			:: !is_current && lane[from].phase == idle -> shows(claim_is_for_nobody)
			:: else
			fi
		:: seen == answered && answer == claimed ->
			check_holder();
			valid_left = LEASE
		:: else
		fi
	:: call.script == renew ->
		if
		:: answer == renewed || answer == cancelled ->
			check_holder();
			if
			:: was.lease_left == 0 -> shows(lapsed_lease_is_renewed)
			:: else
			fi;
			valid_left = LEASE
		:: answer == foreign -> shows(renewal_is_foreign)
		:: else
		fi
	:: call.script == settle_done || call.script == settle_failed ||
		call.script == settle_returned || call.script == settle_bury ->
		if
		:: seen == none && answer != gone && answer != foreign ->
			check_holder();
			if
			:: was.lease_left == 0 -> shows(lapsed_lease_is_settled)
			:: else
			fi;
			if
			:: was.next != 0 -> shows(successor_takes_over)
			:: else
			fi;
			valid_left = 0
		:: seen == none && answer == foreign -> shows(settle_is_foreign)
		:: else
		fi
	:: else
	fi;
	check_ledger();
	check_nothing_lost();
#ifndef ROLLBACK
	/* There is no lease, and none comes back: its holder need not be known any more. */
	if
	:: !redis.is_leased ->
		latest_holder = 0;
		latest_token = 0
	:: else
	fi
#endif
}

/* Nobody waits for ever: what is due is claimed, or is not due any more; what has lapsed is taken
 * over, revived, or ended. As long as each process that can go on does so some time. */
#ifdef LIVENESS
#define is_overdue (redis.is_due && redis.due_in == 0)
#define has_lapsed (redis.is_leased && redis.lease_left == 0)
ltl overdue_is_claimed { [] (is_overdue -> <> !is_overdue) }
ltl lapsed_is_ended { [] (has_lapsed -> <> !has_lapsed) }
#endif
