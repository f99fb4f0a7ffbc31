/* The table of states and operations, docs/states.md, written down a second time: what each
 * call has to answer and to leave behind. Promise 5.
 *
 * It also says which version a call may end, whatever the script did. */

#define expect(it) assert((it) || not_as_in_the_table)

#define same_due (redis.is_due == was.is_due && redis.due_in == was.due_in)
#define same_record (redis.shadow == was.shadow && redis.attempts == was.attempts \
	&& redis.is_updated == was.is_updated)
#define same_lease (redis.is_leased == was.is_leased && redis.lease_left == was.lease_left \
	&& redis.holder == was.holder && redis.token == was.token && redis.claims == was.claims \
	&& redis.is_cancelled == was.is_cancelled)
#define same_next (redis.next == was.next && redis.next_in == was.next_in \
	&& redis.next_is_updated == was.next_is_updated)
#define same_job (same_due && same_record && same_lease && same_next)

#define is_new_record(version_, attempts_) (redis.shadow == (version_) \
	&& redis.attempts == (attempts_))
#define is_pending(in) (redis.is_due && redis.due_in == (in) && !redis.is_leased)
#define is_absent (!redis.is_due && redis.shadow == 0 && !redis.is_leased && redis.next == 0)
#define is_promoted (is_pending(was.next_in) && is_new_record(was.next, 0) \
	&& redis.is_updated == was.next_is_updated && redis.next == 0)
#define has_right_token (was.is_leased && was.holder == WORKER_OF(from) && was.token == call_token)
#define has_new_lease(claims_) (redis.is_leased && redis.lease_left == LEASE \
	&& redis.holder == WORKER_OF(from) && redis.token == call.number \
	&& redis.claims == enough(claims_) && !redis.is_cancelled)

/* Only the first arrival of a call does so rightly. */
inline ends(version_) {
	if
	:: call.number > redis.carried_out[from] ->
		redis.ended = redis.ended | BIT(version_);
		ended = ended | BIT(version_)
	:: else
	fi
}

inline same_letters() {
	for (n : 1 .. VERSIONS - 1) {
		expect(redis.letter[n] == was.letter[n])
	}
}

inline table_of_schedule() {
	if
	:: call.script == if_absent && (was.is_due || was.is_leased) ->
		expect(answer == exists && same_job)
	:: call.script == if_present && !was.is_due && !was.is_leased ->
		expect(answer == absent && same_job)
	:: else ->
		redis.accepted = redis.accepted | BIT(call.version);
		if
		:: was.is_leased ->
			expect(answer == succeeds && redis.next == call.version && redis.next_in == DELAY &&
				same_due && same_record && same_lease);
			if
			:: was.next != 0 -> ends(was.next)
			:: else
			fi
		:: !was.is_leased && was.is_due ->
			expect(answer == replaced && is_pending(DELAY) && is_new_record(call.version, 0));
			ends(was.shadow)
		:: else ->
			expect(answer == created && is_pending(DELAY) && is_new_record(call.version, 0))
		fi
	fi
}

inline table_of_reschedule(in_) {
	if
	:: was.is_leased && was.next != 0 ->
		expect(answer == moved_successor && redis.next == was.next && redis.next_in == in_ &&
			same_due && same_record && same_lease)
	:: was.is_leased && was.next == 0 -> expect(answer == running && same_job)
	:: !was.is_leased && was.is_due ->
		expect(answer == moved && is_pending(in_) && same_record && same_next)
	:: else -> expect(answer == absent && same_job)
	fi
}

inline table_of_cancel() {
	if
	:: was.is_leased ->
		expect(answer == running && redis.is_leased && redis.is_cancelled && redis.next == 0 &&
			redis.token == was.token && redis.holder == was.holder &&
			redis.lease_left == was.lease_left && same_record && !redis.is_due);
		if
		:: was.next != 0 -> ends(was.next)
		:: else
		fi
	:: !was.is_leased && was.is_due ->
		expect(answer == cancelled && is_absent);
		ends(was.shadow)
	:: else -> expect(answer == absent && same_job)
	fi
}

inline table_of_update() {
	if
	:: was.is_leased && was.next != 0 ->
		expect(answer == updated_successor && redis.next_is_updated && redis.next == was.next &&
			redis.next_in == was.next_in && same_due && same_record && same_lease)
	:: was.is_leased && was.next == 0 ->
		expect(answer == running && redis.is_updated && redis.shadow == was.shadow &&
			same_due && same_lease && same_next)
	:: !was.is_leased && was.is_due ->
		expect(answer == updated && redis.is_updated && redis.shadow == was.shadow &&
			redis.attempts == was.attempts && same_due && same_lease && same_next)
	:: else -> expect(answer == absent && same_job)
	fi
}

inline table_of_letters() {
	if
	:: was.letter[call.version] != call.letter -> expect(answer == absent && same_job)
	:: call.script == discard && was.letter[call.version] == call.letter ->
		expect(answer == deleted && redis.letter[call.version] == 0 && same_job);
		ends(call.version)
	:: call.script == requeue && was.letter[call.version] == call.letter ->
		if
		:: was.is_due || was.is_leased ->
			expect(answer == present && redis.letter[call.version] == call.letter && same_job)
		:: else ->
			expect(answer == requeued && redis.letter[call.version] == 0 && is_pending(DELAY) &&
				is_new_record(call.version, 0));
			/* Whatever was cancelled before, somebody wants it again. */
			unwanted = unwanted & ~BIT(call.version);
			for (n : 0 .. PRODUCERS - 1) {
				acked_before[n] = acked_before[n] & ~BIT(call.version)
			}
		fi
	fi
}

