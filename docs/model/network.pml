/* What lies between a client and Redis. A call arrives or is overtaken, its reply arrives or is
 * lost; a try that was given up may still arrive, at any time. */

/* Sends a call, `draft`, in a lane that has none in hand. */
hidden Call draft;

inline send(l) {
	printf("lane %d: sends %e %d\n", l, draft.script, draft.number);
	copy_call(lane[l].current, draft);
	forget_call(draft);
	lane[l].phase = travels
}

byte faults;                    /* of the network, so far */

/* Sends the call in hand once more. What became of the first try: it is lost, or its reply is;
 * or, `lingers`, it is still under way. Only so many losses matter as there are repeats. */
inline repeat(l, lingers) {
	printf("lane %d: repeats %e %d\n", l, lane[l].current.script, lane[l].current.number);
	if
	:: lingers -> copy_call(lane[l].straggler, lane[l].current)
	:: else
	fi;
	faults++;
	forget_reply(l);
	lane[l].phase = travels
}
#define can_repeat(l) (lane[l].phase != idle && faults < FAULTS)
#define can_linger(l) (lane[l].phase == travels && lane[l].straggler.script == none)

/* Nobody waits for the call in hand any more. */
inline give_up(l, lingers) {
	printf("lane %d: gives up %e %d\n", l, lane[l].current.script, lane[l].current.number);
	if
	:: lingers -> copy_call(lane[l].straggler, lane[l].current)
	:: else
	fi;
	hang_up(l)
}

inline forget_reply(l) {
	lane[l].reply = none;
	lane[l].version = 0;
	lane[l].attempt = 0;
	lane[l].is_taken_over = false;
	lane[l].is_cancelled = false
}

inline hang_up(l) {
	forget_reply(l);
	forget_call(lane[l].current);
	lane[l].phase = idle;
	count_lane_anew(l)
}

/* Only the order of numbers counts, so a lane in which nothing is under way may begin anew,
 * unless something that lies on a disk remembers it. */
inline count_lane_anew(l) {
#ifdef ROLLBACK
	skip
#else
	if
	:: lane[l].phase == idle && lane[l].straggler.script == none ->
		redis.known[l] = 0;
		redis.reply[l] = none;
		redis.carried_out[l] = 0
	:: else
	fi
#endif
}

proctype Wire(byte l) {
end:	do
	:: d_step { lane[l].phase == travels ->
			from = l;
			is_current = true;
			copy_call(call, lane[l].current);
			carry_out();
			lane[l].phase = answered;
			lane[l].reply = answer;
			if
			:: (call.script == claim || call.script == reclaim) && answer == claimed ->
				lane[l].version = redis.shadow;
				lane[l].attempt = enough(redis.attempts + redis.claims);
				lane[l].is_taken_over = (redis.claims > 1);
				lane[l].is_cancelled = redis.is_cancelled
			:: else
			fi
		}
	:: d_step { lane[l].straggler.script != none ->
			from = l;
			is_current = false;
			copy_call(call, lane[l].straggler);
			forget_call(lane[l].straggler);
			carry_out();
			count_lane_anew(l)
		}
	od
}
