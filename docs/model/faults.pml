/* Time, the disk, and how a run ends. */

#ifdef ROLLBACK
Ledger kept;                    /* what has reached the disk, or the replica */
bit is_kept;
bit is_restored;
#endif

/* A lease that a worker counts is over: the handler is stopped, and nothing is left to settle.
 * A thread that is blocked, or a process that is stopped, cannot be. */
inline stop_in_time(w) {
#ifndef BLOCKED
	if
	:: work[w].is_running && work[w].lease_left == 0 -> is_free(w)
	:: else
	fi
#else
	skip
#endif
}

#define is_waiting (redis.due_in > 0 || redis.next_in > 0 || redis.lease_left > 0 \
	|| valid_left > 0 || hints_wait)

inline tick_ledger(it) {
	it.due_in = it.due_in - (it.due_in > 0);
	it.next_in = it.next_in - (it.next_in > 0);
	it.lease_left = it.lease_left - (it.lease_left > 0)
}

proctype Clock() {
end:	do
	:: d_step { is_waiting ->
			printf("a tick\n");
			tick_ledger(redis);
#ifdef ROLLBACK
			tick_ledger(kept);
#endif
			valid_left = valid_left - (valid_left > 0);
			for (n : 0 .. WORKERS - 1) {
				work[n].lease_left = work[n].lease_left - (work[n].lease_left > 0);
				work[n].renewal_left = work[n].renewal_left - (work[n].renewal_left > 0);
				stop_in_time(n)
			}
			tick_hints()
		}
	od
}

#ifdef ROLLBACK
/* The server's connections break: what was on its way to it, or back, is sent again by whoever
 * waits for it. A late original is gone, unless something between the two has kept it. */
inline break_connections() {
	for (n : 0 .. LANES - 1) {
		if
		:: lane[n].phase == answered ->
			forget_reply(n);
			lane[n].phase = travels
		:: else
		fi;
#ifndef LATE_AFTER_ROLLBACK
		forget_call(lane[n].straggler)
#endif
	}
	skip
}

/* What the documentation admits: of the calls that the data set does not hold any more, nothing
 * is promised. Whatever it does hold, and whatever comes now, is promised as ever. */
inline write_off() {
	acked = acked & redis.accepted;
	for (n : 0 .. PRODUCERS - 1) {
		acked_before[n] = acked_before[n] & redis.accepted
	}
	ended = redis.ended;
	unwanted = unwanted & redis.ended;
	valid_left = redis.lease_left;
	latest_holder = redis.holder;
	latest_token = redis.token
}

/* Redis comes back with an earlier data set: a fail-over, or a restart without its last
 * writes. Its clock has gone on, unless it is another server's. */
proctype Disk() {
end:	do
	:: d_step { !is_kept -> is_kept = true; copy_ledger(kept, redis) }
	:: d_step { is_kept && !is_restored ->
			printf("Redis falls back\n");
			is_restored = true;
			copy_ledger(redis, kept);
			break_connections();
#ifdef ADMITTED
			write_off();
#endif
#ifndef CLOCK_BEHIND
			clock = largest_fence;
#endif
			check_ledger();
			check_nothing_lost()
		}
	od
}
#endif

/* Nothing more can happen. Then nothing may be left to do, unless the bound on claims keeps all
 * live workers from it. */
proctype End() {
end:	timeout;
	d_step {
		for (n : 0 .. LANES - 1) {
			assert(lane[n].phase == idle && lane[n].straggler.script == none || job_is_left_behind)
		}
		for (n : 0 .. WORKERS - 1) {
			assert(!is_alive[n] || !has_numbers(n) ||
				!redis.is_due && !redis.is_leased && redis.next == 0 && work[n].token == 0 ||
				job_is_left_behind)
		}
	}
}
