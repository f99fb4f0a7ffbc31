/* A worker with one slot: finds, claims, runs, renews, settles. Its clock is as fast as that of
 * Redis, and it counts a lease from before the call was sent that brought it. */

/* A reconciler's sweep finds what is due; with hints, a name may also have been heard. */
#ifdef DEAF
#define finds_due(w) (work[w].has_heard)
#else
#define finds_due(w) (work[w].has_heard || redis.is_due && redis.due_in == 0)
#endif
#ifdef BROKEN_NOBODY_TAKES_OVER
#define finds_lapsed false
#else
#define finds_lapsed (redis.is_leased && redis.lease_left == 0)
#endif

#define can_claim(w) (is_alive[w] && work[w].token == 0 && lane[CLAIM_LANE(w)].phase == idle && \
	has_numbers(w))
#define can_renew(w) (is_alive[w] && work[w].token != 0 && lane[RENEW_LANE(w)].phase == idle && \
	work[w].renewals < RENEW)
#define is_answered(w, l) (is_alive[w] && lane[l].phase == answered)

/* The numbers of a worker's calls. */
#ifdef ROLLBACK

/* They only rise, since an earlier data set may know any of them. A claim and its settlement,
 * which have different lanes, have the same. */
#define has_numbers(w) (work[w].claims < CLAIMS)

inline number_claim(w) {
	work[w].claims++;
	draft.number = work[w].claims
}

inline number_settle(w) {
	draft.number = work[w].token
}

#else

/* They begin anew where nothing is under way any more. */
#define has_numbers(w) (redis.known[CLAIM_LANE(w)] < OVERTAKERS && \
	redis.known[SETTLE_LANE(w)] < OVERTAKERS)

/* Higher than all that may still be met in the lane. */
inline number_call(l) {
	n = redis.known[l];
	n = (lane[l].straggler.number > n -> lane[l].straggler.number : n) + 1
}

/* The number of a claim is a token, too: none that may still be met elsewhere. */
#define is_token_of(w, number_) (redis.is_leased && redis.holder == w && redis.token == number_ || \
	lane[SETTLE_LANE(w)].straggler.token == number_ || \
	lane[RENEW_LANE(w)].current.token == number_ || \
	lane[RENEW_LANE(w)].straggler.token == number_)

inline number_claim(w) {
	number_call(CLAIM_LANE(w));
	do
	:: is_token_of(w, n) -> n++
	:: else -> break
	od;
	draft.number = n
}

inline number_settle(w) {
	number_call(SETTLE_LANE(w));
	draft.number = n
}

#endif

/* Claims what is due, or takes over what has lapsed. */
inline claim_by(w, script_) {
	work[w].has_heard = false;
	work[w].lease_left = LEASE;
	draft.script = script_;
	number_claim(w);
	send(CLAIM_LANE(w))
}

inline settle_by(w, script_) {
	work[w].is_running = false;
	draft.script = script_;
	number_settle(w);
	draft.token = work[w].token;
	draft.version = work[w].version;
	if
	:: script_ == settle_failed -> draft.attempts = work[w].attempt
	:: script_ == settle_returned -> draft.attempts = work[w].attempt - 1
	:: else
	fi;
	send(SETTLE_LANE(w))
}

inline is_free(w) {
	work[w].token = 0;
	work[w].version = 0;
	work[w].attempt = 0;
	work[w].is_running = false;
	work[w].lease_left = 0;
	work[w].renewal_left = 0
}

/* The handler begins. */
inline start(w) {
	printf("worker %d: runs version %d\n", w, work[w].version);
	for (n : 0 .. WORKERS - 1) {
		if
		:: work[n].is_running ->
			assert(two_handlers_run);
			shows(two_handlers_at_once)
		:: else
		fi
	}
	work[w].is_running = true
}

/* Somebody else may have had the job by now, and it may be cancelled. */
#ifdef BROKEN_STARTS_WHEN_LEASE_IS_OVER
#define is_too_late(w) false
#else
#define is_too_late(w) (work[w].lease_left == 0)
#endif