inline table_of_claim() {
	if
	:: was.is_due && was.due_in == 0 ->
		expect(answer == claimed && !redis.is_due && has_new_lease(1) && same_record && same_next)
	:: was.is_due && was.due_in > 0 -> expect(answer == early && same_job)
	:: !was.is_due && was.is_leased -> expect(answer == leased && same_job)
	:: else -> expect(answer == absent && same_job)
	fi
}

inline table_of_reclaim() {
	if
	:: !was.is_leased -> expect(answer == absent && same_job)
	:: was.is_leased && was.lease_left > 0 -> expect(answer == leased && same_job)
	:: was.is_leased && was.lease_left == 0 && (was.is_cancelled || was.next != 0) ->
		expect(answer == (was.is_cancelled -> cancelled : replaced));
		expect(was.next == 0 && is_absent || was.next != 0 && is_promoted);
		ends(was.shadow)
	:: else ->
		expect(answer == claimed && has_new_lease(was.claims + 1) && same_due && same_record &&
			same_next)
	fi
}

inline table_of_renew() {
	if
	:: !was.is_leased -> expect(answer == gone && same_job)
	:: was.is_leased && !has_right_token -> expect(answer == foreign && same_job)
	:: else ->
		expect(answer == (was.is_cancelled -> cancelled : renewed) && redis.lease_left == LEASE &&
			redis.token == was.token && same_due && same_record && same_next)
	fi
}

inline table_of_settle() {
	if
	:: !was.is_leased -> expect(answer == gone && same_job)
	:: was.is_leased && !has_right_token -> expect(answer == foreign && same_job)
	:: else ->
		expect(!redis.is_leased);
		if
		:: call.script == settle_done ->
			expect(answer == done);
			ends(call.version)
		:: call.script != settle_done && was.is_cancelled ->
			expect(answer == cancelled);
			ends(call.version)
		:: call.script == settle_bury && !was.is_cancelled ->
			expect(answer == buried && redis.letter[was.shadow] == was.burials + 1)
		:: else ->
			if
			:: was.next != 0 ->
				expect(answer == replaced);
				ends(call.version)
			:: else ->
				expect(answer == later && is_new_record(was.shadow, call.attempts) &&
					is_pending((call.script == settle_failed -> DELAY : 0)))
			fi
		fi;
		if
		:: was.next != 0 -> expect(is_promoted)
		:: was.next == 0 && answer != later -> expect(is_absent)
		:: else
		fi
	fi
}

/* Notes that this script has met the job in this state. At its end pan says which have met, so
 * that nobody need wonder whether a row of the table was tried. */
c_decl {
	static const char *scripts[] = {
		"schedule", "if_absent", "if_present", "postpone", "fire", "cancel", "update", "requeue",
		"discard", "claim", "reclaim", "renew", "done", "failed", "returned", "bury"
	};
	static const char *states[] = {
		"absent", "dead", "pending", "waiting", "leased", "leased+next", "lapsed",
		"lapsed+next", "cancelled", "cancelled+next"
	};
	static int met[16][10];

	static void say_met(void) {
		for (int script = 0; script < 16; script++)
			for (int state = 0; state < 10; state++)
				if (met[script][state])
					printf("met: %s %s\n", scripts[script], states[state]);
	}
}
hidden byte state, script;

inline note_state() {
	if
	:: !was.is_due && !was.is_leased ->
		state = 0;
		for (n : 1 .. VERSIONS - 1) {
			state = (was.letter[n] != 0 -> 1 : state)
		}
	:: was.is_due -> state = (was.attempts == 0 -> 2 : 3)
	:: else ->
		state = (was.is_cancelled -> 8 : (was.lease_left > 0 -> 4 : 6)) + (was.next != 0)
	fi;
	/* The constants of an mtype count down. */
	script = schedule - call.script;
	c_code { met[script][state] = 1; }
}

/* Asserts that this call, in the state in which it found the job, did what the table says. */
inline check_table() {
	if
	:: seen != none ->
		/* A repeat or a late original. A claim gets the same job, its lease counted anew. */
		expect(same_due && same_record && same_next);
		if
		:: seen == answered && was.reply[from] == claimed && has_right_token ->
			expect(answer == claimed && redis.lease_left == LEASE && redis.token == was.token &&
				redis.claims == was.claims && redis.is_cancelled == was.is_cancelled)
		:: seen == answered && was.reply[from] == claimed && !has_right_token ->
			expect(answer == gone && same_lease)
		:: else -> expect((answer == refused || answer == was.reply[from]) && same_lease)
		fi;
		same_letters()
	:: else ->
		note_state();
		if
		:: call.script == schedule || call.script == if_absent || call.script == if_present ->
			table_of_schedule();
			same_letters()
		:: call.script == postpone -> table_of_reschedule(DELAY)
		:: call.script == fire -> table_of_reschedule(0)
		:: call.script == cancel ->
			table_of_cancel();
			same_letters()
		:: call.script == update -> table_of_update()
		:: call.script == requeue || call.script == discard -> table_of_letters()
		:: call.script == claim -> table_of_claim()
		:: call.script == reclaim ->
			table_of_reclaim();
			same_letters()
		:: call.script == renew -> table_of_renew()
		:: else -> table_of_settle()
		fi
	fi
}
