/* The scripts of lua/, each one inline: the same questions in the same order. What stands in
 * capitals in their heads, KEYS and ARGV, is `redis` and `call` here; `answer` is the reply. */

hidden Call call;
hidden byte from;               /* the lane */
hidden byte is_current;          /* somebody waits for the reply */
hidden mtype answer;
hidden mtype seen;              /* by the lane: none (new), answered (again), refused (late) */
hidden Ledger was;              /* before the script */

/* lib/calls.lua */
inline recall() {
	seen = none;
	if
	:: call.script == renew
#ifdef BROKEN_NO_LANE_MEMORY
	:: else
#else
	:: call.script != renew && call.number == redis.known[from] -> seen = answered
#ifdef BROKEN_LOWER_NUMBERS_PASS
	:: else
#else
	:: call.script != renew && call.number < redis.known[from] -> seen = refused
	:: else
#endif
#endif
	fi
}

inline remember() {
	redis.known[from] = call.number;
	redis.reply[from] = answer
}

inline to_pending(version_, attempts_, is_updated_, in_) {
	redis.is_due = true;
	redis.due_in = in_;
	redis.shadow = version_;
	redis.attempts = attempts_;
	redis.is_updated = is_updated_;
	arm(in_);
	wake(in_)
}

inline end_lease() {
	redis.is_leased = false;
	redis.lease_left = 0;
	redis.holder = 0;
	redis.token = 0;
	redis.claims = 0;
	redis.is_cancelled = false
}

inline drop_successor() {
	redis.next = 0;
	redis.next_in = 0;
	redis.next_is_updated = false
}

inline drop_record() {
	redis.shadow = 0;
	redis.attempts = 0;
	redis.is_updated = false
}

/* The lease is over: the successor takes the place of the run, or the run's record goes. */
inline promote_or_forget() {
	if
	:: redis.next != 0 ->
		to_pending(redis.next, 0, redis.next_is_updated, redis.next_in);
		drop_successor()
	:: else -> drop_record()
	fi
}

/* schedule.lua */
inline schedule_lua() {
	if
	:: call.script == if_absent && (redis.is_leased || redis.is_due) -> answer = exists
	:: call.script == if_present && !redis.is_leased && !redis.is_due -> answer = absent
	:: else ->
		redis.balance++;
		if
		:: redis.is_leased ->
#ifdef BROKEN_SCHEDULE_STARTS_BESIDE_A_RUN
			to_pending(call.version, 0, false, DELAY);
#else
			redis.balance = redis.balance - (redis.next != 0);
			redis.next = call.version;
			redis.next_in = DELAY;
			redis.next_is_updated = false;
#endif
			answer = succeeds
		:: else ->
			answer = (redis.is_due -> replaced : created);
			redis.balance = redis.balance - redis.is_due;
			to_pending(call.version, 0, false, DELAY)
		fi
	fi
}

/* reschedule.lua: by a delay, or by `+0` to fire now */
inline reschedule_lua() {
	if
	:: redis.is_leased && redis.next != 0 ->
		redis.next_in = (call.script == fire -> 0 : DELAY);
		answer = moved_successor
	:: redis.is_leased && redis.next == 0 -> answer = running
	:: !redis.is_leased && redis.is_due ->
		redis.due_in = (call.script == fire -> 0 : DELAY);
		arm(redis.due_in);
		wake(redis.due_in);
		answer = moved
	:: else -> answer = absent
	fi
}

/* cancel.lua */
inline cancel_lua() {
	if
	:: redis.is_leased ->
#ifndef BROKEN_CANCEL_DOES_NOT_MARK
		redis.is_cancelled = true;
#endif
#ifndef BROKEN_CANCEL_KEEPS_SUCCESSOR
		redis.balance = redis.balance - (redis.next != 0);
		drop_successor();
#endif
		answer = running
	:: !redis.is_leased && redis.is_due ->
#ifndef BROKEN_CANCEL_LEAVES_DUE
		redis.is_due = false;
		redis.due_in = 0;
		drop_record();
#endif
		redis.balance--;
		disarm();
		answer = cancelled
	:: else -> answer = absent
	fi
}

/* update.lua */
inline update_lua() {
	if
	:: redis.is_leased && redis.next != 0 ->
		redis.next_is_updated = true;
		answer = updated_successor
	:: redis.is_leased && redis.next == 0 ->
		redis.is_updated = true;
		answer = running
	:: !redis.is_leased && redis.is_due ->
		redis.is_updated = true;
		answer = updated
	:: else -> answer = absent
	fi
}

/* requeue.lua */
inline requeue_lua() {
	if
	:: redis.letter[call.version] == 0 || redis.letter[call.version] != call.letter ->
		answer = absent
	:: else ->
		if
#ifndef BROKEN_REQUEUE_OVERWRITES
		:: redis.is_due || redis.is_leased -> answer = present
#endif
		:: else ->
			redis.balance++;
			redis.letter[call.version] = 0;
			to_pending(call.version, 0, false, DELAY);
			answer = requeued
		fi
	fi
}

/* discard.lua */
inline discard_lua() {
	if
	:: redis.letter[call.version] == 0 || redis.letter[call.version] != call.letter ->
		answer = absent
	:: else ->
		redis.letter[call.version] = 0;
		answer = deleted
	fi
}

