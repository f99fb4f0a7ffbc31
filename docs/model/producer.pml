/* A producer makes one call at a time, any of those that the bounds allow. Its calls have rising
 * numbers, over all producers, so that the number of a schedule also names what it brings. */

byte calls;                     /* that were made so far */

/* Nothing tells the producers apart, so the first call is that of the first. */
#define may(operation) (calls < CALLS && (calls > 0 || l == 0) && lane[l].phase == idle \
	&& ((OPERATIONS) & operation) != 0)

inline make(l, script_) {
	calls++;
	draft.script = script_;
	draft.number = calls;
	draft.version = calls;
	acked_before[l] = (script_ == cancel -> acked : 0);
	send(l)
}

/* Requeue and discard name a letter that was looked up before. */
inline make_of_letter(l, script_, version_) {
	calls++;
	draft.script = script_;
	draft.number = calls;
	draft.version = version_;
	draft.letter = redis.letter[version_];
	send(l)
}

inline acknowledged(l) {
	printf("lane %d: hears %e\n", l, lane[l].reply);
	if
	:: lane[l].reply == created || lane[l].reply == replaced || lane[l].reply == succeeds ->
		acked = acked | BIT(lane[l].current.version);
		check_nothing_lost()
	:: lane[l].current.script == cancel -> unwanted = unwanted | acked_before[l]
	:: else
	fi;
	acked_before[l] = 0;
	hang_up(l)
}

/* The outcome stays unknown. */
inline abandon(l, lingers) {
	faults++;
	acked_before[l] = 0;
	give_up(l, lingers)
}

proctype Producer(byte l) {
end:	do
	:: d_step { may(DO_SCHEDULE) -> make(l, schedule) }
	:: d_step { may(DO_IF_ABSENT) -> make(l, if_absent) }
	:: d_step { may(DO_IF_PRESENT) -> make(l, if_present) }
	:: d_step { may(DO_POSTPONE) -> make(l, postpone) }
	:: d_step { may(DO_FIRE) -> make(l, fire) }
	:: d_step { may(DO_CANCEL) -> make(l, cancel) }
	:: d_step { may(DO_UPDATE) -> make(l, update) }
	:: d_step { may(DO_REQUEUE) && redis.letter[1] != 0 -> make_of_letter(l, requeue, 1) }
	:: d_step { may(DO_DISCARD) && redis.letter[1] != 0 -> make_of_letter(l, discard, 1) }
	:: d_step { lane[l].phase == answered -> acknowledged(l) }
#ifdef REPEATS
	:: d_step { can_repeat(l) -> repeat(l, false) }
	:: d_step { can_repeat(l) && can_linger(l) -> repeat(l, true) }
	:: d_step { can_repeat(l) -> abandon(l, false) }
	:: d_step { can_repeat(l) && can_linger(l) -> abandon(l, true) }
#endif
	od
}