/* The reply of a claim: runs the job, unless that would be wrong. */
inline take_up(w, l) {
	if
	:: lane[l].reply == claimed ->
#ifdef BROKEN_LEASE_COUNTED_FROM_REPLY
		work[w].lease_left = LEASE;
#endif
		work[w].token = lane[l].current.number;
		work[w].version = lane[l].version;
		work[w].attempt = lane[l].attempt;
		if
		:: WORKERS > 1 && !is_alive[1 - w] && lane[l].is_taken_over ->
			shows(dead_worker_is_replaced)
		:: else
		fi;
		if
		:: w > 0 && !is_alive[0] -> shows(stand_in_claims)
		:: else
		fi;
		if
		:: is_too_late(w) -> is_free(w)
		:: !is_too_late(w) && lane[l].is_cancelled -> settle_by(w, settle_returned)
		:: else ->
			if
			:: lane[l].is_taken_over && lane[l].attempt > ATTEMPTS -> settle_by(w, settle_bury)
			:: else -> start(w)
			fi
		fi
	:: else ->
		if
		:: lane[l].reply == early -> shows(claim_comes_too_early)
		:: else
		fi;
		is_free(w)
	fi;
	hang_up(l)
}

inline renewed_by(w, l) {
	if
	:: lane[l].current.token != work[w].token   /* of a job that it no longer has */
	:: lane[l].current.token == work[w].token &&
		(lane[l].reply == renewed || lane[l].reply == cancelled) ->
		work[w].lease_left = work[w].renewal_left
	:: else ->
		/* The lease is lost. Nothing is left to settle, if the handler has not ended. */
		if
		:: work[w].is_running -> is_free(w)
		:: else
		fi
	fi;
	work[w].renewal_left = 0;
	hang_up(l)
}

inline crash(w) {
	printf("worker %d: dies\n", w);
	for (n : CLAIM_LANE(w) .. RENEW_LANE(w)) {
		if
		:: lane[n].phase != idle ->
			/* What was sent may still arrive. */
			give_up(n, can_linger(n))
		:: else
		fi
	}
	is_free(w);
	work[w].has_heard = false;
	is_alive[w] = false
}

proctype Worker(byte w) {
end:	do
	:: d_step { can_claim(w) && finds_due(w) -> claim_by(w, claim) }
	:: d_step { can_claim(w) && finds_lapsed -> claim_by(w, reclaim) }
	:: d_step { is_answered(w, CLAIM_LANE(w)) -> take_up(w, CLAIM_LANE(w)) }
	:: d_step { work[w].is_running -> settle_by(w, settle_done) }
	:: d_step { is_answered(w, SETTLE_LANE(w)) -> is_free(w); hang_up(SETTLE_LANE(w)) }
	:: d_step { can_renew(w) ->
			work[w].renewals++;
			work[w].renewal_left = LEASE;
			draft.script = renew;
			draft.token = work[w].token;
			send(RENEW_LANE(w))
		}
	:: d_step { is_answered(w, RENEW_LANE(w)) -> renewed_by(w, RENEW_LANE(w)) }
#ifdef FAILURES
	:: d_step { work[w].is_running && work[w].attempt < ATTEMPTS -> settle_by(w, settle_failed) }
	:: d_step { work[w].is_running && work[w].attempt >= ATTEMPTS -> settle_by(w, settle_bury) }
	:: d_step { work[w].is_running -> settle_by(w, settle_returned) }
#endif
#ifdef WORKER_REPEATS
	:: d_step { is_alive[w] && can_repeat(CLAIM_LANE(w)) ->
			repeat(CLAIM_LANE(w), false);
			work[w].lease_left = LEASE
		}
	:: d_step { is_alive[w] && can_repeat(CLAIM_LANE(w)) && can_linger(CLAIM_LANE(w)) ->
			repeat(CLAIM_LANE(w), true);
			work[w].lease_left = LEASE
		}
	:: d_step { is_alive[w] && can_repeat(SETTLE_LANE(w)) -> repeat(SETTLE_LANE(w), false) }
	:: d_step { is_alive[w] && can_repeat(SETTLE_LANE(w)) && can_linger(SETTLE_LANE(w)) ->
			repeat(SETTLE_LANE(w), true)
		}
	:: d_step { is_alive[w] && can_repeat(RENEW_LANE(w)) && can_linger(RENEW_LANE(w)) ->
			repeat(RENEW_LANE(w), true);
			work[w].renewal_left = LEASE
		}
#endif
#ifdef CRASH
	:: d_step { WORKERS > 1 && is_alive[w] && is_alive[1 - w] -> crash(w) }
#endif
	od
}