/* The fencing value of a new lease. TIME moves on between two claims or it does not; the
 * larger of the two is one more than the last unless Redis has lost claims meanwhile. */
inline next_fence() {
	redis.fence++;
	if
	:: redis.fence <= clock -> redis.fence = clock + 1
	:: else
	fi
}

inline new_lease(attempts_begun) {
	redis.is_leased = true;
	redis.lease_left = LEASE;
	redis.holder = WORKER_OF(from);
	redis.token = call.number;
	redis.claims = enough(attempts_begun);
	redis.is_cancelled = false;
	next_fence();
	answer = claimed
}

/* claim.lua */
inline claim_lua() {
	if
#ifdef BROKEN_CLAIM_WITHOUT_DUE_CHECK
	:: redis.is_due ->
#else
	:: redis.is_due && redis.due_in == 0 ->
#endif
#ifndef BROKEN_CLAIM_LEAVES_DUE
		redis.is_due = false;
		redis.due_in = 0;
#endif
		new_lease(1)
#ifndef BROKEN_CLAIM_WITHOUT_DUE_CHECK
	:: redis.is_due && redis.due_in > 0 -> answer = early
#endif
	:: !redis.is_due && redis.is_leased -> answer = leased
	:: !redis.is_due && !redis.is_leased -> answer = absent
	fi
}

/* reclaim.lua */
inline reclaim_lua() {
	if
	:: !redis.is_leased -> answer = absent
#ifndef BROKEN_RECLAIM_WITHOUT_LAPSE
	:: redis.is_leased && redis.lease_left > 0 -> answer = leased
#endif
	:: else ->
		if
#ifndef BROKEN_RECLAIM_IGNORES_CANCEL
		:: redis.is_cancelled || redis.next != 0 ->
			answer = (redis.is_cancelled -> cancelled : replaced);
			redis.balance--;
			end_lease();
			promote_or_forget()
#endif
		:: else ->
#ifdef BROKEN_RECLAIM_KEEPS_TOKEN
			redis.lease_left = LEASE;
			answer = claimed
#else
			new_lease(redis.claims + 1)
#endif
		fi
	fi
}

#ifdef BROKEN_NO_TOKEN
#define holds_lease (redis.is_leased)
#else
#define holds_lease (redis.is_leased && redis.holder == WORKER_OF(from) && redis.token == call_token)
#endif

/* A claim or reclaim that is repeated: the same job, if its token still holds it. */
inline hand_out_again() {
	if
	:: redis.reply[from] == claimed && holds_lease ->
		redis.lease_left = LEASE;
		answer = claimed
	:: redis.reply[from] == claimed && !holds_lease -> answer = gone
	:: else -> answer = redis.reply[from]
	fi
}

/* renew.lua */
inline renew_lua() {
	if
	:: !redis.is_leased -> answer = gone
	:: redis.is_leased && !holds_lease -> answer = foreign
	:: else ->
		redis.lease_left = LEASE;
		answer = (redis.is_cancelled -> cancelled : renewed)
	fi
}

/* settle.lua. A job that is given back is due as it was; one that has failed waits. */
inline settle_lua() {
	if
	:: !redis.is_leased -> answer = gone
	:: redis.is_leased && !holds_lease -> answer = foreign
	:: else ->
		if
		:: call.script == settle_done ->
			answer = done;
			redis.balance--;
			promote_or_forget()
#ifndef BROKEN_SETTLE_IGNORES_CANCEL
		:: call.script != settle_done && redis.is_cancelled ->
			answer = cancelled;
			redis.balance--;
			promote_or_forget()
#endif
		:: else ->
			if
			:: call.script == settle_bury ->
				answer = buried;
				redis.balance--;
				redis.burials++;
				redis.letter[redis.shadow] = redis.burials;
				promote_or_forget()
			:: call.script != settle_bury && redis.next != 0 ->
				answer = replaced;
				redis.balance--;
#ifdef BROKEN_SETTLE_DROPS_SUCCESSOR
				drop_successor();
				drop_record()
#else
				promote_or_forget()
#endif
			:: else ->
				answer = later;
				to_pending(redis.shadow, call.attempts, redis.is_updated,
					(call.script == settle_failed -> DELAY : 0))
			fi
		fi;
		end_lease()
	fi
}


/* One call arrives. Its reply, and for a claim what was handed out, is left in `answer` and
 * `redis`. */
inline carry_out() {
	copy_ledger(was, redis);
	recall();
	if
	:: seen == refused -> answer = refused
	:: seen == answered ->
		if
		:: call.script == claim || call.script == reclaim -> hand_out_again()
		:: else -> answer = redis.reply[from]
		fi
	:: seen == none ->
		if
		:: call.script == schedule || call.script == if_absent || call.script == if_present ->
			schedule_lua()
		:: call.script == postpone || call.script == fire -> reschedule_lua()
		:: call.script == cancel -> cancel_lua()
		:: call.script == update -> update_lua()
		:: call.script == requeue -> requeue_lua()
		:: call.script == discard -> discard_lua()
		:: call.script == claim -> claim_lua()
		:: call.script == reclaim -> reclaim_lua()
		:: call.script == renew -> renew_lua()
		:: else -> settle_lua()
		fi;
		if
		:: call.script != renew -> remember()
		:: else
		fi
	fi;
	printf("  Redis: %e %d of lane %d: %e\n", call.script, call.number, from, answer);
	check_table();
	check_promises()
}
